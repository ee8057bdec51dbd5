"""Options as strings ``option=value,...``, as on the command line."""

from __future__ import annotations

from typing import Any, TypeVar

from onnxgrad.base.checks import unknown_name
from onnxgrad.base.description import Description
from onnxgrad.errors import OptionError

__all__ = ["pairs_of", "texts_of", "values_of", "with_options"]

DescriptionT = TypeVar("DescriptionT", bound=Description)


def with_options(option: str, name: str, described: DescriptionT, text: str) -> DescriptionT:
    """Return a description with the options in `text`; `option` and `name` are for messages."""
    title = f"{option} {name}".rstrip()
    values = values_of(option, text)
    known = described._text_options()
    for key in values:
        if not known:
            raise OptionError(
                what=f"{option}: {name} has no options",
                value=option,
                hint=f"Give {name} alone.",
            )
        if key not in known:
            raise unknown_name(title, key, known)
    try:
        return described.replace(**values)
    except OptionError as error:
        raise OptionError(what=f"{title}: {error.what}", value=option, hint=error.hint) from error


def texts_of(described: Description, known: Description, without: str = "") -> list[str] | None:
    """Return ``option=value`` for each option except `without` that differs from `known`.

    None if a string cannot express one of them.
    """
    texts = []
    for name, value in vars(described).items():
        if name == without or value == vars(known)[name]:
            continue
        if not isinstance(value, (bool, int, float, str)):
            return None
        shown = value if isinstance(value, str) else repr(value)
        texts.append(f"{name}={shown.lower() if isinstance(value, bool) else shown}")
    return texts


def values_of(option: str, text: str) -> dict[str, Any]:
    """Parse options, whose values are numbers, true, false, none, or other strings."""
    return {name: _value(value) for name, value in pairs_of(option, text)}


def pairs_of(option: str, text: str) -> list[tuple[str, str]]:
    """Split ``name=value,...`` into names and values."""
    pairs = []
    for part in text.split(","):
        name, equals, value = (one.strip() for one in part.rpartition("="))
        if not equals or not name or not value:
            raise OptionError(
                what=f"{option}: '{part}' in '{text}' is not name=value",
                value=option,
                hint="Give pairs such as momentum=0.9, separated by commas.",
            )
        pairs.append((name, value))
    return pairs


def _value(text: str) -> Any:
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
