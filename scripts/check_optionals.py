"""Fails where C++ takes a value out of an optional; `python scripts/check_optionals.py [root]`.

What may be unknown before a model runs (a shape, a rank, the numbers of an input) is an optional.
`*x.static_dims()` and `constant_ints(x)->front()` are undefined behavior for a file whose author
left it unknown, so the result is held by a name and tested, or asked for by an accessor that throws
(`fixed_dims()`, `required_dim()`).
"""

import re
import sys
from pathlib import Path

from source_files import CPP_SUFFIXES, list_files, run_check

FUNCTIONS = (
    "static_dims|static_elements|static_bytes|known_dim|known_rank|known_ints|constant_ints?|"
    "constant_number|planned_ints|fixed_trip_count"
)
# An operand, which may go through members, elements and calls: `node.inputs[0]->type.`
BEFORE = r"(?:[A-Za-z_]\w*(?:::|->|\.|\[[^\]]*\](?:->|\.)|\([^()]*\)(?:->|\.)))*"
ARGUMENTS = r"\((?:[^()]|\([^()]*\))*\)"
DEREFERENCED = re.compile(rf"(?<![\w)\]]\s)(?<![\w)\]])\*\s*{BEFORE}(?:{FUNCTIONS}){ARGUMENTS}")
MEMBER = re.compile(rf"\b(?:{FUNCTIONS}){ARGUMENTS}(?:->|\.value\(\))")


def unchecked(root: Path) -> list[str]:
    """Return one message for each optional of a call under `root`/src that is used unchecked."""
    problems = []
    for path in list_files(root):
        if path.suffix not in CPP_SUFFIXES or path.relative_to(root).parts[0] != "src":
            continue
        text = path.read_text(encoding="utf-8")
        for pattern in (DEREFERENCED, MEMBER):
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                where = f"{path.relative_to(root)}:{line}"
                problems.append(f"{where}: '{match.group()}' may be unknown; test it first")
    return problems


if __name__ == "__main__":
    sys.exit(run_check(unchecked, sys.argv[1:]))
