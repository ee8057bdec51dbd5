"""Models in float16 and bfloat16: what they compute, and how they train, beside float32."""

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import half_models
import onnxgrad as og
from half_models import DTYPES, ROUNDING, parse
from support import DLPackOnly, initializers

NETWORKS = list(half_models.TEXTS)
both = pytest.mark.parametrize("dtype", list(DTYPES))
LOSS = "softmax_cross_entropy"


def parse_conversion(text: str, dtype: str) -> onnx.ModelProto:
    """A model in ONNX's text syntax, in which H stands for the type."""
    header = '<ir_version: 11, opset_import: ["" : 26]>\n'
    model = onnx.parser.parse_model(header + text.replace("H[", f"{dtype}["))
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    return og.InferenceSession(model, threads=1).run(None, feeds)


def in_double(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def all_numbers(dtype: str) -> np.ndarray:
    return np.arange(0x10000, dtype=np.uint32).astype(np.uint16).view(DTYPES[dtype])


class TestConversions:
    @both
    @pytest.mark.parametrize("to", ["float", "double"])
    def test_every_number_is_read_as_it_is(self, dtype, to):
        model = parse_conversion(
            f"g (H[N] x) => ({to}[N] y) {{ y = Cast <to = {1 if to == 'float' else 11}> (x) }}",
            dtype,
        )
        x = all_numbers(dtype)
        found = run(model, x=x)[0]
        assert found.dtype == (np.float32 if to == "float" else np.float64)
        np.testing.assert_array_equal(found, x.astype(found.dtype))

    @both
    @pytest.mark.parametrize("source", ["float", "double"])
    def test_numbers_are_rounded_to_the_nearest(self, dtype, source):
        element = 10 if dtype == "float16" else 16
        model = parse_conversion(
            f"g ({source}[N] x) => (H[N] y) {{ y = Cast <to = {element}> (x) }}", dtype
        )
        wide = np.float32 if source == "float" else np.float64
        halves = np.sort(all_numbers(dtype).astype(np.float64))
        halves = halves[np.isfinite(halves)]
        middles = ((halves[1:] + halves[:-1]) / 2).astype(wide)
        x = np.concatenate(
            [middles, np.nextafter(middles, wide(np.inf)), np.nextafter(middles, wide(-np.inf)),
             np.array([np.inf, -np.inf, np.nan, 1e38, -1e38, 65519.99, 65520, 1e-46], wide)]
        )  # fmt: skip
        found = run(model, x=x)[0]
        with np.errstate(over="ignore"):
            # ml_dtypes rounds doubles to float first; a double next to a middle is none then.
            wanted = x.astype(DTYPES[dtype]) if wide is np.float32 else nearest(x, dtype)
        np.testing.assert_array_equal(in_double(found), in_double(wanted))

    @both
    @pytest.mark.parametrize("other", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
    def test_integers(self, dtype, other):
        kind = {v.name.lower(): v.number for v in onnx.TensorProto.DataType.DESCRIPTOR.values}
        model = parse_conversion(
            f"g (H[N] x, {other}[M] i) => ({other}[N] a, H[M] b)"
            f"{{ a = Cast <to = {kind[other]}> (x)  b = Cast <to = {kind[dtype]}> (i) }}",
            dtype,
        )
        numpy_type = np.dtype(other)
        x = np.array([0, 1, 2.75, 100, 0.25], DTYPES[dtype])
        i = np.array([0, 1, 1, 0] if other == "bool" else [0, 1, 77, 127], numpy_type)
        found = run(model, x=x, i=i)
        np.testing.assert_array_equal(found[0], in_double(x).astype(numpy_type))
        np.testing.assert_array_equal(in_double(found[1]), in_double(i.astype(DTYPES[dtype])))


@pytest.mark.parametrize("to", ["float16", "bfloat16", "float", "double", "int32"])
def test_texts_are_numbers(to):
    element = getattr(onnx.TensorProto, to.upper())
    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["" : 21]>
        g (string[N] s) => ({to}[N] y) {{ y = Cast <to = {element}> (s) }}"""
    )
    texts = ["0.1", "-3e2", "+7", "1024.75"]
    if to != "int32":
        texts += ["-INF", "inf", "1e-40", "65519"]
    found = run(model, s=np.array(texts, object))[0]
    wanted = np.array([float(text) for text in texts])
    kind = onnx.helper.tensor_dtype_to_np_dtype(element)
    np.testing.assert_array_equal(in_double(found), in_double(wanted.astype(kind)))
    assert np.isnan(in_double(run(model, s=np.array(["NaN"], object))[0])) if to != "int32" else 1
    for text in ("", "x", "1x", "--1", "0x10", "1 "):
        with pytest.raises(og.DataError, match="is not a number"):
            run(model, s=np.array([text], object))


def nearest(x: np.ndarray, dtype: str) -> np.ndarray:
    """Doubles rounded once: NumPy does it for float16; for bfloat16 by the definition."""
    if dtype == "float16":
        return x.astype(np.float16)
    # To 8 significant bits where the result is normal; bfloat16 has float32's exponents.
    exponent = np.maximum(np.floor(np.log2(np.where(x == 0, 1, np.abs(x)))), -126)
    step = np.ldexp(1.0, np.where(np.isfinite(exponent), exponent - 7, 0).astype(int))
    rounded = np.where(np.isfinite(x), np.round(x / step) * step, x)
    return rounded.astype(np.float32).astype(ml_dtypes.bfloat16)


class TestValues:
    @both
    def test_each_stored_value_is_rounded(self, dtype):
        """Also inside of one kernel: (x + 1000) - 1000 forgets the last bits of x."""
        model = parse(
            "g (float[N] x, float[1] c) => (float[N] y) { a = Add(x, c)  y = Sub(a, c) }", dtype
        )
        half = DTYPES[dtype]
        x, c = np.linspace(-1, 1, 101).astype(half), np.array([1000], half)
        np.testing.assert_array_equal(in_double(run(model, x=x, c=c)[0]), in_double((x + c) - c))

    @both
    def test_a_cast_there_and_back_rounds(self, dtype):
        element = 10 if dtype == "float16" else 16
        model = parse_conversion(
            f"g (float[N] x) => (float[N] y)"
            f"{{ a = Cast <to = {element}> (x)  b = Cast <to = 1> (a)  y = Sub(x, b) }}",
            dtype,
        )
        x = np.linspace(-3, 3, 77, dtype=np.float32)
        wanted = x - x.astype(DTYPES[dtype]).astype(np.float32)
        np.testing.assert_array_equal(run(model, x=x)[0], wanted)

    @both
    def test_sums_are_float32(self, dtype):
        """A sum in the type itself would stop growing."""
        model = parse(
            """g (float[N] x, float[1, N] row) => (float s, float[1, 1] p, float m)
            <int64[1] axis = {1}> {
              s = ReduceSum <keepdims = 0> (x)
              c = Unsqueeze (x, axis)
              p = MatMul (row, c)
              m = ReduceMean <keepdims = 0> (x)
            }""",
            dtype,
        )
        x = np.full(4096, 1.5, DTYPES[dtype])
        s, p, m = run(model, x=x, row=np.ones((1, 4096), DTYPES[dtype]))
        assert (float(s), float(p[0, 0]), float(m)) == (6144, 6144, 1.5)

    @both
    @pytest.mark.parametrize("name", NETWORKS)
    def test_networks_agree_with_float32(self, name, dtype):
        x, _ = half_models.rows(name)
        wanted = run(half_models.build(name), x=x)[0]
        found = run(half_models.build(name, dtype), x=x.astype(DTYPES[dtype]))[0]
        assert found.dtype == DTYPES[dtype]
        np.testing.assert_allclose(
            in_double(found), wanted, rtol=0, atol=8 * ROUNDING[dtype] * np.abs(wanted).max()
        )

    @pytest.mark.parametrize("name", NETWORKS)
    def test_networks_agree_with_stock_runtime(self, name):
        model = half_models.build(name, "float16")
        x = half_models.rows(name)[0].astype(np.float16)
        wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
        tolerance = 4 * ROUNDING["float16"] * np.abs(wanted).max()
        np.testing.assert_allclose(in_double(run(model, x=x)[0]), in_double(wanted), 0, tolerance)

    @both
    def test_control_flow(self, dtype):
        model = parse(
            """g (float[N, 2] x, int64 n, bool on)
               => (float[N, 2] y, float[N, 2] last, float[M] all)
            <float[1] k = {0.5}, int64[1] flat = {-1}> {
              y = If (on) <then_branch = t () => (float[N, 2] a) { a = Tanh (x) },
                           else_branch = e () => (float[N, 2] b) { b = Mul (x, k) }>
              last, rows = Loop (n, on, x) <
                body = l (int64 i, bool c, float[N, 2] s) => (bool d, float[N, 2] r, float[N, 2] o)
                { d = Identity (c)  r = Mul (s, k)  o = Add (r, x) }>
              all = Reshape (rows, flat)
            }""",
            dtype,
        )
        half = DTYPES[dtype]
        x, k = np.array([[1, -2], [0.5, 3]], half), np.array(0.5, half)
        for on in (True, False):
            y, last, rows = run(model, x=x, n=np.array(3), on=np.array(on))
            wanted = np.tanh(in_double(x)) if on else in_double(x * k)
            np.testing.assert_allclose(in_double(y), wanted, rtol=ROUNDING[dtype])
            np.testing.assert_array_equal(in_double(last), in_double(x * k * k * k if on else x))
            stacked = [x * k + x, x * k * k + x, x * k * k * k + x] if on else []
            assert [float(v) for v in rows] == [float(v) for step in stacked for v in step.ravel()]

    def test_sequences_and_optionals(self):
        """ONNX has none of bfloat16."""
        model = parse(
            """g (float[N, 2] x, float[N, 2] z, int64 i) => (float[N, 2] u, float[M, 2] v, bool b) {
              pair = SequenceConstruct (x, z)
              u = SequenceAt (pair, i)
              v = ConcatFromSequence <axis = 0> (pair)
              o = Optional (x)
              b = OptionalHasElement (o)
            }""",
            "float16",
        )
        x, z = np.array([[1, -2]], np.float16), np.array([[0.1, 3]], np.float16)
        u, v, b = run(model, x=x, z=z, i=np.array(1))
        np.testing.assert_array_equal(u, z)
        np.testing.assert_array_equal(v, np.concatenate([x, z]))
        assert b


class TestData:
    def session(self, dtype):
        return og.TrainingSession(half_models.build("mlp", dtype), LOSS, og.optimizers.SGD(lr=0.1))

    @both
    def test_arrays_of_the_type(self, dtype):
        x, label = half_models.rows("mlp")
        session = self.session(dtype)
        assert session.step({"x": x.astype(DTYPES[dtype]), "label": label}) > 0
        assert session.predict({"x": x.astype(DTYPES[dtype])})[0].dtype == DTYPES[dtype]

    def test_dlpack(self):
        x, _ = half_models.rows("mlp")
        model = half_models.build("mlp", "float16")
        found = run(model, x=DLPackOnly(x.astype(np.float16)))[0]
        np.testing.assert_array_equal(found, run(model, x=x.astype(np.float16))[0])

    @both
    def test_float32_data_is_converted(self, dtype):
        x, label = half_models.rows("mlp")
        trainer = og.Trainer(half_models.build("mlp", dtype), LOSS, og.optimizers.SGD(lr=0.1))
        trainer.fit(x, label, epochs=2, verbose=False)
        assert np.isfinite(trainer.history["train_loss"]).all()

    def test_numbers_beyond_the_range_are_refused(self):
        x, label = half_models.rows("mlp")
        x[3, 2] = 65520
        trainer = og.Trainer(half_models.build("mlp", "float16"), LOSS)
        with pytest.raises(og.DataError, match=r"65520.*float16 cannot represent"):
            trainer.fit(x, label, epochs=1, verbose=False)

    @both
    def test_nan_is_refused(self, dtype):
        x, label = half_models.rows("mlp")
        x = x.astype(DTYPES[dtype])
        x[1, 0] = np.nan
        trainer = og.Trainer(half_models.build("mlp", dtype), LOSS)
        with pytest.raises(og.DataError, match="NaN"):
            trainer.fit(x, label, epochs=1, verbose=False)


def train(name, dtype, steps=10, optimizer=None, **options):
    """The losses and the session after some steps."""
    session = og.TrainingSession(
        half_models.build(name, dtype), LOSS, optimizer or og.optimizers.Adam(lr=0.01), **options
    )
    x, label = half_models.rows(name)
    feeds = {"x": x.astype(DTYPES.get(dtype, np.float32)), "label": label}
    return [session.step(feeds) for _ in range(steps)], session


class TestTraining:
    @both
    @pytest.mark.parametrize("name", NETWORKS)
    def test_beside_float32(self, name, dtype):
        sgd = og.optimizers.SGD(lr=0.05, momentum=0.9)
        wanted, single = train(name, "float32", optimizer=sgd)
        found, session = train(name, dtype, optimizer=sgd)
        assert found[-1] < 0.9 * found[0]
        np.testing.assert_allclose(found, wanted, rtol=20 * ROUNDING[dtype])
        for weight, numbers in session.state().items():
            if numbers.dtype.kind != "f":
                continue
            assert numbers.dtype == np.float32
            # How far it went, not where it is.
            before = single_initial(name).get(weight)
            other = single.state()[weight]
            moved = 1 if before is None else max(np.abs(other - before).max(), 1e-3)
            np.testing.assert_allclose(numbers, other, rtol=0, atol=60 * ROUNDING[dtype] * moved)

    @both
    def test_small_updates_are_not_lost(self, dtype):
        """Each is less than half the distance of two numbers of the type, all together are not."""
        model = parse(
            "g (float[N, 1] x) => (float[N, 1] y) <float[1, 1] w = {1}> { y = MatMul (x, w) }",
            dtype,
        )
        step = 2 * ROUNDING[dtype] / 100
        session = og.TrainingSession(model, "absolute_error", og.optimizers.SGD(lr=step))
        x = np.ones((4, 1), DTYPES[dtype])
        for _ in range(100):
            session.step({"x": x, "label": np.full((4, 1), 2, np.float32)})
        np.testing.assert_allclose(session.state()["w"], 1 + 100 * step, rtol=0, atol=step)
        assert float(initializers(session.trained_model())["w"][0, 0]) == 1 + 2 * ROUNDING[dtype]

    @both
    @pytest.mark.parametrize("name", NETWORKS)
    def test_the_file_comes_back_in_its_type(self, name, dtype):
        model = half_models.build(name, dtype)
        _, session = train(name, dtype)
        trained = session.trained_model()
        state, stored = session.state(), initializers(trained)
        changed = 0
        for weight, before in initializers(model).items():
            assert stored[weight].dtype == before.dtype
            if weight not in state:
                np.testing.assert_array_equal(in_double(stored[weight]), in_double(before))
                continue
            np.testing.assert_array_equal(
                in_double(stored[weight]), in_double(state[weight].astype(DTYPES[dtype]))
            )
            changed += 1
            for tensor, old in zip(trained.graph.initializer, model.graph.initializer, strict=True):
                if tensor.name == weight:
                    tensor.CopyFrom(old)
        assert changed >= 4
        assert trained.SerializeToString() == model.SerializeToString()
        again = og.InferenceSession(session.trained_model(), threads=1)
        x = half_models.rows(name)[0].astype(DTYPES[dtype])
        np.testing.assert_array_equal(
            in_double(again.run(None, {"x": x})[0]), in_double(session.predict({"x": x})[0])
        )

    @both
    @pytest.mark.parametrize("name", ["mlp", "transformer"])
    def test_threads_do_not_change_the_bits(self, name, dtype):
        """Not for convolutions: each thread sums the weight gradients of its images."""
        one, first = train(name, dtype, threads=1)
        two, second = train(name, dtype, threads=2)
        assert one == two
        for weight, numbers in first.state().items():
            np.testing.assert_array_equal(numbers, second.state()[weight])

    @both
    def test_a_resumed_session_has_the_same_bits(self, dtype, tmp_path):
        losses, whole = train("cnn", dtype, steps=8)
        _, half = train("cnn", dtype, steps=4)
        half.save(tmp_path / "state")
        _, resumed = train("cnn", dtype, steps=0)
        resumed.load(tmp_path / "state")
        x, label = half_models.rows("cnn")
        feeds = {"x": x.astype(DTYPES[dtype]), "label": label}
        assert [resumed.step(feeds) for _ in range(4)] == losses[4:]
        for weight, numbers in whole.state().items():
            np.testing.assert_array_equal(numbers, resumed.state()[weight])

    @both
    def test_running_statistics_are_float32(self, dtype):
        _, session = train("cnn", dtype, steps=3)
        _, single = train("cnn", "float32", steps=3)
        for name in ("mean", "variance"):
            assert session.state()[name].dtype == np.float32
            np.testing.assert_allclose(
                session.state()[name], single.state()[name], rtol=0.02, atol=0.02
            )

    @both
    def test_frozen_and_unfrozen(self, dtype):
        _, session = train("mlp", dtype, steps=2, frozen=["w0"])
        assert "w0" not in session.state()
        session.unfreeze(["w0"])
        before = session.state()["w0"]
        assert before.dtype == np.float32
        x, label = half_models.rows("mlp")
        session.step({"x": x.astype(DTYPES[dtype]), "label": label})
        assert not np.array_equal(session.state()["w0"], before)
        session.freeze(["w1"])
        held = session.state()["w1"]
        session.step({"x": x.astype(DTYPES[dtype]), "label": label})
        np.testing.assert_array_equal(session.state()["w1"], held)

    def test_an_overflow_is_reported_like_any_other(self):
        model = parse(
            """g (float[N, 1] x) => (float[N, 1] y) <float[1, 1] w = {300}>
            { a = MatMul (x, w)  y = Mul (a, a) }""",
            "float16",
        )
        x = np.full((4, 1), 2, np.float16)
        y = np.zeros((4, 1), np.float32)
        with pytest.raises(
            og.NonFiniteError if hasattr(og, "NonFiniteError") else og.Error, match="y"
        ):
            og.Trainer(model, "squared_error").fit(x, y, epochs=1, verbose=False)
        session = og.TrainingSession(model, "squared_error", skip_non_finite=True)
        assert not np.isfinite(session.step({"x": x, "label": y}))
        assert session.state()["w"] == 300

    @both
    def test_initialize_and_set_weights(self, dtype):
        model = og.initialize(half_models.build("mlp", dtype), seed=1)
        drawn = initializers(model)["w0"]
        assert drawn.dtype == DTYPES[dtype]
        assert np.unique(in_double(drawn)).size > 50
        wide = np.linspace(-1, 1, 96, dtype=np.float32).reshape(6, 16)
        stored = initializers(og.set_weights(model, {"w0": wide}))["w0"]
        np.testing.assert_array_equal(in_double(stored), in_double(wide.astype(DTYPES[dtype])))


def single_initial(name):
    return initializers(half_models.build(name))


class TestGradients:
    @both
    @pytest.mark.parametrize("name", NETWORKS)
    def test_beside_float32(self, name, dtype):
        """The backward pass is float32: only the values that it reads are rounded."""
        x, label = half_models.rows(name)
        found = self.gradients(name, dtype, x.astype(DTYPES[dtype]), label)
        wanted = self.gradients(name, "float32", x, label)
        assert found.keys() == wanted.keys()
        for weight, gradient in wanted.items():
            assert found[weight].dtype == DTYPES[dtype]
            np.testing.assert_allclose(
                in_double(found[weight]),
                gradient,
                rtol=0,
                atol=16 * ROUNDING[dtype] * max(np.abs(gradient).max(), 1e-3),
                err_msg=weight,
            )

    def gradients(self, name, dtype, x, label, run_file=run):
        with_loss = og.add_loss(half_models.build(name, dtype), LOSS)
        file = og.gradient(with_loss, outputs="loss", fill_grad=True)
        onnx.checker.check_model(file, full_check=True)
        weights = {
            key: value
            for key, value in initializers(half_models.build(name, dtype)).items()
            if key in {i.name for i in file.graph.input}
        }
        names = [output.name for output in file.graph.output]
        outputs = run_file(file, x=x, label=label, **weights)
        return {
            name[: -len("_grad")]: array
            for name, array in zip(names, outputs, strict=True)
            if name.endswith("_grad")
        }

    @pytest.mark.parametrize("name", NETWORKS)
    def test_in_stock_runtime(self, name):
        def stock(file, **feeds):
            return onnxruntime.InferenceSession(file.SerializeToString()).run(None, feeds)

        x, label = half_models.rows(name)
        x = x.astype(np.float16)
        found = self.gradients(name, "float16", x, label)
        wanted = self.gradients(name, "float16", x, label, stock)
        for weight, gradient in wanted.items():
            scale = np.abs(in_double(gradient)).max()
            np.testing.assert_allclose(
                in_double(found[weight]), in_double(gradient), 0, 8 * ROUNDING["float16"] * scale
            )

    @both
    def test_large_intermediate_gradients_do_not_overflow(self, dtype):
        """dy/da is 2e5, beyond float16's range; dy/dw is not."""
        model = parse(
            """g (float[1] x) => (float[1] y)
            <float[1] w = {0.0001}, float[1] b = {500}, float[1] c = {400}, float[1] s = {0.0001}>
            { t = Mul (w, s)  p = Mul (t, b)  y = Mul (p, c) }""",
            dtype,
        )
        file = og.gradient(model, "w", "y", fill_grad=True)
        numbers = initializers(model)
        found = run(file, x=np.ones(1, DTYPES[dtype]), w=numbers["w"])
        wanted = np.prod([in_double(numbers[n]) for n in ("b", "c", "s")])
        np.testing.assert_allclose(in_double(found[-1]), [wanted], rtol=4 * ROUNDING[dtype])

    @both
    def test_passes(self, dtype):
        layer = og.ForwardBackward(half_models.build("transformer", dtype), threads=1)
        single = og.ForwardBackward(half_models.build("transformer"), threads=1)
        x, _ = half_models.rows("transformer")
        half = DTYPES[dtype]
        y = layer.forward({"x": x.astype(half)})[0]
        wanted = single.forward({"x": x})[0]
        seed = half_models.in_both(np.random.default_rng(0).normal(size=wanted.shape))
        found = layer.backward([seed.astype(half)])
        expected = single.backward([seed])
        assert y.dtype == half
        for weight, gradient in expected.weights.items():
            assert found.weights[weight].dtype == half
            np.testing.assert_allclose(
                in_double(found.weights[weight]), gradient, rtol=0,
                atol=16 * ROUNDING[dtype] * np.abs(gradient).max(), err_msg=weight,
            )  # fmt: skip

    @both
    @pytest.mark.parametrize("kind", ["Loop", "Scan", "If"])
    def test_through_bodies(self, kind, dtype):
        bodies = {
            "Loop": """last = Loop (n, on, w) <
                body = l (int64 i, bool c, float[2] s) => (bool d, float[2] r)
                { d = Identity (c)  p = Mul (s, k)  r = Tanh (p) }>
              y = ReduceSum <keepdims = 0> (last)""",
            "Scan": """last, all = Scan <num_scan_inputs = 1,
                body = l (float[2] s, float[2] row) => (float[2] r, float[2] o)
                { p = Mul (s, k)  q = Add (p, row)  r = Tanh (q)  o = Identity (r) }> (w, x)
              y = ReduceSum <keepdims = 0> (all)""",
            "If": """h = If (on) <
                then_branch = t () => (float[2] a) { p = Mul (w, k)  a = Exp (p) },
                else_branch = e () => (float[2] b) { b = Neg (w) }>
              y = ReduceSum <keepdims = 0> (h)""",
        }
        text = f"""g (float[3, 2] x, int64 n, bool on) => (float y)
            <float[2] w = {{0.5, -1}}, float[2] k = {{0.75, 1.5}}> {{ {bodies[kind]} }}"""
        x = half_models.in_both(np.random.default_rng(1).normal(size=(3, 2)))
        results = {}
        for one in ("double", dtype):
            model = parse(text, one)
            numbers = initializers(model)
            file = og.gradient(model, ["w", "k"], "y", fill_grad=True)
            fed = {"x": x.astype(numbers["w"].dtype), "n": np.array(3), "on": np.array(True)}
            known = {i.name for i in file.graph.input}
            feeds = {key: value for key, value in {**fed, **numbers}.items() if key in known}
            results[one] = [in_double(v) for v in run(file, **feeds)]
        for found, wanted in zip(results[dtype], results["double"], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=20 * ROUNDING[dtype], atol=1e-3)


def test_files_are_written():
    with_loss = og.add_loss(half_models.build("mlp", "float16"), "mse")
    onnx.checker.check_model(with_loss, full_check=True)
    step = og.training_step(half_models.build("mlp", "float16"), LOSS, og.optimizers.SGD(lr=0.1))
    onnx.checker.check_model(step, full_check=True)
    state = {i.name: i for i in step.graph.initializer}
    assert numpy_helper.to_array(state["w0"]).dtype == np.float32
