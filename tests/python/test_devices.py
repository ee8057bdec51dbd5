"""The simulated device, a plugin of the tests in a library of its own, by every public way."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

import onnxgrad as og
from compat_models import polynomial, polynomial_data
from onnxgrad import devices
from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.utils.onnxruntime_helper import device_to_providers
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import add_loss_output
from onnxgrad.compat.onnxruntime import _InferenceSession as compat_session
from onnxgrad.sklearn import OnnxRegressor
from precision_kinds import convolutions
from support import PLUGIN, needs_plugin

CHANNELS_LAST = PLUGIN.with_name("libonnxgrad_channels_last_device.so")
TOY = PLUGIN.with_name("libonnxgrad_toy_device.so")

pytestmark = needs_plugin

WEIGHTS = ["init", "init_1", "init_b10"]  # of polynomial()


@pytest.fixture(scope="module", autouse=True)
def plugin():
    if PLUGIN.exists():
        devices.load_plugin(PLUGIN)
        devices.load_plugin(PLUGIN)  # again: nothing changes


def trained(model, data, **options):
    trainer = og.Trainer(model, optimizer="adam", lr=0.05, seed=3, **options)
    trainer.fit(*data, epochs=2, batch_size=32, validation=0.2, verbose=0)
    return trainer


def same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_the_list():
    names = [device.name for device in devices.available()]
    assert names == ["cpu", "simulated:0", "simulated:1"]
    assert devices.available()[0].origin == "built in"
    assert devices.available()[1].origin == str(PLUGIN.resolve())


@pytest.mark.parametrize("device", ["simulated", "simulated:1", "auto"])
def test_a_trainer(linear_proto, linear_data, device):
    here = trained(linear_proto, linear_data)
    there = trained(linear_proto, linear_data, device=device)
    same(here.session.state(), there.session.state())
    for column in ("train_loss", "val_loss"):
        assert here.history[column] == there.history[column]
    X = linear_data[0]
    np.testing.assert_array_equal(here.predict(X), there.predict(X))


def test_other_sessions(linear_proto, linear_data):
    X, y = linear_data
    steps = [og.TrainingSession(linear_proto, device=device) for device in ("cpu", "simulated")]
    for session in steps:
        session.step({"X": X[:9], "label": y[:9]})
    same(*(session.state() for session in steps))
    runs = [og.InferenceSession(linear_proto, device=device) for device in ("cpu", "simulated")]
    np.testing.assert_array_equal(*(session.run(None, {"X": X})[0] for session in runs))
    passes = [og.ForwardBackward(linear_proto, device=device) for device in ("cpu", "simulated")]
    gradients = []
    for one in passes:
        (output,) = one.forward([X])
        gradients.append(one.backward([np.ones_like(output)]).weights)
    same(*gradients)


def run_cli(arguments, folder):
    done = subprocess.run(
        [sys.executable, "-m", "onnxgrad", *map(str, arguments)],
        env={**os.environ, "ONNXGRAD_DEVICE_PLUGINS": str(PLUGIN)},
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_the_command_line(linear_file, linear_data, tmp_path):
    X, y = linear_data
    np.savez(tmp_path / "rows.npz", X=X, label=y)
    base = ["train", str(linear_file), "--data", str(tmp_path / "rows.npz"), "--target", "label"]
    written = []
    for name, environment in {
        "cpu": {},
        "simulated": {"ONNXGRAD_DEVICE_PLUGINS": str(PLUGIN), "ONNXGRAD_DEVICE": "simulated"},
    }.items():
        out = tmp_path / f"{name}.onnx"
        subprocess.run(
            [sys.executable, "-m", "onnxgrad", *base, "--epochs", "2", "-o", str(out)],
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
        )
        written.append(out.read_bytes())
    assert written[0] == written[1]


def text_report(model, device):
    return subprocess.run(
        [sys.executable, "-m", "onnxgrad", "report", model, "--device", device],
        env={**os.environ, "ONNXGRAD_DEVICE_PLUGINS": str(PLUGIN)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_what_a_device_leaves_to_the_cpu(tmp_path):
    graph = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        top (float[N, 6] x) => (float[N, 3] y) <int64[1] three = {3}, float[6, 6] w = {
            1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1, 1, 3, 5, 2, 4, 6,
            6, 4, 2, 5, 3, 1, 2, 3, 4, 5, 6, 1, 4, 5, 6, 1, 2, 3}> {
            h = MatMul (x, w)
            y, i = TopK (h, three)
        }"""
    )
    file = str(tmp_path / "top.onnx")
    onnx.save(graph, file)
    found = og.report(file, device="simulated").device
    for plan in (found.training, found.inference):
        assert plan.problem == ""
        assert og.graphs.device_reports.OperatorOnCpu("TopK", 1) in plan.on_cpu
        assert {segment.kind for segment in plan.segments} == {"recordable", "on the CPU"}
    # In: h. Out: the values, which are the output.
    assert found.inference.copied_bytes == 32 * (6 + 3) * 4
    assert "TopK" in text_report(file, "simulated")
    here = og.report(file, device="cpu").device
    assert not here.training.on_cpu
    assert not here.inference.segments
    assert "device cpu: all operators" in text_report(file, "cpu")
    assert og.report(file).device is None
    with pytest.raises(og.DeviceError, match="no device 'tpu'"):
        og.report(file, device="tpu")


def by_estimator(device, model, rows):
    estimator = OnnxRegressor(model, max_iter=2, random_state=0, device=device)
    return estimator.fit(*rows).predict(rows[0])


def by_gradient_check(device, model, rows):
    check = og.check_gradients(model, {"X": rows[0][:5]}, device=device)
    assert check.ok
    return str(check)


def by_onnxcustom(device, _model, _rows):
    optimizer = OrtGradientOptimizer(
        add_loss_output(polynomial()), WEIGHTS, learning_rate=0.1, max_iter=3, device=device
    )
    np.random.seed(0)  # noqa: NPY002
    optimizer.fit(*polynomial_data())
    return np.concatenate([np.ravel(optimizer.trained_coef_[name]) for name in WEIGHTS])


def by_provider(device, model, rows):
    providers = device_to_providers(device)
    session = compat_session(model, providers=providers)
    assert session.get_providers()[0].lower().startswith(device.partition(":")[0])
    return session.run(None, {"X": rows[0]})[0]


@pytest.mark.parametrize("way", [by_estimator, by_gradient_check, by_onnxcustom, by_provider])
def test_further_ways(way, linear_proto, linear_data):
    found = [way(device, linear_proto, linear_data) for device in ("cpu", "simulated:1")]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("command", ["evaluate", "predict", "check"])
def test_flags(command, linear_file, linear_data, tmp_path):
    X, y = linear_data
    np.savez(tmp_path / "rows.npz", X=X, label=y)
    more = {
        "evaluate": ["--data", tmp_path / "rows.npz", "--target", "label"],
        "predict": ["--data", tmp_path / "rows.npz", "--ignored", "label"],
        "check": [],
    }[command]
    printed = [
        run_cli([command, linear_file, *more, "--device", device], tmp_path)
        for device in ("cpu", "simulated")
    ]
    assert printed[0] == printed[1]


AVAILABLE = "'cpu', 'simulated:0', 'simulated:1'"


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("tpu", AVAILABLE),
        ("simulated:2", AVAILABLE),
        ("simulated:x", AVAILABLE),
        ("cpu:1", AVAILABLE),
        ("cuda", "libcuda.so.1"),
    ],
)
def test_devices_that_are_not_there(linear_proto, device, told):
    if any(one.name.startswith(device) for one in devices.available()):
        pytest.skip(f"this machine has a device {device!r}")
    with pytest.raises(og.DeviceError, match=f"there is no device '{device}'") as error:
        og.Trainer(linear_proto, device=device)
    assert told in str(error.value)


def test_files_that_are_no_plugins(tmp_path):
    with pytest.raises(og.DeviceError, match="there is no such plugin"):
        devices.load_plugin(tmp_path / "absent.so")
    text = tmp_path / "text.so"
    text.write_text("text")
    with pytest.raises(og.DeviceError, match="cannot be loaded"):
        devices.load_plugin(text)
    with pytest.raises(og.DeviceError, match="no plugin of onnxgrad"):
        devices.load_plugin(og._core.__file__)
    other = tmp_path / "other.so"
    version = og.__version__.encode()
    assert PLUGIN.read_bytes().count(version + b" GNU") == 1
    other.write_bytes(PLUGIN.read_bytes().replace(version + b" GNU", b"9" * len(version) + b" GNU"))
    with pytest.raises(og.DeviceError, match="built for another onnxgrad") as error:
        devices.load_plugin(other)
    assert f"this onnxgrad '{og.__version__} GNU" in str(error.value)


TOY_SCRIPT = """
import sys

import numpy as np
import onnxgrad as og
from onnxgrad import devices

devices.load_plugin(sys.argv[1])
X = np.random.default_rng(0).normal(size=(96, 2)).astype(np.float32)
y = (X @ np.array([[1.0], [-2.0]]) + 0.5).astype(np.float32)
trained = []
for device in ("cpu", "toy"):
    trainer = og.Trainer(sys.argv[2], optimizer="adam", lr=0.05, seed=3, device=device)
    trainer.fit(X, y, epochs=3, batch_size=32, validation=0.25, verbose=0)
    trained.append(trainer)
for name, value in trained[0].session.state().items():
    np.testing.assert_allclose(value, trained[1].session.state()[name], rtol=2e-6, atol=2e-6)
summary = trained[1].session.plan_summary()
print("MatMul" in summary, "on the CPU" in summary)
"""


def test_the_device_of_the_documentation(linear_file):
    """Its one kernel computes on it, all other operators on the CPU."""
    run = subprocess.run(
        [sys.executable, "-c", TOY_SCRIPT, str(TOY), str(linear_file)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == ["True", "True"]


def test_kernels_in_a_layout_of_their_own():
    devices.load_plugin(CHANNELS_LAST)  # last: the lists of devices above lack it
    model, feeds, classes = convolutions(False, 3)
    random = np.random.default_rng(0)
    X = random.normal(size=feeds["X"].shape).astype(np.float32)
    y = random.integers(0, classes, len(X))
    here, there = (
        trained(model, (X, y), device=device) for device in ("cpu", "simulated_channels_last")
    )
    same(here.session.state(), there.session.state())
    np.testing.assert_array_equal(here.predict(X), there.predict(X))
    assert "ConvertLayout" in there.session.plan_summary()
    assert "ConvertLayout" not in here.session.plan_summary()
