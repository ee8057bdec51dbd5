"""The stub of the extension is the one of this build, and all examples in docstrings run."""

import doctest
import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
from nanobind.stubgen import StubGen

import onnxgrad
from onnxgrad import _core

PACKAGE = Path(onnxgrad.__file__).parent
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
MODULES = [
    ".".join(["onnxgrad", *path.with_suffix("").parts]).removesuffix(".__init__")
    for path in FILES
    if path.parts[0] != "compat" and path.stem != "__main__"
]


def test_stub_is_that_of_the_extension():
    generator = StubGen(_core)
    generator.put(_core)
    written = (PACKAGE / "_core.pyi").read_text(encoding="utf-8")
    assert written.split() == generator.get().split()


def test_package_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_stub_has_a_type_for_every_argument():
    text = (PACKAGE / "_core.pyi").read_text(encoding="utf-8")
    assert "arg0" not in text
    assert "*args" not in text


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name, linear_model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    globs = {**vars(module), "linear_model": linear_model, "np": np}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in finder.find(module, name, globs=globs):
        runner.run(test)
    assert runner.failures == 0


WITH_EXAMPLE = [
    onnxgrad.InferenceSession,
    onnxgrad.TrainingSession,
    onnxgrad.Trainer,
    onnxgrad.History,
    onnxgrad.add_loss,
    onnxgrad.gradient,
    onnxgrad.initialize,
    onnxgrad.report,
    onnxgrad.show_versions,
    onnxgrad.training_step,
    onnxgrad.callbacks.Callback,
    onnxgrad.losses.from_name,
    onnxgrad.optimizers.from_name,
]


@pytest.mark.parametrize("item", WITH_EXAMPLE, ids=lambda item: item.__name__)
def test_public_item_has_an_example(item):
    assert ">>>" in inspect.getdoc(item)


def test_every_public_item_has_a_docstring_with_its_parameters():
    for name in onnxgrad.__all__:
        item = getattr(onnxgrad, name)
        if not inspect.isfunction(item):
            continue
        text = inspect.getdoc(item)
        for parameter in inspect.signature(item).parameters:
            assert parameter in text, f"{name}: {parameter}"


def test_names_are_those_of_the_library():
    assert onnxgrad.losses.names() == _core.loss_names()
    assert onnxgrad.optimizers.names() == _core.optimizer_names()
    for name in onnxgrad.losses.names():
        assert type(onnxgrad.losses.from_name(name)._native()) is type(_core.loss_from_name(name))
    for name in onnxgrad.optimizers.names():
        native, ours = _core.optimizer_from_name(name), onnxgrad.optimizers.from_name(name)
        assert str(native) == str(ours._native())
    assert onnxgrad.schedules.names() == _core.schedule_names()
    for name in onnxgrad.schedules.names():
        native, ours = _core.schedule_from_name(name), onnxgrad.schedules.from_name(name)
        assert str(native) == str(ours._native())
