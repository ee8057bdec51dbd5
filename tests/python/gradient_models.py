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
    "max_roi_pool": Small(
        "y = MaxRoiPool <pooled_shape = [2, 2]> (x, rois)",
        {"x": [1, 2, 6, 6]},
        {"rois": np.array([[0.0, 0, 0, 4, 3], [0, 1, 2, 5, 5]])},
    ),
}


def expected(model: onnx.ModelProto, inputs: list[Any]) -> list[Any] | None:
    """Return what ONNX's reference evaluator computes; None where it does not know the operator."""
    feeds = dict(zip((value.name for value in model.graph.input), inputs, strict=True))
    try:
        return onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    except NotImplementedError:
        return None
