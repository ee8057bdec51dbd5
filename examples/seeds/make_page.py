"""Runs the examples of this folder and writes docs/seeds.md with what they print and draw.

python examples/seeds/make_page.py
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
PICTURES = {
    "stochastic_gradient_descent": ["function", "losses_function", "losses_network", "update"],
    "full_training": ["losses"],
    "training_tutorial": ["graph_loss_and_its_gradient", "graph_penalty", "losses"],
    "forward_backward": ["losses"],
    "linear_regression": ["models", "losses"],
}
WIDTH, MOST_LINES = 118, 300
TOP = """# The original documents as examples

The scripts of [examples/seeds](../examples/seeds) do what the documents of onnxcustom show, through
`onnxgrad.compat`, and check every printed number that does not depend on chance. This page is what
they print (long lines and parts are cut, marked with ...) and some of the pictures they draw; it is
written by `python examples/seeds/make_page.py`. See [the migration guide](migration.md) for the
names and for what differs. Times are of one run on a machine that did other things too.
"""


def run(name, folder):
    """What the example prints."""
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    text = done.stdout.replace(f"{folder}/", "")
    text = re.sub(r"Function_\d+", "Function_<id>", text)
    text = re.sub(r"\n(  (?:cpu|system|cores) .*)(?=\n)", "", text)  # of the machine it ran on
    lines = [line[:WIDTH] + (" ..." if len(line) > WIDTH else "") for line in text.splitlines()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES // 2], "...", *lines[-MOST_LINES // 2 :]]
    return "\n".join(lines).strip()


def main():
    parts = [TOP]
    pictures = DOCS / "pictures" / "seeds"
    pictures.mkdir(parents=True, exist_ok=True)
    for name, wanted in PICTURES.items():
        source = (HERE / f"{name}.py").read_text(encoding="utf-8")
        title = ast.get_docstring(ast.parse(source)).splitlines()[0].rstrip(".")
        with tempfile.TemporaryDirectory() as folder:
            text = run(name, folder)
            links = []
            for picture in wanted:
                file = f"{name}_{picture}.png"
                shutil.copyfile(Path(folder) / f"{picture}.png", pictures / file)
                links.append(f"![{picture.replace('_', ' ')}](pictures/seeds/{file})")
        link = f"[{name}.py](../examples/seeds/{name}.py)"
        parts.append(f"## {title}\n\n{link}\n\n```text\n{text}\n```\n\n" + "\n".join(links) + "\n")
    (DOCS / "seeds.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
