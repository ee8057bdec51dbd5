"""Writes a libstdc++.so to link with whose symbols are those of GCC 8, for systems with glibc 2.28.

    python old_libstdcxx.py FOLDER [COMPILER]

FOLDER/libstdc++.so is a linker script of two files: a library without code that has the symbols of
the compiler's libstdc++.so.6 up to the versions below, and the compiler's libstdc++.a. So an old
system's own libstdc++.so.6, which nanobind's backend and other extensions use as well, gives what
it has, and what it lacks (std::filesystem, numbers in std::from_chars, ...) is linked in. Red Hat's
compilers for old systems work alike.
"""

import re
import subprocess
import sys
from pathlib import Path

# The newest versions that manylinux_2_28 allows.
NEWEST = {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
_SYMBOL = re.compile(
    r"^ *\d+: [0-9a-f]+ +(\d+|0x[0-9a-f]+) (FUNC|OBJECT|TLS|IFUNC) +(?:GLOBAL|WEAK|UNIQUE) +DEFAULT"
    r" +\d+ (\S+)@@((\w+?)_([\d.]+))$",
    re.M,
)


def printed_by(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(folder: Path, compiler: str) -> None:
    """Write the two libraries."""
    new = printed_by(compiler, "-print-file-name=libstdc++.so.6").strip()
    archive = printed_by(compiler, "-print-file-name=libstdc++.a").strip()
    sections = {"FUNC": ".text", "IFUNC": ".text", "OBJECT": ".data", "TLS": '.tdata,"awT"'}
    lines: list[str] = []
    versions: dict[str, list[str]] = {}
    listing = printed_by("readelf", "--wide", "--dyn-syms", new)
    for size, kind, name, version, family, number in _SYMBOL.findall(listing):
        if family not in NEWEST or tuple(map(int, number.split("."))) > NEWEST[family]:
            continue
        versions.setdefault(version, []).append(name)
        kind_of = {"FUNC": "function", "IFUNC": "function", "OBJECT": "object", "TLS": "tls_object"}
        lines += [f".section {sections[kind]}", f".globl {name}", f".type {name}, %{kind_of[kind]}"]
        lines += [f".size {name}, {int(size, 0)}", f"{name}:", f".skip {int(size, 0)}"]
    folder.mkdir(parents=True, exist_ok=True)
    source, script, old = (folder / x for x in ("old.s", "old.map", "libstdc++.so.6"))
    source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",%progbits']) + "\n")
    nodes = (f"{v} {{ global: {'; '.join(names)}; }};" for v, names in sorted(versions.items()))
    script.write_text("\n".join(nodes) + "\n")
    link = [
        compiler,
        "-shared",
        "-nostdlib",
        f"-Wl,-soname,libstdc++.so.6,--version-script={script}",
    ]
    subprocess.run([*link, str(source), "-o", str(old)], check=True)
    (folder / "libstdc++.so").write_text(f"INPUT({old} {archive})\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "c++")
