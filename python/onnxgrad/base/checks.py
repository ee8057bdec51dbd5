"""Checks of options, with the same wording everywhere."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from onnxgrad.errors import OptionError

_MAX_REPR = 60  # characters of a value in a message

_P = ParamSpec("_P")
_R = TypeVar("_R")


# Names of options and losses in other libraries, and common abbreviations.
_SYNONYMS = {
    "lr": ("learning_rate", "learningrate", "rate", "eta", "eta0", "alpha", "step_size"),
    "epochs": ("epoch", "n_epochs", "num_epochs", "nb_epoch", "max_epochs", "max_iter", "n_iter"),
    "batch_size": ("batch", "bs", "batchsize", "minibatch_size"),
    "validation": ("val", "valid", "validation_split", "validation_data", "validation_fraction"),
    "optimizer": ("optim", "solver", "opt", "algorithm"),
    "epsilon": ("eps",),
    "weight_decay": ("decay", "l2", "l2_penalty"),
    "max_iter": ("epochs", "epoch", "n_epochs", "num_epochs", "max_epochs", "n_iter"),
    "n_iter_no_change": ("patience",),
    "hidden_layer_sizes": ("hidden", "layers", "hidden_sizes", "hidden_units", "hidden_dims"),
    "seed": ("random_state", "random_seed", "rng"),
    "random_state": ("seed", "random_seed", "rng"),
    "threads": ("n_jobs", "num_threads", "jobs", "workers", "num_workers"),
    "loss": ("criterion", "objective", "loss_function", "loss_fn"),
    "frozen": ("freeze", "fixed", "non_trainable"),
    "trainable": ("train", "weights_to_train", "requires_grad"),
    "sample_weight": ("sample_weights", "row_weight", "weights"),
    "class_weight": ("class_weights", "weight_of_class"),
    "clip_norm": ("gradient_clip", "grad_clip", "max_grad_norm", "clip_grad_norm", "clipnorm"),
    "clip_value": ("clipvalue", "gradient_clip_val"),
    "schedule": ("scheduler", "lr_scheduler", "lr_schedule"),
    "accumulate": ("accumulate_grad_batches", "gradient_accumulation_steps"),
    "target": ("label", "labels", "y", "target_column", "output_column"),
    "ignored": ("ignore", "exclude", "drop", "without"),
    "output": ("out", "save", "save_to", "destination"),
    "delimiter": ("sep", "separator"),
    "metrics": ("metric", "scoring", "score"),
    "stream": ("streaming", "chunks", "chunked"),
    "accuracy": ("acc",),
    "softmax_cross_entropy": ("ce", "cce", "crossentropy", "categorical_crossentropy", "xent"),
    "binary_cross_entropy": ("bce", "bcewithlogits", "logistic", "binary_crossentropy"),
    "squared_error": ("mse", "l2", "mean_squared_error", "mseloss"),
    "absolute_error": ("mae", "l1", "mean_absolute_error", "l1loss"),
}


# Arguments of other libraries that no single argument of ours replaces.
_FROM_ELSEWHERE = {"betas": "Instead of betas=(a, b), give beta1=a and beta2=b."}


def nearest_name(wrong: str, known: Iterable[str]) -> str | None:
    """Return the known name that `wrong` is a synonym of, or else the nearest one, or None."""
    import difflib

    names = {name.lower(): name for name in known}
    plain = wrong.lower().strip("-").replace("-", "_")
    for name, synonyms in _SYNONYMS.items():
        if name in names and plain in synonyms:
            return names[name]
    near = difflib.get_close_matches(plain, names, n=1, cutoff=0.55)
    return names[near[0]] if near else None


def nearest_or(wrong: str, known: Iterable[str], otherwise: str = "Use one of these names.") -> str:
    """Return ``"Did you mean 'x'?"`` for the nearest known name, or `otherwise` if none is near."""
    if wrong in _FROM_ELSEWHERE:
        return _FROM_ELSEWHERE[wrong]
    near = nearest_name(wrong, known)
    return otherwise if near is None else f"Did you mean '{near}'?"


def _is_option_of_class(function: Callable[..., Any], args: Sequence[Any], name: str) -> bool:
    """Whether `function` is a method of ``args[0]``, whose class is constructed with `name`."""
    cls = type(args[0]) if args else object
    return hasattr(cls, function.__name__) and name in inspect.signature(cls).parameters


def checked_names(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Refuse unknown arguments of a function, suggesting the nearest one."""
    known = list(inspect.signature(function).parameters)
    is_init = function.__name__ == "__init__"

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs:
            if name not in known:
                names = [one for one in known if one != "self"]
                owner = type(args[0]).__name__ if is_init and args else function.__qualname__
                hint = nearest_or(name, names, f"It has {', '.join(names)}.")
                if not is_init and _is_option_of_class(function, args, name):
                    hint = f"It is an argument of {type(args[0]).__name__}({name}=...)."
                raise OptionError(what=f"{owner} has no argument '{name}'", value=name, hint=hint)
        return function(*args, **kwargs)

    return checked


def unknown_name(option: str, given: object, known: Sequence[str]) -> OptionError:
    """Return the error for a name that is not one of `known`."""
    hint = nearest_or(given, known, "") if isinstance(given, str) else ""
    return OptionError(
        what=f"{option}: unknown {given!r}",
        value=option,
        hint=f"{hint} Known: {', '.join(repr(name) for name in known)}.".strip(),
    )


def shown(value: Any) -> str:
    """Return the repr of a wrong value for a message, or its type if the repr is long."""
    text = ascii(value) if isinstance(value, str) and has_surrogates(value) else repr(value)
    is_short = len(text) <= _MAX_REPR and "\n" not in text
    return text if is_short else f"of type {type(value).__name__}"


_MOST = 2**63 - 1  # limit of the extension
_MOST_THREADS = 2**31 - 1


def positive_int(option: str, value: Any, minimum: int = 1, maximum: int = _MOST) -> int:
    """Return `value` as int if it is an integer in [minimum, maximum]."""
    is_whole = isinstance(value, numbers.Integral) and value is not True and value is not False
    if is_whole and minimum <= int(value) <= maximum:
        return int(value)
    most = f" and at most {maximum}" if is_whole and int(value) > maximum else ""
    raise OptionError(
        what=f"{option}: {shown(value)}, expected an integer of at least {minimum}{most}",
        value=option,
        hint=f"Give a number such as {max(minimum, 1)}.",
    )


def any_int(option: str, value: Any) -> int:
    """Return `value` as int if it is an integer, of any sign."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not -_MOST <= number <= _MOST:
        what = "is not an integer" if number is None else "is too large"
        raise OptionError(
            what=f"{option}: {shown(value)} {what}",
            value=option,
            hint=f"Give a number such as -1, or leave {option} out.",
        )
    return number


def real_number(
    option: str,
    value: Any,
    minimum: float = 0.0,
    below: float = math.inf,
    *,
    open_minimum: bool = False,
) -> float:
    """Return `value` as float if it is a number in [minimum, below), or (minimum, below)."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_real and minimum <= value < below and not (open_minimum and value == minimum):
        return float(value)
    left = "above" if open_minimum else "of at least"
    right = "" if math.isinf(below) else f" and below {below:g}"
    hint = f"Give a number {left} {minimum:g}{right}, or leave {option} out."
    if option == "lr" and isinstance(value, str) and value == "auto":
        hint = "Trainer.lr_find(X, y).suggestion is a rate found in a short trial."
    raise OptionError(
        what=f"{option}: {shown(value)}, expected a number {left} {minimum:g}{right}",
        value=option,
        hint=hint,
    )


def duration(option: str, value: Any) -> float:
    """Return a duration in seconds, given as a number or a string such as ``"30m"`` or ``"90"``."""
    if isinstance(value, str):
        units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
        text = value.strip()
        try:
            value = float(text[:-1]) * units[text[-1:]] if text[-1:] in units else float(text)
        except ValueError:
            raise OptionError(
                what=f"{option}: {value!r} is not a duration",
                value=option,
                hint="Give seconds, or a string such as '90s', '30m' or '1.5h'.",
            ) from None
    return real_number(option, value, open_minimum=True)


def listed(value: Any) -> list[Any]:
    """Return the elements of an iterable; a string, or what is no iterable, is one element."""
    if isinstance(value, (str, bytes)) or not hasattr(type(value), "__iter__"):
        return [value]
    return [value] if getattr(value, "shape", None) == () else list(value)


def several(option: str, value: Any, elements: str = "values") -> list[Any]:
    """Return the elements of a list, tuple, array or other iterable, but of no text."""
    is_one = isinstance(value, (str, bytes, type)) or not hasattr(value, "__iter__")
    if is_one or getattr(value, "shape", None) == ():
        raise OptionError(
            what=f"{option}: {shown(value)} is no list of {elements}",
            value=option,
            hint=f"Give a list, as in {option}=[...].",
        )
    return list(value)


def mapping(option: str, value: Any, keys: str = "options") -> dict[str, Any]:
    """Return a dictionary whose keys are texts."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise OptionError(
        what=f"{option}: {shown(value)} is no dictionary of {keys} by name",
        value=option,
        hint=f'Give a dictionary, as in {option}={{"name": ...}}.',
    )


def flag(option: str, value: Any) -> bool:
    """Return a truth value; texts are those of option files and of the command line."""
    if value is True or value is False:
        return value
    texts = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    found = texts.get(value.lower()) if isinstance(value, str) else value
    is_number = isinstance(found, (int, float)) and found in (0, 1)
    if not is_number and type(found).__name__ not in ("bool", "bool_"):
        raise OptionError(
            what=f"{option}: {shown(value)} is neither True nor False",
            value=option,
            hint="Give True or False.",
        )
    return bool(found)


def choice(option: str, value: Any, known: Sequence[str]) -> str:
    """Return `value` if it is one of the known names."""
    if isinstance(value, str) and value in known:
        return value
    raise unknown_name(option, value, known)


def plain_text(option: str, value: Any, example: str = "name") -> str:
    """Return `value` if it is a text that can be written as UTF-8."""
    if isinstance(value, str) and not has_surrogates(value):
        return value
    what = "has a surrogate, half a character" if isinstance(value, str) else "is no text"
    raise OptionError(
        what=f"{option}: {shown(value)} {what}",
        value=option,
        hint=f"Give a text such as '{example}'.",
    )


def has_surrogates(text: str) -> bool:
    """Return whether a text has halves of characters, which UTF-8 cannot express."""
    return not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text)


def function_or_none(option: str, value: Any) -> Any:
    """Return `value` if it can be called or is None."""
    if value is None or callable(value):
        return value
    raise OptionError(
        what=f"{option}: {shown(value)} is no function",
        value=option,
        hint=f"Give a function, or leave {option} out.",
    )


def patterns(option: str, value: str | Iterable[str] | None) -> list[str]:
    """Return names or glob patterns as a list; a string is one pattern, None is no pattern."""
    if value is None:
        return []
    names = listed(value)
    for name in names:
        if not isinstance(name, str) or has_surrogates(name):
            raise OptionError(
                what=f"{option}: {shown(name)} is not a name or pattern",
                value=option,
                hint="Give strings such as 'fc1.weight' or 'fc*'.",
            )
    return names


def is_number(text: Any) -> bool:
    """Return whether a string is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def device_name(device: Any) -> str:
    """Return the name for the option `device`, which is empty for None.

    Other objects than names, such as a ``torch.device``, are those whose text is one.
    """
    return "" if device is None else plain_text("device", str(device), "cpu")


def thread_count(threads: int | None) -> int:
    """Return the number of threads for the engine; 0 lets it choose."""
    return 0 if threads is None else positive_int("threads", threads, maximum=_MOST_THREADS)


_BYTE_UNITS = {"": 1, "b": 1}
_BYTE_UNITS |= {f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)}
_BYTE_UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}


def byte_count(option: str, size: int | str | None) -> int:
    """Return a size given as a number of bytes or as text, "2GB" or "500 MiB"; 0 for None."""
    if size is None:
        return 0
    if isinstance(size, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", size)
        unit = None if found is None else _BYTE_UNITS.get(found[2].lower())
        if found is None or unit is None or not 1 <= float(found[1]) * unit <= _MOST:
            raise OptionError(
                what=f"{option}: '{size}' is not a size",
                value=option,
                hint='Give a number of bytes, or text as in "2GB" or "500 MiB".',
            )
        return int(float(found[1]) * unit)
    return positive_int(option, size)


def path_text(option: str, path: Any) -> str:
    """Return a path as a string."""
    try:
        text = os.fsdecode(path)
    except (TypeError, UnicodeError):
        text = None
    if text is None:
        raise OptionError(
            what=f"{option}: a {type(path).__name__} is not a path",
            value=option,
            hint="Give a string or a pathlib.Path.",
        )
    if has_surrogates(text):
        raise OptionError(
            what=f"{option}: {shown(text)} is not in UTF-8",
            value=option,
            hint="Rename the file or folder.",
        )
    return text


def checked_axes(option: str, ax: Any) -> Any:
    """Return `ax` if it is something to draw on, as matplotlib's axes are."""
    if hasattr(ax, "plot") and hasattr(ax, "set"):
        return ax
    raise OptionError(
        what=f"{option}: {shown(ax)}, expected axes of matplotlib",
        value=option,
        hint="Give those of plt.subplots(), or leave it out.",
    )
