"""Schedules of the learning rate, against stored torch values and scikit-learn."""

import math
import pickle
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from sklearn.linear_model import SGDRegressor

import onnxgrad as og
from onnxgrad import schedules as s

DATA = Path(__file__).resolve().parents[1] / "data" / "optimizers" / "reference.npz"
BASE = 0.5  # learning rate of the stored values; there are 60 of each

CASES = {
    "constant": s.Constant(),
    "step": s.Step(7, 0.6, unit="step"),
    "multi_step": s.MultiStep([5, 20, 21, 50], 0.3),
    "exponential": s.Exponential(0.93),
    "cosine": s.Cosine(60, 0.1),
    "cosine_restarts": s.CosineRestarts(10),
    "cosine_restarts_longer": s.CosineRestarts(7, 2, minimum_factor=0.2),
    "one_cycle": s.OneCycle(61),
    "one_cycle_linear": s.OneCycle(61, 0.5, 10, 100, linear=True),
    "linear": s.Linear(40, 1.0, 0.1),
    "polynomial": s.Polynomial(45, 2.0),
    "warmup_cosine": s.warm_up(10, s.Cosine(50), start_factor=0.1),
    "product": s.Exponential(0.98) * s.Step(20, 0.5),
    "plateau": s.Plateau(patience=3),
    "plateau_options": s.Plateau(0.5, 1, 0.05, 2, 0.1),
}


@pytest.fixture(scope="module")
def stored():
    with np.load(DATA) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name", CASES)
def test_rates_are_those_of_torch(name, stored):
    # One step per epoch: both units count the same.
    losses = stored["losses"] if name.startswith("plateau") else ()
    rates = CASES[name].rates(BASE, epochs=60, steps_per_epoch=1, losses=losses)
    np.testing.assert_allclose(rates, stored[f"schedule/{name}"], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (s.Optimal(alpha=1e-3), {"learning_rate": "optimal", "alpha": 1e-3}),
        (s.InverseScaling(0.3), {"learning_rate": "invscaling", "power_t": 0.3, "eta0": 0.05}),
        (s.Constant(), {"learning_rate": "constant", "eta0": 0.05}),
    ],
    ids=["optimal", "invscaling", "constant"],
)
def test_rates_are_those_of_scikit_learn(schedule, options):
    """Its pure stochastic gradient descent, done here row by row with our rates."""
    rng = np.random.default_rng(4)
    X, y = rng.normal(0, 0.3, (40, 1)), rng.normal(0, 1, 40)
    model = SGDRegressor(
        penalty=None, fit_intercept=False, shuffle=False, max_iter=2, tol=None, **options
    )
    expected = model.fit(X, y).coef_[0]
    weight = 0.0
    for row, rate in enumerate(schedule.rates(0.05, epochs=2, steps_per_epoch=40)):
        x, target = X[row % 40, 0], y[row % 40]
        weight -= rate * (weight * x - target) * x
    assert weight == pytest.approx(expected, rel=1e-9)


def test_scaled_optimal_begins_with_the_rate():
    rates = s.Optimal(1e-4, first_is_lr=True).rates(0.01, steps_per_epoch=3)
    # onnxcustom: eta0 * t0 / (t0 + t) with t0 = 2 * (1 + a) / (alpha * a), a = 10
    t0 = 22 / (10 * 1e-4)
    np.testing.assert_allclose(rates, [0.01 * t0 / (t0 + t) for t in range(3)], rtol=1e-13)


def test_fit_follows_the_schedule_by_epochs_and_steps(linear_model, linear_data):
    X, y = linear_data
    seen = []

    class Rates(og.callbacks.Callback):
        every_n_steps = 1

        def on_step_end(self, trainer, _logs):
            seen.append(trainer.session.lr)

    schedule = s.warm_up(3, s.Cosine(minimum_factor=0.1)) * s.Exponential(0.5)
    trainer = og.Trainer(linear_model, optimizer="sgd", lr=0.01, schedule=schedule)
    trainer.fit(X, y, epochs=4, batch_size=50, callbacks=[Rates()], verbose=0)
    expected = schedule.rates(0.01, epochs=4, steps_per_epoch=4)
    assert seen == pytest.approx(expected, rel=1e-12)
    assert trainer.history["lr"] == pytest.approx(expected[3::4], rel=1e-12)
    assert trainer.session.lr == 0.01
    seen.clear()
    trainer.fit(X, y, epochs=4, batch_size=50, callbacks=[Rates()], verbose=0)
    assert seen == pytest.approx(expected, rel=1e-12)  # each fit starts over


def test_plateau_watches_the_validation_loss(linear_model, linear_data):
    X, y = linear_data
    plateau = s.Plateau(0.5, patience=1, threshold=0.5)
    trainer = og.Trainer(linear_model, optimizer="sgd", lr=0.02, schedule=plateau)
    trainer.fit(X, y, epochs=12, validation=(X[:20], y[:20] + 3), verbose=0)
    losses = trainer.history["val_loss"]
    expected = plateau.rates(0.02, epochs=12, steps_per_epoch=1, losses=losses)
    assert trainer.history["lr"] == pytest.approx(expected)
    assert trainer.history["lr"][-1] < 0.02


def test_rate_is_back_after_an_interrupted_fit(linear_model, linear_data):
    trainer = og.Trainer(linear_model, lr=0.01, schedule="cosine")

    def fail(_trainer, _logs):
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        trainer.fit(*linear_data, epochs=4, callbacks=[fail], verbose=0)
    assert trainer.session.lr == 0.01


def test_every_name_gives_rates(linear_model, linear_data):
    from onnxgrad import _core

    for name in s.names():
        rates = s.from_name(name).rates(0.1, epochs=5, steps_per_epoch=20)
        assert len(rates) == 100
        assert all(math.isfinite(rate) and rate >= 0 for rate in rates), name
        og.Trainer(linear_model, schedule=name).fit(*linear_data, epochs=2, verbose=0)
    assert s.from_name("invscaling") == s.InverseScaling()
    assert s.from_name("multi_step") == s.MultiStep([30, 60, 90])
    assert s.names() == _core.schedule_names()


def test_composition_is_flat_and_comparable():
    both = s.Linear(5, 0, 1) + s.Cosine(10) + s.Constant(0.1)
    assert len(both.parts) == 3
    assert both == s.Chain([s.Linear(5, 0, 1), s.Cosine(10), s.Constant(0.1)])
    assert len((s.Step() * s.Exponential() * s.Plateau()).parts) == 3
    assert pickle.loads(pickle.dumps(both)) == both
    assert repr(s.warm_up(5, "step")).startswith("Chain(parts=(Linear(length=5.0")


MISTAKES = {
    "unknown": (lambda: s.from_name("cosin"), "Did you mean 'cosine'"),
    "not_one": (lambda: s.Chain([3]), "not a schedule"),
    "empty": (lambda: s.Product([]), "no schedules"),
    "unit": (lambda: s.Step(unit="batch"), "unit"),
    "order": (lambda: s.MultiStep([3, 1]), "increasing"),
    "length": (lambda: s.Cosine(0), "length"),
    "factor": (lambda: s.Plateau(factor=1.0), "factor"),
    "alpha": (lambda: s.Optimal(0), "alpha"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    make, message = MISTAKES[name]
    with pytest.raises(og.OptionError, match=message):
        make()


# --- In the graph of a step -------------------------------------------------------------------

SLOPE = """
<ir_version: 8, opset_import: ["" : 17]>
slope (double[N, 1] X) => (double[N, 1] Y)
<double[1, 1] w = {0}, double[1] high = {1000}>
{ product = MatMul(X, w)  Y = Add(product, high) }
"""

IN_GRAPH = {
    **CASES,
    "inverse_scaling": s.InverseScaling(0.3),
    "optimal": s.Optimal(alpha=1e-3),
    "optimal_scaled": s.Optimal(alpha=1e-3, first_is_lr=True),
    "share": s.Cosine(0.5),
    "rest": s.warm_up(0.2, s.Linear()),
    "sequence": s.Chain([s.Linear(5, 0.1, 1.0), s.Exponential(0.9, unit="step")]),
    "restarts_lower": s.CosineRestarts(6, 1.5, restart_factor=0.7),
}


def rates_in_graph(schedule, updates, epochs, factors=(), **options):
    """The rates of a step in stock onnxruntime: the loss has the slope 1 everywhere."""
    step = og.training_step(
        onnx.parser.parse_model(SLOPE),
        "absolute_error",
        "sgd",
        trainable="w",
        schedule=schedule,
        updates=updates,
        epochs=epochs,
        **options,
    )
    session = onnxruntime.InferenceSession(step.SerializeToString())
    outputs = [output.name for output in session.get_outputs()]
    feeds = {"X": np.ones((2, 1)), "label": np.zeros((2, 1)), "learning_rate": np.array(BASE)}
    names = [i.name for i in step.graph.input]
    rates = []
    before = 0.0
    for t in range(updates):
        feeds["plateau_factor"] = np.array(factors[t]) if len(factors) else None
        given = {name: value for name, value in feeds.items() if name in names}
        results = dict(zip(outputs, session.run(None, given), strict=True))
        state = {
            name.removeprefix("next/"): value
            for name, value in results.items()
            if name.startswith("next/")
        }
        rates.append(before - float(state["w"][0, 0]))
        before = float(state["w"][0, 0])
        feeds.update(state)
    return np.array(rates)


@pytest.mark.parametrize("name", IN_GRAPH)
def test_rates_of_a_step_in_stock_onnxruntime(name, stored):
    """60 updates in 20 epochs; what looks at losses comes in as a factor."""
    schedule = IN_GRAPH[name]
    losses = stored["losses"][:20] if name.startswith("plateau") else ()
    expected = schedule.rates(BASE, epochs=20, steps_per_epoch=3, losses=losses)
    found = rates_in_graph(schedule, 60, 20, factors=np.array(expected) / BASE)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


def test_a_schedule_in_a_step_counts_updates_not_batches():
    """The last of three accumulated batches updates."""
    rates = rates_in_graph(s.Exponential(0.5, unit="step"), 9, 1, accumulate=3)
    np.testing.assert_allclose(rates, [0, 0, BASE, 0, 0, BASE / 2, 0, 0, BASE / 4], atol=1e-12)


def test_a_schedule_shares_the_count_of_its_optimizer():
    step = og.training_step(
        onnx.parser.parse_model(SLOPE), "absolute_error", "adam", schedule="exponential", updates=9
    )
    names = [i.name for i in step.graph.input]
    assert names.count("step_count") == 1
    assert not any(name.startswith("step_count_") for name in names)


@pytest.mark.parametrize("schedule", ["cosine", "step", s.Cosine(0.5)])
def test_a_schedule_in_a_step_has_to_know_its_end(schedule):
    with pytest.raises(og.OptionError, match="updates=") as caught:
        og.training_step(onnx.parser.parse_model(SLOPE), "absolute_error", "sgd", schedule=schedule)
    assert caught.value.hint
