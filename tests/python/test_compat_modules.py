"""Names of other modules of the original packages: versions, stock onnxruntime's names."""

import subprocess
import sys

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from onnxgrad.compat import (
    jyquickhelper,
    mlprodict,
    onnxcustom,
    pyquickhelper,
)
from onnxgrad.compat import (
    onnxruntime as own,
)
from onnxgrad.compat.onnxruntime.capi import onnxruntime_inference_collection as collection
from onnxgrad.compat.onnxruntime.capi import onnxruntime_pybind11_state as state

MODEL = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    linear (float[N, 2] x, float[2, 1] W) => (float[N, 1] y) { y = MatMul(x, W) }
""")


def test_listing_of_versions(capsys):
    """The lines of the tutorial that lists versions."""
    mods = [np, onnx, own, onnxcustom, mlprodict, pyquickhelper, jyquickhelper]
    mods = [(m.__name__, m.__version__) for m in mods]
    mx = max(len(_[0]) for _ in mods) + 1
    for name, vers in sorted(mods):
        print(f"{name}{' ' * (mx - len(name))}{vers}")
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert lines["numpy"] == np.__version__
    assert lines["onnxgrad.compat.mlprodict"] == "0.9.1887"
    assert lines["onnxgrad.compat.onnxcustom"] == "0.4.344"
    assert all(version[0].isdigit() for version in lines.values())


def test_what_is_not_about_training_is_stock_onnxruntimes():
    from onnxruntime.capi import onnxruntime_inference_collection as stock_collection
    from onnxruntime.capi import onnxruntime_pybind11_state as stock_state

    assert state.InvalidArgument is stock_state.InvalidArgument
    assert collection.InferenceSession is stock_collection.InferenceSession
    assert collection.IOBinding is stock_collection.IOBinding
    assert own.InferenceSession is onnxruntime.InferenceSession
    for module in (own, state):
        assert module.C_OrtValue is own.OrtValue
    assert collection.OrtValue is own.OrtValue
    for module in (own, state, collection):
        with pytest.raises(AttributeError, match="nor stock onnxruntime has 'nothing'"):
            module.nothing  # noqa: B018
    with pytest.raises(state.InvalidArgument):
        own.InferenceSession(MODEL.SerializeToString()).run(
            None, {"x": np.ones(3, np.float32), "W": np.ones((2, 1), np.float32)}
        )


def test_device_is_the_engines():
    try:
        og.InferenceSession(MODEL, device="cuda")
    except og.DeviceError:
        assert own.get_device() == "CPU"
    else:
        assert own.get_device() == "GPU"


@pytest.mark.parametrize("kind", ["bytes", "path"])
def test_training_agent_on_a_stock_session(kind, tmp_path):
    source = MODEL.SerializeToString()
    if kind == "path":
        onnx.save(MODEL, tmp_path / "model.onnx")
        source = str(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(source)
    x, w = np.ones((3, 2), np.float32), np.array([[2], [5]], np.float32)
    agent = own.TrainingAgent(session, ["x", "W"], None, ["W_grad"])
    passes, outputs, gradients = own.PartialGraphExecutionState(), [], own.OrtValueVector()
    outputs = own.OrtValueVector()
    agent.run_forward([x, w], outputs, passes)
    np.testing.assert_allclose(outputs[0].numpy(), session.run(None, {"x": x, "W": w})[0])
    agent.run_backward([np.ones((3, 1), np.float32)], gradients, passes)
    np.testing.assert_allclose(gradients[0].numpy(), [[3], [3]])
    with pytest.raises(TypeError, match="Give the InferenceSession itself instead of its _sess"):
        own.TrainingAgent(session._sess, ["x", "W"], None, ["W_grad"])


def test_modules_are_there_without_their_own_import():
    code = (
        "import sys, onnxgrad as og; assert 'sklearn' not in sys.modules; "
        "og.sklearn.OnnxRegressor, og.graph_pictures.draw_graph, og.plotting"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        og.nothing  # noqa: B018
