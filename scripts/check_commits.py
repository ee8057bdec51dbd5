"""Fails if a commit's title names no folder; `python scripts/check_commits.py BASE [root]`.

Checks the titles of the commits after BASE, merges excepted: `folder: what`, or `folder, folder:
what`, in at most 72 characters. An empty BASE passes: a checkout without history has no commits
to compare.
"""

import subprocess
import sys
from pathlib import Path

from source_files import run_check

LIMIT = 72
# Areas besides the names of folders and modules.
KNOWN_AREAS = {"ci", "security", "changelog"}
# Folders whose subfolders and modules are areas too: "runtime", "cli", "lint".
_WITH_AREAS = ("src", "python/onnxgrad", "scripts", "benchmarks")


def areas(root: Path) -> set[str]:
    """Return the names that may stand before the colon: folders and modules under `root`."""
    found = {path.name for path in root.iterdir() if path.is_dir()}
    for folder in _WITH_AREAS:
        if (root / folder).is_dir():
            found |= {path.stem for path in (root / folder).iterdir()}
    found = {name for name in found if not name.startswith((".", "_"))}
    return KNOWN_AREAS | found | {name.replace("_", " ") for name in found}


def check_title(title: str, known: set[str]) -> str | None:
    """Return what is wrong with a commit's title, or None."""
    if title.startswith('Revert "'):
        return None
    before, colon, after = title.partition(": ")
    if not colon or not after.strip():
        return "write `folder: what`, such as `ops: softmax: reuse the primal output`"
    unknown = [name for name in before.split(", ") if name not in known]
    if unknown:
        return f"no folder is called {unknown[0]!r}; name one of the repository, such as `train`"
    if len(title) > LIMIT:
        return f"{len(title)} characters, the limit is {LIMIT}; move details to the body"
    return None


def titles_since(base: str, root: Path) -> list[tuple[str, str]]:
    """Return short hash and title of the commits after `base`; none without history."""
    if not base:
        return []
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{base}..HEAD"]
    try:
        log = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [(line.split(" ")[0], line.partition(" ")[2]) for line in log.splitlines()]


def check_history(base: str, root: Path) -> list[str]:
    """Return a message for each title after `base` that breaks the rule."""
    known = areas(root)
    return [
        f"commit {commit}: '{title}': {problem}"
        for commit, title in titles_since(base, root)
        if (problem := check_title(title, known)) is not None
    ]


if __name__ == "__main__":
    base, *root = sys.argv[1:] or [""]
    sys.exit(run_check(lambda path: check_history(base, path), root))
