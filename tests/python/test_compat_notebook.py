"""Parts of the notebook besides training: traced functions, pictures, profiles."""

import sys
import types

import numpy as np
import onnx
import pytest

from compat_models import POINTS, polynomial, run
from onnxgrad.compat.jyquickhelper import add_notebook_menu
from onnxgrad.compat.mlprodict import load_ipython_extension
from onnxgrad.compat.mlprodict.numpy import NDArray, onnxnumpy, onnxnumpy_default
from onnxgrad.compat.onnxcustom.plotting.plotting_onnx import plot_onnxs
from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import add_loss_output
from onnxgrad.compat.pyquickhelper.pycode.profiling import profile, profile2graph


def fct(x: NDArray[(None, 2), np.float32]) -> NDArray[(None, 1), np.float32]:
    coef_x = np.array([[-2, 3]], dtype=np.float32)
    coef_x2 = np.array([[0.5, -0.33333]], dtype=np.float32)
    bias = np.array([-1], dtype=np.float32)
    poly = x * coef_x + x * x * coef_x2
    y = poly[:, 0] + poly[:, 1] + bias
    return y.reshape((-1, 1))


def test_traced_function_has_the_weights_of_the_notebook():
    pytest.importorskip("ndonnx")
    traced = onnxnumpy_default(fct)
    np.testing.assert_allclose(
        traced(POINTS).ravel(), [-1, -2.5, 1.6666701, 0.16667008, 1.6666799], rtol=1e-6
    )
    model = traced.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    weights = {
        init.name: onnx.numpy_helper.to_array(init)
        for init in model.graph.initializer
        if init.data_type == onnx.TensorProto.FLOAT
    }
    assert {name: value.shape for name, value in weights.items()} == {
        "init": (1, 2),
        "init_1": (1, 2),
        "init_b10": (1,),
    }
    np.testing.assert_array_equal(weights["init_1"], [[-2, 3]])
    assert [value.name for value in model.graph.input] == ["x"]
    assert [value.name for value in model.graph.output] == ["y"]
    np.testing.assert_allclose(
        run(model, {"x": POINTS})[0], run(polynomial(), {"x": POINTS})[0], rtol=1e-6
    )


def test_functions_on_traced_values():
    pytest.importorskip("ndonnx")
    import onnxgrad.compat.mlprodict.numpy.onnx_impl as npnx

    @onnxnumpy(runtime="onnxruntime")
    def f(
        x: NDArray[(None, 2), np.float32], w: NDArray[(2, 1), np.float32]
    ) -> NDArray[(None,), np.float32]:
        both = npnx.exp(-x) @ w / 2 + 1 - abs(x).sum(axis=1, keepdims=True)
        return npnx.where(both > 0, both, 2 * both).reshape(-1)

    w = np.array([[1], [3]], np.float32)
    both = (np.exp(-POINTS) @ w / 2 + 1 - np.abs(POINTS).sum(axis=1, keepdims=True)).ravel()
    np.testing.assert_allclose(f(POINTS, w), np.where(both > 0, both, 2 * both), rtol=1e-5)
    with pytest.raises(AttributeError, match="no function"):
        npnx.no_such_function  # noqa: B018


def test_pictures(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("pygraphviz")
    matplotlib.use("agg")
    model, with_loss = polynomial(), add_loss_output(polynomial())
    axes = plot_onnxs(model, title="a function")
    assert axes.get_title() == "a function"
    texts = [text.get_text() for text in axes.texts if text.get_text()]
    assert sum(text == "Mul" for text in texts) == 3
    both = plot_onnxs(model, with_loss, title=["a function", "with a loss"])
    assert len(both) == 2
    both[0].figure.savefig(tmp_path / "two.png")
    again = plot_onnxs(model, ax=both[1])
    assert again is both[1]
    matplotlib.pyplot.close("all")
    with pytest.raises(ValueError, match="at least one"):
        plot_onnxs()
    with pytest.raises(ValueError, match="2 models"):
        plot_onnxs(model, model, ax=axes)


def test_magic_command():
    pytest.importorskip("matplotlib")

    class Shell:
        def __init__(self):
            self.magics = {}

        def register_magic_function(self, function, kind, name):
            self.magics[name] = (function, kind)

    shell = Shell()
    load_ipython_extension(shell)
    assert shell.magics["onnxview"][1] == "line"


def test_menu_of_headings(monkeypatch):
    class HTML:
        def __init__(self, data):
            self.data = data

    module = types.ModuleType("IPython.display")
    module.HTML = HTML
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    shown = add_notebook_menu(menu_id="menu", first_level=1, last_level=2, header="Contents").data
    assert '<div id="menu"><b>Contents</b></div>' in shown
    assert '"h1 h2".split' in shown
    assert shown.count("{") == shown.count("}")
    assert "{{" not in shown


def add(a, b):
    return a + b


def work(n):
    total = 0
    for i in range(n):
        total = add(total, i)
    return add(total, len("text"))


def test_profile_tree():
    profiler, text = profile(lambda: work(50))
    assert "function calls" in text
    root, nodes = profile2graph(profiler, clean_text=lambda name: name.rsplit("/", 1)[-1])
    assert root.func_name == "<lambda>"
    called = {node.func_name: node for node in nodes.values()}
    assert called["add"].nc1 == 51
    assert called["add"].called_by == [called["work"]]
    lines = root.to_text().splitlines()
    assert lines[0].startswith("<lambda> ")
    assert lines[1].startswith("    work ")
    assert "test_compat_notebook.py" in lines[1]
    (shown,) = (line for line in lines if line.startswith("        add "))
    assert "51" in shown
    bare = root.to_text(with_file=False)
    assert "test_compat_notebook.py" not in bare


def test_profile_of_a_training_has_no_call_for_each_batch():
    model = add_loss_output(polynomial())
    trainer = OrtGradientOptimizer(
        model, ["init", "init_1"], learning_rate=1e-3, batch_size=1, max_iter=7
    )
    X, y = np.ones((500, 2), np.float32), np.ones((500, 1), np.float32)
    _, nodes = profile2graph(profile(lambda: trainer.fit(X, y))[0])
    epochs = [node for node in nodes.values() if node.func_name == "on_epoch_end"]
    assert [node.nc2 for node in epochs] == [7]
    assert max(node.nc2 for node in nodes.values()) < 3500


def test_repeated_functions_are_marked():
    def twice(n):
        return work(n) + sum(work(k) for k in range(n))

    root, _ = profile2graph(profile(lambda: twice(3))[0])
    marked = [line for line in root.to_text().splitlines() if line.endswith("+++")]
    assert any("work" in line for line in marked)
