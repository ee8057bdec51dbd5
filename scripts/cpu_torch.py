"""Makes PyTorch's wheel of PyPI usable without its CUDA wheels (4 GB), on the CPU.

    python scripts/cpu_torch.py SITE_PACKAGES

The wheel is linked with CUDA's libraries and does not load without them. Each of those that is
missing gets a library of its name in torch/lib, with the functions that torch asks for; they return
"no device", which torch answers with its CPU. Needs gcc and binutils.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Symbols without a version, of libraries without versions.
UNVERSIONED = re.compile(r"^(cu|nccl|nvshmem|nvrtc|nvtx)")
NO_DEVICE = 100  # cudaErrorNoDevice
PROVIDED = "libnccl.so.2"  # gets the symbols without a version


def lines(*command: str) -> list[str]:
    """Return the lines that a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed(library: Path) -> list[str]:
    """Return the names of the libraries that one is linked with."""
    found = (re.search(r"NEEDED.*\[(.*)\]", line) for line in lines("readelf", "-d", str(library)))
    return [match[1] for match in found if match]


def symbols(library: Path, *, defined: bool) -> set[tuple[str, str]]:
    """Return the dynamic symbols of a library and their versions, "" for none."""
    option = "--defined-only" if defined else "--undefined-only"
    names = (line.split()[-1] for line in lines("nm", "-D", option, str(library)))
    return {(name, version.lstrip("@")) for name, _, version in (n.partition("@") for n in names)}


def write_library(path: Path, names: dict[str, list[str]]) -> None:
    """Write a library with functions by version."""
    with tempfile.TemporaryDirectory() as folder:
        source, versions = Path(folder) / "stub.c", Path(folder) / "versions"
        every = sorted({name for some in names.values() for name in some})
        source.write_text(
            "\n".join(
                f'const char* {name}(void) {{ return "no CUDA"; }}'
                if name.endswith(("String", "_string"))
                else f"int {name}(void) {{ return {NO_DEVICE}; }}"
                for name in every
            )
        )
        versions.write_text(
            "\n".join(
                f"{version} {{ global: {' '.join(f'{n};' for n in some)} }};"
                for version, some in names.items()
                if version
            )
        )
        script = [f"-Wl,--version-script={versions}"] if any(names) else []
        flags = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}", *script]
        subprocess.run(["gcc", *flags, str(source), "-o", str(path)], check=True)


def main() -> None:
    """Write the missing libraries."""
    folder = Path(sys.argv[1]) / "torch" / "lib"
    own = [*folder.glob("*.so*"), *folder.parent.glob("_C*.so")]
    present = {path.name for path in own}
    absent = {name for path in own for name in needed(path)} - present
    absent = {name for name in absent if re.match(r"lib(cu|nccl|nv)", name)}
    wanted = set().union(*(symbols(path, defined=False) for path in own))
    for name in sorted(absent):
        stem = name.split(".")[0].removesuffix("_host").removeprefix("lib").upper()
        found: dict[str, list[str]] = {}
        for symbol, version in sorted(wanted):
            if version in (name, stem):
                found.setdefault(version, []).append(symbol)
        if name == PROVIDED:
            defined = set().union(*({s for s, _ in symbols(path, defined=True)} for path in own))
            found[""] = [
                s for s, v in sorted(wanted) if not v and UNVERSIONED.match(s) and s not in defined
            ]
        write_library(folder / name, found)
    print(f"cpu_torch: {len(absent)} libraries in {folder}")


if __name__ == "__main__":
    main()
