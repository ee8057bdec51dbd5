"""Products of float32 by AMX."""

from __future__ import annotations

import os
import warnings

from onnxgrad import _core

__all__ = ["apply_environment", "use_amx_for_float32"]

_VARIABLE = "ONNXGRAD_AMX_FLOAT32"


def use_amx_for_float32(on: bool = True) -> None:
    """Compute large matrix products of float32 by AMX, on processors that have it, or not.

    On unless it is switched off. A choice for the whole process, and for sessions and trainers that
    are made from now on; those that exist keep theirs. Products of float16 follow it too. The
    environment variable ``ONNXGRAD_AMX_FLOAT32=0`` switches it off from the start.

    Parameters
    ----------
    on : bool, default=True
        False: multiply-adds of float32, as on processors without AMX, which then give the same
        bits as processors with the same vectors.

    Notes
    -----
    Each number is the sum of three of bfloat16, whose products are summed in float32 (XLA calls the
    algorithm ``BF16_BF16_F32_X6``). Rounding errors are about half of those of multiply-adds.
    Numbers below 2**-103 keep fewer bits, those below 2**-118 as many as bfloat16 has.
    docs/kernels.md explains the method.

    Examples
    --------
    >>> import onnxgrad as og
    >>> og.use_amx_for_float32(False)
    >>> og.use_amx_for_float32()
    """
    from onnxgrad.base.checks import flag  # not for every import of the package

    _core.use_amx_for_float32(flag("on", on))


def apply_environment() -> None:
    """Do what ``ONNXGRAD_AMX_FLOAT32`` says."""
    value = os.environ.get(_VARIABLE, "")
    if value not in ("", "0", "1"):
        warnings.warn(
            f"{_VARIABLE} is {value!r}, not 0 or 1: products of float32 use AMX if there is one.",
            stacklevel=3,
        )
    _core.use_amx_for_float32(value != "0")
