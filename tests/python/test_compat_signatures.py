"""All signatures of onnxcustom 0.4.344 that are there: names, order and defaults of parameters.

The table has been read from the source of onnxcustom; internal helpers of its classes are left out.
"""

import csv
import importlib
import inspect
from pathlib import Path

import numpy
import pytest

from onnxgrad.compat.onnxcustom.training.grad_helper import DerivativeOptions

TABLE = Path(__file__).resolve().parents[1] / "data" / "compat" / "onnxcustom_signatures.csv"
# Methods that differ from the table, with reasons.
DIFFERENT = {
    "BaseLearningLoss.build_onnx_score_function": "part of build_onnx_function",
    "BaseLearningPenalty.update_weights": "the base class has what all others have, n_bind",
    "ElasticLearningPenalty.penalty_loss": "takes the same, with a name for the loss",
    "BaseLearningRate.update_weights": "the update is what `optimizer` describes",
}
STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def rows():
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [tuple(row.values()) for row in csv.DictReader(file)]


def parameters(text):
    """(name, default or inspect.Parameter.empty) of each parameter of a line of the table."""
    found = []
    for item in filter(None, text.split("; ")):
        name, _, default = item.partition("=")
        scope = {"numpy": numpy, "DerivativeOptions": DerivativeOptions}
        value = eval(default, scope) if default else inspect.Parameter.empty
        found.append((name, value))
    return found


def test_the_table_is_whole():
    names = {(module, name.split(".")[0]) for module, name, _ in rows()}
    assert len(rows()) >= 90
    assert len(names) >= 40
    assert {name for _, name, _ in rows()} >= DIFFERENT.keys()


@pytest.mark.parametrize(("module", "name", "text"), rows(), ids=[f"{m}.{n}" for m, n, _ in rows()])
def test_signature(module, name, text):
    found = importlib.import_module(f"onnxgrad.compat.onnxcustom.{module}")
    if name in DIFFERENT:
        return
    for part in name.split("."):
        found = getattr(found, part)
    ours = {
        STARS.get(one.kind, "") + one.name: one.default
        for one in inspect.signature(found).parameters.values()
        if one.name not in ("self", "cls")
    }
    expected = parameters(text)
    positional = [key for key, _ in expected if not key.startswith("*")]
    assert [key for key in ours if not key.startswith("*")][: len(positional)] == positional
    for key, default in expected:
        assert key in ours
        if default is not inspect.Parameter.empty:
            assert ours[key] == default
    # New parameters have defaults, so that old calls still work.
    known = dict(expected)
    new = [value for key, value in ours.items() if key not in known and not key.startswith("*")]
    assert inspect.Parameter.empty not in new
