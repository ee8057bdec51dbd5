"""Writes BUILD/sources/compile_commands.json: a command for each source, also of unity builds.

In a unity build CMake records the commands of the files that include the sources; clang-tidy
needs one by the name of each source.
"""

import json
import re
import sys
from pathlib import Path

# The macro is the name of nanobind's package, whose hyphen clang-tidy takes for an operator.
_LEFT_OUT = re.compile(r" -DNB_BACKEND_PYPI=\S+")


def sources_of(unity: Path) -> list[str]:
    """Return the sources that a file of a unity build includes."""
    return re.findall(r'#include "([^"]+\.cpp)"', unity.read_text(encoding="utf-8"))


def source_commands(build: Path) -> list[dict[str, str]]:
    """Return the entries of the build's database, those of unity files once per source."""
    entries = []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        entry["command"] = _LEFT_OUT.sub("", entry["command"])
        unity = Path(entry["file"])
        if unity.parent.name != "Unity":
            entries.append(entry)
            continue
        for source in sources_of(unity):
            command = entry["command"].replace(str(unity), source)
            entries.append({**entry, "file": source, "command": command})
    return entries


def main() -> None:
    """Write the database beside that of the build."""
    build = Path(sys.argv[1])
    folder = build / "sources"
    folder.mkdir(exist_ok=True)
    text = json.dumps(source_commands(build), indent=1)
    (folder / "compile_commands.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
