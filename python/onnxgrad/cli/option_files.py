"""Options of ``onnxgrad train`` from configuration files and run folders."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgrad.base.checks import is_number, nearest_or
from onnxgrad.base.opening import open_input
from onnxgrad.cli.train_option import TrainOption
from onnxgrad.cli.train_options import OPTIONS
from onnxgrad.errors import CheckpointError, OptionError
from onnxgrad.files import open_own

__all__ = ["joined", "merged", "stored", "stored_option"]

_BY_NAME = {option.name: option for option in OPTIONS}

_OTHER_NAMES = {
    flag.removeprefix("--").replace("-", "_"): option.name
    for option in OPTIONS
    for flag in option.flags
}


def merged(
    context: Any, given: Mapping[str, Any], path: Path, *, left_out: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Merge options: the command line takes precedence over the file `path`, then defaults.

    Without ``--trust`` the file cannot make the command run code or write to a path. Paths to be
    written are put into `left_out` instead, if it is not None; the file is then that of a run
    folder.

    Raises
    ------
    OptionError
        The file cannot be read, or has an unknown key or a value of the wrong type; it names what
        needs ``--trust``.
    """
    result = dict(given)
    for key, value in _read(path, is_own=left_out is not None).items():
        name = key.replace("-", "_")
        option = _BY_NAME.get(_OTHER_NAMES.get(name, name))
        if option is None or not option.is_stored:
            known = [one.name for one in OPTIONS if one.is_stored]
            raise OptionError(
                what=f"{path}: there is no option '{key}'",
                file=str(path),
                value=key,
                hint=nearest_or(name, known, "'onnxgrad train --help' lists all."),
            )
        source = context.get_parameter_source(option.name)
        if source is not None and source.name == "COMMANDLINE":
            continue
        converted = _converted(option, value, path)
        if option.needs_trust and converted and not given["trust"]:
            if option.needs_trust == "runs" or left_out is None:
                raise _untrusted(option, converted, path)
            left_out[option.name] = converted
            continue
        result[option.name] = converted
    return result


def stored_option(path: Path, name: str) -> Any:
    """Return the option of the run folder with the options `path`; None if it has none."""
    value = _read(path, is_own=True).get(name)
    return None if value is None else _converted(_BY_NAME[name], value, path)


def joined(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the command line with values that were given several times as one."""
    result = dict(given)
    for option in OPTIONS:
        if option.is_joined:
            result[option.name] = ",".join(result[option.name] or ()) or None
    return result


def _untrusted(option: TrainOption, value: Any, path: Path) -> OptionError:
    values = value if isinstance(value, list) else [value]
    does = "which would be run as code" if option.needs_trust == "runs" else "to be written"
    flag = option.flags[0] if option.flags else f"--{option.name}"
    given = " ".join(f"{flag} {shlex.quote(one)}" for one in values)
    return OptionError(
        what=f"{path}: {option.name} names {', '.join(map(repr, values))}, {does}",
        file=str(path),
        value=option.name,
        hint=f"Name it on the command line: {given}; or give --trust if you wrote this file.",
    )


def stored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a configuration file: only those that are set, paths absolute."""
    result = {}
    for option in OPTIONS:
        value = options[option.name]
        if value is None or not option.is_stored:
            continue
        is_path = option.is_path and not is_number(value)
        if option.name in ("target", "sample_weight"):  # with .npy, these are files too
            is_path = str(options["data"]).endswith(".npy")
        result[option.name] = str(Path(value).absolute()) if is_path else value
    return result


def _read(path: Path, *, is_own: bool) -> dict[str, Any]:
    import tomllib

    try:
        with open_own(path) if is_own else open_input(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        return tomllib.loads(content.decode("utf-8"))
    # ValueError: not TOML, or not UTF-8; RecursionError: deeply nested lists.
    except (OSError, CheckpointError, ValueError, RecursionError) as error:
        problem = str(error).splitlines()[0]
        if isinstance(error, OSError) and error.strerror:
            problem = error.strerror
        raise OptionError(
            what=f"cannot read '{path}': {problem}",
            file=str(path),
            hint="Give a TOML file with lines such as epochs = 20.",
        ) from error


_MOST_BYTES = 1 << 20  # of a configuration file

_KINDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def _converted(option: TrainOption, value: Any, path: Path) -> Any:
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if option.kind is list or (option.is_joined and isinstance(value, list)):
        values = value if isinstance(value, list) else [value]
        if all(isinstance(one, str) for one in values):
            return ",".join(values) if option.is_joined else values
    elif option.kind is str and is_real:  # such as lr, max_time, validation
        return repr(value)
    elif option.kind is float and is_real:
        return float(value)
    elif type(value) is option.kind:
        return value
    expected = _KINDS.get(option.kind, "a string, or a list of strings")
    raise OptionError(
        what=f"{path}: {option.name} is {value!r}, expected {expected}",
        file=str(path),
        value=option.name,
        hint=f"Give {expected}.",
    )
