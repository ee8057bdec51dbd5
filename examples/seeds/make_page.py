"""Runs the examples of this folder and writes docs/seeds.md with what they print and draw.

    python examples/seeds/make_page.py [script ...]

With names of scripts, only their parts are rewritten.
A test runs the examples too and compares what they print with the page, numbers and the sections in
VOLATILE apart.
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
PICTURES = DOCS / "pictures" / "seeds"
SCRIPTS = [
    "stochastic_gradient_descent",
    "full_training",
    "neural_network",
    "benchmark",
    "training_tutorial",
    "forward_backward",
    "linear_regression",
    "linear_regression_gpu",
]
# Sections that say how fast, with which packages, and which of near equals was best.
VOLATILE = {"GridSearchCV", "Profiling", "Profiling: the engine's kernels", "Versions"}
SHOWN = 6  # lines of a block that is shown as a whole
BEGIN = 3  # lines that are shown of a longer one
FIELDS = 4  # between commas, of a line
TOP = """# The original documents as examples

The scripts of [examples/seeds](../examples/seeds) do what the documents of onnxcustom show, through
`onnxgrad.compat`, and check every printed number that does not depend on chance. This page is what
they draw and how what they print begins; `make docs` writes it. See
[the migration guide](migration.md) for the names and for what differs.
"""


def run(name, folder, *args):
    """The output of the example."""
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), str(folder), *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def cleaned(text, folder):
    """The text without the folder, addresses of objects and the name of the machine."""
    text = text.replace(f"{folder}/", "")
    text = re.sub(r"Function_\d+", "Function_<id>", text)
    return re.sub(r"\n(  (?:cpu|system|cores) .*)(?=\n)", "", text)


def block(lines):
    """Lines as Markdown: their beginnings, and the first ones if they are many."""
    lines = "\n".join(lines).strip("\n").splitlines()
    if not lines:
        return []
    shown = [beginning(line) for line in (lines if len(lines) <= SHOWN else lines[:BEGIN])]
    if len(shown) < len(lines):
        shown.append("...")
    text = "\n".join(shown)
    return [f"```text\n{text}\n```\n"]


def beginning(line):
    """The first fields of a line, whose number does not depend on the digits of its numbers."""
    fields = line.split(", ")
    return line if len(fields) <= FIELDS else ", ".join([*fields[:FIELDS], "..."])


def page_part(name, text):
    """The part of the page for an example, from what it printed; and its pictures."""
    source = (HERE / f"{name}.py").read_text(encoding="utf-8")
    title = ast.get_docstring(ast.parse(source)).splitlines()[0].rstrip(".")
    parts = [f"## {title}\n", f"[{name}.py](../examples/seeds/{name}.py)\n"]
    lines, pictures, waiting = text.splitlines(), [], []
    for place, line in enumerate(lines):
        following = lines[place + 1] if place + 1 < len(lines) else ""
        if line and following == "-" * len(line):
            parts += [*block(waiting), f"### {line}\n"]
            waiting = []
        elif line.startswith("picture: "):
            picture = line.removeprefix("picture: ")
            words = picture.removesuffix(".png").replace("_", " ")
            parts += [*block(waiting), f"![{words}](pictures/seeds/{name}_{picture})\n"]
            waiting = []
            pictures.append(picture)
        elif not (line and set(line) == {"-"}):
            waiting.append(line)
    return "\n".join([*parts, *block(waiting)]), pictures


def comparable(part):
    """A part of the page without numbers, spaces and the sections that change from run to run."""
    sections = re.split(r"(?m)^### ", part)
    kept = [s for s in sections if s.split("\n", 1)[0].strip() not in VOLATILE]
    text = re.sub(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", "#", "### ".join(kept))
    return re.sub(r"\s+", "", text)


def stored_parts():
    """The parts of the page as it is, by name of the script."""
    page = DOCS / "seeds.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    found = re.split(r"(?m)^(?=## )", text)[1:]
    names = [re.search(r"\[(\w+)\.py\]", part)[1] for part in found]
    return dict(zip(names, found, strict=True))


def main():
    wanted = sys.argv[1:] or SCRIPTS
    parts = stored_parts()
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            part, pictures = page_part(name, cleaned(run(name, folder), folder))
            for picture in pictures:
                shutil.copyfile(Path(folder) / picture, PICTURES / f"{name}_{picture}")
        parts[name] = part
    text = "\n".join([TOP, *(parts[name].rstrip("\n") + "\n" for name in SCRIPTS)])
    (DOCS / "seeds.md").write_text(text, encoding="utf-8")
    for picture in PICTURES.glob("*.png"):
        if f"(pictures/seeds/{picture.name})" not in text:
            picture.unlink()  # a picture that is no longer drawn


if __name__ == "__main__":
    main()
