"""LSTM, GRU and RNN over all their attributes, beside stock onnxruntime, NumPy and differences."""

import warnings

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

import onnxgrad as og
import recurrent_reference as reference
from pairwise import pairwise

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 7
INPUT_NAMES = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]

# Functions by name with alpha and beta; each cell takes as many as it has.
ACTIVATIONS = {
    "usual": None,
    "bounded": (["HardSigmoid", "ScaledTanh", "Softsign"], [0.3, 0.8], [0.4, 0.6]),
    "leaky": (["Sigmoid", "LeakyRelu", "Elu"], [0.3, 0.7], []),
    "linear": (["Sigmoid", "Affine", "ThresholdedRelu"], [0.6, 0.1], [0.2]),
    "soft": (["Sigmoid", "Relu", "Softplus"], [], []),
}
PARAMETERS = {
    "op": ["LSTM", "GRU", "RNN"],
    "direction": ["forward", "reverse", "bidirectional"],
    "B": [False, True],
    "sequence_lens": [None, (5, 2, 4), (1, 5, 0)],
    "initial_h": [False, True],
    "initial_c": [False, True],
    "P": [False, True],
    "activations": list(ACTIVATIONS),
    "clip": [None, 0.4, 3.0],
    "input_forget": [0, 1],
    "linear_before_reset": [0, 1],
    "outputs": ["all", "Y", "last"],
}


def is_valid(row: dict) -> bool:
    """Whether the cell has what the row asks for."""
    op = row.get("op")
    if op not in (None, "LSTM") and any(
        row.get(name) for name in ("initial_c", "P", "input_forget")
    ):
        return False
    return op in (None, "GRU") or not row.get("linear_before_reset")


ROWS = pairwise(PARAMETERS, is_valid)


def row_id(row: dict) -> str:
    return "-".join(str(value) for value in row.values())


def attributes_of(row: dict) -> dict:
    directions = 2 if row["direction"] == "bidirectional" else 1
    attributes = {"hidden_size": HIDDEN, "direction": row["direction"]}
    if row["clip"]:
        attributes["clip"] = row["clip"]
    for name in ("input_forget", "linear_before_reset"):
        if row[name]:
            attributes[name] = 1
    chosen = ACTIVATIONS[row["activations"]]
    if chosen is not None:
        names, alphas, betas = chosen
        count = len(reference.USUAL[row["op"]])
        attributes["activations"] = names[:count] * directions
        # All of one direction, then all of the other.
        alphas = alphas[: sum(reference.FUNCTIONS[n][1] is not None for n in names[:count])]
        betas = betas[: sum(reference.FUNCTIONS[n][2] is not None for n in names[:count])]
        attributes["activation_alpha"] = alphas * directions
        attributes["activation_beta"] = betas * directions
    return {name: value for name, value in attributes.items() if value != []}


def operands_of(row: dict, dtype=np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(map(ord, row_id(row))))
    directions = 2 if row["direction"] == "bidirectional" else 1
    gates = reference.GATES[row["op"]]
    shapes = {
        "X": (STEPS, BATCH, INPUTS),
        "W": (directions, gates * HIDDEN, INPUTS),
        "R": (directions, gates * HIDDEN, HIDDEN),
        "B": (directions, 2 * gates * HIDDEN),
        "initial_h": (directions, BATCH, HIDDEN),
        "initial_c": (directions, BATCH, HIDDEN),
        "P": (directions, 3 * HIDDEN),
    }
    operands = {
        name: rng.uniform(-0.8, 0.8, shape).astype(np.float32).astype(dtype)
        for name, shape in shapes.items()
        if row.get(name, True)
    }
    if row["op"] != "LSTM":
        operands.pop("initial_c", None), operands.pop("P", None)
    if row["sequence_lens"] is not None:
        operands["sequence_lens"] = np.array(row["sequence_lens"], np.int32)
    return operands


def make_model(
    op: str, operands: dict[str, np.ndarray], outputs: list[str], attributes: dict
) -> onnx.ModelProto:
    names = INPUT_NAMES[: 8 if op == "LSTM" else 6]
    node = helper.make_node(
        op, [name if name in operands else "" for name in names], outputs, op.lower(), **attributes
    )
    floating = helper.np_dtype_to_tensor_dtype(operands["X"].dtype)
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.INT32 if name == "sequence_lens" else floating, operands[name].shape
        )
        for name in names
        if name in operands
    ]
    results = [helper.make_tensor_value_info(name, floating, None) for name in outputs if name]
    graph = helper.make_graph([node], op.lower(), inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def output_names(op: str, wanted: str = "all") -> list[str]:
    names = ["Y", "Y_h", "Y_c"] if op == "LSTM" else ["Y", "Y_h"]
    return names[:1] if wanted == "Y" else ["", *names[1:]] if wanted == "last" else names


def run_stock(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})


def assert_near(given: list, expected: list, tolerance: float) -> None:
    """All elements to `tolerance` of the largest magnitude (at least 1) of their array."""
    assert len(given) == len(expected)
    for a, b in zip(given, expected, strict=True):
        assert np.shape(a) == np.shape(b)
        bound = tolerance * max(1, np.abs(b).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=0, atol=bound)


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_values_and_gradients(row: dict) -> None:
    """Values beside onnxruntime and NumPy; the gradient's file in onnxruntime and here."""
    operands, attributes = operands_of(row), attributes_of(row)
    names = output_names(row["op"], row["outputs"])
    model = make_model(row["op"], operands, names, attributes)
    given = og.InferenceSession(model).run(None, operands)
    assert_near(given, run_stock(model, operands), 3e-6)
    doubles = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in operands.items()
    }
    wanted = dict(
        zip(output_names(row["op"]), reference.run(row["op"], doubles, attributes), strict=True)
    )
    assert_near(given, [wanted[name] for name in names if name], 3e-6)

    present = [name for name in names if name]
    wrt = [name for name in operands if name != "sequence_lens"]
    gradient = og.gradient(model, wrt, present, fill_grad=False)
    onnx.checker.check_model(gradient)
    rng = np.random.default_rng(1)
    seeds = {
        f"{name}_grad": rng.uniform(-1, 1, value.shape).astype(np.float32)
        for name, value in zip(present, given, strict=True)
    }
    feeds = {**operands, **seeds}
    session = og.InferenceSession(gradient)
    ours = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
    assert_near(ours, run_stock(gradient, feeds), 1e-5)
    if row["sequence_lens"] is not None:
        dx = ours[[value.name for value in session.get_outputs()].index("X_grad")]
        for n, length in enumerate(row["sequence_lens"]):
            assert not dx[length:, n].any()


@pytest.mark.parametrize("row", ROWS[:: max(1, len(ROWS) // 12)], ids=row_id)
def test_gradients_are_differences_of_numpys_formulas(row: dict) -> None:
    operands, attributes = operands_of(row, np.float64), attributes_of(row)
    names = output_names(row["op"], row["outputs"])
    present = [name for name in names if name]
    model = make_model(row["op"], operands, names, attributes)
    wrt = [name for name in operands if name != "sequence_lens"]
    gradient = og.gradient(model, wrt, present, fill_grad=False)

    def outputs(values: dict[str, np.ndarray]) -> list[np.ndarray]:
        all_names = output_names(row["op"])
        results = dict(zip(all_names, reference.run(row["op"], values, attributes), strict=True))
        return [results[name] for name in present]

    rng = np.random.default_rng(2)
    seeds = [rng.uniform(-1, 1, value.shape) for value in outputs(operands)]
    feeds = {**operands, **{f"{n}_grad": s for n, s in zip(present, seeds, strict=True)}}
    session = og.InferenceSession(gradient)
    results = dict(
        zip(
            [value.name for value in session.get_outputs()],
            session.run(None, {v.name: feeds[v.name] for v in session.get_inputs()}),
            strict=True,
        )
    )
    step = 1e-6
    for name in wrt:
        for _ in range(3):
            direction = rng.uniform(-1, 1, operands[name].shape)
            sides = [
                sum(
                    float(np.sum(seed * value))
                    for seed, value in zip(
                        seeds,
                        outputs({**operands, name: operands[name] + sign * direction}),
                        strict=True,
                    )
                )
                for sign in (step, -step)
            ]
            expected = (sides[0] - sides[1]) / (2 * step)
            slope = float(np.sum(results[f"{name}_grad"] * direction))
            assert slope == pytest.approx(expected, rel=2e-6, abs=2e-7), name


def node_tests() -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return [
        case
        for case in cases
        if case.model is not None
        and any(node.op_type in reference.STEPS for node in case.model.graph.node)
    ]


@pytest.mark.parametrize("case", node_tests(), ids=lambda case: case.name)
def test_node_test(case) -> None:
    """ONNX's own outputs, and the gradient in float64 beside differences of our own values."""
    names = [value.name for value in case.model.graph.input]
    arrays, expected = case.data_sets[0]
    feeds = dict(zip(names, arrays, strict=True))
    given = og.InferenceSession(case.model).run(None, feeds)
    assert_near(given, expected, 1e-5)

    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in [*model.graph.input, *model.graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    doubles = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in feeds.items()
    }
    wrt = [name for name, array in doubles.items() if array.dtype == np.float64]
    outputs = [value.name for value in model.graph.output]
    session = og.InferenceSession(og.gradient(model, wrt, outputs, fill_grad=True))
    gradients = dict(
        zip(
            [value.name for value in session.get_outputs()],
            session.run(None, {v.name: doubles[v.name] for v in session.get_inputs()}),
            strict=True,
        )
    )
    forward = og.InferenceSession(model)
    rng = np.random.default_rng(3)
    step = 1e-5
    for name in wrt:
        direction = rng.uniform(-1, 1, doubles[name].shape)
        sides = [
            sum(
                float(np.sum(value))
                for value in forward.run(None, {**doubles, name: doubles[name] + sign * direction})
            )
            for sign in (step, -step)
        ]
        slope = float(np.sum(gradients[f"{name}_grad"] * direction))
        assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5, abs=1e-7), name


def test_padding_that_is_not_a_number_changes_nothing() -> None:
    """Padding does not enter values or gradients."""
    row = {name: values[0] for name, values in PARAMETERS.items()}
    row |= {"sequence_lens": [5, 2, 4], "B": True, "direction": "bidirectional"}
    for op in reference.STEPS:
        operands = operands_of({**row, "op": op})
        model = make_model(op, operands, output_names(op), attributes_of({**row, "op": op}))
        gradient = og.gradient(model, ["X", "W", "R", "B"], output_names(op), fill_grad=True)
        results = []
        for padding in (0.0, np.nan):
            x = operands["X"].copy()
            for n, length in enumerate(row["sequence_lens"]):
                x[length:, n] = padding
            feeds = {**operands, "X": x}
            for run_one in (lambda m, f: og.InferenceSession(m).run(None, f), run_stock):
                results.append(run_one(gradient, feeds))
        for other in results[1:]:
            assert_near(other, results[0], 1e-5)


@pytest.mark.parametrize("op", reference.STEPS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_second_derivatives(op: str, direction: str) -> None:
    """The gradient of a gradient's file beside differences of the first one, in float64."""
    row = {name: values[0] for name, values in PARAMETERS.items()}
    row |= {"op": op, "direction": direction, "B": True, "sequence_lens": (5, 2, 4)}
    row |= {"initial_h": True, "initial_c": op == "LSTM", "P": op == "LSTM"}
    operands, attributes = operands_of(row, np.float64), attributes_of(row)
    model = make_model(op, operands, ["Y"], attributes)
    wrt = [name for name in operands if name != "sequence_lens"]
    first = og.gradient(model, wrt, ["Y"], fill_grad=False)
    rng = np.random.default_rng(4)
    seed = rng.uniform(-1, 1, (STEPS, operands["R"].shape[0], BATCH, HIDDEN))
    feeds = {**operands, "Y_grad": seed}
    session = og.InferenceSession(first)
    names = [value.name for value in session.get_outputs()]

    def gradients(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {value.name: values[value.name] for value in session.get_inputs()}
        return dict(zip(names, session.run(None, given), strict=True))

    weights = {
        f"{name}_grad": rng.uniform(-1, 1, array.shape) for name, array in gradients(feeds).items()
    }
    second = og.InferenceSession(og.gradient(first, [*wrt, "Y_grad"], names, fill_grad=False))
    all_feeds = {**feeds, **weights}
    given = {value.name: all_feeds[value.name] for value in second.get_inputs()}
    results = dict(
        zip([v.name for v in second.get_outputs()], second.run(None, given), strict=True)
    )

    def weighted(values: dict[str, np.ndarray]) -> float:
        found = gradients(values)
        return sum(float(np.sum(weights[f"{name}_grad"] * found[name])) for name in names)

    step = 1e-5
    inputs = [*wrt, "Y_grad"]
    for name, result in zip(inputs, results.values(), strict=True):
        move = rng.uniform(-1, 1, feeds[name].shape)
        sides = [weighted({**feeds, name: feeds[name] + sign * move}) for sign in (step, -step)]
        slope = float(np.sum(result * move))
        assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-6, abs=1e-6), name
