"""Messages with options spelled as on the command line.

A message writes an option as in Python, with an equals sign: ``validation=0.1``, or ``trainable=``
without a value; a name with an underscore may appear alone (``drop_last``). The command line
replaces each option of the running command by its own spelling: ``--validation 0.1``,
``--trainable``, ``--drop-last``, ``--open-batch off`` for ``open_batch=False``. A function that is
a command is spelled as that, ``add_loss()`` as ``onnxgrad add-loss``. Quoted text comes from the
user and is not changed, nor are lists and dictionaries.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from onnxgrad.errors import Error

__all__ = ["LAUNCH_VARIABLE", "Spelling", "continuation", "message", "spell_options", "spellings"]

#: Holds ``launch`` and its options, in processes that `onnxgrad launch` has started.
LAUNCH_VARIABLE = "ONNXGRAD_LAUNCH"


class Spelling(NamedTuple):
    """Spelling of an option on the command line.

    Attributes
    ----------
    flag : str
        Spelling with a value, or if it is switched on.
    off : str
        Spelling if it is switched off; empty if it can only be left out.
    takes_value : bool
        Whether it is switched by the values ``on`` and ``off``.
    """

    flag: str
    off: str = ""
    takes_value: bool = False


# Functions of Python as commands, or as options of several commands.
_FUNCTIONS = {
    "add_loss": "'onnxgrad add-loss'",
    "add_training_info": "'onnxgrad training-info'",
    "check_gradients": "'onnxgrad check'",
    "gradient": "'onnxgrad gradient'",
    "predict": "'onnxgrad predict'",
    "register_gradient": "--operators",
    "register_operator": "--operators",
    "report": "'onnxgrad report'",
}

_TOKEN = re.compile(
    r"(?<![\w.'\"-])(?P<name>[A-Za-z]\w*)=(?![{\[(])(?P<value>'[^'\n]*'|\"[^\"\n]*\"|[\w+-][\w.+:*/-]*)?"
    r"|(?<![\w.'\"-])(?P<function>" + "|".join(_FUNCTIONS) + r")\(\)"
    r"|'[^'\n]*'|\"[^\"\n]*\""
    r"|(?<![\w./-])(?P<bare>[a-z]+(?:_[a-z]+)+)(?![\w=(/]|\.\w)"
)


def spellings(parameters: Iterable[Any]) -> dict[str, Spelling]:
    """Return the spellings of the options among a command's parameters, by name."""
    found = {}
    for parameter in parameters:
        if parameter.param_type_name == "option" and parameter.name:
            flags = [flag for flag in parameter.opts if flag.startswith("--")] or parameter.opts
            off = list(parameter.secondary_opts)
            takes_value = not getattr(parameter, "is_flag", True)
            found[parameter.name] = Spelling(flags[0], off[0] if off else "", takes_value)
    return found


def spell_options(text: str, options: Mapping[str, Spelling]) -> str:
    """Return `text` with the options in it spelled as on the command line.

    Examples
    --------
    >>> options = {"validation": Spelling("--validation"), "allow_nan": Spelling("--allow-nan")}
    >>> spell_options("Give validation=0.1 or allow_nan=True, not 'validation=2'.", options)
    "Give --validation 0.1 or --allow-nan, not 'validation=2'."
    """

    def spelled(match: re.Match[str]) -> str:
        if match["function"]:
            return _FUNCTIONS[match["function"]]
        option = options.get(match["name"] or match["bare"] or "")
        if option is None:
            return match[0]
        value = match["value"] or ""
        end = value[len(value.rstrip(".:")) :]
        value = value.removesuffix(end)
        if value in ("True", "False") and option.takes_value:
            return f"{option.flag} {'on' if value == 'True' else 'off'}{end}"
        if value in ("True", "False"):
            off = option.off or f"no {option.flag}"
            return (option.flag if value == "True" else off) + end
        unquoted = value[1:-1] if value[:1] in ("'", '"') else value
        shown = unquoted if re.fullmatch(r"[\w.,:=+*/%@-]*", unquoted) else value
        return f"{option.flag} {shown}".rstrip() + end

    return _TOKEN.sub(spelled, text)


def continuation(folder: os.PathLike[str] | str, more: Sequence[str] = ()) -> str:
    """Return the line with the command that continues the run in `folder` as it was started.

    `more` are the arguments that the folder itself may not decide.

    Examples
    --------
    >>> continuation("runs/a b")
    "continue with: onnxgrad train --resume 'runs/a b'"
    >>> continuation("runs/a", ["-o", "a.onnx"])
    'continue with: onnxgrad train --resume runs/a -o a.onnx'
    """
    launch = os.environ.get(LAUNCH_VARIABLE, "")
    command = f"onnxgrad {launch} train" if launch else "onnxgrad train"
    return f"continue with: {command} {shlex.join(['--resume', os.fspath(folder), *more])}"


def message(error: Error, options: Mapping[str, Spelling]) -> str:
    """Return the class and text of an error, with options spelled as on the command line."""
    text = spell_options(str(error), options)
    option = options.get(error.value)
    starts = (f"{error.value}:", f"{error.value} ")  # "epochs: 0, expected ..."
    if option is not None and text.startswith(starts):
        text = option.flag + text.removeprefix(error.value)
    name = type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}"
