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

Written by `python scripts/write_zoo_page.py` from `tests/data/zoo`, checked by
`tests/python/test_zoo.py`.

- **{models} models** as exporters write them, with what the exporter computes for them. The
  weights are random, the models small; what counts is which operators an exporter puts where.
- **{trains} train**: outputs, loss and the gradient of every weight are the exporter's, and the
  loss falls.
- **{runs} run only**, for the reasons below; {waits} wait for what this version cannot do yet.

`tests/data/zoo/index.json` describes each model; [its README](../tests/data/zoo/README.md) says
how they were made."""


def state(row: dict[str, Any]) -> str:
    """What this version does with a model: it "trains", "runs" or "waits"."""
    if row["name"] in WAITING:
        return "waits"
    return "trains" if row["trains"] else "runs"


def page() -> str:
    """The text of docs/zoo.md."""
    found = [state(row) for row in ROWS.values()]
    counts = {what: found.count(what) for what in ("trains", "runs", "waits")}
    lines = [HEAD.format(models=len(ROWS), **counts)]
    for module in dict.fromkeys(row["module"] for row in ROWS.values()):
        rows = [row for row in ROWS.values() if row["module"] == module]
        lines += ["", f"## {TITLES[module]}", "", "| kind | models |", "| --- | --- |"]
        for kind in dict.fromkeys(row["kind"] for row in rows):
            names = [f"`{row['name']}`" for row in rows if row["kind"] == kind]
            lines.append(f"| {kind} | {', '.join(names)} |")
    lines += ["", "## Models that run only", ""]
    lines += [
        f"- `{row['name']}`: {WAITING.get(row['name']) or row.get('reason', '')}."
        for row in ROWS.values()
        if state(row) != "trains"
    ]
    return "\n".join(lines) + "\n"
