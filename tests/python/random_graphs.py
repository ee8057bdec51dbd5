"""Random models: what operators do together that no table of cases thinks of.

`draw_model` puts together inputs, weights and 4 to 16 operators of all kinds, in any order that the
shapes allow, from one number. All is smooth enough, and of moderate size, that finite differences
tell something. Output "Y" is [N, 1]; N is symbolic. `with_any_outputs` gives a model that shows any
of its values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

UNARY = (
    *("Tanh", "Sigmoid", "Relu", "LeakyRelu", "Elu", "Abs", "Neg", "Sin", "Cos", "Softsign"),
    *("Identity", "Clip", "Erf"),
)
MOVEMENTS = (
    *("Transpose", "Unsqueeze", "Squeeze", "Concat", "Slice", "Gather", "Split", "Pad", "Tile"),
    *("Expand", "Reshape"),
)
BATCH = 3  # no other dimension is 3
NOT_IN_FLOAT64 = {
    "AveragePool",
    "Conv",
    "Elu",
    "Erf",
    "GlobalAveragePool",
    "LeakyRelu",
    "Mean",
    "Softsign",
}


@dataclass
class Value:
    """A value of the graph, with what it is for a batch of BATCH rows."""

    name: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def fixed_axes(self) -> list[int]:
        """Axes that are not the batch."""
        return [i for i, size in enumerate(self.shape) if size != BATCH]


@dataclass
class Draft:
    """A graph under construction."""

    rng: np.random.Generator
    dtype: np.dtype
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def pick(self, wanted=lambda value: True) -> Value | None:
        """Return a random value, preferably a late one; None if there is no such value."""
        fitting = [value for value in self.values if wanted(value)]
        if not fitting:
            return None
        place = len(fitting) - 1 - int(len(fitting) * self.rng.random() ** 2)
        return fitting[max(place, 0)]

    def op(self, op_type: str, inputs: list[Value | str], shape: tuple[int, ...], **attributes):
        """Append a node with one output of this shape, and return it."""
        return self.ops(op_type, inputs, [shape], **attributes)[0]

    def ops(self, op_type, inputs, shapes, **attributes) -> list[Value]:
        names = [i if isinstance(i, str) else i.name for i in inputs]
        self.read.update(names)
        results = [Value(f"v{len(self.nodes)}_{i}", tuple(s)) for i, s in enumerate(shapes)]
        outputs = [result.name for result in results]
        self.nodes.append(
            helper.make_node(op_type, names, outputs, name=f"n{len(self.nodes)}", **attributes)
        )
        return results

    def constant(self, array, prefix: str = "c") -> str:
        name = f"{prefix}{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, self.dtype))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int) -> Value:
        array = self.rng.uniform(-0.9, 0.9, size=shape).astype(self.dtype)
        return Value(self.constant(array, "w"), shape)

    def known(self, op_types) -> list[str]:
        """Return those that stock onnxruntime has for this type."""
        missing = set() if self.dtype == np.float32 else NOT_IN_FLOAT64
        return [op_type for op_type in op_types if op_type not in missing]

    def choice(self, options):
        return options[int(self.rng.integers(len(options)))]

    def one_plus_square(self, x: Value) -> Value:
        return self.op("Add", [self.op("Mul", [x, x], x.shape), self.number(1.0)], x.shape)


def partner(draft: Draft, x: Value) -> Value:
    """A second operand for `x`: another value that broadcasts with it, or a new weight."""
    other = draft.pick(lambda v: v.name != x.name and broadcast(v.shape, x.shape) is not None)
    if other is not None and draft.rng.random() < 0.6:
        return other
    shape = [size if draft.rng.random() < 0.7 and size != BATCH else 1 for size in x.shape]
    while shape and draft.rng.random() < 0.4:
        del shape[0]
    return draft.weight(*shape)


def broadcast(a, b):
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def unary(draft: Draft) -> list[Value]:
    x = draft.pick()
    kinds = draft.known(
        [
            "Tanh",
            "Sigmoid",
            "Relu",
            "LeakyRelu",
            "Elu",
            "Abs",
            "Neg",
            "Sin",
            "Cos",
            "Softsign",
            "Identity",
            "Clip",
            "Erf",
        ]
    )
    kind = draft.choice(kinds)
    attributes = {"LeakyRelu": {"alpha": 0.125}, "Elu": {"alpha": 0.75}}.get(kind, {})
    inputs = [x, draft.number(-0.5), draft.number(0.75)] if kind == "Clip" else [x]
    return [draft.op(kind, inputs, x.shape, **attributes)]


def bounded(draft: Draft) -> list[Value]:
    """Functions with poles or fast growth, on arguments that keep away from them."""
    x = draft.pick()
    kind = draft.choice(["Exp", "Log", "Sqrt", "Reciprocal", "Pow"])
    if kind == "Exp":
        return [draft.op("Exp", [draft.op("Tanh", [x], x.shape)], x.shape)]
    safe = draft.one_plus_square(x)
    inputs = [safe, draft.number(draft.choice([-1.0, 0.5, 1.5, 2.0]))] if kind == "Pow" else [safe]
    return [draft.op(kind, inputs, x.shape)]


def binary(draft: Draft) -> list[Value]:
    x = draft.pick()
    y = partner(draft, x)
    pair = [x, y] if draft.rng.random() < 0.5 else [y, x]
    shape = broadcast(x.shape, y.shape)
    kinds = draft.known(["Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "Sum", "Mean"])
    kind = draft.choice(kinds)
    if kind == "Div":
        return [draft.op("Div", [pair[0], draft.one_plus_square(pair[1])], shape)]
    if kind == "Where":
        condition = draft.op("Greater", pair, shape)
        return [draft.op("Where", [condition, *pair], shape)]
    return [draft.op(kind, pair, shape)]


def product(draft: Draft) -> list[Value]:
    x = draft.pick(lambda v: v.rank >= 2 and v.shape[-1] != BATCH)
    if x is None:
        return []
    inner, columns = x.shape[-1], draft.choice([1, 2, 4, 5])
    if x.rank == 2 and draft.rng.random() < 0.5:
        transposed = bool(draft.rng.random() < 0.5)
        w = draft.weight(columns, inner) if transposed else draft.weight(inner, columns)
        bias = draft.weight(*draft.choice([(columns,), (1, columns), (1,)]))
        alpha, beta = draft.choice([1.0, 0.5]), draft.choice([1.0, -2.0])
        shape = (x.shape[0], columns)
        return [
            draft.op("Gemm", [x, w, bias], shape, transB=int(transposed), alpha=alpha, beta=beta)
        ]
    batched = x.rank > 2 and BATCH not in x.shape[:-2] and draft.rng.random() < 0.4
    w = draft.weight(*x.shape[:-2], inner, columns) if batched else draft.weight(inner, columns)
    y = draft.op("MatMul", [x, w], (*x.shape[:-1], columns))
    if draft.rng.random() < 0.5:
        y = draft.op("Add", [y, draft.weight(columns)], y.shape)
    return [y]


def calm(draft: Draft, x: Value) -> Value:
    """Bound values that grow from product to product."""
    return draft.op("Tanh", [x], x.shape)


def gram(draft: Draft) -> list[Value]:
    """The product of a value with its own transpose: tied operands."""
    x = draft.pick(lambda v: v.rank >= 2)
    if x is None:
        return []
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    turned = draft.op("Transpose", [x], tuple(x.shape[i] for i in perm), perm=perm)
    return [calm(draft, draft.op("MatMul", [x, turned], (*x.shape[:-1], x.shape[-2])))]


def reduction(draft: Draft) -> list[Value]:
    x = draft.pick(lambda v: v.rank >= 1)
    kind = draft.choice(["Sum", "Mean", "Max", "Min", "SumSquare", "LogSumExp", "L2", "Prod"])
    if kind == "L2":
        x = draft.one_plus_square(x)
    count = int(draft.rng.integers(1, x.rank + 1))
    axes = sorted(draft.rng.choice(x.rank, size=count, replace=False).tolist())
    keep = bool(draft.rng.random() < 0.5)
    shape = [1 if i in axes else size for i, size in enumerate(x.shape) if keep or i not in axes]
    signed = [axis - x.rank if draft.rng.random() < 0.5 else axis for axis in axes]
    y = draft.op("Reduce" + kind, [x, draft.ints(*signed)], tuple(shape), keepdims=int(keep))
    return [calm(draft, y) if kind in ("Prod", "SumSquare") else y]


def along_axis(draft: Draft) -> list[Value]:
    x = draft.pick(lambda v: v.rank >= 1)
    kind = draft.choice(["Softmax", "LogSoftmax", "CumSum"])
    axis = int(draft.rng.integers(-x.rank, x.rank))
    if kind == "CumSum":
        flags = {"exclusive": draft.choice([0, 1]), "reverse": draft.choice([0, 1])}
        place = draft.constant(np.array(axis, np.int64))
        return [draft.op("CumSum", [x, place], x.shape, **flags)]
    return [draft.op(kind, [x], x.shape, axis=axis)]


def normalization(draft: Draft) -> list[Value]:
    x = draft.pick(lambda v: v.rank >= 2 and v.shape[-1] not in (1, BATCH))
    if x is None:
        return []
    size = x.shape[-1]
    inputs = [x, draft.weight(size), draft.weight(size)]
    return [draft.op("LayerNormalization", inputs, x.shape, axis=-1, epsilon=0.125)]


def movement(draft: Draft) -> list[Value]:
    x = draft.pick(lambda v: v.rank >= 1)
    kind = draft.choice(
        [
            "Transpose",
            "Unsqueeze",
            "Squeeze",
            "Concat",
            "Slice",
            "Gather",
            "Split",
            "Pad",
            "Tile",
            "Expand",
            "Reshape",
        ]
    )
    axis = int(draft.rng.integers(x.rank))
    size = x.shape[axis]
    if kind == "Transpose":
        perm = draft.rng.permutation(x.rank).tolist()
        return [draft.op(kind, [x], tuple(x.shape[i] for i in perm), perm=perm)]
    if kind == "Unsqueeze" and x.rank < 4:
        return [draft.op(kind, [x, draft.ints(axis)], (*x.shape[:axis], 1, *x.shape[axis:]))]
    if kind == "Squeeze" and size == 1:
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return [draft.op(kind, [x, draft.ints(axis - x.rank)], shape)]
    if kind == "Expand":
        grown = [draft.choice([2, 4]) if s == 1 else s for s in x.shape]
        asked = [1 if s == BATCH else s for s in grown]
        return [draft.op(kind, [x, draft.ints(*asked)], tuple(grown))]
    if kind == "Reshape" and x.shape[0] == BATCH and BATCH not in x.shape[1:]:
        shape = (BATCH, int(np.prod(x.shape[1:], dtype=int)))
        return [draft.op(kind, [x, draft.ints(0, -1)], shape)]
    if size == BATCH:
        return []
    return along_fixed_axis(draft, x, kind, axis)


def along_fixed_axis(draft: Draft, x: Value, kind: str, axis: int) -> list[Value]:
    size = x.shape[axis]

    def resized(new: int) -> tuple[int, ...]:
        return (*x.shape[:axis], new, *x.shape[axis + 1 :])

    if kind == "Concat":
        other = draft.pick(lambda v: v.shape == x.shape) or x
        return [draft.op(kind, [x, other], resized(2 * size), axis=axis)]
    if kind == "Slice" and size > 1:
        start, stop, step = draft.choice([(1, size, 1), (0, size - 1, 1), (-1, -size - 1, -1)])
        length = len(range(size)[start:stop:step]) if step > 0 else size
        bounds = [draft.ints(start), draft.ints(stop), draft.ints(axis), draft.ints(step)]
        return [draft.op(kind, [x, *bounds], resized(length))] if length != BATCH else []
    if kind == "Gather":
        rows = draft.rng.integers(-size, size, size=draft.choice([2, 4]))
        indices = draft.constant(rows.astype(np.int64))
        return [draft.op(kind, [x, indices], resized(len(rows)), axis=axis)]
    if kind == "Split" and size in (2, 4, 5):
        first = 1
        parts = [resized(first), resized(size - first)]
        if BATCH in (first, size - first):
            first, parts = 2, [resized(2), resized(size - 2)]
        return draft.ops(kind, [x, draft.ints(first, size - first)], parts, axis=axis)
    if kind == "Pad" and size + 3 < 9 and size + 2 != BATCH:
        pads = [0] * (2 * x.rank)
        pads[axis], pads[x.rank + axis] = 1, 1
        mode = draft.choice(["constant", "edge", "reflect"]) if size > 1 else "constant"
        return [draft.op(kind, [x, draft.ints(*pads)], resized(size + 2), mode=mode)]
    if kind == "Tile" and size < 5:
        repeats = [1] * x.rank
        repeats[axis] = 2
        return [draft.op(kind, [x, draft.ints(*repeats)], resized(2 * size))]
    return []


def picture(draft: Draft) -> list[Value]:
    x = draft.pick(lambda v: v.rank == 4 and v.shape[0] == BATCH and min(v.shape[2:]) >= 2)
    if x is None or BATCH in x.shape[1:]:
        return []
    _, channels, height, width = x.shape
    kinds = draft.known(["Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "BatchNorm"])
    kind = draft.choice(kinds)
    if kind == "Conv":
        filters = draft.choice([2, 4])
        inputs = [x, draft.weight(filters, channels, 2, 2), draft.weight(filters)]
        pads = draft.choice([[0, 0, 1, 1], [1, 1, 0, 0]])
        return [draft.op("Conv", inputs, (BATCH, filters, height, width), pads=pads)]
    if kind == "GlobalAveragePool":
        return [draft.op(kind, [x], (BATCH, channels, 1, 1))]
    if kind == "BatchNorm":
        mean = draft.constant(draft.rng.uniform(-1, 1, channels).astype(draft.dtype), "mean")
        variance = draft.constant(draft.rng.uniform(0.5, 2, channels).astype(draft.dtype), "var")
        inputs = [x, draft.weight(channels), draft.weight(channels), mean, variance]
        return [draft.op("BatchNormalization", inputs, x.shape, epsilon=0.125)]
    if BATCH in (height - 1, width - 1):
        return []
    return [draft.op(kind, [x], (BATCH, channels, height - 1, width - 1), kernel_shape=[2, 2])]


def shared(draft: Draft) -> list[Value]:
    """A value, the sum over its rows, and one row that both are scaled by: y = x q, z = sum / q."""
    x = draft.pick(lambda v: v.rank >= 2 and v.shape[-1] != BATCH)
    if x is None:
        return []
    row = x.shape[-1:]
    axes = draft.ints(*range(x.rank - 1))
    q = draft.op("Sqrt", [draft.one_plus_square(draft.weight(*row))], row)
    y = draft.op("Mul", [x, draft.op("Div", [draft.weight(*row), q], row)], x.shape)
    other = draft.op("Mul", [x, partner_like(draft, x)], x.shape)
    total = draft.op("ReduceMean", [other, axes], row, keepdims=0)
    return [y, draft.op("Div", [total, q], row)]


def partner_like(draft: Draft, x: Value) -> Value:
    return draft.pick(lambda v: v.shape == x.shape) or x


def branches(draft: Draft) -> list[Value]:
    """An If over what is there outside: one side bends a value, the other scales it."""
    x, y = draft.pick(), draft.pick()
    total = draft.op("ReduceSum", [y], (), keepdims=0)
    condition = draft.op("Greater", [total, draft.number(0.0)], ())
    sides = []
    for kind in ("Tanh", "Neg"):
        name = f"b{len(draft.nodes)}_{kind}"
        node = helper.make_node(kind, [x.name], [name])
        value = helper.make_value_info(name, onnx.TypeProto())
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(draft.dtype)
        sides.append(helper.make_graph([node], name, [], [value]))
    draft.read.add(x.name)
    return [draft.op("If", [condition], x.shape, then_branch=sides[0], else_branch=sides[1])]


STEPS = (
    [unary, bounded, binary, product, movement] * 3
    + [reduction, along_axis, picture] * 2
    + [gram, normalization]
)
MORE_STEPS = (*STEPS, shared, shared, branches)


def draw_model(seed: int, dtype, steps=STEPS) -> onnx.ModelProto:
    """Return a model with inputs X [N, 4] and Z [N, 2, 4, 5] and output Y [N, 1]."""
    rng = np.random.default_rng(seed)
    draft = Draft(rng, np.dtype(dtype))
    x, z = Value("X", (BATCH, 4)), Value("Z", (BATCH, 2, 4, 5))
    first = draft.op("MatMul", [x, draft.weight(4, 4)], (BATCH, 4))
    draft.values += [first, draft.op("Mul", [z, draft.weight(2, 1, 1)], z.shape)]
    for _ in range(int(rng.integers(4, 17))):
        results = draft.choice(steps)(draft)
        draft.values += [v for v in results if v.rank <= 4 and np.prod(v.shape) <= 600]
    finish(draft)
    element = helper.np_dtype_to_tensor_dtype(draft.dtype)
    graph = helper.make_graph(
        draft.nodes,
        f"random_{seed}",
        [
            helper.make_tensor_value_info("X", element, ["N", 4]),
            helper.make_tensor_value_info("Z", element, ["N", 2, 4, 5]),
        ],
        [helper.make_tensor_value_info("Y", element, ["N", 1])],
        draft.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def finish(draft: Draft) -> None:
    """Bring all values that nobody reads together in Y: mean(tanh(v)^2) of each, and X's mean."""
    first = draft.op("ReduceMean", ["X", draft.ints(1)], (BATCH, 1), keepdims=1)
    total: Value | str = first
    for value in [v for v in draft.values if v.name not in draft.read]:
        bent = draft.op("Tanh", [value], value.shape)
        square = draft.op("Mul", [bent, value], value.shape)
        mean = draft.op("ReduceMean", [square], (), keepdims=0)
        total = draft.op("Add", [total, mean], (BATCH, 1))
    draft.nodes.append(helper.make_node("Identity", [total.name], ["Y"], name="last"))


def draw_inputs(seed: int, rows: int, dtype) -> dict[str, np.ndarray]:
    """Return values for X and Z, and a target [rows, 1] under "label"."""
    rng = np.random.default_rng([seed, rows])
    return {
        "X": rng.normal(size=(rows, 4)).astype(dtype),
        "Z": rng.normal(size=(rows, 2, 4, 5)).astype(dtype),
        "label": rng.normal(size=(rows, 1)).astype(dtype),
    }


def weight_names(model: onnx.ModelProto) -> list[str]:
    """Return the weights that Y depends on: what grew too large in the drawing is left aside."""
    needed = {"Y"}
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            sides = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            needed.update(name for side in sides for inner in side.node for name in inner.input)
    weights = [w.name for w in model.graph.initializer if w.name.startswith("w")]
    return [name for name in weights if name in needed]


def with_any_outputs(model: onnx.ModelProto, seed: int, twice: bool = True) -> onnx.ModelProto:
    """Return `model` with other outputs: any of its values, inputs and initializers too.

    They come in any order, and some come twice.
    """
    rng = np.random.default_rng([seed, 1])
    inferred = onnx.shape_inference.infer_shapes(model).graph
    known = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    known |= {value.name: value for value in model.graph.input}
    for weight in model.graph.initializer:
        info = helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
        known.setdefault(weight.name, info)
    share = rng.choice([0.05, 0.2, 0.5])
    names = [name for name in known if rng.random() < share]
    names += [name for name in names if twice and rng.random() < 0.1]
    names = rng.permutation(names or list(known)[:1]).tolist()
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.output[:]
    changed.graph.output.extend(known[name] for name in names)
    return changed
