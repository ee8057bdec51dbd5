"""Finds code for a special instruction set that other machines could run into.

`python scripts/check_symbols.py LIBRARY...` fails if an inline or template function ("weak" in the
object file) uses AVX registers although its name has no target in it. The linker keeps one copy of
such a function for the whole program: if it takes the one that was compiled for AVX-512, a
processor without it stops at an illegal instruction, in code far from any kernel. Highway's
functions are in namespaces named after their target (N_AVX2, ...) and are never shared.
"""

import re
import subprocess
import sys
from pathlib import Path

# A VEX- or EVEX-encoded instruction: registers only these sets have, or a v-prefixed mnemonic.
_SPECIAL = re.compile(r"%[yz]mm\d|%k[1-7]\b|\tv[a-z0-9]+\s+.*%xmm")
_HEADING = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_OWN_TARGET = re.compile(r"N_(AVX|SSE|NEON|SVE|EMU|SCALAR)|_(avx2|avx512|avx3)\b")


def weak_functions(library: Path) -> set[str]:
    """Return the mangled names of the weak functions of an object file or archive."""
    listing = subprocess.run(["nm", str(library)], check=True, capture_output=True, text=True)
    rows = (line.split() for line in listing.stdout.splitlines())
    return {row[-1] for row in rows if len(row) == 3 and row[1] in {"W", "V", "u"}}


def special_functions(library: Path) -> set[str]:
    """Return the mangled names of all functions with AVX instructions."""
    names: set[str] = set()
    current = ""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if heading := _HEADING.match(line):
                current = heading.group(1)
            elif current not in names and _SPECIAL.search(line):
                names.add(current)
    if process.returncode != 0:
        raise SystemExit(f"check_symbols: objdump failed on {library}")
    return names


def demangle(name: str) -> str:
    """Return the C++ name of a symbol."""
    return subprocess.run(
        ["c++filt", name], check=True, capture_output=True, text=True
    ).stdout.strip()


def shared_special_functions(library: Path) -> list[str]:
    """Return the C++ names of weak functions that use AVX without saying so, sorted."""
    suspects = weak_functions(library) & special_functions(library)
    names = (demangle(name) for name in suspects)
    return sorted(name for name in names if not _OWN_TARGET.search(name))


def main(arguments: list[str]) -> int:
    """Print the errors; return the exit status."""
    status = 0
    for argument in arguments:
        for name in shared_special_functions(Path(argument)):
            print(f"{argument}: shared inline function uses AVX: {name}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
