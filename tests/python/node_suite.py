"""ONNX's own node tests as they are: each run in our engine, and its gradients by differences.

A test is a model of one operator (or of its function body) with inputs and outputs. `run` compares
the outputs; `check_gradients` asks for the gradient of a random projection of the outputs by each
floating-point input, in float64, and compares it with differences of the model itself.
scripts/node_tests.py writes what comes out into tests/data/node_tests; test_node_suite.py compares.
"""

import os
import pickle
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

import gradient_models
import onnxgrad as og
from double_models import in_double
from onnxgrad.gradient_checks.slopes import SINGLE, Slopes

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/node_tests"
HALF = ("float16", "bfloat16")
# Their outputs are drawn: of these, types and shapes are compared.
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomUniform", "RandomNormalLike"}
RANDOM |= {"RandomUniformLike"}
OF_MANY_STEPS = {"Attention"}
# By convention not the derivative, which is zero: they pass the gradient straight on.
STRAIGHT_THROUGH = {"QuantizeLinear", "DynamicQuantizeLinear"}


class Case(NamedTuple):
    """A node test; of `inputs` and `outputs`, values of sequences are lists.

    `outputs` is None where only the gradient is looked at.
    """

    name: str
    operator: str
    model: onnx.ModelProto
    inputs: list[Any]
    outputs: list[Any] | None
    rtol: float
    atol: float
    # Fields of gradient_models.Small:
    pairs: dict[str, tuple[str, str]] | None = None
    straight_through: onnx.ModelProto | None = None

    @property
    def node(self) -> onnx.NodeProto | None:
        """The node of which it is the test; None where it is the test of a function body."""
        nodes = self.model.graph.node
        return nodes[0] if len(nodes) == 1 and nodes[0].op_type == self.operator else None

    def feeds(self) -> dict[str, Any]:
        """Return the inputs by name."""
        names = [value.name for value in self.model.graph.input]
        return dict(zip(names, self.inputs, strict=True))


def _value(value: Any, info: onnx.ValueInfoProto) -> Any:
    if info.type.tensor_type.elem_type == onnx.TensorProto.STRING:
        return np.asarray(value).astype(object)  # empty ones are made without a type
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list):
        return [_value(item, info) for item in value]
    return value if value is None or isinstance(value, dict) else np.asarray(value)


def _operator(name: str, model: onnx.ModelProto, operators: dict[str, str]) -> str:
    base = name.split("_expanded")[0]
    if base != name and base in operators:  # the body of a function
        return operators[base]
    return model.graph.node[0].op_type


def _collected() -> list[tuple]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    operators = {}
    for case in sorted(cases, key=lambda case: len(case.name)):
        operators[case.name] = _operator(case.name, case.model, operators)
    return [
        (
            case.name,
            operators[case.name],
            case.model.SerializeToString(),
            *(
                [_value(value, info) for value, info in zip(values, infos, strict=True)]
                for values, infos in zip(
                    case.data_sets[0],
                    (case.model.graph.input, case.model.graph.output),
                    strict=True,
                )
            ),
            case.rtol,
            case.atol,
        )
        for case in sorted(cases, key=lambda case: case.name)
    ]


@cache
def all_cases() -> tuple[Case, ...]:
    """Return ONNX's node tests. It takes ONNX seconds to make them, so they are kept in build/."""
    file = ROOT / f"build/node_tests-{onnx.__version__}-2.pickle"  # 2: their form
    if file.exists():
        stored = pickle.loads(file.read_bytes())
    else:
        stored = _collected()
        file.parent.mkdir(exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(stored))
        partial.replace(file)
    return tuple(
        Case(name, operator, onnx.load_model_from_string(model), *rest)
        for name, operator, model, *rest in stored
    )


def own_cases() -> Iterator[Case]:
    """Return the models of gradient_models."""
    for name, model in gradient_models.MODELS.items():
        proto, inputs = model.model(), model.inputs()
        outputs = gradient_models.expected(proto, inputs)
        pairs = model.pairs or None
        operator = next(iter(pairs.values()))[0] if pairs else proto.graph.node[0].op_type
        other = model.straight_through and model.model(model.straight_through)
        case = Case(f"own_{name}", operator, proto, inputs, outputs, 1e-7, 1e-7, pairs)
        yield case._replace(straight_through=other or None)


@cache
def cases_by_operator() -> dict[str, list[Case]]:
    """Return the tests of each operator, those of its function body and our own included."""
    found: dict[str, list[Case]] = {}
    for case in [*all_cases(), *own_cases()]:
        found.setdefault(case.operator, []).append(case)
    return dict(sorted(found.items()))


def error_text(error: BaseException) -> str:
    """Return the first line of an error, without the names of nodes and values."""
    text = str(error).splitlines()[0] if str(error) else ""
    text = re.sub(r"'[^']*'", "'...'", text).replace(" of '...'", "")
    return f"{type(error).__name__}: {text}"


def run(case: Case) -> str:
    """Run a test. Return "" if it does what it should, else the reason of the refusal.

    Raises AssertionError if an output is wrong.
    """
    try:
        outputs = og.InferenceSession(case.model, threads=1).run(None, case.feeds())
    except og.Error as error:
        return error_text(error)
    if case.outputs is None:
        return ""
    if len(outputs) < len(case.outputs):
        return "no output of such a type"
    is_random = any(_is_random(node) for node in case.model.graph.node)
    for value, given, wanted in zip(case.model.graph.output, outputs, case.outputs, strict=True):
        _compare(value.name, given, wanted, case, is_random)
    return ""


def _is_random(node: onnx.NodeProto) -> bool:
    return node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2)


def _has_no_derivative(case: Case, node: onnx.NodeProto) -> bool:
    return _is_random(node) or (node.op_type in STRAIGHT_THROUGH and case.straight_through is None)


def _compare(name: str, given: Any, wanted: Any, case: Case, is_random: bool) -> None:
    if isinstance(wanted, list):
        assert isinstance(given, list), f"{name}: not a sequence"
        assert len(given) == len(wanted), name
        for i, (one, other) in enumerate(zip(given, wanted, strict=True)):
            _compare(f"{name}[{i}]", one, other, case, is_random)
        return
    if wanted is None or isinstance(wanted, dict):
        assert given == wanted, name
        return
    given = np.asarray(given)
    assert given.shape == wanted.shape, f"{name}: {given.shape}, not {wanted.shape}"
    if wanted.dtype.kind in "OUT":
        assert given.astype(str).tolist() == wanted.astype(str).tolist(), name
        return
    assert given.dtype == wanted.dtype, f"{name}: {given.dtype}, not {wanted.dtype}"
    if is_random:
        return
    if wanted.dtype.name in ("float32", "float64", *HALF):
        # One unit in the last place, of types that have fewer than the tolerance says; two where
        # ONNX rounds the values on the way as well.
        rtol = {"bfloat16": 2.0**-7, "float16": 2.0**-10}.get(wanted.dtype.name, case.rtol)
        if wanted.dtype.name in HALF and case.operator in OF_MANY_STEPS:
            rtol *= 2
        np.testing.assert_allclose(
            given.astype(np.float64),
            wanted.astype(np.float64),
            rtol=max(rtol, case.rtol),
            atol=case.atol,
            err_msg=name,
        )
    else:
        if wanted.dtype.name.startswith("float"):  # 8 bits and fewer: NaN does not equal NaN
            given, wanted = given.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_array_equal(given, wanted, err_msg=name)


class Gradient(NamedTuple):
    """The result for one input of a test. Both strings are empty if the gradient is right."""

    operator: str
    input: str  # its formal name; "": an input of a function body
    problem: str  # description of the error
    refusal: str  # reason for which there is no gradient


def check_gradients(case: Case) -> Iterator[Gradient]:
    """Compare the gradient by each floating-point input with differences of the model."""
    if any(_has_no_derivative(case, node) for node in case.model.graph.node):
        return
    model, feeds = case.model, case.feeds()
    if case.straight_through is None:  # else it is in float64 where it can be
        model, feeds = in_double(model, feeds)
    try:
        slopes = Slopes(model, feeds, straight_through=case.straight_through)
    except og.Error:  # no form for float64
        model, feeds = case.model, case.feeds()
        slopes = Slopes(model, feeds, SINGLE)
    if not slopes.has_outputs:
        return
    for value in model.graph.input:
        array = feeds[value.name]
        if not isinstance(array, np.ndarray) or array.dtype not in (np.float64, np.float32):
            continue
        problem, refusal = "", ""
        try:
            problem = slopes.problem(value.name)
        except og.Error as error:
            refusal = error_text(error)
        for operator, name in _pairs(case, value.name):
            yield Gradient(operator, name, problem, refusal)


def _pairs(case: Case, value: str) -> list[tuple[str, str]]:
    """Return the operators with the formal inputs for which the gradient by an input speaks."""
    if case.pairs is not None:
        return [case.pairs[value]] if value in case.pairs else []
    node = case.node
    if node is None:
        return [(case.operator, "")]
    opset = next(o.version for o in case.model.opset_import if o.domain == node.domain)
    formals = onnx.defs.get_schema(node.op_type, opset, node.domain).inputs
    places = [min(i, len(formals) - 1) for i, name in enumerate(node.input) if name == value]
    return [(case.operator, formals[i].name) for i in places]
