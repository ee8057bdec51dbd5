"""docs/migration.md: every new line runs, imports differ by their prefix only, all names exist."""

import importlib
import re
import types
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnxgrad as og

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
PREFIX = "onnxgrad.compat."
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
linear (float[N, 2] x) => (float[N, 1] y)
<float[2, 1] coef = {1, 1}, float[1] intercept = {0}>
{ product = MatMul(x, coef)
  y = Add(product, intercept) }
"""


def parts():
    """Title and text of each part of the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    return [part.split("\n", 1) for part in text.split("\n## ")[1:]]


def cells(line):
    """The code of each cell of a line of a table; "\\|" is a bar inside a cell."""
    found = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return ["\n".join(re.findall(r"`([^`]+)`", cell)).replace(r"\|", "|") for cell in found]


def rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [cells(line) for line in lines if not line.startswith(("| ---", "| old line"))]


def lines_of(title_start):
    return [(title, rows(text)) for title, text in parts() if title.startswith(title_start)]


USER_PARTS = lines_of("You have")


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Names for the lines of the tables: models, data, results of earlier lines."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2)).astype(np.float32) / 10
    y = (X @ np.array([[-2], [3]], np.float32) - 1).astype(np.float32)
    onx = onnx.parser.parse_model(MODEL)
    return {
        "og": og, "onx": onx, "X": X, "y": y, "X_val": X[:5], "y_val": y[:5], "feeds":
        {"x": X, "label": y}, "weights": ["coef", "intercept"],
        "grad": np.ones_like(y), "trainer": og.Trainer(onx, "squared_error").fit(
            X, y, epochs=1, verbose=0
        ), "session": og.TrainingSession(onx, "squared_error"),
        "state": {"coef": np.array([[1], [2]], np.float32)},
    }  # fmt: skip


def run_line(line, names):
    """Run a line; one that is a list of keywords is given to a Trainer."""
    if line.startswith("%load_ext "):
        module = importlib.import_module(line.removeprefix("%load_ext "))
        assert callable(module.load_ipython_extension)
        return
    is_keywords = re.match(r"[a-z_]+=", line) and "\n" not in line
    if is_keywords:
        line = f"og.Trainer(onx, 'squared_error', **dict({line})).fit(X, y, epochs=1, verbose=0)"
    exec(compile(line, "docs/migration.md", "exec"), names)


def test_the_guide_goes_by_what_users_have():
    titles = [title for title, _ in USER_PARTS]
    for word in ("onnxcustom", "TrainingSession", "training.api", "mlprodict", "ORTModule"):
        assert any(word in title for title in titles), word
    assert all(len(found) >= 5 for _, found in USER_PARTS)


@pytest.mark.parametrize(("title", "found"), USER_PARTS, ids=[title for title, _ in USER_PARTS])
def test_new_lines_run(title, found, names):
    for package in ("ndonnx", "matplotlib", "pygraphviz", "sklearn", "IPython"):
        if package == "IPython" or importlib.util.find_spec(package):
            continue
        pytest.skip(f"{package} is not installed")
    import matplotlib.pyplot
    import onnx.utils
    import sklearn.model_selection

    matplotlib.use("agg")
    names |= {"onnx": onnx, "GridSearchCV": sklearn.model_selection.GridSearchCV}
    for old, new, *_ in found:
        assert old, title
        assert new, title
        run_line(new, names)
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize(("title", "found"), USER_PARTS, ids=[title for title, _ in USER_PARTS])
def test_imports_differ_by_their_prefix(title, found):
    for old, new, *_ in found:
        if PREFIX in new:
            assert new.replace(PREFIX, "") == old


def test_old_lines_run_under_the_old_names(names):
    """The part about onnxcustom: what follows the imports is not changed."""
    imports, lines = [], []
    for _, found in lines_of("You have programs with onnxcustom"):
        imports += [new for _, new, *_ in found if PREFIX in new]
        lines += [old for old, new, *_ in found if PREFIX not in new]
    for line in imports:
        exec(line, names)
    names |= {"onx_loss": names["add_loss_output"](names["onx"]), "numpy": np}
    names["trainer"] = names["OrtGradientForwardBackwardOptimizer"](names["onx"], max_iter=2)
    names["state"] = [np.ones((2, 1), np.float32), np.zeros(1, np.float32)]
    ran = 0
    for line in lines:
        if re.match(r"[a-z_]+=|GridSearchCV|replace|plot|print", line):
            continue  # parts of lines, and what needs more than the table says
        exec(line, names)
        ran += 1
    assert ran >= 8


def test_old_lines_about_artifacts_run_under_the_old_names(names):
    """All of them, one after the other, as a program has them."""
    ((_, found),) = lines_of("You have programs with onnxruntime.training.api")
    for old, new, *_ in found:
        exec(new if PREFIX in new else old, names)
    assert np.isfinite(names["loss"])
    assert Path("trained.onnx").exists()
    again = names["CheckpointState"].load_checkpoint("checkpoint")
    for name, parameter in again.parameters:
        np.testing.assert_array_equal(parameter.data, names["state"].parameters[name].data)


def module_names():
    """(module, names) of the tables of names."""
    for title, text in parts():
        if title != "Names":
            continue
        prefix = ""
        for line in text.splitlines():
            heading = re.match(r"\| module below `([a-z_.]+)`", line)
            if heading:
                prefix = heading[1]
            if not line.startswith("| `"):
                continue
            first, second = line.strip().strip("|").split("|", 1)
            # Names before a colon or a bracket; what follows says what is in them.
            listed = re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)|: .*", "", second))
            for module in re.findall(r"`([\w.]+)`", first):
                yield f"{prefix}.{module}", listed


NAMES = [*module_names()]


def test_tables_of_names_are_found():
    assert len(NAMES) >= 20
    assert sum(len(listed) for _, listed in NAMES) > 70


@pytest.mark.parametrize(("module", "listed"), NAMES, ids=[module for module, _ in NAMES])
def test_every_name_exists(module, listed):
    if "numpy" in module:
        pytest.importorskip("ndonnx")
    found = importlib.import_module(module)
    assert isinstance(found, types.ModuleType)
    for name in listed:
        assert hasattr(found, name), f"{module}.{name}"
