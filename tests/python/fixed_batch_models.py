"""Models whose files fix the batch, as exporters write them; weights are from a fixed seed."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper


@dataclass(frozen=True)
class Fixed:
    """A model in ONNX's text syntax; each name of `weights` becomes an initializer."""

    name: str
    rows: int
    text: str
    weights: dict = field(default_factory=dict)  # shape, or an array
    opset: int = 18
    batch_inputs: tuple = ("x",)
    obstacle: str = ""  # part of the message; empty: the batch is opened

    def proto(self, seed=0):
        rng = np.random.default_rng(seed)
        head = f'<ir_version: 8, opset_import: ["" : {self.opset}]>'
        model = onnx.parser.parse_model(f"{head}\n{self.text}")
        for name, value in self.weights.items():
            if isinstance(value, tuple):
                value = (rng.standard_normal(value) * 0.4).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        onnx.checker.check_model(model)
        return model

    def feeds(self, rows, seed=1):
        """Random inputs with this many rows."""
        rng = np.random.default_rng(seed)
        feeds = {}
        for value in self.proto().graph.input:
            tensor = value.type.tensor_type
            shape = [dim.dim_value or 5 for dim in tensor.shape.dim]
            if value.name in self.batch_inputs:
                shape[0] = rows
            if tensor.elem_type == onnx.TensorProto.INT64:
                feeds[value.name] = rng.integers(0, 3, shape)
            else:
                feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        return feeds


def ints(*values):
    """A constant int64 [n]."""
    return np.array(values, np.int64)


CNN = """
g (float[1, 1, 6, 6] x) => (float[1, 3] y) {
  c = Conv <pads = [1, 1, 1, 1]> (x, k, kb)  r = Relu(c)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  f = Reshape(p, shape)  y = Gemm <transB = 1> (f, w, b) }
"""

# Attention as torch.nn.MultiheadAttention is exported: time first, heads next to the batch.
ATTENTION = """
g (float[{N}, 3, 8] x) => (float[{N}, 3, 8] y) {{
  t = Transpose <perm = [1, 0, 2]> (x)  qkv = MatMul(t, win)
  q, k, v = Split <axis = 2, num_outputs = 3> (qkv)
  qs = Reshape(q, heads)  ks = Reshape(k, heads)  vs = Reshape(v, heads)
  qt = Transpose <perm = [1, 0, 2]> (qs)  kt = Transpose <perm = [1, 2, 0]> (ks)
  vt = Transpose <perm = [1, 0, 2]> (vs)
  s = MatMul(qt, kt)  p = Softmax <axis = -1> (s)  c = MatMul(p, vt)
  ct = Transpose <perm = [1, 0, 2]> (c)  flat = Reshape(ct, rows)
  o = Gemm(flat, wout, bout)  back = Reshape(o, whole)
  y = Transpose <perm = [1, 0, 2]> (back) }}
"""


def attention(rows):
    return Fixed(
        f"attention_{rows}",
        rows,
        ATTENTION.format(N=rows),
        {
            "win": (8, 24),
            "wout": (8, 8),
            "bout": (8,),
            "heads": ints(3, rows * 2, 4),
            "rows": ints(3 * rows, 8),
            "whole": ints(3, rows, 8),
        },
    )


LSTM = """
g (float[{N}, 4, 3] x) => (float[{N}, 5] y) {{
  t = Transpose <perm = [1, 0, 2]> (x)
  a, h, c = LSTM <hidden_size = 5> (t, w, r, , , h0, h0)
  axes = Constant <value = int64[1] {{0}}> ()  y = Squeeze(h, axes) }}
"""

OPENED = [
    Fixed(
        "cnn_1",
        1,
        CNN,
        {"k": (2, 1, 3, 3), "kb": (2,), "w": (3, 18), "b": (3,), "shape": ints(1, 18)},
    ),
    Fixed(
        "cnn_1_rest",
        1,
        CNN,
        {"k": (2, 1, 3, 3), "kb": (2,), "w": (3, 18), "b": (3,), "shape": ints(1, -1)},
    ),
    Fixed(
        "only_shapes", 4, "g (float[4, 3] x) => (float[4, 2] y) { y = MatMul(x, w) }", {"w": (3, 2)}
    ),
    # Every dimension is the batch, and so is every constant.
    Fixed(
        "ambiguous",
        4,
        """g (float[4, 4, 4] x) => (float[4, 4] y) {
          a = MatMul(x, w)  b = Add(a, table)  c = Reshape(b, flat)
          d = Reshape(c, whole)  e = Transpose <perm = [0, 2, 1]> (d)
          axes = Constant <value = int64[1] {1}> ()  y = ReduceSum <keepdims = 0> (e, axes) }""",
        {"w": (4, 4), "table": (4, 4), "flat": ints(4, 16), "whole": ints(4, 4, 4)},
    ),
    attention(1),
    attention(2),
    attention(3),  # as many rows as steps
    # A class token: one row that is joined with all of them.
    Fixed(
        "token_1",
        1,
        "g (float[1, 3, 4] x) => (float[1, 4, 4] y) { y = Concat <axis = 1> (token, x) }",
        {"token": (1, 1, 4)},
    ),
    Fixed(
        "token_4",
        4,
        """g (float[4, 3, 4] x) => (float[4, 4, 4] y) {
          all = Expand(token, shape)  y = Concat <axis = 1> (all, x) }""",
        {"token": (1, 1, 4), "shape": ints(4, 1, 4)},
    ),
    Fixed(
        "tiled_token",
        2,
        """g (float[2, 3, 4] x) => (float[2, 4, 4] y) {
          all = Tile(token, repeats)  y = Concat <axis = 1> (x, all) }""",
        {"token": (1, 1, 4), "repeats": ints(2, 1, 1)},
    ),
    Fixed(
        "lstm_1",
        1,
        LSTM.format(N=1),
        {"w": (1, 20, 3), "r": (1, 20, 5), "h0": np.zeros((1, 1, 5), np.float32)},
    ),
    Fixed(
        "lstm_3",
        3,
        LSTM.format(N=3),
        {"w": (1, 20, 3), "r": (1, 20, 5), "h0": np.full((1, 3, 5), 0.1, np.float32)},
    ),
    # A constant with a row for each row of the batch, all equal.
    Fixed(
        "equal_rows",
        3,
        "g (float[3, 2] x) => (float[3, 2] y) { y = Add(x, c) }",
        {"c": np.tile(np.float32([[0.5, -1]]), (3, 1))},
    ),
    Fixed(
        "whole_slice",
        2,
        """g (float[2, 5] x) => (float[2, 3] y) {
          y = Slice(x, starts, ends, axes) }""",
        {"starts": ints(0, 1), "ends": ints(2, 4), "axes": ints(0, 1)},
    ),
    Fixed(
        "resized",
        1,
        """g (float[1, 2, 3, 3] x) => (float[1, 2, 6, 6] y) {
          y = Resize <mode = "nearest"> (x, , , sizes) }""",
        {"sizes": ints(1, 2, 6, 6)},
    ),
    # Shape arithmetic of which the exporter has folded the batch.
    Fixed(
        "half_folded",
        2,
        """g (float[2, 3, 4] x) => (float[2, 12] y) {
          s = Shape(x)  i = Constant <value = int64[1] {1}> ()
          j = Constant <value = int64[1] {2}> ()
          a = Gather(s, i)  b = Gather(s, j)  m = Mul(a, b)
          shape = Concat <axis = 0> (batch, m)  y = Reshape(x, shape) }""",
        {"batch": ints(2)},
    ),
    Fixed(
        "expanded_input",
        3,
        """g (float[3, 1, 4] x) => (float[3, 2, 4] y) { y = Expand(x, shape) }""",
        {"shape": ints(3, 2, 4)},
    ),
    Fixed(
        "two_inputs",
        2,
        """g (float[2, 3] x, float[2, 3] z, float[3] offset) => (float[2, 3] y, float[2, 1] s) {
          a = Mul(x, z)  y = Add(a, offset)
          axes = Constant <value = int64[1] {1}> ()  s = ReduceSum(y, axes) }""",
        batch_inputs=("x", "z"),
    ),
    # The second input has as many numbers as the batch has rows, but is one table for all.
    Fixed(
        "input_of_same_size",
        3,
        "g (float[3, 3] x, float[3] table) => (float[3, 3] y) { y = Mul(x, table) }",
    ),
    Fixed(
        "words",
        1,
        """g (int64[1, 4] x) => (float[1, 2] y) {
          e = Gather(table, x)  axes = Constant <value = int64[1] {1}> ()
          m = ReduceMean <keepdims = 0> (e, axes)  y = MatMul(m, w) }""",
        {"table": (3, 5), "w": (5, 2)},
    ),
    Fixed(
        "scan",
        2,
        """g (float[2, 3, 4] x) => (float[2, 4] y) {
          t = Transpose <perm = [1, 0, 2]> (x)
          y = Scan <num_scan_inputs = 1,
            body = b (float[2, 4] s, float[2, 4] e) => (float[2, 4] n) {
            m = MatMul(s, u)  n = Add(m, e) }> (zeros, t) }""",
        {"u": (4, 4), "zeros": np.zeros((2, 4), np.float32)},
    ),
    # A mask that is looked up by the numbers of row and column, as transformers export it.
    *[
        Fixed(
            f"row_numbers_{rows}",
            rows,
            f"g (float[{rows}, 3] x) => (float[{rows}, 2] y) {{ y = GatherND(x, places) }}",
            {"places": np.stack(np.broadcast_arrays(np.arange(rows)[:, None], [[2, 0]]), -1)},
        )
        for rows in (1, 3)
    ],
    # A constant for each head, repeated for each row of the batch.
    *[
        Fixed(
            f"heads_{rows}",
            rows,
            f"""g (float[{rows}, 2, 3] x) => (float[{rows}, 2, 3] y) {{
              a = Reshape(x, heads)  b = Add(a, bias)  y = Reshape(b, whole) }}""",
            {
                "heads": ints(rows * 2, 3),
                "whole": ints(rows, 2, 3),
                "bias": np.tile(np.float32([[1, 2, 3], [-4, 5, 6]]), (rows, 1)),
            },
        )
        for rows in (1, 2)
    ],
    Fixed(
        "old",
        1,
        """g (float[1, 2, 4] x) => (float[1, 6] y) {
          s = Slice <axes = [0, 2], starts = [0, 1], ends = [1, 4]> (x)  y = Reshape(s, shape) }""",
        {"shape": ints(1, 6)},
        opset=9,
    ),
]

KEPT = [
    Fixed(
        "mean_of_rows",
        4,
        """g (float[4, 3] x) => (float[4, 3] y) {
          axes = Constant <value = int64[1] {0}> ()
          [centre] m = ReduceMean(x, axes)  y = Sub(x, m) }""",
        obstacle="centre",
    ),
    Fixed(
        "softmax_over_rows",
        4,
        "g (float[4, 3] x) => (float[4, 3] y) { y = Softmax <axis = 0> (x) }",
        obstacle="depends on others",
    ),
    Fixed(
        "products_of_rows",
        4,
        """g (float[4, 3] x) => (float[4, 4] y) {
          t = Transpose <perm = [1, 0]> (x)  [gram] y = MatMul(x, t) }""",
        obstacle="gram",
    ),
    Fixed(
        "rows_with_own_numbers",
        2,
        "g (float[2, 3] x) => (float[2, 3] y) { [shift] y = Add(x, c) }",
        {"c": np.arange(6, dtype=np.float32).reshape(2, 3)},
        obstacle="shift",
    ),
    Fixed(
        "first_row",
        1,
        """g (float[1, 3] x) => (float[3] y) {
          i = Constant <value = int64 {0}> ()  [first] y = Gather <axis = 0> (x, i) }""",
        obstacle="first",
    ),
    Fixed(
        "columns_become_rows",
        2,
        """g (float[2, 6] x) => (float[2, 6] y) {
          t = Transpose <perm = [1, 0]> (x)  [shuffle] y = Reshape(t, shape) }""",
        {"shape": ints(2, 6)},
        obstacle="one piece",
    ),
]
