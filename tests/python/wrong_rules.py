"""Wrong gradients for `check_gradients` to find, registered as users register theirs.

A rule is that of an operator of ONNX with a mistake in it, or that of an identity that is put on a
random value of a model. `draw_wrong(seed)` returns a model and a registration, and `harm` how far
the mistake moves gradients: one that moves none, as behind a Relu that is shut, is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import onnxgrad as og
from checked_models import draw_network
from double_models import in_double
from random_graphs import MORE_STEPS, draw_inputs, draw_model

HEADER = '<opset_import: ["" : 18], domain: "own">'
PASS = f"{HEADER} Pass (x) => (y) {{ y = Identity (x) }}"

_NUMBER = "k = Constant <value_float = {0}> () c = CastLike (k, dy)"
# Results that a wrong rule of an identity returns instead of dy.
MISTAKES = {
    "one percent more": f"{_NUMBER.format(1.01)} dx = Mul (dy, c)",
    "one percent less": f"{_NUMBER.format(0.99)} dx = Mul (dy, c)",
    "a factor of two": f"{_NUMBER.format(0.5)} dx = Mul (dy, c)",
    "the sign": "dx = Neg (dy)",
    "nothing": "dx = Sub (dy, dy)",
    "backwards": """n = Constant <value_ints = [-1]> () s = Shape (dy) f = Reshape (dy, n)
        e = Constant <value_ints = [-9223372036854775807]> () z = Constant <value_ints = [0]> ()
        r = Slice (f, n, e, z, n) dx = Reshape (r, s)""",
    "the mean": "m = ReduceMean (dy) s = Shape (dy) dx = Expand (m, s)",
    "without the mean": "m = ReduceMean (dy) dx = Sub (dy, m)",
    "the size": "dx = Abs (dy)",
    "a term more": f"{_NUMBER.format(0.02)} t = Mul (x, c) dx = Add (dy, t)",
    "no negative ones": "dx = Relu (dy)",
}
_ONE = "k = Constant <value_float = 1.0> () one = CastLike (k, dy)"
# Operators of ONNX with rules that look right.
OPERATORS = {
    ("Tanh", "without the square"): f"{_ONE} t = Sub (one, y) dx = Mul (t, dy)",
    ("Tanh", "of the input"): f"{_ONE} q = Mul (x, x) t = Sub (one, q) dx = Mul (t, dy)",
    ("Sigmoid", "a factor missing"): "dx = Mul (y, dy)",
    ("Sigmoid", "the square"): f"{_ONE} q = Mul (y, y) t = Sub (one, q) dx = Mul (t, dy)",
    ("Relu", "everywhere"): "dx = Identity (dy)",
    ("Relu", "off by one percent"): (
        f"{_NUMBER.format(1.01)} s = Sign (y) t = Mul (s, dy) dx = Mul (t, c)"
    ),
    ("Sin", "the sine"): "dx = Mul (y, dy)",
    ("Sin", "the sign"): "s = Cos (x) t = Mul (s, dy) dx = Neg (t)",
    ("Cos", "the sign"): "s = Sin (x) dx = Mul (s, dy)",
    ("Abs", "off by one percent"): (
        f"{_NUMBER.format(0.99)} s = Sign (x) t = Mul (s, dy) dx = Mul (t, c)"
    ),
    ("Abs", "the value"): "dx = Mul (x, dy)",
    ("Exp", "one less"): f"{_ONE} t = Sub (y, one) dx = Mul (t, dy)",
    ("Sqrt", "without one half"): "dx = Div (dy, y)",
    ("Softmax", "a term missing"): "dx = Mul (y, dy)",
    ("Softmax", "over all"): (
        "t = Mul (y, dy) s = ReduceSum <keepdims = 0> (t) u = Sub (dy, s) dx = Mul (y, u)"
    ),
    ("LogSoftmax", "a term missing"): "dx = Identity (dy)",
    ("LogSoftmax", "off by one percent"): (
        f"{_NUMBER.format(0.99)} a = Constant <value_ints = [-1]> () "
        "s = ReduceSum <keepdims = 1> (dy, a) p = Exp (y) t = Mul (p, s) u = Mul (t, c) "
        "dx = Sub (dy, u)"
    ),
    ("Softplus", "of the output"): "s = Sigmoid (y) dx = Mul (s, dy)",
    ("Neg", "the sign"): "dx = Identity (dy)",
    ("Reciprocal", "the sign"): "q = Mul (y, y) dx = Mul (q, dy)",
    ("GlobalAveragePool", "without the number"): "s = Shape (x) dx = Expand (dy, s)",
    ("HardSwish", "of Sigmoid"): "s = Sigmoid (x) dx = Mul (s, dy)",
}
_GEMM = """t = Transpose <perm = [1, 0]> (b) u = Transpose <perm = [1, 0]> (a)
    z = Constant <value_ints = [0]> () da = MatMul (dy, t) db = MatMul (u, dy)
    dc = ReduceSum <keepdims = 0> (dy, z)"""
# Wrong rules of dense layers without alpha, beta and transposition.
GEMM = {
    "the mean over rows": _GEMM.replace("ReduceSum", "ReduceMean"),
    "the sign of the input's": _GEMM.replace(
        "da = MatMul (dy, t)", "d = MatMul (dy, t) da = Neg (d)"
    ),
    "one row less": _GEMM.replace(
        "db = MatMul (u, dy)",
        "e = Constant <value_ints = [1]> () f = Constant <value_ints = [99]> () "
        "g = Slice (dy, e, f, z) h = Slice (u, e, f, e) db = MatMul (h, g)",
    ),
    "off by one percent": _GEMM.replace(
        "db = MatMul (u, dy)", f"{_NUMBER.format(1.01)} d = MatMul (u, dy) db = Mul (d, c)"
    ),
}

Register = Callable[[], contextlib.AbstractContextManager[Any]]


def draw_right(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a random model in float32 and its inputs."""
    if seed % 2:
        inputs = draw_inputs(seed, 3, np.float32)
        del inputs["label"]
        return draw_model(seed, np.float32, MORE_STEPS), inputs
    return draw_network(seed)


def draw_wrong(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray], str, Register]:
    """Return a model with one output, its inputs, and the name and registration of a mistake."""
    model, inputs = draw_right(seed)
    rng = np.random.default_rng([seed, 7])
    kinds = {node.op_type for node in model.graph.node}
    rules = [key for key in OPERATORS if key[0] in kinds]
    plain = [node for node in model.graph.node if node.op_type == "Gemm" and not node.attribute]
    is_plain = len(plain) == sum(node.op_type == "Gemm" for node in model.graph.node)
    draw = rng.random()
    if plain and is_plain and draw < 0.15:
        name = str(rng.choice(list(GEMM)))
        rule = f"{HEADER} Rule (a, b, v, dy) => (da, db, dc) {{ {GEMM[name]} }}"
        return model, inputs, f"Gemm: {name}", lambda: og.register_gradient("Gemm", rule)
    if rules and draw < 0.5:
        operator, name = rules[int(rng.integers(len(rules)))]
        rule = f"{HEADER} Rule (x, y, dy) => (dx) {{ {OPERATORS[operator, name]} }}"
        return model, inputs, f"{operator}: {name}", lambda: og.register_gradient(operator, rule)
    name = str(rng.choice(list(MISTAKES)))
    place = put_identity(model, rng)
    rule = f"{HEADER} Rule (x, dy) => (dx) {{ {MISTAKES[name]} }}"
    return model, inputs, f"{name} at {place}", lambda: og.register_operator(PASS, rule)


def put_identity(model: onnx.ModelProto, rng: np.random.Generator) -> str:
    """Put own.Pass on a random inner value; return its name."""
    read = {name for node in model.graph.node for name in node.input}
    floats = [
        node.output[0]
        for node in model.graph.node
        if node.op_type not in ("ArgMax", "Greater", "Less") and node.output[0] in read
    ]
    name = str(rng.choice(floats))
    for node in model.graph.node:
        for i, read in enumerate(node.input):
            if read == name:
                node.input[i] = f"{name}_passed"
    i = next(i for i, node in enumerate(model.graph.node) if name in node.output)
    node = helper.make_node("Pass", [name], [f"{name}_passed"], domain="own")
    model.graph.node.insert(i + 1, node)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return name


def harm(model: onnx.ModelProto, inputs: dict[str, np.ndarray], register: Register) -> float:
    """Return how far the mistake moves the gradient by some input or weight, relative to it."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    double, moved = in_double(model, inputs | weights)
    identity = f"{HEADER} Rule (x, dy) => (dx) {{ dx = Identity (dy) }}"
    is_own = any(node.domain == "own" for node in model.graph.node)
    right_rules = og.register_operator(PASS, identity) if is_own else contextlib.nullcontext()
    with right_rules:
        right = gradients(double, moved)
    with register():
        wrong = gradients(double, moved)
    worst = 0.0
    for name, value in right.items():
        size = max(np.linalg.norm(value), np.linalg.norm(wrong[name]), 1e-7)
        worst = max(worst, float(np.linalg.norm(value - wrong[name]) / size))
    return worst


def gradients(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    skipped = {
        name for node in model.graph.node if node.op_type == "Resize" for name in node.input[1:]
    }
    read = {name for node in model.graph.node for name in node.input} - skipped
    arrays = {**weights, **inputs}
    names = [name for name in arrays if name in read and arrays[name].dtype == np.float64]
    outputs = og.InferenceSession(model).run(
        None, {name: value for name, value in inputs.items() if name not in weights}
    )
    rng = np.random.default_rng(0)
    seeds = {
        f"{value.name}_grad": rng.uniform(0.5, 1.5, output.shape)
        for value, output in zip(model.graph.output, outputs, strict=True)
    }
    gradient = og.gradient(model, names)
    session = og.InferenceSession(gradient)
    fed = {**arrays, **seeds}
    for value in model.graph.input:  # as the scales of Resize, which stay float32
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        fed[value.name] = fed[value.name].astype(dtype)
    found = session.run(None, {value.name: fed[value.name] for value in session.get_inputs()})
    return {
        value.name.removesuffix("_grad"): array
        for value, array in zip(session.get_outputs(), found, strict=True)
    }
