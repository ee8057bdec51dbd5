"""Optimizers and what is done around them, against stored values and stock onnxruntime.

The scripts in tests/data/optimizers wrote the values, with torch and (Lion, LAMB) with Optax, and
say what they are of.
"""

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from onnxgrad import optimizers as opt
from onnxgrad import schedules
from support import mlp_proto

DATA = Path(__file__).resolve().parents[1] / "data" / "optimizers"
KEPT = (1, 2, 10, 50)  # steps after which the weights are stored

CASES = {
    "sgd": opt.SGD(0.1),
    "sgd_decay": opt.SGD(0.1, weight_decay=0.05),
    "momentum": opt.SGD(0.05, momentum=0.9),
    "momentum_dampening": opt.SGD(0.05, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": opt.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": opt.Adam(0.05),
    "adam_options": opt.Adam(0.05, 0.8, 0.95, 1e-4, 0.02),
    "adam_amsgrad": opt.Adam(0.05, beta2=0.9, amsgrad=True),
    "adamw": opt.AdamW(0.05),
    "adamw_options": opt.AdamW(0.05, 0.8, 0.95, 1e-4, 0.3, amsgrad=True),
    "adagrad": opt.Adagrad(0.3),
    "adagrad_options": opt.Adagrad(0.3, 0.1, 0.02, 0.5, 1e-3),
    "rmsprop": opt.RMSProp(0.02),
    "rmsprop_momentum": opt.RMSProp(0.01, 0.9, 1e-4, 0.02, 0.8),
    "rmsprop_centered": opt.RMSProp(0.02, 0.95, centered=True),
    "rmsprop_all": opt.RMSProp(0.01, 0.95, momentum=0.5, centered=True),
    "lion": opt.Lion(0.02),
    "lion_options": opt.Lion(0.02, 0.8, 0.95, 0.5),
    "lamb": opt.LAMB(0.05),
    "lamb_options": opt.LAMB(0.05, 0.8, 0.95, 1e-3, 0.2),
}

GROUPS = {
    "groups_adamw": (
        opt.AdamW(0.05, weight_decay=0.3),
        opt.ParameterGroup("b", lr=0.005, weight_decay=0.0),
    ),
    "groups_sgd": (
        opt.SGD(0.1, momentum=0.5),
        opt.ParameterGroup("W", lr_factor=0.1, weight_decay=0.1),
    ),
}

CLIPPED = {
    "clip_value": {"clip_value": 0.05},
    "clip_norm": {"clip_norm": 0.1},
    "clip_both": {"clip_value": 0.2, "clip_norm": 0.25},
}

DTYPES = [np.float64, np.float32]


@pytest.fixture(scope="module")
def stored():
    with np.load(DATA / "reference.npz") as torch, np.load(DATA / "optax.npz") as optax:
        return {**torch, **optax}


def problem(stored, dtype):
    """The model y = X W + b with its first weights."""
    element = {np.float32: "float", np.float64: "double"}[dtype]
    numbers = {
        name: ", ".join(repr(float(x)) for x in stored[key].ravel())
        for name, key in (("W", "weights"), ("b", "bias"))
    }
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main ({element}[N, 4] X) => ({element}[N, 3] Y)
        <{element}[4, 3] W = {{{numbers["W"]}}}, {element}[3] b = {{{numbers["b"]}}}>
        {{ product = MatMul(X, W)  Y = Add(product, b) }}""")


def row_of(state):
    return np.concatenate([np.asarray(state[name], np.float64).ravel() for name in ("W", "b")])


def feeds(stored, step, dtype):
    return {"X": stored["x"][step].astype(dtype), "label": stored["y"][step].astype(dtype)}


def train(session, stored, dtype, steps=50, before_step=None):
    """Weights after the steps of KEPT."""
    kept = []
    for step in range(steps):
        if before_step:
            before_step(step)
        session.step(feeds(stored, step, dtype))
        if step + 1 in KEPT:
            kept.append(row_of(session.state()))
    return np.array(kept)


def assert_agrees(found, expected, dtype):
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_end_where_torch_or_optax_ends(name, dtype, stored):
    session = og.TrainingSession(problem(stored, dtype), "squared_error", CASES[name])
    assert_agrees(train(session, stored, dtype), stored[f"optimizer/{name}"], dtype)


def test_decoupled_decay_shrinks_weights_beside_momentum(stored):
    """w = w (1 - lr decay) - lr b, with b free of the decay."""
    optimizer = opt.SGD(0.05, momentum=0.9, weight_decay=0.2, decoupled_weight_decay=True)
    session = og.TrainingSession(problem(stored, np.float64), "squared_error", optimizer)
    found = train(session, stored, np.float64)
    weights = np.vstack([stored["weights"], stored["bias"]])
    momentum = np.zeros_like(weights)
    expected = []
    for step in range(50):
        rows = np.column_stack([stored["x"][step], np.ones(len(stored["x"][step]))])
        error = rows @ weights - stored["y"][step]
        momentum = 0.9 * momentum + rows.T @ (2 * error / error.size)
        weights = weights * (1 - 0.05 * 0.2) - 0.05 * momentum
        if step + 1 in KEPT:
            expected.append(weights.ravel())
    assert_agrees(found, expected, np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_those_of_torch(name, dtype, stored):
    optimizer, group = GROUPS[name]
    session = og.TrainingSession(problem(stored, dtype), "squared_error", optimizer, groups=[group])
    assert_agrees(train(session, stored, dtype), stored[f"optimizer/{name}"], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLIPPED)
def test_clipping_is_that_of_torch(name, dtype, stored):
    session = og.TrainingSession(
        problem(stored, dtype), "squared_error", opt.SGD(0.3, momentum=0.5), **CLIPPED[name]
    )
    assert_agrees(train(session, stored, dtype), stored[f"optimizer/{name}"], dtype)


def test_learning_rate_between_steps_is_that_of_torch(stored):
    rates = schedules.Step(7, 0.7, unit="step").rates(0.1, steps_per_epoch=50)
    session = og.TrainingSession(problem(stored, np.float64), "squared_error", opt.Adam(0.1))

    def set_rate(step):
        session.lr = rates[step]

    found = train(session, stored, np.float64, before_step=set_rate)
    assert_agrees(found, stored["optimizer/adam_step_schedule"], np.float64)


def test_fit_follows_its_schedule(stored):
    trainer = og.Trainer(
        problem(stored, np.float64),
        "squared_error",
        opt.Adam(0.1),
        schedule=schedules.Step(7, 0.7, unit="step"),
        threads=1,
    )
    X, y = stored["x"].reshape(-1, 4), stored["y"].reshape(-1, 3)
    trainer.fit(X, y, epochs=1, batch_size=8, shuffle=False, verbose=0)
    found = row_of(trainer.session.state())
    assert_agrees(found, stored["optimizer/adam_step_schedule"][-1], np.float64)
    assert trainer.session.lr == 0.1  # the rate before the fit
    assert trainer.history["lr"] == [pytest.approx(0.1 * 0.7**7)]


SLOTS_THAT_DECAY = {
    "adam_amsgrad": opt.Adam(0.01, 0.8, 0.85, amsgrad=True),
    "adamw_amsgrad": opt.AdamW(0.01, 0.8, 0.85, amsgrad=True),
    "rmsprop_centered": opt.RMSProp(0.01, 0.85, momentum=0.8, centered=True),
    "lamb": opt.LAMB(0.01, 0.8, 0.85),
    "adam": opt.Adam(0.01, 0.8, 0.85),
    "rmsprop": opt.RMSProp(0.01, 0.85, momentum=0.8),
}


@pytest.mark.parametrize("name", SLOTS_THAT_DECAY)
def test_averages_of_dead_units_become_zero(name, stored):
    """Without a gradient they decay to a few of the smallest normal numbers, or to zero."""
    session = og.TrainingSession(
        problem(stored, np.float32), "squared_error", SLOTS_THAT_DECAY[name], threads=1
    )
    batch = feeds(stored, 0, np.float32)
    session.step(batch)
    batch["X"][:, 1] = 0  # from now on row 1 of W has no gradient
    smallest = np.finfo(np.float32).tiny
    decayed = 0
    for step in range(600):
        session.step(batch)
        if step % 50:
            continue
        state = session.state()
        for value in state.values():
            if value.dtype == np.float32:
                size = np.abs(value)
                assert not np.any((size > 0) & (size < smallest))
    for slot, value in state.items():
        if value.shape == (4, 3) and slot != "W" and np.abs(value[1]).max() < 10 * smallest:
            decayed += 1
    assert decayed >= 1


def step_cases():
    around = {"groups": [opt.ParameterGroup("b0", lr_factor=0.5)], "clip_norm": 0.5}
    yield from ((name, optimizer, {}) for name, optimizer in CASES.items())
    yield "with_everything", opt.AdamW(0.05, amsgrad=True), {**around, "accumulate": 2}
    yield "clip_value", opt.SGD(0.1), {"clip_value": 0.01}
    yield "velocity", opt.SGD(0.1, momentum=0.9, rate_in_velocity=True, weight_decay=0.1), {}


@pytest.mark.parametrize(
    ("optimizer", "options"), [pytest.param(o, p, id=n) for n, o, p in step_cases()]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_saved_step_in_onnxruntime_does_the_same(optimizer, options, dtype):
    """Five steps of the file, its outputs fed back, and five steps of a session."""
    model = mlp_proto([4, 6, 3], dtype=dtype)
    file = og.training_step(model, "squared_error", optimizer, inline=True, **options)
    stock = onnxruntime.InferenceSession(file.SerializeToString())
    session = og.TrainingSession(model, "squared_error", optimizer, **options)
    rng = np.random.default_rng(5)
    outputs = [output.name for output in stock.get_outputs()]
    rate = np.array(optimizer.lr, dtype)
    state = {}
    for _ in range(5):
        X = rng.normal(size=(8, 4)).astype(dtype)
        y = rng.normal(size=(8, 3)).astype(dtype)
        found = dict(
            zip(
                outputs,
                stock.run(None, {"X": X, "label": y, "learning_rate": rate, **state}),
                strict=True,
            )
        )
        loss = session.step({"X": X, "label": y})
        np.testing.assert_allclose(found["loss"], loss, rtol=1e-5 if dtype == np.float32 else 1e-11)
        state = {n.removeprefix("next/"): a for n, a in found.items() if n.startswith("next/")}
    ours = session.state()
    assert set(state) == set(ours)
    tolerance = 1e-11 if dtype == np.float64 else 2e-5
    for name, value in state.items():
        np.testing.assert_allclose(value, ours[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("optimizer", [opt.SGD(0.1, momentum=0.9), opt.Adam(0.05)], ids=repr)
def test_accumulated_batches_are_one_big_batch(optimizer, weighted):
    """Micro-batches of unequal sizes give the weights that their rows together give."""
    rng = np.random.default_rng(2)
    model = mlp_proto([4, 6, 3], dtype=np.float64)
    sizes = [5, 2, 9]
    options = {"sample_weight": "weight"} if weighted else {}
    small = og.TrainingSession(
        model, "squared_error", optimizer, accumulate=3, clip_norm=0.5, **options
    )
    big = og.TrainingSession(model, "squared_error", optimizer, clip_norm=0.5, **options)
    for _ in range(4):
        batch = {"X": rng.normal(size=(16, 4)), "label": rng.normal(size=(16, 3))}
        if weighted:
            batch["weight"] = rng.uniform(0, 2, 16)
        big.step(batch)
        ends = np.cumsum(sizes)
        for begin, end in zip(ends - sizes, ends, strict=True):
            small.step({name: array[begin:end] for name, array in batch.items()})
    for name, value in big.state().items():
        np.testing.assert_allclose(small.state()[name], value, rtol=1e-12, atol=1e-14)


def test_fit_with_accumulation_is_a_fit_with_large_batches(stored):
    X, y = stored["x"].reshape(-1, 4), stored["y"].reshape(-1, 3)

    def run(batch_size, **options):
        trainer = og.Trainer(
            problem(stored, np.float64), "squared_error", "nesterov", schedule="cosine", **options
        )
        trainer.fit(X, y, epochs=3, batch_size=batch_size, verbose=0)
        return row_of(trainer.session.state())

    np.testing.assert_allclose(run(10, accumulate=4), run(40), rtol=1e-11)


class TestFreezing:
    def session(self, optimizer="adam", **options):
        return og.TrainingSession(
            mlp_proto([3, 4, 2], dtype=np.float64), "squared_error", optimizer, **options
        )

    def batch(self, seed=0):
        rng = np.random.default_rng(seed)
        return {"X": rng.normal(size=(6, 3)), "label": rng.normal(size=(6, 2))}

    def test_frozen_weights_stay_and_others_are_trained(self):
        session, plain = self.session(), self.session()
        for s in (session, plain):
            for i in range(3):
                s.step(self.batch(i))
        before = session.state()
        session.freeze(["W0", "b0"])
        assert [w.name for w in session.trained_weights] == ["W1", "b1"]
        after = session.state()
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
        # The gradient of the last layer does not depend on the update of the first: one step is as
        # without freezing.
        session.step(self.batch(3))
        plain.step(self.batch(3))
        state, other = session.state(), plain.state()
        for name in ("W1", "b1", "adam_m/W1", "adam_v/b1", "step_count"):
            np.testing.assert_allclose(state[name], other[name], rtol=1e-14)
        for name in ("W0", "b0", "adam_m/W0", "adam_v/b0"):
            np.testing.assert_array_equal(state[name], before[name])

    def test_frozen_then_trained_again(self):
        """A weight without steps is as if the steps between had not been."""
        session = self.session()
        session.step(self.batch(0))
        session.freeze("*0")
        for i in range(4):
            session.step(self.batch(i))
        session.unfreeze("W0")
        assert [w.name for w in session.trained_weights] == ["W0", "W1", "b1"]
        before = session.state()
        assert before["step_count"] == 5
        assert before["step_count/W0"] == 1
        session.step(self.batch(7))
        state = session.state()
        assert state["step_count/W0"] == 2
        gradient = self.gradient("W0", before, self.batch(7))
        m = 0.9 * before["adam_m/W0"] + 0.1 * gradient
        v = 0.999 * before["adam_v/W0"] + 0.001 * gradient**2
        step = 0.001 * (m / (1 - 0.9**2)) / (np.sqrt(v / (1 - 0.999**2)) + 1e-8)
        np.testing.assert_allclose(state["W0"], before["W0"] - step, rtol=1e-12)
        np.testing.assert_array_equal(state["b0"], before["b0"])

    def gradient(self, name, weights, batch):
        """By hand: h = relu(X W0 + b0), Y = h W1 + b1."""
        assert name == "W0"
        hidden = batch["X"] @ weights["W0"] + weights["b0"]
        error = np.maximum(hidden, 0) @ weights["W1"] + weights["b1"] - batch["label"]
        back = (2 * error / error.size) @ weights["W1"].T * (hidden > 0)
        return batch["X"].T @ back

    def test_weights_that_were_never_trained_can_be(self):
        session = self.session(frozen=["*0"])
        for i in range(5):
            session.step(self.batch(i))
        session.unfreeze("*0")
        before = session.state()
        session.step(self.batch(9))
        # A first step of Adam has length lr wherever there is a gradient.
        moved = np.abs(session.state()["W0"] - before["W0"])
        gradient = self.gradient("W0", before, self.batch(9))
        np.testing.assert_allclose(moved[np.abs(gradient) > 1e-4], 0.001, rtol=1e-3)

    def test_values_of_frozen_weights_are_used_and_saved(self):
        session = self.session()
        for i in range(3):
            session.step(self.batch(i))
        expected = session.predict({"X": self.batch()["X"]})[0]
        loss = session.evaluate(self.batch()).loss
        session.freeze(["*0", "W1"])
        np.testing.assert_array_equal(session.predict({"X": self.batch()["X"]})[0], expected)
        assert session.evaluate(self.batch()).loss == loss
        saved = og.InferenceSession(session.trained_model())
        np.testing.assert_array_equal(saved.run(None, {"X": self.batch()["X"]})[0], expected)

    def test_reset_starts_over(self):
        session, fresh = self.session(), self.session()
        session.step(self.batch())
        session.freeze("*0")
        session.step(self.batch())
        session.unfreeze("*")
        session.reset()
        assert set(session.state()) == set(fresh.state())
        for s in (session, fresh):
            for i in range(2):
                s.step(self.batch(i))
        for name, value in fresh.state().items():
            np.testing.assert_array_equal(session.state()[name], value)

    def test_between_fits(self, linear_model, linear_data):
        trainer = og.Trainer(linear_model, optimizer=opt.SGD(0.05, momentum=0.9))
        trainer.fit(*linear_data, epochs=1, verbose=0)
        trainer.freeze("coef")
        before = trainer.session.state()
        trainer.fit(*linear_data, epochs=2, verbose=0)
        after = trainer.session.state()
        np.testing.assert_array_equal(after["coef"], before["coef"])
        assert np.any(after["intercept"] != before["intercept"])
        trainer.unfreeze("coef")
        weight = np.ones(len(linear_data[0]), np.float32)
        trainer.fit(*linear_data, sample_weight=weight, epochs=20, verbose=0)
        assert trainer.history["train_loss"][-1] < 1e-5

    def test_mistakes(self, linear_model, linear_data):
        session = self.session()
        with pytest.raises(og.ModelError, match="'W7'"):
            session.freeze("W7")
        with pytest.raises(og.ModelError, match="no weight is left to train"):
            session.freeze("*")
        with pytest.raises(og.ModelError, match="'W1'"):
            session.unfreeze("W1")  # is trained
        assert len(session.trained_weights) == 4
        trainer = og.Trainer(linear_model)

        def freeze(trainer, _logs):
            trainer.freeze("coef")

        with pytest.raises(og.Error, match="while fit"):
            trainer.fit(*linear_data, epochs=1, callbacks=[freeze], verbose=0)


LBFGS_CASES = {
    "lbfgs": opt.LBFGS(),
    "lbfgs_short": opt.LBFGS(history=3, max_iterations=2),
    "lbfgs_fixed": opt.LBFGS(0.5, max_iterations=5, history=5, line_search=False),
}
# In float64 and float32; measured 5e-9, 2e-13, 1e-10 and 1e-5, 4e-5, 5e-4. Rounding grows from step
# to step, since directions are divided by changes of the gradient and the line search compares
# losses, which are small differences near the minimum. The order of the rows changes as much.
LBFGS_TOLERANCES = {
    "lbfgs": (2e-8, 5e-5),
    "lbfgs_short": (1e-12, 1e-4),
    "lbfgs_fixed": (1e-9, 1e-3),
}


class TestLbfgs:
    def rows(self, stored, dtype=np.float64):
        return stored["x"].reshape(-1, 4).astype(dtype), stored["y"].reshape(-1, 3).astype(dtype)

    def steps(self, name, stored, dtype, order=slice(None), device=None):
        """Weights after each step, from rows in that order."""
        session = og.TrainingSession(
            problem(stored, dtype), "squared_error", LBFGS_CASES[name], threads=1, device=device
        )
        X, y = self.rows(stored, dtype)
        kept = []
        for _ in stored[f"optimizer/{name}"]:
            session.step({"X": X[order], "label": y[order]})
            kept.append(row_of(session.state()))
        return np.array(kept)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("name", LBFGS_CASES)
    def test_steps_end_where_torch_ends(self, name, dtype, stored):
        found = self.steps(name, stored, dtype)
        tolerance = LBFGS_TOLERANCES[name][0 if dtype is np.float64 else 1]
        np.testing.assert_allclose(
            found, stored[f"optimizer/{name}"], rtol=tolerance, atol=tolerance
        )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_fifty_iterations_are_those_of_torch(self, dtype, stored):
        """Until no step makes torch's loss smaller. Later ones lead no farther from the minimum."""
        with np.load(DATA / "lbfgs.npz") as arrays:
            expected, minimum = arrays[np.dtype(dtype).name], arrays["float64"][-1]
        optimizer = opt.LBFGS(
            max_iterations=1,
            max_evaluations=100,
            history=2,
            gradient_tolerance=1e-12,
            change_tolerance=0,
        )
        session = og.TrainingSession(
            problem(stored, dtype),
            "softmax_cross_entropy",
            optimizer,
            penalty={"W": {"l2": 0.01}, "b": {"l2": 0.01}},
            threads=1,
        )
        X, y = self.rows(stored)
        X = (X * np.array([1, 2, 0.5, 0.3])).astype(dtype)
        tolerance = (1e-5 if dtype is np.float32 else 1e-12) * np.abs(expected).max()
        moves = np.any(np.diff(expected, axis=0, prepend=np.nan), axis=1)
        for row, torch_moves in zip(expected, moves, strict=True):
            session.step({"X": X, "label": y.argmax(axis=1)})
            found = row_of(session.state())
            if torch_moves:
                np.testing.assert_allclose(found, row, rtol=0, atol=tolerance)
            else:
                assert np.abs(found - minimum).max() <= np.abs(row - minimum).max() + tolerance

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("name", LBFGS_CASES)
    def test_differs_from_torch_as_rows_in_another_order_do(self, name, dtype, stored):
        """Only rounding differs: on the CPU, rows in another order are as far away."""
        found = self.steps(name, stored, dtype)
        orders = [slice(None), *np.random.default_rng(0).permuted([range(400)] * 8, axis=1)]
        on_host = np.array([self.steps(name, stored, dtype, order, "cpu") for order in orders])
        spread = np.abs(on_host - on_host[0]).max(axis=(0, 2))
        difference = np.abs(found - stored[f"optimizer/{name}"]).max(axis=1)
        assert (difference <= 3 * spread).all(), difference / spread

    def test_solves_least_squares(self, stored):
        X, y = self.rows(stored)
        exact = opt.LBFGS(gradient_tolerance=1e-10, change_tolerance=1e-14)
        trainer = og.Trainer(problem(stored, np.float64), "squared_error", exact)
        trainer.fit(X, y, epochs=3, verbose=0)
        design = np.column_stack([X, np.ones(len(X))])
        solution = np.linalg.lstsq(design, y, rcond=None)[0]
        found = trainer.session.state()
        np.testing.assert_allclose(found["W"], solution[:-1], atol=1e-6)
        np.testing.assert_allclose(found["b"], solution[-1], atol=1e-6)
        assert len(trainer.history["train_loss"]) == 3

    def test_takes_all_rows_at_once(self, stored):
        X, y = self.rows(stored)
        trainer = og.Trainer(problem(stored, np.float64), "squared_error", "lbfgs")
        with pytest.raises(og.DataError, match="all 400 rows"):
            trainer.fit(X, y, batch_size=32, verbose=0)
        trainer.fit(X, y, batch_size=400, epochs=1, validation=(X[:10], y[:10]), verbose=0)

    def test_continues_from_its_state(self, stored):
        model = mlp_proto([4, 5, 3], dtype=np.float64)
        X, y = self.rows(stored)
        batch = {"X": X, "label": y}
        optimizer = opt.LBFGS(max_iterations=3, history=4)
        session = og.TrainingSession(model, "squared_error", optimizer)
        for _ in range(3):
            session.step(batch)
        other = og.TrainingSession(model, "squared_error", optimizer)
        other.load_state(session.state())
        for _ in range(3):
            assert session.step(batch) == other.step(batch)
        for name, value in session.state().items():
            np.testing.assert_array_equal(other.state()[name], value)

    def test_more_outputs_and_frozen_weights(self, stored):
        X, y = self.rows(stored)
        session = og.TrainingSession(
            problem(stored, np.float64), "squared_error", "lbfgs", outputs=["gradient_norm"]
        )
        session.freeze("b")
        before = session.state()["b"]
        for _ in range(2):
            _, (norm,) = session.step({"X": X, "label": y})
        assert norm < 1e-4
        np.testing.assert_array_equal(session.state()["b"], before)

    def test_cannot_be_a_graph(self, linear_model):
        with pytest.raises(og.ModelError, match="L-BFGS"):
            og.training_step(linear_model, optimizer="lbfgs")
        with pytest.raises(og.ModelError, match="L-BFGS"):
            og.TrainingSession(linear_model, optimizer="lbfgs", accumulate=2)


MISTAKES = {
    "unknown": (lambda: opt.from_name("adamm"), "Did you mean 'adam"),
    "beta": (lambda: opt.AdamW(beta1=1.0), "beta1"),
    "alpha": (lambda: opt.RMSProp(alpha=-0.1), "alpha"),
    "history": (lambda: opt.LBFGS(history=0), "history"),
    "nesterov": (lambda: opt.SGD(nesterov=True), "nesterov"),
    "group_without_pattern": (lambda: opt.ParameterGroup([]), "pattern"),
    "group_with_two_rates": (lambda: opt.ParameterGroup("*", lr=1, lr_factor=2), "lr_factor"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    make, message = MISTAKES[name]
    with pytest.raises(og.OptionError, match=message):
        make()


def test_mistakes_around_the_formula(linear_model):
    for options, message in (
        ({"groups": ["coef"]}, "ParameterGroup"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"clip_value": -1}, "clip_value"),
        ({"accumulate": 0}, "accumulate"),
    ):
        with pytest.raises(og.OptionError, match=message):
            og.TrainingSession(linear_model, **options)
    with pytest.raises(og.ModelError, match="'cof'"):
        og.TrainingSession(linear_model, groups=[opt.ParameterGroup("cof")])
    session = og.TrainingSession(linear_model)
    with pytest.raises(og.OptionError, match="accumulate cannot be given"):
        og.Trainer(session, accumulate=2)


def test_every_name_trains(linear_model, linear_data):
    X, y = linear_data
    for name in opt.names():
        trainer = og.Trainer(linear_model, optimizer=name)
        losses = trainer.fit(X, y, epochs=3, verbose=0).history["train_loss"]
        assert losses[-1] < losses[0], name
        assert opt.from_name(name).replace(lr=0.5).lr == 0.5
