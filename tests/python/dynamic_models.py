"""Small networks with branches and data-dependent shapes, each beside what it amounts to."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser

from half_models import to_half

TYPES = {"float32": "float", "float64": "double"}

# The network around the middle: h0 [N, 4] goes in, h [N, 4] comes out.
NETWORK = """
<ir_version: 10, opset_import: ["" : 18]>
network ($T[N, 3] x%(inputs)s) => ($T[%(rows)s, $C] y)
<$T[3, 4] w0 = {%(w0)s}, $T[4, $C] w1 = {%(w1)s}, $T[4] scale = {1, 2, 0.5, 1},
 $T[4] shift = {0.1, 0, -0.2, 0.3}, $T[4] mean = {0, 0.1, 0.2, 0}, $T[4] variance = {1, 2, 1, 1},
 $T none = {0}, $T low = {-100}, int64 zero = {0}, int64 two = {2}, int64[1] last = {-1},
 int64[1] first = {0}, int64[1] pair = {2}, int64[1] end = {4}, int64[1] begin = {2},
 int64[2] fixed = {-1, 4}, $T[5] misfit = {1, 2, 3, 4, 5}, bool on = {1}>
{
  h0 = MatMul(x, w0)
  %(middle)s
  y = MatMul(h, w1)
}
"""

SUM = "s = ReduceSum<keepdims = 0>(x)\n"


def branch(output, condition, taken, other, values="$T[N, 4]"):
    """An If whose branches compute `output`; `{y}` is its placeholder in their bodies."""
    then, els = (
        body.replace("{y}", f"{output}_{side}") for body, side in ((taken, "a"), (other, "b"))
    )
    return f"""{output} = If ({condition}) <
      then_branch = t_{output} () => ({values} {output}_a) {{ {then} }},
      else_branch = e_{output} () => ({values} {output}_b) {{ {els} }}>\n"""


@dataclass
class Kind:
    """`middle` computes h from h0, as `plain` does for the data that `sign` gives."""

    middle: str
    plain: str
    sign: float = 1.0
    inputs: str = ""
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    rows: str = "N"
    selects: bool = False

    def build(self, dtype, columns, plain=False):
        rng = np.random.default_rng(11)
        drawn = {
            name: ", ".join(f"{v:.6f}" for v in rng.normal(0, 0.6, size))
            for name, size in (("w0", 12), ("w1", 4 * columns))
        }
        parts = (self.plain, "", "N") if plain else (self.middle, self.inputs, self.rows)
        text = NETWORK % {**dict(zip(("middle", "inputs", "rows"), parts, strict=True)), **drawn}
        text = text.replace("$T", TYPES.get(dtype, "float")).replace("$C", str(columns))
        model = onnx.parser.parse_model(text)
        if dtype not in TYPES:
            model = to_half(model, dtype)
        onnx.checker.check_model(model)
        return model


POSITIVE = SUM + "c = Greater(s, none)\n"
RANK = "shape = Shape(h0)\n rank = Size(shape)\n is_scalar = Equal(rank, zero)\n"

KINDS = {
    "plain": Kind("h = Relu(h0)", "h = Relu(h0)"),
    "if_then": Kind(
        POSITIVE + branch("h", "c", "{y} = Relu(h0)", "{y} = Tanh(h0)"), "h = Relu(h0)"
    ),
    "if_else": Kind(
        POSITIVE + branch("h", "c", "{y} = Relu(h0)", "q = Mul(h0, shift)  {y} = Tanh(q)"),
        "q = Mul(h0, shift)  h = Tanh(q)",
        sign=-1.0,
    ),
    "if_known": Kind(
        RANK + branch("h", "is_scalar", "{y} = Add(h0, misfit)", "{y} = Tanh(h0)"),
        "h = Tanh(h0)",
    ),
    "ifs_known": Kind(
        RANK
        + branch("g", "is_scalar", "{y} = Reshape(h0, last)", "{y} = Identity(h0)", "$T[P, Q]")
        + "g_shape = Shape(g)\n g_rank = Size(g_shape)\n g_flat = Equal(g_rank, two)\n"
        + branch("h", "g_flat", "{y} = Mul(g, scale)", "{y} = Reshape(g, last)", "$T[R, S]"),
        "h = Mul(h0, scale)",
    ),
    "ifs_on_data": Kind(
        POSITIVE
        + branch("g", "c", "{y} = Mul(h0, scale)", "{y} = Neg(h0)")
        + "top = ReduceMax<keepdims = 0>(g)\n small = Less(top, low)\n"
        + branch("h", "small", "{y} = Exp(g)", "{y} = Add(g, shift)"),
        "g = Mul(h0, scale)  h = Add(g, shift)",
    ),
    "nonzero": Kind(
        "f = ReduceSum(h0, last)\n kept = Greater(f, low)\n n = NonZero(kept)\n"
        "n0 = Slice(n, first, begin, first)\n"
        "n1 = Gather(n, zero)\n g = Gather(h0, n1)\n h = Tanh(g)",
        "h = Tanh(h0)",
        rows="M",
    ),
    "selected": Kind(
        "f = Slice(x, first, pair, last)\n g0 = ReduceSum(f, last)\n kept = Greater(g0, none)\n"
        "n = NonZero(kept)\n n1 = Gather(n, zero)\n g = Gather(h0, n1)\n h = Tanh(g)",
        "h = Tanh(h0)",
        rows="M",
        selects=True,
    ),
    "fed_shape": Kind(
        "g = Reshape(h0, shape)\n h = Relu(g)",
        "h = Relu(h0)",
        inputs=", int64[2] shape",
        feeds={"shape": np.array([-1, 4])},
        rows="M",
    ),
    "rotary": Kind(
        "d = Shape<start = -1>(h0)\n half = Div(d, pair)\n"
        "a = Slice(h0, half, d, last)\n b = Slice(h0, first, half, last)\n na = Neg(a)\n"
        "r = Concat<axis = -1>(na, b)\n h = Mul(r, scale)",
        "a = Slice(h0, begin, end, last)\n b = Slice(h0, first, begin, last)\n na = Neg(a)\n"
        "r = Concat<axis = -1>(na, b)\n h = Mul(r, scale)",
    ),
    "dropout_in_if": Kind(
        POSITIVE + branch("h", "c", "q = Relu(h0)  {y} = Dropout(q, none, on)", "{y} = Tanh(h0)"),
        "h = Relu(h0)",
    ),
    "normalization_in_if": Kind(
        POSITIVE
        + branch(
            "h",
            "c",
            "{y} = BatchNormalization(h0, scale, shift, mean, variance)",
            "{y} = Tanh(h0)",
        ),
        "h = BatchNormalization(h0, scale, shift, mean, variance)",
    ),
}
