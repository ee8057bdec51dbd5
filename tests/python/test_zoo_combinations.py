"""Kinds of exported models with losses, optimizers, types, threads and ways to train.

What a model learns in three steps is what another runtime computes from the training step as a
file, in float32 or float64; the first loss is NumPy's of the exporter's output; the gradients of
separate passes and of a gradient as a file are PyTorch's. Every two values of two parameters meet
in some case.
"""

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import onnxgrad as og
import zoo
from command_line import run as run_command
from double_models import in_double
from half_models import DTYPES, to_half
from onnxgrad.losses import penalties
from pairwise import pairwise
from reference_values import part
from support import initializers

Arrays = dict[str, np.ndarray]
STEPS = 3


class Kind(NamedTuple):
    model: str
    by_rows: bool = False  # whether the first axis of all inputs and outputs is that of the rows
    # Where float64 is compared: "stock" onnxruntime has kernels, or ONNX's reference "evaluator";
    # otherwise ("single") with float32 in stock onnxruntime; "" if the operators have no float64.
    double: str = "single"
    halves: tuple[str, ...] = ("float16",)  # that all of its operators have


FLOAT16, BOTH, NONE = ("float16",), ("float16", "bfloat16"), ()
# By what is particular about them.
KINDS = {
    "loop": Kind("scripted_decoder", False, "stock", FLOAT16),
    "nested_loops": Kind("nested_loops", False, "stock", FLOAT16),
    "while": Kind("scripted_while", False, "stock", BOTH),
    "scan": Kind("selective_state_space", False, "stock", FLOAT16),
    "lstm": Kind("lstm_tagger_packed", True, "single", FLOAT16),
    "states": Kind("lstm_with_states", False, "single", FLOAT16),
    "gru": Kind("gru_forecast", True, "single", FLOAT16),
    "rnn": Kind("rnn_tanh_both_directions", True, "single", FLOAT16),
    "if": Kind("scripted_branches", False, "evaluator", BOTH),
    "resize": Kind("unet_bilinear", True, "evaluator", FLOAT16),
    # Sums of squares over all pixels: a rounding of 1e-3 is much of the error.
    "antialias": Kind("resize_antialias", False, "single", NONE),
    "grid_sample": Kind("vit_with_grid_sample", True, "single", FLOAT16),
    "deformable": Kind("deformable_convolution", False, "single", FLOAT16),
    # A unit is positive or not by the fourth digit of an input.
    "roi": Kind("roi_align_head", False, "evaluator", NONE),
    "fold": Kind("unfold_and_fold", True, "evaluator", BOTH),
    "top_k": Kind("moe_top2_gather", True, "evaluator", FLOAT16),
    "sort": Kind("sparsemax_choice_of_columns", True, "stock", FLOAT16),
    "reductions": Kind("reductions_and_sorting", True, "stock", FLOAT16),
    "non_zero": Kind("moe_switch_nonzero", False, "stock", BOTH),
    "einsum": Kind("attention_by_einsum", False, "stock", FLOAT16),
    "scatter": Kind("graph_attention", False, "evaluator", BOTH),
    "movement": Kind("movement_of_data", True, "stock", BOTH),
    "determinant": Kind("normalizing_flow", True, "evaluator", FLOAT16),
    "embedding_bag": Kind("embedding_bag_mean", False, "stock", BOTH),
    "stft": Kind("log_mel_classifier", True, "evaluator", FLOAT16),
    "fourier": Kind("fourier_neural_operator", True, "single", FLOAT16),
    "attention": Kind("attention_boolean_mask", True, "evaluator", BOTH),
    "capsules": Kind("capsule_routing", False, "evaluator", FLOAT16),
    "quantized": Kind("quantization_aware_training", True, "", NONE),
    "q_linear": Kind("quantized_qlinear_convolutions", True, "", NONE),
    "four_bits": Kind("four_bit_weights", True, "", BOTH),
    "contrib": Kind("bert_fused_by_onnxruntime", True, "evaluator", NONE),
}

WITHOUT_MATRICES = {"q_linear", "four_bits"}  # they are stored as integers

LOSSES = {
    "squared_error": og.losses.SquaredError,
    "huber": og.losses.Huber,
    "absolute_error": og.losses.AbsoluteError,
    "smooth_l1": functools.partial(og.losses.SmoothL1, beta=0.5),
}
# Large epsilons: a weight whose gradient is zero but for rounding, as the bias of the keys of an
# attention is, would otherwise take steps of full length in random directions.
OPTIMIZERS = {
    "sgd": og.optimizers.SGD(lr=0.02),
    "nesterov": og.optimizers.SGD(lr=0.02, momentum=0.9, nesterov=True),
    "adam": og.optimizers.Adam(lr=0.002, epsilon=1e-3),
    "adamw": og.optimizers.AdamW(lr=0.002, weight_decay=0.1, epsilon=1e-3),
    "rmsprop": og.optimizers.RMSProp(lr=0.002, epsilon=1e-3),
    "adagrad": og.optimizers.Adagrad(lr=0.01, epsilon=1e-3),
    "lamb": og.optimizers.LAMB(lr=0.01, epsilon=1e-3),
}
SLOWER = {"antialias": 0.01}  # sums of squares over all pixels
UPDATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulate": {"accumulate": 2},
    "clip_norm": {"clip_norm": 0.1},
    "clip_value": {"clip_value": 0.01},
    "penalty": {"penalty": "l1=0.001,l2=0.01"},
    "groups": {"groups": 0.25},  # the learning rate of the first weight, as a multiple
}
PARAMETERS = {
    "kind": list(KINDS),
    "loss": list(LOSSES),
    "optimizer": list(OPTIMIZERS),
    "update": list(UPDATES),
    "dtype": ["float32", "float64", "float16", "bfloat16"],
    "threads": [1, 2],
    "inline": [True, False],
    "entry": ["step", "fit", "command", "passes", "file"],
}


def is_valid(row: dict[str, Any]) -> bool:
    kind = KINDS.get(row.get("kind", ""), Kind("", True, "stock", BOTH))
    dtype, entry = row.get("dtype"), row.get("entry")
    if entry in ("fit", "command") and not kind.by_rows:
        return False
    if entry == "command" and row.get("update") == "groups":
        return False
    if (dtype == "float64" and not kind.double) or (dtype in DTYPES and dtype not in kind.halves):
        return False
    if row.get("update") == "penalty" and row.get("kind") in WITHOUT_MATRICES:
        return False
    if entry in ("passes", "file") and kind.model and not has_gradients(kind):
        return False
    # Other runtimes compute a file: in the types that they have.
    return entry != "file" or (
        dtype not in DTYPES and (dtype, kind.double) != ("float64", "single")
    )


@functools.cache
def has_gradients(kind: Kind) -> bool:
    return any(key.startswith("grad/") for key in zoo.stored(kind.model))


CASES = pairwise(PARAMETERS, is_valid)


class Problem(NamedTuple):
    """A model with its inputs and with labels for its first output."""

    model: onnx.ModelProto
    feeds: Arrays
    label: np.ndarray


def problem(kind: str, dtype: str) -> Problem:
    name = KINDS[kind].model
    data = zoo.stored(name)
    feeds = {key: data[f"in/{key}"] for key in zoo.ROWS[name]["inputs"]}
    output = data[f"out/{next(iter(zoo.ROWS[name]['outputs']))}"]
    label = output + np.random.default_rng(len(name)).normal(size=output.shape)
    model = zoo.load(name)
    if dtype == "float64":
        model, feeds = in_double(model, feeds)
        return Problem(model, feeds, label)
    if dtype in DTYPES:
        model = to_half(model, dtype)
        onnx.checker.check_model(model, full_check=True)
        feeds = {
            key: value.astype(DTYPES[dtype]) if value.dtype == np.float32 else value
            for key, value in feeds.items()
        }
    return Problem(model, feeds, label.astype(np.float32))


def reference_dtype(case: dict[str, Any]) -> str:
    has_double = KINDS[case["kind"]].double != "single"
    return "float64" if case["dtype"] == "float64" and has_double else "float32"


def loss_of(case: dict[str, Any]) -> og.losses.Loss:
    return LOSSES[case["loss"]](output=next(iter(zoo.ROWS[KINDS[case["kind"]].model]["outputs"])))


def optimizer_of(case: dict[str, Any]) -> og.optimizers.Optimizer:
    optimizer = OPTIMIZERS[case["optimizer"]]
    rate = optimizer.lr * SLOWER.get(case["kind"], 1.0)
    return type(optimizer)(**{**vars(optimizer), "lr": rate})


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    trainable = zoo.weights_to_train(KINDS[case["kind"]].model)
    options = {**UPDATES[case["update"]], "trainable": trainable}
    if "groups" in options:
        factor = options["groups"]
        options["groups"] = og.optimizers.ParameterGroup(trainable[0], lr_factor=factor)
    if "penalty" in options:
        options["penalty"] = penalties.from_text(options["penalty"])
    return options


class Erf(OpRun):
    """In float64: the evaluator's own has the precision of float32."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype),)


def runner(case: dict[str, Any], model: onnx.ModelProto) -> Any:
    """A function from inputs to the outputs of a model in another runtime, by name."""
    names = [value.name for value in model.graph.output]
    known = {value.name for value in model.graph.input}
    in_evaluator = KINDS[case["kind"]].double == "evaluator"
    if reference_dtype(case) == "float64" and in_evaluator:
        session: Any = ReferenceEvaluator(model, new_ops=[Erf])
    else:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(model.SerializeToString(), options)

    def run(feeds: Arrays) -> Arrays:
        given = {name: value for name, value in feeds.items() if name in known}
        return dict(zip(names, session.run(None, given), strict=True))

    return run


def in_other_runtime(case: dict[str, Any]) -> tuple[list[float], Arrays]:
    """Losses of the steps, and the last weights: the training step as a file."""
    model, feeds, label = problem(case["kind"], reference_dtype(case))
    optimizer = optimizer_of(case)
    file = og.training_step(
        model, loss_of(case), optimizer, inline=case["inline"], **options_of(case)
    )
    run = runner(case, file)
    values = {**feeds, "label": label, "learning_rate": np.array(optimizer.lr, label.dtype)}
    losses = []
    for _ in range(STEPS):
        found = run(values)
        losses.append(float(found["loss"]))
        values |= part(found, "next/")
    return losses, values


def by_step(case: dict[str, Any], given: Problem, _folder: Path) -> tuple[list[float], Arrays]:
    session = og.TrainingSession(
        given.model, loss_of(case), optimizer_of(case), threads=case["threads"], **options_of(case)
    )
    feeds = {**given.feeds, session.target_name: given.label}
    return [float(session.step(feeds)) for _ in range(STEPS)], session.state()


def by_fit(case: dict[str, Any], given: Problem, _folder: Path) -> tuple[list[float], Arrays]:
    trainer = og.Trainer(
        given.model, loss_of(case), optimizer_of(case), threads=case["threads"], **options_of(case)
    )
    trainer.fit(
        given.feeds,
        given.label,
        epochs=STEPS,
        batch_size=len(given.label),
        shuffle=False,
        verbose=False,
    )
    return trainer.history["train_loss"], initializers(trainer.trained_model())


def by_command(case: dict[str, Any], given: Problem, folder: Path) -> tuple[list[float], Arrays]:
    onnx.save(given.model, folder / "model.onnx")
    # NumPy's files have no bfloat16; the model's input converts.
    rows = {k: v.astype(float) if v.dtype.name == "bfloat16" else v for k, v in given.feeds.items()}
    np.savez(folder / "rows.npz", **rows, target=given.label)
    options: list[object] = []
    for name, value in UPDATES[case["update"]].items():
        options += ["--" + name.replace("_", "-"), value]
    for name in options_of(case)["trainable"]:
        options += ["--trainable", name]
    run_command(
        "train", folder / "model.onnx", "--data", folder / "rows.npz", "--target", "target",
        "--loss", og.losses.to_text(loss_of(case)),
        "--optimizer", og.optimizers.to_text(optimizer_of(case)),
        "--epochs", STEPS, "--batch-size", len(given.label), "--no-shuffle", "-q",
        "--threads", case["threads"], "-o", folder / "trained.onnx",
        "--history", folder / "history.csv", *options,
    )  # fmt: skip
    history = np.genfromtxt(folder / "history.csv", delimiter=",", names=True)
    return history["train_loss"].tolist(), initializers(folder / "trained.onnx")


def loss_in_numpy(case: dict[str, Any]) -> float:
    """The loss before the first step, from what the exporter computed."""
    name = KINDS[case["kind"]].model
    wanted = zoo.stored(name)[f"out/{next(iter(zoo.ROWS[name]['outputs']))}"]
    d = wanted.astype(np.float64) - problem(case["kind"], "float32").label
    magnitude = np.abs(d)
    beta = {"huber": 1.0, "smooth_l1": 0.5}.get(case["loss"], 1.0)
    parabola = np.where(magnitude <= beta, d**2 / 2, beta * (magnitude - beta / 2)) / beta
    by_name = {
        "squared_error": d**2,
        "absolute_error": magnitude,
        "huber": parabola,
        "smooth_l1": parabola,
    }
    loss = by_name[case["loss"]].mean()
    if case["update"] == "penalty":
        values = initializers(zoo.load(name))
        weights = [values[w] for w in zoo.weights_to_train(name) if values[w].ndim >= 2]
        loss += sum(0.001 * np.abs(w).sum() + 0.01 * (w.astype(float) ** 2).sum() for w in weights)
    return float(loss)


# Fractions of the largest change of a weight; in half precision activations are rounded, and values
# divided by their size may go another way where they are small.
BOUNDS = {"float32": 1e-3, "float64": 1e-8, "float16": 0.1, "bfloat16": 0.3}
# A difference in the last place moves a rounded activation to another integer, and over the end of
# the range, where the gradient of its scale jumps.
ROUNDED = {"q_linear"}
EPSILONS = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def compare_training(case: dict[str, Any], folder: Path) -> None:
    given = problem(case["kind"], case["dtype"])
    ways = {"step": by_step, "fit": by_fit, "command": by_command}
    losses, found = ways[case["entry"]](case, given, folder)
    wanted_losses, wanted = in_other_runtime(case)
    numbers = case["dtype"] if case["dtype"] in DTYPES else reference_dtype(case)
    is_rounded = case["kind"] in ROUNDED
    factor = 3 if is_rounded else 0.1
    np.testing.assert_allclose(losses, wanted_losses, rtol=factor * BOUNDS[numbers])
    rounding = max(EPSILONS[case["dtype"]], EPSILONS["float32"])
    np.testing.assert_allclose(losses[0], loss_in_numpy(case), rtol=max(30 * rounding, 1e-5))

    before = initializers(zoo.load(KINDS[case["kind"]].model))
    names = options_of(case)["trainable"]
    moved = max(np.abs(wanted[name] - before[name]).max() for name in names)
    assert moved > 1e-5
    for name in names:
        largest = np.abs(before[name]).max() + moved
        allowed = (1 if is_rounded else BOUNDS[numbers]) * moved + STEPS * EPSILONS[
            numbers
        ] * largest
        difference = np.abs(found[name].astype(np.float64) - wanted[name]).max()
        assert difference <= allowed, name


def compare_gradients(case: dict[str, Any], _folder: Path) -> None:
    """Compare gradients of the exporter's loss, in separate passes or by a gradient as a file."""
    name = KINDS[case["kind"]].model
    model, feeds, _ = problem(case["kind"], case["dtype"])
    weights, output = zoo.weights_to_train(name), model.graph.output[0].name
    seed = zoo.derivative_of_loss(name).astype(DTYPES.get(case["dtype"], case["dtype"]))
    if case["entry"] == "passes":
        layer = og.ForwardBackward(
            model, weights=weights, input_gradients=False, threads=case["threads"]
        )
        outputs = layer.forward(feeds)
        found = layer.backward([seed, *[None] * (len(outputs) - 1)]).weights
    else:
        file = og.gradient(model, weights, output, inline=case["inline"])
        values = {**initializers(model), **feeds, f"{output}_grad": seed}
        found = {k.removesuffix("_grad"): v for k, v in runner(case, file)(values).items()}
    wanted = part(zoo.stored(name), "grad/")
    largest = max(np.abs(wanted[weight]).max() for weight in weights)
    bound = {"float16": 0.01, "bfloat16": 0.1}.get(case["dtype"], 2e-5) * largest
    for weight in weights:
        difference = np.abs(found[weight].astype(np.float64) - wanted[weight]).max()
        assert difference <= bound, weight


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_combination(case: dict[str, Any], tmp_path: Path) -> None:
    compare = compare_gradients if case["entry"] in ("passes", "file") else compare_training
    compare(case, tmp_path)
