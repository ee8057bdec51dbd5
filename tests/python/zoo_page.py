"""Writes down what the models of tests/data/zoo are, and which of them train: docs/zoo.md."""

from typing import Any

from onnx_tool import ROOT
from zoo import ROWS, WAITING

PAGE = ROOT / "docs/zoo.md"
TITLES = {
    "attention": "Attention, language models, mixtures of experts (PyTorch)",
    "keras": "Keras",
    "runtime": "What onnxruntime's tools write",
    "sklearn": "scikit-learn, LightGBM, XGBoost (skl2onnx, onnxmltools)",
    "timm": "timm",
    "transformers": "transformers",
    "general": "Dense networks, graphs, tables, generative models, types (PyTorch)",
    "sequence": "Recurrence, loops, scans, audio (PyTorch)",
    "vision": "Images, volumes, detection (PyTorch, torchvision)",
}
HEAD = """# Exported models

Written by `python scripts/write_zoo_page.py` from `tests/data/zoo`; `tests/python/test_zoo.py`
checks that it is true.

- **{models} models** as exporters write them, with what the exporter computes for them.
- **{trains} train**: outputs, loss and the gradient of every weight are the exporter's, and the
  loss falls. PyTorch says what the gradients are; other exporters say what the outputs are.
- **{runs} run only**, each for the reason given; {waits} wait for what this version cannot do yet.

The weights are random, the models small; what counts is which operators an exporter puts where.
The last column is the number of different operators.
[How they were made](../tests/data/zoo/README.md)."""


def state(row: dict[str, Any]) -> str:
    """Return what this version does with a model: it "trains", "runs" or "waits"."""
    if row["name"] in WAITING:
        return "waits"
    return "trains" if row["trains"] else "runs"


def page() -> str:
    """The text of docs/zoo.md."""
    found = [state(row) for row in ROWS.values()]
    counts = {what: found.count(what) for what in ("trains", "runs", "waits")}
    lines = [HEAD.format(models=len(ROWS), **counts)]
    for module in dict.fromkeys(row["module"] for row in ROWS.values()):
        lines += ["", f"## {TITLES[module]}", ""]
        lines += ["| model | kind | what | operators |", "| --- | --- | --- | --- |"]
        lines += [_line(row) for row in ROWS.values() if row["module"] == module]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    notes = {"trains": "", "runs": " *Runs only: {}.*", "waits": " *Waits: {}.*"}
    reason = WAITING.get(row["name"]) or row.get("reason", "")
    what = row["what"] + notes[state(row)].format(reason)
    return f"| `{row['name']}` | {row['kind']} | {what} | {len(row['operators'])} |"
