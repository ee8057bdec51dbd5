"""Writes the source distribution into dist/; `python scripts/sdist.py [--bare] [folder]`.

It carries the archives of the C++ libraries, downloaded into third_party/, and so builds anywhere
without a network; with --bare it is without them. Needs scikit-build-core. The archive is the same
for the same commit: its times are SOURCE_DATE_EPOCH, which is the time of the commit where the
variable is not set.
"""

import os
import subprocess
import sys
from pathlib import Path

import native_libraries
from source_files import ROOT


def source_date(root: Path = ROOT) -> str | None:
    """Return the seconds that reproducible files carry, None without variable and history."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    command = ["git", "log", "-1", "--format=%ct"]
    try:
        found = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() or None


def build(folder: Path, root: Path = ROOT, archives: bool = False) -> Path:
    """Build the source distribution of `root` into `folder`, without others of ours there.

    With `archives`, those of the list that lie in third_party/ are part of it.
    """
    from scikit_build_core.build import build_sdist

    date = source_date(root)
    if date is not None:
        os.environ["SOURCE_DATE_EPOCH"] = date
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("onnxgrad-*.tar.gz"):
        old.unlink()
    os.chdir(root)  # build backends work in the project's folder
    names = [name for one in native_libraries.read_libraries() for name in one["files"]]
    settings = {"sdist.include": [f"/third_party/{name}" for name in names]} if archives else {}
    return folder / build_sdist(str(folder), settings)


def main(arguments: list[str]) -> int:
    """Build, print name and size; return the exit status."""
    folders = [Path(argument) for argument in arguments if argument != "--bare"]
    archives = "--bare" not in arguments
    if archives:
        fetch = [
            sys.executable,
            ROOT / "scripts/native_libraries.py",
            "--fetch",
            ROOT / "third_party",
        ]
        subprocess.run(fetch, check=True)
    path = build(folders[0] if folders else ROOT / "dist", archives=archives)
    print(f"sdist: {path}, {path.stat().st_size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
