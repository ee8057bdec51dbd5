"""Weights trained by default, against ``named_parameters()`` of exported modules."""

import os
import re

import pytest

from exported_parameters import FOLDER, differences, stored

# Buffers that no file tells from parameters: BART adds one of zeros, [1, words], to its scores.
UNDECIDED = {("hf_bart", "script"): {"onnx::Add_*: trained", "onnx::Add_* when new: trained"}}


def unexpected(module, exporter, *row):
    """Return the differences of one export, without the undecided, numbers left out."""
    found = differences(*row)
    known = UNDECIDED.get((module, exporter), set())
    return {text for text in found if re.sub(r"Add_\d+", "Add_*", text) not in known}


def test_the_stored_files():
    rows = stored()
    assert len({row[0] for row in rows}) >= 40
    found = {row[:2]: unexpected(*row) for row in rows}
    assert {key: value for key, value in found.items() if value} == {}


@pytest.mark.skipif("ONNXGRAD_INTEROP" not in os.environ, reason="needs torch, transformers, timm")
def test_modules_as_they_are_exported_now(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from make_parameters import EXPORTERS, MODULES, files_of

    found, count = {}, 0
    for module in MODULES:
        for exporter in EXPORTERS:
            try:
                row = files_of(module, exporter)
            except (RuntimeError, TypeError):
                continue  # the exporter lacks an operator
            count += 1
            found[module, exporter] = unexpected(module, exporter, *row[:2], set(row[2]))
    assert count >= 90
    assert {key: value for key, value in found.items() if value} == {}
