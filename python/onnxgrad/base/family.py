"""Families of descriptions, by name and as strings ``NAME:option=value,...``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from onnxgrad import _core
from onnxgrad.base.checks import unknown_name
from onnxgrad.base.described import Described, shown_value
from onnxgrad.base.option_texts import texts_of, with_options
from onnxgrad.errors import OptionError

__all__ = ["Family"]

DescribedT = TypeVar("DescribedT", bound=Described)


class Family(Generic[DescribedT]):
    """The descriptions of a table of the extension, by name.

    Parameters
    ----------
    base : type
        Base class of all descriptions of the family.
    """

    def __init__(self, base: type[DescribedT]) -> None:
        self._base = base
        self._by_name: dict[str, DescribedT] = {}
        self._aliases: dict[str, str] = {}

    def fill(self, classes: Mapping[str, Any]) -> None:
        """Add the names of the table; `classes` has the classes of its rows, by name."""
        for row in getattr(_core, f"{self._base._family}_table")():
            for named in row.names if row.python_name else ():
                values = zip(row.fields, named.values, strict=False)
                options = {field.option: shown_value(field, value) for field, value in values}
                self.add(named.name, classes[row.python_name](**options))
                self._aliases.update({_plain(alias): named.name for alias in named.aliases})

    def add(self, name: str, described: DescribedT) -> None:
        """Add a name that is not in the table."""
        self._by_name[name] = described
        self._aliases[_plain(name)] = name

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._by_name)

    def from_name(self, name: str) -> DescribedT:
        """Return the description of that name, in any spelling. Raises: OptionError."""
        known = isinstance(name, str)
        described = self._by_name.get(self._aliases.get(_plain(name), name)) if known else None
        if described is None:
            raise unknown_name(self._base._family, name, self.names())
        return described

    def from_text(self, text: str) -> DescribedT:
        """Parse a description such as ``"sgd:momentum=0.9,nesterov=true"``."""
        name, _, options = text.partition(":")
        described = self.from_name(name)
        return with_options(self._base._family, name, described, options) if options else described

    def to_text(self, described: DescribedT, without: str = "") -> str | None:
        """Return the shortest string for a description, without one of its options.

        None if no string can express it, such as functions and composites.
        """
        best: list[str] | None = None
        for name in self.names():
            known = self._by_name[name]
            texts = texts_of(described, known, without) if type(known) is type(described) else None
            if texts is not None and (best is None or len(texts) < len(best) - 1):
                best = [name, *texts]
        return None if best is None else best[0] + ":" * (len(best) > 1) + ",".join(best[1:])

    def take(self, given: DescribedT | type[DescribedT] | str) -> DescribedT:
        """Return a description, given as such, by name or as a string. Raises: OptionError."""
        described: Any = self.from_text(given) if isinstance(given, str) else given
        if isinstance(described, self._base):
            return described
        family = self._base._family
        if isinstance(given, type) and issubclass(given, self._base):
            kind: Any = given
            try:
                made: DescribedT = kind()
                return made
            except TypeError as error:
                raise OptionError(
                    what=f"{family}: the class {given.__name__} has options without a default",
                    value=family,
                    hint=f"Give an object: {given.__name__}(...).",
                ) from error
        article = "an" if family[0] in "aeiou" else "a"
        raise OptionError(
            what=f"{family}: a {type(given).__name__} is not {article} {family}",
            value=family,
            hint=f"Give an object of {self._base.__module__.removesuffix('.base')} or one of "
            f"{', '.join(self.names())}.",
        )


def _plain(name: str) -> str:
    """Return a name as the extension compares it: ``"CosineAnnealing_LR"`` and the like."""
    return name.lower().translate({ord(c): None for c in "_- "})
