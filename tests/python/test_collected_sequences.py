"""Lists that a Loop collects while its number of iterations depends on data, with gradients."""

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
from onnxgrad.gradient_checks.slopes import Slopes

COLLECT = """<ir_version: 10, opset_import: ["" : 21]>
g (double[2, 3] x, double[3, 3] w, double limit) => (double[M, K] y) <int64 many = {20}> {
  none = SequenceEmpty <dtype = 11> ()
  yes = Constant <value = bool {1}> ()
  last, list = Loop <body = step (int64 i, bool c, double[2, 3] h, seq(double[2, 3]) rows)
      => (bool more, double[2, 3] next, seq(double[2, 3]) longer) {
    product = MatMul (h, w)
    grown = Exp (product)
    next = Mul (grown, h)
    longer = SequenceInsert (rows, next)
    sum = ReduceSum <keepdims = 0> (next)
    more = Less (sum, limit)
  }> (many, yes, x, none)
  @
}"""
READERS = {
    "at": "place = Constant <value = int64 {-2}> ()\n y = SequenceAt (list, place)",
    "at_a_place_of_the_data": "n = SequenceLength (list)\n two = Constant <value = int64 {2}> ()\n"
    "half = Div (n, two)\n y = SequenceAt (list, half)",
    "joined": "y = ConcatFromSequence <axis = -1> (list)",
    "stacked": """all = ConcatFromSequence <axis = 0, new_axis = 1> (list)
      first = Constant <value = int64[1] {0}> ()
      y = ReduceMax <keepdims = 0> (all, first)""",
    "length": """n = SequenceLength (list)
      number = Cast <to = 11> (n)
      y = Mul (last, number)""",
    "in_another_loop": """n = SequenceLength (list)
      y = Loop <body = sum (int64 j, bool c2, double[2, 3] s) => (bool c3, double[2, 3] t) {
        c3 = Identity (c2)
        row = SequenceAt (list, j)
        square = Mul (row, row)
        t = Add (s, square)
      }> (n, , x)""",
}


def model(reader: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(COLLECT.replace("@", reader).replace("double[M, K] y", "y"))


@pytest.mark.parametrize("limit", [2.0, 30.0])
@pytest.mark.parametrize("name", READERS)
def test_gradients(name: str, limit: float) -> None:
    rng = np.random.default_rng(3)
    feeds = {
        "x": rng.uniform(0.1, 0.4, (2, 3)),
        "w": rng.uniform(0.1, 0.5, (3, 3)),
        "limit": np.array(limit),
    }
    if limit == 2.0 and name == "at":
        feeds["limit"] = np.array(5.0)  # a list of one has no second to last
    slopes = Slopes(model(READERS[name]), feeds)
    assert slopes.problem("x") == ""
    assert slopes.problem("w") == ""


def test_reports_tell_that_lists_have_a_gradient() -> None:
    def gradients(proto: onnx.ModelProto) -> dict[str, bool]:
        return {use.op_type: use.has_gradient for use in og.report(proto).operators}

    assert gradients(model(READERS["joined"]))["ConcatFromSequence"]
    # A list that begins with what the loop is given remains one while the model runs.
    longer = READERS["joined"].replace("(list)", "(list2)")
    proto = model(f"list2 = SequenceInsert (list, x)\n{longer}")
    assert gradients(proto)["ConcatFromSequence"]


def test_a_state_that_grows_has_a_gradient() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (double[1, 3] x) => (double[N, 3] y) <int64 many = {4}> {
          y = Loop <body = step (int64 i, bool c, double[R, 3] h) => (bool c1, double[Q, 3] next) {
            c1 = Identity (c)
            square = Mul (h, x)
            next = Concat <axis = 0> (h, square)
          }> (many, , x)
        }"""
    )
    assert og.InferenceSession(proto).run(None, {"x": np.ones((1, 3))})[0].shape == (16, 3)
    slopes = Slopes(proto, {"x": np.full((1, 3), 0.5)})
    assert slopes.problem("x") == ""
