"""Checks before a release and steps after it, for `make release` and the release workflow.

    python scripts/release.py check [VERSION]    stops unless HEAD can be released (as VERSION)
    python scripts/release.py notes              prints what the change log says about the version
    python scripts/release.py finish [--tag]     lists dist/; prints the commands that publish,
                                                 or makes the tag itself

The version is that of include/onnxgrad/version.h; VERSION, or a tag such as v1.2.3, is compared.
"""

import re
import subprocess
import sys
from pathlib import Path

from develop import read_version
from source_files import ROOT


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return the output of a git command; stops with its message if it fails."""
    command = ["git", *arguments]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"release: {' '.join(command)}: {result.stderr.strip()}")
    return result.stdout.strip()


def changes(version: str, root: Path = ROOT) -> tuple[str, str] | None:
    """Return heading and text of a version in the change log, None if it has none."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    pattern = rf"^## ({re.escape(version)}(?![\w.])[^\n]*)\n(.*?)(?=^## |\Z)"
    found = re.search(pattern, text, re.M | re.S)
    return (found[1], found[2].strip()) if found else None


def cited_version(root: Path = ROOT) -> str | None:
    """Return the version in CITATION.cff."""
    text = (root / "CITATION.cff").read_text(encoding="utf-8")
    found = re.search(r'^version: *"?([^"\s]+)"?$', text, re.M)
    return found[1] if found else None


def problems_of_files(wanted: str | None, root: Path = ROOT) -> list[str]:
    """Return what the files of `root` say that a release, as `wanted`, must not."""
    version = read_version(root)
    problems = []
    if wanted is not None and wanted.removeprefix("v") != version:
        problems.append(f"'{wanted}' is not {version}, the version of include/onnxgrad/version.h")
    if cited_version(root) != version:
        problems.append(f"CITATION.cff has version {cited_version(root)}, not {version}")
    entry = changes(version, root)
    if entry is None:
        problems.append(f"CHANGELOG.md has no heading '## {version}'")
    elif "unreleased" in entry[0]:
        problems.append(f"CHANGELOG.md: '## {entry[0]}' needs its date instead of 'unreleased'")
    elif not entry[1]:
        problems.append(f"CHANGELOG.md says nothing below '## {entry[0]}'")
    return problems


def problems_of_history(root: Path = ROOT) -> list[str]:
    """Return why HEAD cannot get the tag of its version."""
    problems = []
    changed = git("status", "--porcelain", root=root)
    if changed:
        problems.append(f"not committed:\n    {changed.replace(chr(10), chr(10) + '    ')}")
    tag = f"v{read_version(root)}"
    tagged = git("tag", "--list", tag, root=root)
    if tagged and git("rev-list", "-n", "1", tag, root=root) != git("rev-parse", "HEAD", root=root):
        problems.append(f"{tag} is the tag of another commit: raise the version")
    return problems


def check(arguments: list[str]) -> int:
    """Print what stands against a release; return the exit status."""
    problems = problems_of_files(arguments[0] if arguments else None) + problems_of_history()
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    return 1 if problems else 0


def notes(_arguments: list[str]) -> int:
    """Print what the change log says about the version; return the exit status."""
    entry = changes(read_version())
    if entry is None:
        print("release: CHANGELOG.md does not have this version", file=sys.stderr)
        return 1
    print(entry[1])
    return 0


def finish(arguments: list[str]) -> int:
    """List the files and print or run the next commands; return the exit status."""
    version = read_version()
    files = sorted((ROOT / "dist").glob(f"onnxgrad-{version}*"))
    suffixes = [".whl", ".tar.gz", ".cdx.json"]
    missing = [end for end in suffixes if not any(file.name.endswith(end) for file in files)]
    if missing:
        print(f"release: dist/ has no {', '.join(missing)} of {version}", file=sys.stderr)
        return 1
    for file in files:
        print(f"release: dist/{file.name}, {file.stat().st_size // 1000} kB")
    tag = ["tag", "--annotate", f"v{version}", "--message", f"onnxgrad {version}"]
    if "--tag" in arguments:
        git(*tag)
        print(f"release: tagged v{version}; publish it with:")
    else:
        print(f"release: publish it with:\n    git {' '.join(tag[:-1])} '{tag[-1]}'")
    print(f"    git push origin v{version}")
    return 0


if __name__ == "__main__":
    commands = {"check": check, "notes": notes, "finish": finish}
    command, *rest = sys.argv[1:] or [""]
    if command not in commands:
        raise SystemExit(__doc__)
    sys.exit(commands[command](rest))
