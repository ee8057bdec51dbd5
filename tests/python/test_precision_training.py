"""`precision=` with optimizers, options, models of all kinds, checkpoints; the loss scale."""

import numpy as np
import onnx
import onnx.parser
import pytest

import dynamic_models
import half_models
import onnxgrad as og
from precision_cases import LOSS, NETWORKS, TOLERANCE, both, error_of, feeds_of, gradients_of
from support import initializers, mlp_proto


def overflowing():
    """A model whose scaled gradients overflow in float16 at first."""
    return mlp_proto([6, 16, 3], seed=3), {
        "X": np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32) * 8,
        "label": np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32) * 50,
    }


class TestLossScale:
    def test_an_overflow_changes_the_scale_only(self):
        model, feeds = overflowing()
        precision = og.Precision("fp16", loss_scale=2.0**20)
        session = og.TrainingSession(model, "squared_error", "adam", precision=precision)
        before = session.state()
        skipped = 0
        while True:
            loss = session.step(feeds)
            after = session.state()
            assert np.isfinite(loss)
            changed = [name for name in after if not np.array_equal(before[name], after[name])]
            if changed != ["loss_scale"]:
                break
            assert after["loss_scale"] == before["loss_scale"] / 2
            before, skipped = after, skipped + 1
        assert 0 < skipped < 20
        assert after["step_count"] == 1
        assert after["loss_scale"] == 2.0**20 / 2**skipped
        losses = [session.step(feeds) for _ in range(50)]
        assert losses[-1] < losses[0]

    def test_it_grows(self):
        precision = og.Precision("fp16", loss_scale=8, growth_interval=3)
        session = og.TrainingSession(
            half_models.build("mlp"), LOSS, "sgd", precision=precision, threads=1
        )
        scales = []
        for _ in range(7):
            session.step(feeds_of("mlp"))
            scales.append(float(session.state()["loss_scale"]))
        assert scales == [8, 8, 16, 16, 16, 32, 32]

    def test_the_scale_does_not_change_the_gradients(self):
        found = []
        for scale in (1.0, 1024.0):
            precision = og.Precision("fp16", loss_scale=scale)
            found.append(gradients_of(half_models.build("mlp"), feeds_of("mlp"), precision)[1])
        for name in found[0]:
            assert error_of(found[0][name], found[1][name]) < 2e-3, name

    TINY = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] X) => (float[N, 2] Y)
    <float tiny = {1e-7}, float[4, 4] w = {1, 0, 0.5, 0, 0, 1, 0, 0, 0.3, 0, 1, 0, 0, 0, 0, 1},
     float[4, 2] v = {1, 0, 0, 1, 0.5, 0.5, -0.5, 0.25}>
    { h = MatMul(X, w)  t = Tanh(h)  m = MatMul(t, v)  Y = Mul(m, tiny) }
    """

    def test_small_gradients_survive(self):
        # Gradients are below the smallest number of float16 without a scale.
        model = onnx.parser.parse_model(self.TINY)
        X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
        feeds = {"X": X, "label": np.ones((8, 2), np.float32)}
        norms = []
        for scale in (1.0, 2.0**20):
            precision = og.Precision("fp16", loss_scale=scale)
            _, found = gradients_of(model, feeds, precision, "squared_error")
            norms.append(np.linalg.norm(found["w"]))
        _, wanted = gradients_of(model, feeds, "float32", "squared_error")
        assert norms[0] == 0
        assert norms[1] == pytest.approx(np.linalg.norm(wanted["w"]), rel=0.01)

    def test_nan_in_the_data_is_an_error(self):
        model, feeds = half_models.build("mlp"), feeds_of("mlp")
        feeds["x"][3, 2] = np.nan
        session = og.TrainingSession(model, LOSS, "sgd", precision="fp16")
        before = session.state()
        assert np.isnan(session.step(feeds))
        after = session.state()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        trainer = og.Trainer(model, LOSS, "sgd", precision="fp16")
        with pytest.raises(og.ConvergenceError):
            trainer.fit(feeds["x"], feeds["label"], epochs=3, verbose=0, allow_nan=True)

    def test_a_gradient_that_is_never_finite_is_an_error(self):
        # The slope of the root at 0 is infinite, and infinity times 0 not a number.
        model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 2] X) => (float[N, 1] Y)
        <float[2, 1] w = {0, 0}, float[1, 1] v = {1}>
        { m = MatMul(X, w)  q = Mul(m, m)  r = Sqrt(q)  Y = MatMul(r, v) }
        """)
        X, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
        precision = og.Precision("fp16", loss_scale=8)
        trainer = og.Trainer(model, "squared_error", "sgd", precision=precision)
        with pytest.raises(og.ConvergenceError):
            trainer.fit(X, y, epochs=20, verbose=0)

    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_skipped_steps_do_not_stop_a_fit(self, accumulate):
        model, feeds = overflowing()
        trainer = og.Trainer(
            model,
            "squared_error",
            og.optimizers.Adam(0.05),
            precision=og.Precision("fp16", loss_scale=2.0**22),
            accumulate=accumulate,
            clip_norm=5.0,
        )
        history = trainer.fit(
            feeds["X"], feeds["label"], epochs=60, batch_size=4, verbose=0, non_finite="skip"
        )
        losses = history.history["train_loss"]
        assert losses[-1] < 0.9 * losses[0]
        assert trainer.session.state()["loss_scale"] < 2.0**22


OPTIMIZERS = ["sgd", "nesterov", "adam", "adamw", "adagrad", "rmsprop", "lion", "lamb", "muon"]


class TestCrossed:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    @both
    def test_optimizers(self, optimizer, precision):
        if optimizer == "nesterov":
            described = og.optimizers.SGD(lr=0.05, momentum=0.9, nesterov=True)
        else:
            described = og.optimizers.from_name(optimizer)
        X = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
        labels = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)
        losses = {}
        for one in ("float32", precision):
            trainer = og.Trainer(mlp_proto([6, 16, 3], 3), LOSS, described, precision=one)
            losses[one] = trainer.fit(X, labels, epochs=8, batch_size=16, verbose=0).history[
                "train_loss"
            ]
        assert losses[precision][-1] < losses[precision][0]
        assert losses[precision] == pytest.approx(losses["float32"], rel=0.03)

    OPTIONS = (
        {"clip_norm": 0.1},
        {"clip_value": 0.01},
        {"accumulate": 3},
        {"frozen": "w0"},
        {"penalty": og.losses.Penalty(l2=0.1)},
        {"schedule": "cosine"},
        {"groups": og.optimizers.ParameterGroup("w1", lr=0.5)},
        {"stop_gradient": "h"},
    )

    @pytest.mark.parametrize("options", OPTIONS, ids=lambda one: next(iter(one)))
    @both
    def test_options(self, options, precision):
        x, labels = half_models.rows("mlp", 30)
        weights = {}
        for one in ("float32", precision):
            trainer = og.Trainer(
                half_models.build("mlp"), LOSS, "sgd", lr=0.1, precision=one, threads=1, **options
            )
            trainer.fit(x, labels, epochs=4, batch_size=10, shuffle=False, verbose=0)
            weights[one] = initializers(trainer.trained_model())
        start = initializers(half_models.build("mlp"))
        for name, wanted in weights["float32"].items():
            moved = wanted - start[name]
            assert error_of(weights[precision][name] - start[name], moved) < 0.05, name

    def test_several_options_together(self):
        x, labels = half_models.rows("cnn", 24)
        options = {"non_finite": "skip", "validation": 0.25, "class_weight": "balanced"}
        losses = []
        for precision in ("float32", "fp16"):
            trainer = og.Trainer(
                half_models.build("cnn"), LOSS, "adamw", precision=precision, clip_norm=1.0,
                accumulate=2, threads=1,
            )  # fmt: skip
            history = trainer.fit(
                x, labels, epochs=4, batch_size=6, verbose=0, sample_weight=None, **options
            ).history
            losses.append(history["train_loss"] + history["val_loss"])
        assert losses[1] == pytest.approx(losses[0], rel=0.02)

    @pytest.mark.parametrize("kind", list(dynamic_models.KINDS))
    @both
    def test_branches_and_dynamic_shapes(self, kind, precision):
        one = dynamic_models.KINDS[kind]
        model = one.build("float32", 2)
        rng = np.random.default_rng(2)
        x = rng.normal(size=(6, 3)).astype(np.float32) * one.sign
        feeds = {"x": x} | one.feeds
        losses = []
        for chosen in ("float32", precision):
            session = og.TrainingSession(
                model, og.losses.SquaredError(reduction="mean"), "sgd", precision=chosen, threads=1,
                trainable=["w0", "w1"], training_mode=False,
            )  # fmt: skip
            y = session.predict(feeds)[0]
            given = feeds | {"label": np.zeros_like(y)}
            losses.append([session.step(given) for _ in range(4)])
        assert losses[1] == pytest.approx(losses[0], rel=2 * TOLERANCE[precision], abs=1e-4)

    LOOP = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] X) => (float[N, 2] Y)
    <int64 count = {3}, bool on = {1},
     float[4, 4] w = {0.5, 0, 0.1, 0, 0, 0.4, 0, 0.2, 0.3, 0, 0.6, 0, 0, 0.1, 0, 0.3},
     float[4, 2] v = {1, 0, 0, 1, 0.5, 0.5, -0.5, 0.25}>
    {
      s = Loop(count, on, X) < body = b (int64 i, bool c, float[N, 4] t) => (bool d, float[N, 4] u)
        { d = Identity(c)  p = MatMul(t, w)  u = Tanh(p) } >
      Y = MatMul(s, v)
    }
    """

    @both
    def test_loops(self, precision):
        model = onnx.parser.parse_model(self.LOOP)
        X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
        feeds = {"X": X, "label": np.ones((8, 2), np.float32)}
        _, wanted = gradients_of(model, feeds, "float32", "squared_error")
        _, found = gradients_of(model, feeds, precision, "squared_error")
        for name, gradient in wanted.items():
            assert error_of(found[name], gradient) < TOLERANCE[precision], name
            assert not np.array_equal(found[name], gradient), name

    EMBEDDING = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (int64[N, 5] X) => (float[N, 3] Y)
    { e = Gather(table, X)  n = LayerNormalization(e, scale, shift)
      m = MatMul(n, w)  t = Tanh(m)  r = ReduceMean<axes = [1], keepdims = 0>(t)
      Y = MatMul(r, head) }
    """

    @both
    def test_embeddings(self, precision):
        model = onnx.parser.parse_model(self.EMBEDDING)
        rng = np.random.default_rng(4)
        shapes = {"table": (11, 8), "scale": (8,), "shift": (8,), "w": (8, 8), "head": (8, 3)}
        for name, shape in shapes.items():
            array = rng.normal(0, 0.5, shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        feeds = {"X": rng.integers(0, 11, (16, 5)), "label": rng.integers(0, 3, 16)}
        _, wanted = gradients_of(model, feeds, "float32")
        _, found = gradients_of(model, feeds, precision)
        for name, gradient in wanted.items():
            assert error_of(found[name], gradient) < 2 * TOLERANCE[precision], name

    @pytest.mark.parametrize("dtype", list(half_models.DTYPES))
    @both
    def test_models_of_halves_are_handed_back_in_their_type(self, dtype, precision):
        model = half_models.build("transformer", dtype)
        x, labels = half_models.rows("transformer")
        feeds = {"x": x.astype(half_models.DTYPES[dtype]), "label": labels}
        session = og.TrainingSession(model, LOSS, "sgd", precision=precision, threads=1)
        plain = og.TrainingSession(model, LOSS, "sgd", threads=1)
        losses = [(session.step(feeds), plain.step(feeds)) for _ in range(4)]
        assert all(a == pytest.approx(b, rel=0.02) for a, b in losses)
        trained = initializers(session.trained_model())
        assert all(
            array.dtype == half_models.DTYPES[dtype]
            for name, array in trained.items()
            if name in half_models.WEIGHTS["transformer"]
        )

    @both
    @pytest.mark.parametrize("name", NETWORKS)
    def test_a_resumed_session_goes_on_bit_for_bit(self, name, precision):
        model, feeds = half_models.build(name), feeds_of(name)
        options = {"precision": og.Precision(precision, growth_interval=2), "threads": 1}
        session = og.TrainingSession(model, LOSS, "adam", **options)
        for _ in range(3):
            session.step(feeds)
        other = og.TrainingSession(model, LOSS, "adam", **options)
        other.load_state(session.state())
        assert [other.step(feeds) for _ in range(3)] == [session.step(feeds) for _ in range(3)]

    @both
    def test_a_resumed_fit_goes_on_bit_for_bit(self, precision, tmp_path):
        x, labels = half_models.rows("mlp", 20)

        def train(epochs, precision=precision, **options):
            trainer = og.Trainer(
                half_models.build("mlp"), LOSS, "adam", precision=precision, threads=1, seed=3
            )
            trainer.fit(x, labels, epochs=epochs, batch_size=6, verbose=0, **options)
            return trainer

        points = tmp_path / "points"
        wanted = train(4).session.state()
        train(2, callbacks=[og.callbacks.Checkpoint(points, every="epoch")])
        found = train(4, resume=points).session.state()
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
        with pytest.raises(og.CheckpointError):
            train(4, precision="float32", resume=points)

    @both
    @pytest.mark.parametrize("threads", [1, 2])
    def test_same_threads_same_bits(self, precision, threads):
        model = mlp_proto([70, 130, 90], seed=1)
        rng = np.random.default_rng(0)
        feeds = {"X": rng.normal(size=(150, 70)).astype(np.float32)}
        feeds["label"] = rng.integers(0, 90, 150)

        def losses(count):
            session = og.TrainingSession(model, LOSS, "sgd", precision=precision, threads=count)
            return [session.step(feeds) for _ in range(4)]

        assert losses(threads) == losses(threads)
        assert losses(threads) == pytest.approx(losses(1), rel=1e-3)

    @both
    def test_freezing_keeps_the_scale(self, precision):
        model, feeds = half_models.build("mlp"), feeds_of("mlp")
        described = og.Precision(precision, loss_scale=32, growth_interval=2)
        session = og.TrainingSession(model, LOSS, "adam", precision=described, threads=1)
        for _ in range(3):
            session.step(feeds)
        session.freeze("w0")
        before = session.state()
        session.step(feeds)
        after = session.state()
        assert np.array_equal(before["w0"], after["w0"])
        assert not np.array_equal(before["w1"], after["w1"])
        if precision == "fp16":
            assert (before["loss_scale"], after["loss_scale"]) == (64, 128)
