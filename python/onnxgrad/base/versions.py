"""Versions of what is installed, for bug reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from onnxgrad import _core
from onnxgrad.base.checks import flag, patterns, shown
from onnxgrad.errors import OptionError

__all__ = ["show_versions", "version_of", "versions"]

_PACKAGES = ("numpy", "onnx", "onnxruntime", "protobuf", "scikit-learn", "skl2onnx", "typer")


def versions(full: bool = False, packages: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """Return what `show_versions` prints, as sections of names and versions."""
    import platform

    system = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
        if hasattr(os, "sched_getaffinity")
        else str(os.cpu_count()),
    }
    if flag("full", full):
        system["executable"] = sys.executable
    return {
        "onnxgrad": {
            **dict(_core.environment()),
            "float32": "AMX" if _core.amx_computes_float32() else "multiply-adds",
        },
        "system": system,
        "packages": {name: version_of(name) for name in dict.fromkeys([*_PACKAGES, *packages])},
    }


def show_versions(
    file: TextIO | None = None, full: bool = False, packages: Sequence[str] = ()
) -> None:
    """Print the versions of onnxgrad, its build tools and its dependencies.

    Parameters
    ----------
    file : text file, default=None
        None means standard output.
    full : bool, default=False
        Whether to include the path of the interpreter, which may identify you.
    packages : sequence of str, default=()
        Further packages to list; absent ones are listed as not installed.

    Examples
    --------
    >>> import onnxgrad as og
    >>> og.show_versions()  # doctest: +ELLIPSIS
    onnxgrad
      version     ...
    """
    if file is not None and not hasattr(file, "write"):
        raise OptionError(
            what=f"file: {shown(file)} cannot be written to",
            value="file",
            hint="Give an open file.",
        )
    sections = versions(full, patterns("packages", packages))
    width = 1 + max(12, *(len(name) for lines in sections.values() for name in lines))
    for section, lines in sections.items():
        print(section, file=file)
        for name, value in lines.items():
            print(f"  {name:<{width}}{value}", file=file)


def version_of(package: str) -> str:
    """Return the version of an installed package, or "not installed"."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"
