"""Libraries that are loaded at run time."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

from onnxgrad import _core

__all__ = ["request_blas_of_environment", "use_blas", "wheel_folders"]


def wheel_folders() -> list[str]:
    """Return where wheels put shared libraries, those of MPI and MKL for example."""
    prefixes = [sys.prefix, site.getuserbase()]
    return [str(Path(prefix) / "lib") for prefix in dict.fromkeys(prefixes)]


def use_blas(library: str | os.PathLike[str] | None) -> None:
    """Compute large matrix products on the CPU by a BLAS library.

    A choice for the whole process, and for sessions that are made from now on. The environment
    variable ``ONNXGRAD_BLAS`` does the same before the first one. Which is faster depends on the
    processor: measure your model. docs/kernels.md has figures.

    Parameters
    ----------
    library : {"mkl", "openblas"}, path or None
        ``"mkl"``: oneMKL (``pip install mkl``). ``"openblas"``: OpenBLAS of the system,
        which then computes with one thread everywhere in this process. A path: a shared library
        with ``cblas_sgemm`` and ``cblas_dgemm`` for 32-bit integers. None: onnxgrad's own kernels.

    Raises
    ------
    OptionError
        An unknown name, or a library that cannot be loaded; nothing has changed then.

    Notes
    -----
    Products of at least 2 million multiply-adds in float32 and float64 are computed by the library,
    each thread's part by a call of its own. Results are the same for the same number of threads as
    far as the library keeps that promise; MKL does for arrays at the same alignment.

    Examples
    --------
    >>> import onnxgrad as og
    >>> og.use_blas("mkl")  # doctest: +SKIP
    >>> og.use_blas(None)
    """
    _core.use_blas("" if library is None else os.fspath(library), wheel_folders())


def request_blas_of_environment() -> None:
    """Have the library that ``ONNXGRAD_BLAS`` names loaded when the first plan is compiled."""
    library = os.environ.get("ONNXGRAD_BLAS")
    if library:
        _core.request_blas(library, wheel_folders())
