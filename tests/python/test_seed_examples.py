"""The examples of examples/seeds: each runs to its end; they check their own numbers.

What they print is compared with docs/seeds.md, numbers apart.
"""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest

import onnxgrad

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "seeds"
NEEDS = {
    "stochastic_gradient_descent": ["ndonnx", "onnx_array_api"],
    "linear_regression": ["tqdm"],
    "linear_regression_gpu": ["onnx"],
}
# Two epochs, and no demand on the speed: timings decide nothing here.
ARGUMENTS = {"benchmark": ["2", "0"]}
GRAPHS = 5  # %onnxview in the notebook
PLOTS = 4


def load_make_page():
    spec = importlib.util.spec_from_file_location("make_page", FOLDER / "make_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_page = load_make_page()


@pytest.fixture(scope="module")
def parts():
    """The parts of the stored page by name of the script."""
    found = make_page.stored_parts()
    assert [*found] == make_page.SCRIPTS
    return found


def test_every_example_is_run():
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts == {*make_page.SCRIPTS, "common", "make_page", "make_notebook"}


@pytest.mark.parametrize("name", make_page.SCRIPTS)
def test_example(name, tmp_path, parts, monkeypatch):
    for module in [*NEEDS.get(name, ["skl2onnx"]), "pygraphviz"]:
        pytest.importorskip(module)
    package = str(Path(onnxgrad.__file__).resolve().parents[1])
    paths = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    printed = make_page.run(name, tmp_path, *ARGUMENTS.get(name, []))
    part, pictures = make_page.page_part(name, make_page.cleaned(printed, tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(pictures)
    stored = sorted(path.name for path in make_page.PICTURES.glob(f"{name}_*.png"))
    for picture in pictures:
        assert (tmp_path / picture).stat().st_size > 2000
        assert f"{name}_{picture}" in stored
    # On failure: `make docs` writes the page anew.
    assert make_page.comparable(part) == make_page.comparable(parts[name])


def test_every_stored_picture_is_shown():
    text = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
    for path in make_page.PICTURES.glob("*.png"):
        assert f"(pictures/seeds/{path.name})" in text


def test_comparing_pages_sees_words_and_not_numbers():
    one = "### A\n\n```text\nloss 1.5e-05 [0.25]\n```\n### Versions\n\nnumpy 2.4\n"
    other = "### A\n\n```text\nloss  0.25\n[-3]\n```\n### Versions\n\nscipy 1\n"
    assert make_page.comparable(one) == make_page.comparable(other)
    assert make_page.comparable(one) != make_page.comparable(one.replace("loss", "cost"))


def test_the_notebook_is_executed_and_its_code_runs(tmp_path, monkeypatch):
    """The code of its cells, without IPython's commands, runs and gives the stored loss."""
    pytest.importorskip("ndonnx")
    pytest.importorskip("onnx_array_api")
    pandas = pytest.importorskip("pandas")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    path = FOLDER / "stochastic_gradient_descent.ipynb"
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) == GRAPHS
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PLOTS
    stored = json.dumps(outputs)
    for number in ("532.5546", "193.33316", "109.333244", "356.99966", "0.03162277660168379"):
        assert number in stored
    assert " at 0x" not in stored
    assert "/tmp/" not in stored
    assert "/site-packages" not in stored.replace('"site-packages', "")

    monkeypatch.chdir(tmp_path)
    names = {}
    last = next(i for i, cell in enumerate(cells) if "MLPRegressor" in "".join(cell["source"]))
    for cell in cells[:last]:
        source = "".join(line for line in cell["source"] if not line.startswith("%"))
        if "add_notebook_menu" not in source:  # needs IPython
            exec(compile(source, path.name, "exec"), names)
    np.testing.assert_allclose(names["result"]["loss"], [[532.5546]], rtol=1e-6)
    assert names["train_session"].train_losses_[-1] < 2e-3
    assert pandas is names["pandas"]
    matplotlib.pyplot.close("all")
