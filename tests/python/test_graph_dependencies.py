"""Dependencies of the values of a graph, also through subgraphs of subgraphs."""

import onnx.parser
import pytest

from onnxgrad.compat.graphs import tools
from onnxgrad.gradient_checks.cut import cut
from onnxgrad.graphs.dependencies import names_above, names_read

NESTED = """
<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[2] x, float[2] u) => (float[2] y, float[2] z)
<float[2] w = {1, 2}, float[2] v = {3, 4}>
{
  a = Add (x, w)
  b = Mul (u, v)
  y = If (c) <
    then_branch = t () => (float[2] s) {
      s = If (c) <
        then_branch = tt () => (float[2] p) { p = Neg (a) },
        else_branch = te () => (float[2] a) { }
      >
    },
    else_branch = e () => (float[2] q) { q = Identity (x) }
  >
  z = Neg (b)
}
"""


@pytest.fixture
def model():
    return onnx.parser.parse_model(NESTED)


def test_reads_of_nested_subgraphs_count(model):
    branch = model.graph.node[2]
    assert {"c", "a", "x"} <= {*names_read(branch)}
    assert "b" not in {*names_read(branch)}


def test_names_above(model):
    above = names_above(model.graph.node, ["y"])
    assert {"c", "x", "w", "a", "y"} <= above
    assert not above & {"b", "u", "v", "z"}
    assert names_above(reversed(model.graph.node), ["z"]) == {"z", "b", "u", "v"}


@pytest.mark.parametrize("part", [cut, tools.select])
def test_a_model_cut_to_an_output_keeps_what_nested_subgraphs_read(model, part):
    found = part(model, ["y"])
    if part is cut:  # tools.select keeps the inputs unless some are named
        assert [value.name for value in found.graph.input] == ["c", "x"]
    assert [value.name for value in found.graph.initializer] == ["w"]
    assert [node.output[0] for node in found.graph.node] == ["a", "y"]
