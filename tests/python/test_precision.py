"""`precision=`: what a step rounds, by NumPy; what it writes, in stock onnxruntime."""

import dataclasses
import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import command_line
import half_models
import onnxgrad as og
from onnxgrad import sklearn as og_sklearn
from precision_cases import (
    LOSS,
    NETWORKS,
    TOLERANCE,
    both,
    error_of,
    feeds_of,
    gradients_of,
    rounded,
)
from support import LINEAR, initializers, mlp_proto


class TestWhatIsRounded:
    @both
    @pytest.mark.parametrize("loss", [LOSS, "squared_error"])
    def test_a_perceptron_by_numpy(self, precision, loss):
        model = mlp_proto([6, 16, 3], seed=3)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(32, 6)).astype(np.float32)
        labels = rng.integers(0, 3, 32)
        wanted_y = rng.normal(size=(32, 3)).astype(np.float32)
        given = labels if loss == LOSS else wanted_y
        w = initializers(model)
        half = lambda array: rounded(array, precision)  # noqa: E731
        # Forward: operands and what lasts to the backward pass; scores of classes only.
        h = half(np.maximum(half(x) @ half(w["W0"]) + w["b0"], 0))
        y = h @ half(w["W1"]) + w["b1"]
        if loss == LOSS:
            y = half(y)
            p = np.exp(y - y.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            value = -np.log(p[np.arange(32), labels]).mean()
            dy = (p - np.eye(3, dtype=np.float32)[labels]) / 32
        else:
            value = np.square(y - wanted_y).mean()
            dy = 2 * (y - wanted_y) / y.size
        scale = np.float32(65536 if precision == "fp16" else 1)
        dy = half(dy * scale)
        dh = half(np.where(h > 0, dy @ half(w["W1"]).T, 0))
        wanted = {
            "W1": h.T @ dy / scale,
            "b1": dy.sum(0) / scale,
            "W0": half(x).T @ dh / scale,
            "b0": dh.sum(0) / scale,
        }
        found_value, found = gradients_of(model, {"X": x, "label": given}, precision, loss)
        assert found_value == pytest.approx(value, rel=1e-5)
        for name, gradient in found.items():
            # A float32 sum in another order may round to the other neighbour, here and there.
            assert error_of(gradient, wanted[name]) < 3e-4, name

    @both
    @pytest.mark.parametrize("name", NETWORKS)
    def test_gradients_are_near_those_of_float32(self, name, precision):
        model, feeds = half_models.build(name), feeds_of(name)
        value, wanted = gradients_of(model, feeds, "float32")
        found_value, found = gradients_of(model, feeds, precision)
        assert found_value == pytest.approx(value, rel=TOLERANCE[precision])
        for weight, gradient in wanted.items():
            if weight == "kb":  # normalized away: zero but for rounding
                assert np.abs(found[weight]).max() < 1e-3
                continue
            assert error_of(found[weight], gradient) < TOLERANCE[precision], weight
        assert any(not np.array_equal(found[name], wanted[name]) for name in wanted)

    @pytest.mark.parametrize("name", NETWORKS)
    def test_excluded_nodes_are_float32(self, name):
        model, feeds = half_models.build(name), feeds_of(name)
        value, wanted = gradients_of(model, feeds, "float32")
        everything = og.Precision("bf16", float32_nodes=["*"])
        found_value, found = gradients_of(model, feeds, everything)
        assert found_value == value
        for weight, gradient in wanted.items():
            assert np.array_equal(found[weight], gradient), weight

    def test_one_excluded_node_with_its_gradient(self):
        model = mlp_proto([6, 16, 3], seed=3)
        text = lambda nodes: onnx.printer.to_text(  # noqa: E731
            og.training_step(model, LOSS, precision=og.Precision("bf16", float32_nodes=nodes)).graph
        )
        assert text(()).count("to: int = 16") > text("matmul_0").count("to: int = 16") > 0
        assert "W0_bf16" not in text("matmul_0")
        assert "W1_bf16" not in text("matmul_1")
        assert text("MatMul").count("to: int = 16") == 0

    def test_weights_and_state_are_float32(self):
        model = half_models.build("cnn")
        session = og.TrainingSession(model, LOSS, "adam", precision="bf16")
        session.step(feeds_of("cnn"))
        state = session.state()
        assert {array.dtype for array in state.values()} <= {np.dtype("f4"), np.dtype("i8")}
        assert any(np.any(array != rounded(array, "bf16")) for array in state.values())
        trained = initializers(session.trained_model())
        assert all(np.array_equal(trained[name], state[name]) for name in trained if name in state)

    @both
    @pytest.mark.parametrize("name", NETWORKS)
    def test_evaluation_and_prediction_are_float32(self, name, precision):
        model, feeds = half_models.build(name), feeds_of(name)
        session = og.TrainingSession(model, LOSS, "sgd", precision=precision, threads=1)
        for _ in range(3):
            session.step(feeds)
        same = og.TrainingSession(session.trained_model(), LOSS, "sgd", threads=1)
        assert session.evaluate(feeds).loss == same.evaluate(feeds).loss
        assert np.array_equal(
            session.predict({"x": feeds["x"]})[0], same.predict({"x": feeds["x"]})[0]
        )


class TestWrittenSteps:
    @both
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    @pytest.mark.parametrize("name", NETWORKS)
    def test_run_in_stock_onnxruntime(self, name, optimizer, precision):
        model, feeds = half_models.build(name), feeds_of(name)
        precision = og.Precision(precision, loss_scale=64, growth_interval=2)
        described = og.optimizers.from_name(optimizer)
        step = og.training_step(model, LOSS, described, precision=precision)
        onnx.checker.check_model(step, full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        stock = onnxruntime.InferenceSession(step.SerializeToString(), options)
        session = og.TrainingSession(model, LOSS, described, precision=precision, threads=1)
        outputs = [output.name for output in stock.get_outputs()]
        fed = {one.name for one in stock.get_inputs()}
        state = {}
        for _ in range(5):
            rate = {"learning_rate": np.array(described.lr, np.float32)}
            given = {k: v for k, v in feeds.items() if k in fed}
            results = dict(zip(outputs, stock.run(None, given | rate | state), strict=True))
            state = {k[5:]: np.asarray(v) for k, v in results.items() if k.startswith("next/")}
            assert session.step(feeds) == pytest.approx(float(results["loss"]), rel=4e-3)
        ours = session.state()
        if precision.type == "fp16":
            assert ours["loss_scale"] == state["loss_scale"] == 256
            assert ours["steps_since_overflow"] == state["steps_since_overflow"] == 1
        start = initializers(model)
        for weight in start:
            moved = np.linalg.norm(state.get(weight, start[weight]) - start[weight])
            if weight in state and moved > 0:
                assert np.linalg.norm(ours[weight] - state[weight]) < 0.05 * moved, weight

    def test_training_info_carries_it(self):
        model = half_models.build("mlp")
        written = og.add_training_info(model, LOSS, "sgd", precision="bf16")
        feeds = feeds_of("mlp")
        ours = og.TrainingSession(model, LOSS, "sgd", precision="bf16", threads=1)
        theirs = og.TrainingSession(written, threads=1)
        losses = [(ours.step(feeds), theirs.step(feeds)) for _ in range(3)]
        assert all(a == pytest.approx(b, rel=1e-5) for a, b in losses)
        with pytest.raises(og.OptionError, match="precision="):
            og.TrainingSession(written, precision="bf16")


class TestPlans:
    @staticmethod
    def plan_of(precision, name="mlp"):
        session = og.TrainingSession(
            half_models.build(name), LOSS, "adam", precision=precision, threads=1
        )
        session.step(feeds_of(name))
        return session._core.plan_summary().splitlines()

    def test_products_read_and_write_halves(self):
        plan = self.plan_of("bf16")
        products = [line for line in plan if " Gemm [" in line or " GemmWeightUpdate [" in line]
        assert len(products) == 5
        assert all("[bfloat16 " in line or " + bfloat16 " in line for line in products)
        # Weights are rounded as they are packed, and gradients of weights are never stored.
        assert not any(f"{w}_bf16" in line for line in plan for w in ("w0", "w1"))

    def test_attention_is_one_kernel(self):
        plan = self.plan_of("bf16", "transformer")
        assert sum(" Attention [" in line for line in plan) == 1
        assert sum(" AttentionGradient [" in line for line in plan) == 1


class TestEntryPoints:
    @pytest.mark.parametrize("name", ["float16", "bfloat16"])
    def test_names(self, name):
        assert og.Precision(name).type == {"float16": "fp16", "bfloat16": "bf16"}[name]
        assert og.Precision(name) == pickle.loads(pickle.dumps(og.Precision(name)))

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: og.Precision("half"), "precision: unknown 'half'"),
            (lambda: og.Precision("fp16", loss_scale=0.5), "loss_scale: 0.5"),
            (lambda: og.Precision("fp16", growth_interval=0), "growth_interval: 0"),
            (lambda: _session(og.Precision("fp16", loss_scale=2.0**25)), "loss_scale: 3.35544e"),
            (lambda: _session(og.Precision("bf16", float32_nodes="conv*")), "matches 'conv\\*'"),
            (lambda: _session("bf16", optimizer="lbfgs"), "L-BFGS needs float32"),
            (lambda: _session("bf16", dtype=np.float64), "are of float64"),
        ],
    )
    def test_errors(self, make, message):
        with pytest.raises(og.OptionError, match=message):
            make()

    def test_saved_tensors_have_16_bits(self):
        model = mlp_proto([64, 128, 128, 10], seed=1)
        X = np.random.default_rng(0).normal(size=(512, 64)).astype(np.float32)
        saved, gradients = {}, {}
        for precision in ("float32", "bf16"):
            layer = og.ForwardBackward(model, precision=precision, threads=1)
            (y,), context = layer.forward({"X": X}), layer.contexts[-1]
            saved[precision] = context.saved_bytes
            gradients[precision] = layer.backward(np.ones_like(y)).weights
        assert saved["bf16"] < 0.75 * saved["float32"]
        for name, wanted in gradients["float32"].items():
            assert error_of(gradients["bf16"][name], wanted) < 0.05, name

    def test_activations_take_half_the_memory(self):
        model = mlp_proto([256, 512, 512, 512, 512, 10], seed=1)
        feeds = {"X": np.zeros((256, 256), np.float32), "label": np.zeros(256, np.int64)}
        held = {}
        for precision in ("float32", "bf16"):
            session = og.TrainingSession(model, LOSS, "sgd", precision=precision, threads=1)
            session.step(feeds)
            held[precision] = session.memory().activations
        assert held["bf16"] < 0.8 * held["float32"]

    def test_command_line(self, tmp_path):
        onnx.save(onnx.parser.parse_model(LINEAR), tmp_path / "model.onnx")
        rows = np.random.default_rng(0).normal(size=(40, 3)).round(3)
        np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,y", comments="")
        arguments = [
            "train", tmp_path / "model.onnx", "--data", tmp_path / "rows.csv", "--target", "y",
            "--epochs", "2",
        ]  # fmt: skip
        trained = []
        for i, options in enumerate(
            (
                [],
                ["--precision", "bf16"],
                ["--precision", "fp16:loss_scale=128,growth_interval=5"],
                ["--precision", "bf16", "--float32-nodes", "MatMul"],
            )
        ):
            output = tmp_path / f"trained{i}.onnx"
            command_line.run(*arguments, "--output", output, *options)
            trained.append(initializers(output)["coef"])
        assert np.array_equal(trained[0], trained[3])
        assert not np.array_equal(trained[0], trained[1])
        assert np.allclose(trained[0], trained[1], atol=5e-3)
        assert np.allclose(trained[0], trained[2], atol=1e-3)
        command_line.run(*arguments, "-o", tmp_path / "x.onnx", "--precision", "int8", status=2)

    def test_estimators(self):
        X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        y = (X[:, 0] + X[:, 1] > 0).astype(int)
        options = {"hidden_layer_sizes": (8,), "max_iter": 20, "random_state": 0}
        plain = og_sklearn.OnnxClassifier(**options).fit(X, y)
        estimator = og_sklearn.OnnxClassifier(precision="bf16", **options).fit(X, y)
        assert estimator.get_params()["precision"] == "bf16"
        assert estimator.score(X, y) == pytest.approx(plain.score(X, y), abs=0.1)
        assert estimator.loss_curve_ != plain.loss_curve_
        assert estimator.loss_curve_ == pytest.approx(plain.loss_curve_, rel=0.02)

    def test_descriptions_are_values(self):
        one = og.Precision("fp16", float32_nodes="MatMul", loss_scale=4)
        assert one == og.Precision("fp16", float32_nodes=["MatMul"], loss_scale=4.0)
        assert dataclasses.replace(one, type="bf16").float32_nodes == ("MatMul",)


def _session(precision, optimizer="sgd", dtype=np.float32):
    return og.TrainingSession(
        mlp_proto([6, 16, 3], seed=3, dtype=dtype), LOSS, optimizer, precision=precision
    )
