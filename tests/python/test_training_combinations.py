"""Branches and data-dependent shapes with every optimizer, loss, type and way to train.

What a model with an If or a NonZero learns is what the plain network that it amounts to learns, by
its training step in stock onnxruntime, for float16 and bfloat16 that in float32. Every two values
of two parameters meet in some case.
"""

import contextlib
import io
import itertools
import sys
import unittest.mock

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from dynamic_models import KINDS
from half_models import DTYPES
from onnxgrad import cli
from pairwise import pairwise
from support import initializers

TRAINED = ["w0", "w1"]
COLUMNS = {"squared_error": 2, "softmax_cross_entropy": 3, "binary_cross_entropy": 1}
OPTIMIZERS = {
    "sgd": og.optimizers.SGD(lr=0.05),
    "dampening": og.optimizers.SGD(lr=0.05, momentum=0.9, dampening=0.5),
    "nesterov": og.optimizers.SGD(lr=0.05, momentum=0.9, nesterov=True),
    "adam": og.optimizers.Adam(lr=0.01),
    "adamw": og.optimizers.AdamW(lr=0.01, weight_decay=0.1),
    "adagrad": og.optimizers.Adagrad(lr=0.05, rate_decay=0.1),
    "rmsprop": og.optimizers.RMSProp(lr=0.01, momentum=0.5, centered=True),
    "lion": og.optimizers.Lion(lr=0.01),
    "lamb": og.optimizers.LAMB(lr=0.01),
    "lbfgs": og.optimizers.LBFGS(lr=0.5),
}
STEADY = {"sgd", "dampening", "nesterov"}  # steps are proportional to gradients
KNOWN = {type(optimizer) for optimizer in OPTIMIZERS.values()}
OPTIMIZERS |= {
    name: og.optimizers.from_name(name)
    for name in og.optimizers.names()
    if type(og.optimizers.from_name(name)) not in KNOWN
}
UPDATES = {
    "plain": {},
    "accumulate": {"accumulate": 2},
    "clip_norm": {"clip_norm": 0.2},
    "clip_value": {"clip_value": 0.05},
    "average": {"average": "ema:decay=0.5"},
    "sam": {"sam": 0.02},
}
PARAMETERS = {
    "kind": list(KINDS),
    "optimizer": list(OPTIMIZERS),
    "loss": list(COLUMNS),
    "dtype": ["float32", "float64", "float16", "bfloat16"],
    "threads": [1, 2],
    "update": list(UPDATES),
    "entry": ["step", "fit", "passes", "file", "command"],
}
BATCH = 8
HALF = tuple(DTYPES)


def is_valid(row):
    if row.get("dtype") == "bfloat16" and row.get("entry") == "file":
        return False  # stock onnxruntime has no kernels
    if row.get("dtype") == "bfloat16" and row.get("kind") == "dropout_in_if":
        return False  # ONNX has no ratio of that type
    if row.get("dtype") in HALF and row.get("optimizer") == "lbfgs":
        return False  # line searches need smooth losses
    kind = KINDS[row.get("kind", "plain")]
    entry = row.get("entry", "step")
    is_loop = row.get("optimizer") == "lbfgs"  # around the graph, without accumulation or clipping
    if is_loop and (row.get("update", "plain") != "plain" or entry in ("file", "passes")):
        return False
    if row.get("optimizer") == "schedule_free_adamw" and row.get("update") == "average":
        return False  # it has its own
    # Rows go in and out together, and every input has rows.
    return not (entry in ("fit", "command") and (kind.selects or kind.feeds))


CASES = pairwise(PARAMETERS, is_valid)


def in_reference(dtype):
    return "float32" if dtype in HALF else dtype


def as_fed(case, x):
    """The rows in the model's type; the numbers are float32 ones for halves."""
    return x.astype(DTYPES[case["dtype"]]) if case["dtype"] in HALF else x


def batches(case):
    """Three whole batches and a smaller one."""
    rng = np.random.default_rng(sorted(OPTIMIZERS).index(case["optimizer"]))
    kind, columns = KINDS[case["kind"]], COLUMNS[case["loss"]]
    x = (kind.sign * rng.uniform(-0.5, 1.5, size=(3 * BATCH + 4, 3))).astype(
        in_reference(case["dtype"])
    )
    keep = (x[:, :2].sum(axis=1) > 0) | (not kind.selects)
    if columns == 2:
        y = rng.normal(size=(len(x), 2)).astype(x.dtype)
    else:
        y = rng.integers(0, max(columns, 2), len(x))
    for start in range(0, len(x), BATCH):
        rows = slice(start, start + BATCH)
        yield x[rows], x[rows][keep[rows]], y[rows][keep[rows]]


def settings(case):
    return {**UPDATES[case["update"]], "trainable": TRAINED}


def feeds_of(case, x, label=None):
    feeds = {"x": as_fed(case, x), **KINDS[case["kind"]].feeds}
    return feeds if label is None else {**feeds, "label": label}


def labels_for(name, label, value_info):
    """Targets as an input declares them: [N, 1] or [N], float or int."""
    shape = value_info.type.tensor_type.shape.dim
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value_info.type.tensor_type.elem_type)
    array = np.asarray(label).astype(dtype)
    return array[:, None] if len(shape) == 2 and array.ndim == 1 else array


def in_stock(model, case, rate, steps, *, gradients=False, plain=True):
    """Loss of each step, last outputs and weights: the step's file in stock onnxruntime."""
    optimizer = OPTIMIZERS[case["optimizer"]]
    file = og.training_step(
        model, case["loss"], optimizer, gradients=gradients, inline=True, **settings(case)
    )
    session = onnxruntime.InferenceSession(file.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    wanted = {value.name: value for value in file.graph.input}
    state = {
        i.name: onnx.numpy_helper.to_array(i) for i in file.graph.initializer if i.name in wanted
    }
    losses, found = [], {}
    for x, picked, label in steps:
        feeds = {"x": picked, **state} if plain else {**feeds_of(case, x), **state}
        feeds["label"] = labels_for("label", label, wanted["label"])
        if "learning_rate" in wanted:
            feeds["learning_rate"] = np.array(rate, in_reference(case["dtype"]))
        found = dict(zip(names, session.run(None, feeds), strict=True))
        losses.append(float(found["loss"]))
        state = {name: found.get(f"next/{name}", value) for name, value in state.items()}
    return losses, found, state


def expected(case, steps, **options):
    kind = KINDS[case["kind"]]
    case = {**case, "dtype": in_reference(case["dtype"])}
    model = kind.build(case["dtype"], COLUMNS[case["loss"]], plain=True)
    if case["optimizer"] == "lbfgs":
        session = og.TrainingSession(model, case["loss"], OPTIMIZERS["lbfgs"], trainable=TRAINED)
        losses = [session.step({"x": picked, "label": label}) for _, picked, label in steps]
        return losses, {}, session.state()
    rate = OPTIMIZERS[case["optimizer"]].lr
    return in_stock(model, case, rate, steps, **options)


def in_single(value):
    return np.asarray(value).astype(np.float32)


def assert_close(case, found, wanted, what):
    if case["dtype"] in HALF:
        # Rounded values; where a step depends on the sign of a gradient, it may go the other way.
        tolerance = {"float16": 0.01, "bfloat16": 0.05}[case["dtype"]]
        tolerance += 0 if case["optimizer"] in STEADY else 0.08
        np.testing.assert_allclose(in_single(found), in_single(wanted), tolerance, tolerance, what)
        return
    tolerance = 1e-9 if case["dtype"] == "float64" else 2e-5
    if case["optimizer"] == "lbfgs":
        tolerance *= 100  # a line search goes another way for a rounding error
    np.testing.assert_allclose(found, wanted, 10 * tolerance, tolerance, err_msg=what)


def assert_weights(case, found, wanted):
    for name in TRAINED:
        assert_close(case, found[name], wanted[name], name)


def evaluated(state):
    """The weights that a trained model has: their averages, if there are any."""
    return {name: state.get(f"average/{name}", state[name]) for name in TRAINED}


def by_step(case, model):
    steps = list(batches(case))
    session = og.TrainingSession(
        model,
        case["loss"],
        OPTIMIZERS[case["optimizer"]],
        threads=case["threads"],
        **settings(case),
    )
    losses = [session.step(feeds_of(case, x, label)) for x, _, label in steps]
    wanted, _, state = expected(case, steps)
    assert_close(case, losses, wanted, "losses")
    assert_weights(case, session.state(), state)
    assert_weights(case, initializers(session.trained_model()), evaluated(state))


def by_fit(case, model):
    steps = list(batches(case))
    whole = case["optimizer"] == "lbfgs"
    x, y = (np.concatenate([step[i] for step in steps]) for i in (0, 2))
    trainer = og.Trainer(
        model,
        case["loss"],
        OPTIMIZERS[case["optimizer"]],
        threads=case["threads"],
        **settings(case),
    )
    trainer.fit(x, y, epochs=2, batch_size=None if whole else BATCH, shuffle=False, verbose=False)
    _, _, state = expected(case, [(x, x, y)] * 2 if whole else 2 * steps)
    assert_weights(case, initializers(trainer.trained_model()), evaluated(state))


def by_command(case, model, folder):
    steps = list(batches(case))
    whole = case["optimizer"] == "lbfgs"
    x, y = (np.concatenate([step[i] for step in steps]) for i in (0, 2))
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "rows.npz", x=x, label=y)
    optimizer = og.optimizers.to_text(OPTIMIZERS[case["optimizer"]])
    arguments = [
        "train", folder / "model.onnx", "--data", folder / "rows.npz", "--target", "label",
        "--loss", case["loss"], "--optimizer", optimizer,
        "--epochs", 2, "--no-shuffle", "--threads", case["threads"], "-q",
        "-o", folder / "trained.onnx",
    ]  # fmt: skip
    for name in TRAINED:
        arguments += ["--trainable", name]
    for name, value in UPDATES[case["update"]].items():
        arguments += ["--" + name.replace("_", "-"), value]
    if not whole:
        arguments += ["--batch-size", BATCH]
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
        unittest.mock.patch.object(sys, "argv", ["onnxgrad", *map(str, arguments)]),
        pytest.raises(SystemExit) as ended,
    ):
        cli.main()
    assert not ended.value.code, err.getvalue()
    _, _, state = expected(case, [(x, x, y)] * 2 if whole else 2 * steps)
    assert_weights(case, initializers(folder / "trained.onnx"), evaluated(state))


def seed_gradient(loss, scores, label):
    """d(mean loss)/d(scores) by its formula."""
    if loss == "squared_error":
        return 2 * (scores - label) / scores.size
    if loss == "softmax_cross_entropy":
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (e / e.sum(axis=1, keepdims=True) - np.eye(3)[label]) / len(scores)
    return (1 / (1 + np.exp(-scores)) - label[:, None]) / len(scores)


def by_passes(case, model):
    layer = og.ForwardBackward(
        model, weights=TRAINED, input_gradients=False, threads=case["threads"]
    )
    for step in batches(case):
        x, _, label = step
        outputs = layer.forward(feeds_of(case, x))
        seed = seed_gradient(case["loss"], outputs[0].astype(x.dtype), label)
        seed = as_fed(case, seed.astype(x.dtype))
        found = layer.backward([seed])
        _, wanted, _ = expected({**case, "update": "plain"}, [step], gradients=True)
        for name in TRAINED:
            assert_close(case, found.weights[name], wanted[f"{name}_grad"], name)


def by_file(case, model):
    steps = list(batches(case))
    rate = OPTIMIZERS[case["optimizer"]].lr
    losses, _, state = in_stock(model, case, rate, steps, plain=False)
    wanted, _, expected_state = expected(case, steps)
    assert_close(case, losses, wanted, "losses")
    assert_weights(case, state, expected_state)


def test_every_valid_pair_is_covered():
    parameters = {"a": range(4), "b": range(3), "c": range(3), "d": range(2)}

    def is_valid(row):
        return not (row.get("a") == 1 and row.get("c") == 2)

    rows = pairwise(parameters, is_valid)
    assert all(is_valid(row) for row in rows)
    assert len(rows) <= 20
    for a, b in itertools.combinations(parameters, 2):
        for x, y in itertools.product(parameters[a], parameters[b]):
            if is_valid({a: x, b: y}):
                assert any(row[a] == x and row[b] == y for row in rows)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_learns_what_the_plain_network_learns(case, tmp_path):
    model = KINDS[case["kind"]].build(case["dtype"], COLUMNS[case["loss"]])
    if case["entry"] == "command":
        by_command(case, model, tmp_path)
    else:
        {"step": by_step, "fit": by_fit, "passes": by_passes, "file": by_file}[case["entry"]](
            case, model
        )
