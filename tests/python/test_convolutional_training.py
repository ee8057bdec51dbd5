"""Networks of convolutions and batch normalisations, fused in float32, against
the same networks in float64, which are computed operator by operator."""

import numpy as np
import onnx
import onnx.helper
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad as og

CHANNELS = 24


class Network:
    """Residual blocks with every kind of surroundings of a normalisation, as a graph of ONNX."""

    def __init__(self, dtype, size, normalised=True):
        self.normalised = normalised
        self.dtype = np.dtype(dtype)
        self.generator = np.random.default_rng(5)
        self.nodes, self.initializers = [], {}
        self.size = size

    def __call__(self, operator, *inputs, outputs=1, **attributes):
        names = [f"{operator.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operator, list(inputs), names, **attributes))
        return names[0]

    def constant(self, name, value):
        self.initializers[name] = np.asarray(value).astype(np.float32).astype(self.dtype)
        return name

    def convolution(self, value, name, channels, filters, kernel=3, stride=1, group=1):
        shape = (filters, channels // group, kernel, kernel)
        weight = self.generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return self(
            "Conv", value, self.constant(name, weight), kernel_shape=[kernel, kernel],
            pads=[kernel // 2] * 4, strides=[stride, stride], group=group,
        )  # fmt: skip

    def normalise(self, value, name, channels=CHANNELS):
        if not self.normalised:
            return value
        draw = self.generator.uniform
        inputs = [
            self.constant(f"{name}_{part}", numbers)
            for part, numbers in (
                ("scale", draw(0.5, 1.5, channels)),
                ("bias", draw(-0.5, 0.5, channels)),
                ("mean", np.zeros(channels)),
                ("var", np.ones(channels)),
            )
        ]
        return self("BatchNormalization", value, *inputs, epsilon=1e-3)

    def build(self):
        x = self("Relu", self.normalise(self.convolution("X", "stem", 3, CHANNELS, 5), "n0"))
        # An identity shortcut, then one with a convolution and strides.
        h = self("Relu", self.normalise(self.convolution(x, "c1", CHANNELS, CHANNELS), "n1"))
        h = self.normalise(self.convolution(h, "c2", CHANNELS, CHANNELS), "n2")
        x = self("Relu", self("Add", h, x))
        h = self("Relu", self.normalise(self.convolution(x, "c3", CHANNELS, CHANNELS, 3, 2), "n3"))
        h = self.normalise(self.convolution(h, "c4", CHANNELS, CHANNELS), "n4")
        short = self.normalise(self.convolution(x, "cs", CHANNELS, CHANNELS, 1, 2), "ns")
        x = self("Relu", self("Add", h, short))
        # An inverted residual: Clip, depthwise, a linear shortcut.
        low, high = self.constant("low", 0), self.constant("high", 1.5)
        wide = 2 * CHANNELS
        h = self.convolution(x, "c5", CHANNELS, wide, 1)
        h = self("Clip", self.normalise(h, "n5", wide), low, high)
        h = self.convolution(h, "c6", wide, wide, 3, 1, wide)
        h = self("Clip", self.normalise(h, "n6", wide), low, high)
        h = self.normalise(self.convolution(h, "c7", wide, CHANNELS, 1), "n7")
        x = self("Add", x, h)
        x = self("Flatten", self("GlobalAveragePool", x))
        dense = self.generator.standard_normal((CHANNELS, 3)) / 5
        self.nodes.append(
            onnx.helper.make_node("MatMul", [x, self.constant("dense", dense)], ["Y"])
        )
        kind = onnx.helper.np_dtype_to_tensor_dtype(self.dtype)
        info = onnx.helper.make_tensor_value_info
        return onnx.helper.make_model(
            onnx.helper.make_graph(
                self.nodes, "network",
                [info("X", kind, ["N", 3, self.size, self.size])], [info("Y", kind, ["N", 3])],
                [numpy_helper.from_array(value, name) for name, value in self.initializers.items()],
            ),
            opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8,
        )  # fmt: skip


def data(dtype, size, rows=12):
    generator = np.random.default_rng(3)
    x = generator.standard_normal((rows, 3, size, size)).astype(np.float32)
    return x.astype(dtype), np.arange(rows, dtype=np.int64) % 3


def train(dtype, threads, optimizer, frozen=(), size=12, epochs=2, **options):
    trainer = og.Trainer(
        Network(dtype, size).build(), loss="softmax_cross_entropy", optimizer=optimizer,
        threads=threads, frozen=frozen or None, **options,
    )  # fmt: skip
    x, y = data(dtype, size)
    trainer.fit(x, y, epochs=epochs, batch_size=6, shuffle=False, verbose=0)
    return trainer


def weights(trainer):
    return {i.name: numpy_helper.to_array(i) for i in trainer.trained_model().graph.initializer}


def assert_close(given, expected):
    assert given.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(given[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [8, 13])
def test_training_in_float32_follows_float64(threads, size):
    optimizer = og.optimizers.SGD(0.05, momentum=0.9)
    fused = train(np.float32, threads, optimizer, size=size)
    plan = fused.session.plan_summary()
    assert "winograd" in plan
    assert "depthwise" in plan
    assert "[relu(" not in plan  # in a normalisation
    assert "select(" not in plan  # masks in its gradient
    assert_close(weights(fused), weights(train(np.float64, threads, optimizer, size=size)))


def test_convolutions_take_in_what_follows():
    trained = {}
    x, y = data(np.float32, 12)
    for dtype in (np.float32, np.float64):
        trainer = og.Trainer(
            Network(dtype, 12, normalised=False).build(), loss="softmax_cross_entropy",
            optimizer=og.optimizers.SGD(0.02), threads=2,
        )  # fmt: skip
        trainer.fit(x.astype(dtype), y, epochs=2, batch_size=6, shuffle=False, verbose=0)
        assert "[relu(" not in trainer.session.plan_summary()
        trained[dtype] = weights(trainer)
    assert_close(trained[np.float32], trained[np.float64])


JOINED = ("ConvWeightUpdate", "ConvDescent")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "optimizer",
    [
        og.optimizers.SGD(0.05),
        og.optimizers.SGD(0.05, momentum=0.9),
        og.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        og.optimizers.Adam(1e-3),
        og.optimizers.AdamW(1e-3, weight_decay=0.1),
        og.optimizers.RMSProp(1e-3),
        og.optimizers.Lion(1e-3),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_updates_join_the_gradients_of_weights(optimizer, threads):
    joined = train(np.float32, threads, optimizer, epochs=1)
    plan = joined.session.plan_summary()
    assert any(name in plan for name in JOINED)
    # A norm reads the gradients too, which are stored then; the limit is never reached.
    stored = train(np.float32, threads, optimizer, epochs=1, clip_norm=1e9)
    assert not any(name in stored.session.plan_summary() for name in JOINED)
    assert_close(weights(joined), weights(stored))


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.5},
        {"clip_value": 0.01},
        {"accumulate": 2},
        {"precision": "fp16"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_gradients_that_are_read_before_the_update_are_stored(options):
    optimizer = og.optimizers.SGD(0.05, momentum=0.9)
    trained = train(np.float32, 2, optimizer, **options)
    assert not any(name in trained.session.plan_summary() for name in JOINED)
    if "precision" not in options:
        assert_close(weights(trained), weights(train(np.float64, 2, optimizer, **options)))


def test_inference_agrees_with_onnxruntime():
    x, _ = data(np.float32, 13)
    for normalised in (True, False):
        model = Network(np.float32, 13, normalised).build()
        expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"X": x})[0]
        given = og.InferenceSession(model).run(None, {"X": x})[0]
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def test_same_bits_for_the_same_number_of_threads():
    runs = [weights(train(np.float32, 2, og.optimizers.AdamW(1e-3))) for _ in range(2)]
    for name, value in runs[0].items():
        np.testing.assert_array_equal(value, runs[1][name], err_msg=name)


def test_frozen_layers():
    frozen = ["c1", "n1_scale", "n1_bias", "n4_scale", "c6"]
    optimizer = og.optimizers.SGD(0.05)
    fused = weights(train(np.float32, 1, optimizer, frozen))
    assert_close(fused, weights(train(np.float64, 1, optimizer, frozen)))
    initial = Network(np.float32, 12)
    initial.build()
    for name in frozen:
        np.testing.assert_array_equal(fused[name], initial.initializers[name])


@pytest.mark.parametrize("rows", [0, 1])
def test_batches_of_nothing_and_of_one(rows):
    model = Network(np.float32, 8).build()
    x, _ = data(np.float32, 8)
    layer = og.ForwardBackward(model)
    y = layer.forward({"X": x[:rows]})[0]
    assert y.shape == (rows, 3)
    for gradients in layer.backward([np.ones_like(y)]):
        for name, gradient in gradients.items():
            assert np.isfinite(gradient).all(), name


def test_separate_passes_agree_with_float64():
    results = {}
    for dtype in (np.float32, np.float64):
        layer = og.ForwardBackward(Network(dtype, 12).build(), threads=2)
        x, _ = data(dtype, 12)
        y = layer.forward({"X": x})[0]
        gradients = layer.backward([np.linspace(-1, 1, y.size).reshape(y.shape).astype(dtype)])
        results[dtype] = {"Y": y} | gradients[0] | gradients[1]
    assert results[np.float32].keys() == results[np.float64].keys()
    for name, expected in results[np.float64].items():
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(
            results[np.float32][name], expected, rtol=1e-3, atol=1e-4 * scale, err_msg=name
        )
