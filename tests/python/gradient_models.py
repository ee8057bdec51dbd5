"""Models for gradients that no node test of ONNX has, or has in a form without one.

`node_suite` treats them as tests, with outputs of ONNX's reference evaluator where that computes
the operator.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnx.reference
from onnx import helper, numpy_helper


class Small(NamedTuple):
    """Statements in ONNX's text syntax, and the shapes of the inputs, which are uniform.

    Its outputs are those of the last statement. `fixed` are constants. `pairs` are the operators'
    inputs for which the gradient by an input of the model speaks ({"x": ("If", "captures")});
    without it the model is of one node, and each input speaks for the one that it is given for.
    `straight_through` are statements with the same inputs and outputs whose derivative the gradient
    is by convention, where it is not that of the function itself.
    """

    statements: str
    shapes: dict[str, list[int]]
    fixed: dict[str, np.ndarray] = {}  # noqa: RUF012
    pairs: dict[str, tuple[str, str]] = {}  # noqa: RUF012
    low: float = -1.0
    high: float = 1.0
    opset: int = 26
    straight_through: str = ""

    def model(self, statements: str = "") -> onnx.ModelProto:
        """Return the model in float64, or one of other statements."""
        double = onnx.TensorProto.DOUBLE
        text = f"own () => () {{ {statements or self.statements} }}"
        nodes = onnx.parser.parse_graph(text).node
        inputs = [
            helper.make_tensor_value_info(name, double, shape)
            for name, shape in self.shapes.items()
        ]
        outputs = [
            helper.make_tensor_value_info(name, double, None) for name in nodes[-1].output if name
        ]
        constants = [numpy_helper.from_array(array, name) for name, array in self.fixed.items()]
        graph = helper.make_graph(nodes, "own", inputs, outputs, constants)
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10)

    def inputs(self) -> list[np.ndarray]:
        """Return the same numbers each time."""
        rng = np.random.default_rng(7)
        return [rng.uniform(self.low, self.high, shape) for shape in self.shapes.values()]


MODELS = {
    "conv_bias": Small(
        "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)",
        {"x": [1, 2, 4, 4], "w": [3, 2, 3, 3], "b": [3]},
    ),
    "conv_transpose_bias": Small(
        "y = ConvTranspose <strides = [2, 2]> (x, w, b)",
        {"x": [1, 2, 3, 3], "w": [2, 3, 3, 3], "b": [3]},
    ),
    "global_lp_pool": Small("y = GlobalLpPool <p = 3> (x)", {"x": [2, 3, 4, 2]}),
    "gru_initial_state": Small(
        "y, last = GRU <hidden_size = 2> (x, w, r, b, , h)",
        {"x": [3, 2, 2], "w": [1, 6, 2], "r": [1, 6, 2], "b": [1, 12], "h": [1, 2, 2]},
    ),
    "rnn_initial_state": Small(
        "y, last = RNN <hidden_size = 2> (x, w, r, b, , h)",
        {"x": [3, 2, 2], "w": [1, 2, 2], "r": [1, 2, 2], "b": [1, 4], "h": [1, 2, 2]},
    ),
    "max_roi_pool": Small(
        "y = MaxRoiPool <pooled_shape = [2, 2]> (x, rois)",
        {"x": [1, 2, 6, 6]},
        {"rois": np.array([[0.0, 0, 0, 4, 3], [0, 1, 2, 5, 5]])},
    ),
    "if_captures": Small(
        """sum = ReduceSum <keepdims = 0> (x)
        positive = Greater (sum, zero)
        y = If (positive) <then_branch = a () => (double[2, 3] p) { p = Mul (x, x) },
                           else_branch = b () => (double[2, 3] q) { q = Exp (x) }>""",
        {"x": [2, 3]},
        {"zero": np.array(0.0)},
        {"x": ("If", "captures")},
    ),
    "scan": Small(
        """last, all = Scan <num_scan_inputs = 1,
            body = step (double[3] h, double[3] x) => (double[3] next, double[3] row) {
          product = Mul (h, x)
          next = Sin (product)
          row = Add (next, x)
        }> (h0, xs)""",
        {"h0": [3], "xs": [4, 3]},
        pairs={"h0": ("Scan", "states"), "xs": ("Scan", "inputs")},
    ),
    "sequence_construct": Small(
        """s = SequenceConstruct (a, b)
        y = ConcatFromSequence <axis = 0> (s)""",
        {"a": [2, 3], "b": [1, 3]},
        pairs={"a": ("SequenceConstruct", "inputs")},
    ),
    "concat_from_sequence": Small(
        """s = SequenceConstruct (a, b)
        y = ConcatFromSequence <axis = -1, new_axis = 1> (s)""",
        {"a": [2, 3], "b": [2, 3]},
        pairs={"a": ("ConcatFromSequence", "input_sequence")},
    ),
    "sequence_at": Small(
        """s = SequenceConstruct (a, b)
        element = SequenceAt (s, one)
        y = Exp (element)""",
        {"a": [2, 3], "b": [2, 3]},
        {"one": np.array(1)},
        {"b": ("SequenceAt", "input_sequence")},
    ),
    "sequence_insert": Small(
        """s = SequenceConstruct (a)
        longer = SequenceInsert (s, b)
        y = ConcatFromSequence <axis = 0> (longer)""",
        {"a": [2, 3], "b": [1, 3]},
        pairs={"b": ("SequenceInsert", "tensor")},
    ),
    "sequence_erase": Small(
        """s = SequenceConstruct (a, b)
        shorter = SequenceErase (s, one)
        y = ConcatFromSequence <axis = 0> (shorter)""",
        {"a": [2, 3], "b": [1, 3]},
        {"one": np.array(1)},
        {"a": ("SequenceErase", "input_sequence")},
    ),
    "sequence_map": Small(
        """s = SequenceConstruct (a, b)
        squares = SequenceMap <body = square (double[N, 3] e) => (double[N, 3] f) {
          f = Mul (e, e)
        }> (s)
        y = ConcatFromSequence <axis = 0> (squares)""",
        {"a": [2, 3], "b": [1, 3]},
        pairs={"a": ("SequenceMap", "input_sequence")},
    ),
    "split_to_sequence": Small(
        """s = SplitToSequence (x)
        row = SequenceAt (s, one)
        y = Exp (row)""",
        {"x": [3, 2]},
        {"one": np.array(1)},
        {"x": ("SplitToSequence", "input")},
    ),
    "quantize": Small(
        """single = Cast <to = 1> (x)
        step = Exp (s)
        scale = Cast <to = 1> (step)
        q = QuantizeLinear <axis = 1> (single, scale, zero)
        turned = Transpose (q)
        y = Cast <to = 11> (turned)""",
        {"x": [4, 2], "s": [2]},
        {"zero": np.array([2, 120], np.uint8)},
        {"x": ("QuantizeLinear", "x"), "s": ("QuantizeLinear", "y_scale")},
        low=-9.0,
        high=1.0,
        straight_through="""step = Exp (s)
        zeros = Cast <to = 11> (zero)
        steps = Div (x, step)
        places = Add (steps, zeros)
        none = Constant <value = double {0}> ()
        most = Constant <value = double {255}> ()
        clipped = Clip (places, none, most)
        y = Transpose (clipped)""",
    ),
    "optional": Small(
        """held = Optional (x)
        element = OptionalGetElement (held)
        y = Exp (element)""",
        {"x": [3, 2]},
        pairs={"x": ("Optional", "input")},
    ),
}


def expected(model: onnx.ModelProto, inputs: list[Any]) -> list[Any] | None:
    """Return what ONNX's reference evaluator computes; None where it does not know the operator."""
    feeds = dict(zip((value.name for value in model.graph.input), inputs, strict=True))
    try:
        return onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    except (NotImplementedError, AttributeError):  # the latter: a list in an Optional
        return None
