"""The texts of messages with options spelled as on the command line.

A message names an option by what it is called in Python, and an equals sign: ``validation=0.1``,
or ``trainable=`` where no value is meant; a name with an underscore may stand alone
(``drop_last``). Python shows such a text as it is. The command line shows its own spelling of each
option that the running command has: ``--validation 0.1``, ``--trainable``, ``--drop-last``. What
is in quotes was quoted from the user, and stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from onnxgrad.errors import Error

__all__ = ["Spelling", "in_words_of", "message", "spellings"]


class Spelling(NamedTuple):
    """How the command line spells an option.

    Attributes
    ----------
    flag : str
        With a value, or where it is switched on.
    off : str
        Where it is switched off; empty: it can only be left out.
    """

    flag: str
    off: str = ""


_TOKEN = re.compile(
    r"(?<![\w.'\"-])(?P<name>[A-Za-z]\w*)=(?P<value>'[^'\n]*'|\"[^\"\n]*\"|[\w+-][\w.+:*/-]*)?"
    r"|'[^'\n]*'|\"[^\"\n]*\""
    r"|(?<![\w./-])(?P<bare>[a-z]+(?:_[a-z]+)+)(?![\w=(/]|\.\w)"
)


def spellings(parameters: Iterable[Any]) -> dict[str, Spelling]:
    """Return the spelling of each option among the parameters of a command, by name."""
    found = {}
    for parameter in parameters:
        if parameter.param_type_name == "option" and parameter.name:
            flags = [flag for flag in parameter.opts if flag.startswith("--")] or parameter.opts
            off = list(parameter.secondary_opts)
            found[parameter.name] = Spelling(flags[0], off[0] if off else "")
    return found


def in_words_of(options: Mapping[str, Spelling], text: str) -> str:
    """Return `text` with the options in it as the command line spells them.

    Examples
    --------
    >>> options = {"validation": Spelling("--validation"), "allow_nan": Spelling("--allow-nan")}
    >>> in_words_of(options, "Give validation=0.1 or allow_nan=True, not 'validation=2'.")
    "Give --validation 0.1 or --allow-nan, not 'validation=2'."
    """

    def spelled(match: re.Match[str]) -> str:
        option = options.get(match["name"] or match["bare"] or "")
        if option is None:
            return match[0]
        value = match["value"] or ""
        end = value[len(value.rstrip(".:")) :]
        value = value.removesuffix(end)
        if value in ("True", "False"):
            off = option.off or f"no {option.flag}"
            return (option.flag if value == "True" else off) + end
        unquoted = value[1:-1] if value[:1] in ("'", '"') else value
        shown = unquoted if re.fullmatch(r"[\w.,:=+*/%@-]*", unquoted) else value
        return f"{option.flag} {shown}".rstrip() + end

    return _TOKEN.sub(spelled, text)


def message(error: Error, options: Mapping[str, Spelling]) -> str:
    """Return the text of an error, with its class, with options spelled as on the command line."""
    text = in_words_of(options, str(error))
    option = options.get(error.value)
    starts = (f"{error.value}:", f"{error.value} ")  # "epochs: 0, expected ..."
    if option is not None and text.startswith(starts):
        text = option.flag + text.removeprefix(error.value)
    name = type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}"
