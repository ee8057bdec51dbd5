"""Whole training steps of every loss run in stock onnxruntime, in float32 and in float64."""

import json
import typing
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og

VALUES = Path(__file__).parents[1] / "data" / "losses" / "torch_values.json"
CASES = json.loads(VALUES.read_text(encoding="utf-8"))["cases"]
PENALTIES = {"l1": {"l1": 0.03}, "l2": {"l2": 0.2}, "elastic": {"l1": 0.01, "l2": 0.1}}
TYPES = {"float32": "float", "float64": "double"}


def scaled_scores(case, dtype):
    """The model scores * w, its weight w of ones, and a batch for it."""
    scores, target = np.array(case["scores"], dtype), np.array(case["target"])
    dims = ", ".join(str(size) for size in scores.shape[1:])
    ones = ", ".join("1" for _ in range(int(np.prod(scores.shape[1:]))))
    rows = ", ".join(["N", dims] if dims else ["N"])
    element = TYPES[dtype]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main ({element}[{rows}] X) => ({element}[{rows}] Y)
        <{element}[{dims or 1}] w = {{{ones}}}> {{ Y = Mul(X, w) }}"""
    )
    is_converted = target.dtype.kind == "f" and case["loss"] != "Dpo"  # whose tokens are float64
    label = target.astype(dtype) if is_converted else target
    return model, {"X": scores, "label": label}


def described(case):
    return getattr(og.losses, case["loss"])(**case["options"], reduction=case["reduction"])


def compare(model, feeds, loss, optimizer, dtype, **options):
    """One step of the file in stock onnxruntime and one of a session."""
    options["trainable"] = "w"
    file = og.training_step(model, loss, optimizer, inline=True, **options)
    stock = onnxruntime.InferenceSession(file.SerializeToString())
    names = [value.name for value in stock.get_outputs()]
    rate = {"learning_rate": np.array(optimizer.lr, dtype)}
    found = dict(zip(names, stock.run(None, {**feeds, **rate}), strict=True))
    session = og.TrainingSession(model, loss, optimizer, **options)
    tolerance = 1e-11 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(found["loss"], session.step(feeds), tolerance, tolerance)
    state = session.state()
    assert {f"next/{name}" for name in state} <= set(names)
    for name, value in state.items():
        np.testing.assert_allclose(found[f"next/{name}"], value, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['name']}-{case['reduction']}-{case['weights']}"[:60]
)
def test_every_loss(case, dtype):
    model, feeds = scaled_scores(case, dtype)
    options = {}
    if case["weights"]:
        feeds["weight"] = np.array(case["weights"], dtype)
        options["sample_weight"] = "weight"
    compare(model, feeds, described(case), og.optimizers.SGD(0.01), dtype, **options)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", og.optimizers.names())
def test_every_optimizer_with_every_penalty(name, penalty, dtype):
    if name == "lbfgs":
        pytest.skip("a loop around the graph, no graph")
    case = next(case for case in CASES if case["loss"] == "BinaryCrossEntropy")
    model, feeds = scaled_scores(case, dtype)
    options = {"penalty": {"w": PENALTIES[penalty]}, "clip_norm": 0.5}
    compare(model, feeds, described(case), og.optimizers.from_name(name), dtype, **options)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "kind", typing.get_args(typing.get_type_hints(og.losses.OneVsRest)["kind"])
)
def test_every_kind_of_one_vs_rest(kind, dtype):
    rng = np.random.default_rng(4)
    case = {"scores": rng.normal(size=(6, 3)), "target": rng.integers(0, 3, 6)}
    model, feeds = scaled_scores(case, dtype)
    compare(model, feeds, og.losses.OneVsRest(kind=kind), og.optimizers.SGD(0.1), dtype)


def test_softplus_in_float64_keeps_its_digits():
    """log(1 + exp(-m)) and its gradient -1 / (1 + exp(m)), at margins m where exp overflows too."""
    margins = np.array([[-800.0], [-40.0], [-1.0], [-0.0], [0.0], [1e-9], [2.0], [36.0], [800.0]])
    case = {"scores": margins, "target": np.ones(len(margins), np.int64)}
    model, feeds = scaled_scores(case, "float64")
    loss = og.losses.BinaryCrossEntropy(reduction="none")
    with_loss = og.add_loss(model, loss, keep_outputs=False)
    assert "Softplus" not in {node.op_type for node in with_loss.graph.node}
    gradient = og.gradient(with_loss, "X", fill_grad=True)
    values, gradients = (
        onnxruntime.InferenceSession(m.SerializeToString()).run(None, feeds)[0].ravel()
        for m in (with_loss, gradient)
    )
    m = margins.ravel()
    np.testing.assert_allclose(values, np.logaddexp(0, -m), rtol=1e-15, atol=1e-16)
    np.testing.assert_allclose(gradients, -np.exp(-np.logaddexp(0, m)), rtol=1e-14, atol=1e-16)
