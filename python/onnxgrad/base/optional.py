"""Packages that only some functions need."""

from __future__ import annotations

import importlib
from typing import Any

from onnxgrad.errors import Error, OptionError

__all__ = ["MissingPackageError", "import_optional"]

# Requirements to install for modules of other names.
_PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "ray": "'ray[default]'"}


class MissingPackageError(OptionError, ImportError):
    """A package that only some functions need is not installed."""


def import_optional(
    module: str, needed_by: str, error: type[Error] = MissingPackageError, **place: str
) -> Any:
    """Import a module of a package that onnxgrad does not depend on.

    Parameters
    ----------
    module : str
    needed_by : str
        What needs it, for the message.
    error : type, default=MissingPackageError
        Class of the exception.
    **place : str
        Further fields of the exception, such as `op_type`.

    Raises
    ------
    Error
        It is not installed, or cannot be imported.
    """
    name = module.partition(".")[0]
    try:
        importlib.import_module(name)
        return importlib.import_module(module)
    except ImportError as problem:
        package = _PACKAGES.get(name, name)
        is_absent = isinstance(problem, ModuleNotFoundError) and problem.name in (name, module)
        reason = "is not installed" if is_absent else f"cannot be imported: {problem}"
        raise error(
            what=f"{needed_by} needs {package}, which {reason}",
            hint=f"Install it: pip install {package}",
            **place,
        ) from problem
