"""Executes the notebook of this folder again and stores it with its outputs.

    python examples/seeds/make_notebook.py

Needs requirements/docs.txt (`make docs` installs it). Addresses of objects are cut from the
outputs, and nothing says when or where it ran, so that only what has changed shows in a diff.
"""

import os
import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import onnxgrad

NOTEBOOK = Path(__file__).resolve().parent / "stochastic_gradient_descent.ipynb"
PACKAGE = str(Path(onnxgrad.__file__).resolve().parents[1])


def cleaned(text):
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"Function_\d+", "Function_<id>", text)
    text = re.sub(r"/\S*/site-packages/", "site-packages/", text)
    text = re.sub(r"/\S*/(?=python3\.\d+/)", "", text)
    text = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "<cell>", text)
    return text.replace(f"{PACKAGE}/", "")


def main():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # The kernel is another process: it must find the same package.
    paths = [PACKAGE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=1800,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = cleaned(output.text)
            for kind, value in output.get("data", {}).items():
                if kind == "text/plain":
                    output.data[kind] = cleaned(value)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
