"""Overflows of float16 with optimizers, clipping and accumulation, beside a step in NumPy."""

import itertools

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
from precision_cases import rounded

SIZES = (12, 32, 40, 3)
ROWS = 8
STEPS = 12


def weights_of(seed, last=1.0):
    rng = np.random.default_rng(seed)
    weights = {}
    for i, (rows, columns) in enumerate(itertools.pairwise(SIZES)):
        scale = (last if i == 2 else 1.0) / np.sqrt(rows)
        weights[f"W{i}"] = (rng.normal(size=(rows, columns)) * scale).astype(np.float32)
        weights[f"b{i}"] = (rng.normal(size=columns) * 0.1).astype(np.float32)
    return weights


def model_of(weights, form):
    """Weights as MatMul reads them, or transposed, as Gemm of PyTorch's exporter does."""
    layers = []
    for i in range(3):
        x = "X" if i == 0 else f"h{i - 1}"
        z = "Y" if i == 2 else f"a{i}"
        if form == "matmul":
            layers.append(f"m{i} = MatMul({x}, W{i})  {z} = Add(m{i}, b{i})")
        else:
            layers.append(f"{z} = Gemm <transB = 1> ({x}, W{i}, b{i})")
        if i < 2:
            layers.append(f"h{i} = Relu({z})")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, {SIZES[0]}] X) => (float[N, {SIZES[-1]}] Y) {{ {" ".join(layers)} }}"""
    )
    for name, array in weights.items():
        stored = array.T if form == "gemm" and array.ndim == 2 else array
        model.graph.initializer.append(onnx.numpy_helper.from_array(stored.copy(), name))
    return model


class Simulation:
    """A network, its loss scale and its optimizer: float32 sums of float16 operands."""

    def __init__(self, weights, optimizer, rate, scale, accumulate=1, clip=None):
        self.w = {name: array.copy() for name, array in weights.items()}
        self.optimizer, self.rate, self.scale = optimizer, rate, np.float32(scale)
        self.accumulate, self.clip = accumulate, clip
        self.m = {name: np.zeros_like(array) for name, array in weights.items()}
        self.v = {name: np.zeros_like(array) for name, array in weights.items()}
        self.sums, self.batches, self.updates = {}, 0, 0

    def gradients(self, x, wanted):
        half = lambda array: rounded(array, "fp16")  # noqa: E731
        w = self.w
        inputs = [half(x)]
        for i in range(2):
            inputs.append(half(np.maximum(inputs[-1] @ half(w[f"W{i}"]) + w[f"b{i}"], 0)))
        y = inputs[-1] @ half(w["W2"]) + w["b2"]
        loss = np.square(y - wanted).mean()
        d = half((2 * (y - wanted) / y.size).astype(np.float32) * self.scale)
        found = {}
        self.cotangents = []
        for i in (2, 1, 0):
            self.cotangents.append(np.isfinite(d).all())
            found[f"W{i}"] = inputs[i].T @ d / self.scale
            found[f"b{i}"] = d.sum(0) / self.scale
            if i > 0:
                d = np.where(inputs[i] > 0, half(d @ half(w[f"W{i}"]).T), 0).astype(np.float32)
        return loss, found

    def step(self, x, wanted):
        """Whether the step was done."""
        with np.errstate(all="ignore"):
            _, found = self.gradients(x, wanted)
        if not all(np.isfinite(array).all() for array in found.values()):
            self.scale /= 2
            return False
        self.batches += 1
        for name, array in found.items():
            self.sums[name] = self.sums.get(name, 0) + array / self.accumulate
        if self.batches % self.accumulate == 0:
            self.update(self.sums)
            self.sums = {}
        return True

    def update(self, found):
        if self.clip is not None:
            norm = np.sqrt(sum(np.square(array).sum() for array in found.values()))
            found = {name: array * min(1, self.clip / norm) for name, array in found.items()}
        self.updates += 1
        for name, g in found.items():
            w, m, v = self.w[name], self.m[name], self.v[name]
            if self.optimizer == "sgd":
                w -= self.rate * g
            elif self.optimizer == "momentum":
                m[...] = 0.9 * m + g
                w -= self.rate * m
            else:
                m[...] = 0.9 * m + 0.1 * g
                v[...] = 0.999 * v + 0.001 * g * g
                corrected = m / (1 - 0.9**self.updates)
                w -= self.rate * corrected / (np.sqrt(v / (1 - 0.999**self.updates)) + 1e-8)


OPTIMIZERS = {
    "sgd": og.optimizers.SGD,
    "momentum": lambda rate: og.optimizers.SGD(rate, momentum=0.9),
    "adam": og.optimizers.Adam,
}
# Where float16 overflows first: the gradient of the scores, or that of the layer before, whose
# weights are large. With the learning rate.
PLACES = {"scores": (1.0, 2.0**19, 0.01), "hidden": (64.0, 2.0**10, 1e-5)}


@pytest.mark.parametrize("form", ["matmul", "gemm"])
@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize(
    "options", [{}, {"threads": 2}, {"clip_norm": 0.5}, {"accumulate": 2}], ids=str
)
def test_steps_are_skipped_as_in_numpy(form, place, optimizer, options):
    last, scale, rate = PLACES[place]
    weights = weights_of(3, last)
    session = og.TrainingSession(
        model_of(weights, form),
        "squared_error",
        OPTIMIZERS[optimizer](rate),
        precision=og.Precision("fp16", loss_scale=scale),
        **({"threads": 1} | options),
    )
    same = Simulation(
        weights, optimizer, rate, scale, options.get("accumulate", 1), options.get("clip_norm")
    )
    rng = np.random.default_rng(4)
    done = []
    first_fault = None
    for _ in range(STEPS):
        x = rng.normal(size=(ROWS, SIZES[0])).astype(np.float32)
        wanted = (rng.normal(size=(ROWS, SIZES[-1])) * last).astype(np.float32)
        before = session.state()
        session.step({"X": x, session.target_name: wanted})
        after = session.state()
        done.append(same.step(x, wanted))
        if not done[-1]:
            first_fault = first_fault or same.cotangents
            changed = [name for name in after if not np.array_equal(after[name], before[name])]
            assert set(changed) <= {"loss_scale", "steps_since_overflow"}
        assert after["loss_scale"] == same.scale
    assert 0 < sum(done) < STEPS
    assert first_fault[0] == (place == "hidden")  # the cotangent of the scores
    after = session.state()
    for name, wanted in same.w.items():
        found = after[name].T if form == "gemm" and wanted.ndim == 2 else after[name]
        moved = np.linalg.norm(wanted - weights[name])
        assert np.linalg.norm(found - wanted) < 0.02 * moved, name


# Operands of many rows would take more memory than the gradient.
@pytest.mark.parametrize(("rows", "count"), [(ROWS, 3), (12, 2), (400, 0)])
def test_the_updates_take_in_their_products(rows, count):
    model = model_of(weights_of(3), "gemm")
    feeds = {"X": np.ones((rows, SIZES[0]), np.float32)}
    for optimizer, name in (("sgd", "GuardedGemmUpdate"), ("adam", "GuardedGemmWeightUpdate")):
        session = og.TrainingSession(
            model, "squared_error", OPTIMIZERS[optimizer](0.01), precision="fp16", threads=1
        )
        session.step(feeds | {session.target_name: np.ones((rows, SIZES[-1]), np.float32)})
        plan = session._core.plan_summary()
        assert plan.count(f" {name} [") == count


def test_gradients_that_are_read_elsewhere_are_the_same():
    weights = weights_of(5)
    model = model_of(weights, "matmul")
    rng = np.random.default_rng(6)
    feeds = {"X": rng.normal(size=(ROWS, SIZES[0])).astype(np.float32)}
    wanted = rng.normal(size=(ROWS, SIZES[-1])).astype(np.float32)
    states = []
    for outputs in ([], [f"{name}_grad" for name in weights]):
        session = og.TrainingSession(
            model,
            "squared_error",
            og.optimizers.Adam(0.01),
            precision=og.Precision("fp16", loss_scale=2.0**20),
            outputs=outputs,
            threads=1,
        )
        for _ in range(STEPS):
            session.step(feeds | {session.target_name: wanted})
        states.append(session.state())
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], rtol=2e-5, atol=1e-6)
