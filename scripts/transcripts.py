"""Types the commands of docs/transcripts.md again, and writes what they print now.

    python scripts/transcripts.py                    # dist/'s newest wheel, in a new environment
    python scripts/transcripts.py --python PYTHON    # an environment that has onnxgrad

A block that begins with "$" is a transcript, any other the file that the text before it names. Of
what a command prints, the lines stay that the page shows: those with the same words, whatever their
numbers; "..." stands for the others. It is an error if one of them is no longer printed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import transcript_inputs
from source_files import ROOT

PAGE = ROOT / "docs" / "transcripts.md"
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
INPUTS = {
    "b": transcript_inputs.write_one_layer,
    "c": transcript_inputs.write_fine_tuning,
}


def skeleton(line: str) -> str:
    """Return a line without its numbers and spaces; of a sample, its first word."""
    if line.startswith("sample: "):
        return "sample"
    return re.sub(r"[-+]?[\d.]+(e[-+]?\d+)?(us|ms|s)?\b", "#", " ".join(line.split())).rstrip(" *")


def refreshed(shown: list[str], printed: list[str], command: str) -> list[str]:
    """Return the lines of a command that the page shows, as they are printed now."""
    lines: list[str] = []
    place = 0
    for line in shown:
        if line.strip() == "...":
            lines.append(line)
            continue
        found = [i for i in range(place, len(printed)) if skeleton(printed[i]) == skeleton(line)]
        if not found:
            raise SystemExit(f"$ {command}\nno longer prints: {line}\n" + "\n".join(printed))
        first = line.split()[:1]
        same = [i for i in found if printed[i].split()[:1] == first]
        place = (found[-1:] if line.startswith("sample: ") else same or found)[0]
        lines.append(printed[place])
        place += 1
    return lines


def run(command: str, folder: Path, path: str) -> list[str]:
    """Return the lines that a command prints."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": ""},
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"$ {command}\n{done.stdout}")
    return [line.rstrip() for line in done.stdout.splitlines()]


def typed(block: str, folder: Path, path: str) -> str:
    """Return a transcript with what its commands print now."""
    text = ""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, *shown = part.splitlines()
        print(f"$ {command}", flush=True)
        printed = run(command, folder, path)
        text += "\n".join([f"$ {command}", *refreshed(shown, printed, command)]) + "\n"
    return text


def section(text: str, folder: Path, path: str) -> str:
    """Return a section of the page with new transcripts."""
    letter = text[1]
    if letter == "a":
        steps = (ROOT / "docs" / "first-steps.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", steps, re.M | re.S)
        (folder / "first.py").write_text("".join(blocks), encoding="utf-8")
    if letter in INPUTS:
        INPUTS[letter](folder)
    blocks = [*BLOCK.finditer(text)]
    for match in blocks:
        if not match[1].startswith("$ "):
            name = re.findall(r"`([\w.]+\.py)`", text[: match.start()])[-1]
            (folder / name).write_text(match[1], encoding="utf-8")
    for match in blocks:
        if match[1].startswith("$ "):
            text = text.replace(match[1], typed(match[1], folder, path), 1)
    return text


def environment(folder: Path) -> Path:
    """Return the interpreter of a new environment with the newest wheel."""
    wheel = max((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime, default=None)
    if wheel is None:
        raise SystemExit("dist/ has no wheel: run 'make wheel' first, or give --python")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*command, f"{wheel}[data,sklearn,text]", "onnxruntime"], check=True)
    return python


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", type=Path, help="an interpreter with onnxgrad and onnxruntime")
    parser.add_argument("--sections", default="abcd", help="letters of the sections to type again")
    options = parser.parse_args()
    head, *parts = re.split(r"^## \(", PAGE.read_text(encoding="utf-8"), flags=re.M)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        python = options.python or environment(root / "venv")
        for i, part in enumerate(parts):
            if part[0] not in options.sections:
                continue
            folder = root / part[0]
            folder.mkdir()
            parts[i] = section(f"({part}", folder, str(python.absolute().parent))[1:]
    PAGE.write_text("## (".join([head, *parts]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
