"""Options of `Trainer.fit` as the extension takes them."""

from __future__ import annotations

from onnxgrad import _core
from onnxgrad.base.checks import duration, positive_int, unknown_name
from onnxgrad.errors import OptionError

__all__ = ["fit_options", "one_of_two_names"]

_SAMPLING = {"rows": _core.Sampling.rows, "windows": _core.Sampling.windows}
_NON_FINITE = {
    "raise": _core.OnNonFinite.raise_error,
    "stop": _core.OnNonFinite.stop,
    "skip": _core.OnNonFinite.skip,
    "ignore": _core.OnNonFinite.ignore,
}


def fit_options(
    *,
    epochs: int,
    schedule: _core.Schedule | None,
    seed: int,
    shuffle: bool,
    sampling: str,
    drop_last: bool,
    allow_nan: bool,
    non_finite: str,
    snapshot_every: int | None,
    grad_norm: bool,
    keep_best: bool,
    max_time: float | str | None,
    buffer_bytes: int,
    validation_every: int,
    max_history: int | None,
    is_trial: bool,
) -> _core.FitOptions:
    """Return what the loop needs to know besides the data; the names are those of `Trainer.fit`.

    Raises
    ------
    OptionError
        An unknown name, or a number out of its range.
    """
    options = _core.FitOptions()
    options.epochs = positive_int("epochs", epochs)
    options.schedule = None if is_trial else schedule
    options.seed = seed
    options.shuffle = bool(shuffle)
    if sampling not in _SAMPLING:
        raise unknown_name("sampling", sampling, list(_SAMPLING))
    options.sampling = _SAMPLING[sampling]
    options.drop_last = bool(drop_last)
    options.allow_nan = bool(allow_nan)
    if non_finite not in _NON_FINITE:
        raise unknown_name("non_finite", non_finite, list(_NON_FINITE))
    options.on_non_finite = _NON_FINITE[non_finite]
    if snapshot_every is not None:
        options.snapshot_every_steps = positive_int("snapshot_every", snapshot_every)
    options.grad_norm = bool(grad_norm)
    options.keep_best = bool(keep_best)
    if is_trial:
        options.discard = True
        options.on_non_finite = _core.OnNonFinite.ignore
    options.max_seconds = duration("max_time", max_time)
    options.block_bytes = positive_int("buffer_bytes", buffer_bytes) // 2
    options.validation_every = positive_int("validation_every", validation_every)
    options.max_history = 0 if max_history is None else positive_int("max_history", max_history, 8)
    return options


def one_of_two_names(non_finite: str, on_nan: str | None) -> str:
    """Return what `non_finite` or its other name `on_nan` says. Raises: OptionError."""
    if on_nan is None:
        return non_finite
    if non_finite not in ("raise", on_nan):
        raise OptionError(
            what=f"non_finite={non_finite!r} and on_nan={on_nan!r} are two names of one option",
            value="on_nan",
            hint="Give one of them.",
        )
    return on_nan
