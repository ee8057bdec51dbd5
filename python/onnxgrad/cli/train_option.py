"""An option of ``onnxgrad train``, on the command line and in a configuration file."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal, NamedTuple

import typer

from onnxgrad import _core
from onnxgrad.base.described import shown_value
from onnxgrad.session_options.table import SessionOption

__all__ = ["TrainOption"]


class TrainOption(NamedTuple):
    """An option of the command line, which is also a key of a configuration file.

    Attributes
    ----------
    name : str
        Name in a file and in Python; ``--name`` with hyphens on the command line.
    kind : type
        str, int, float, bool, or list (of str; the option may be given several times).
    default : object
        A flag whose default is False has no ``--no-name``.
    topic : str
        Heading in the help.
    help : str
    metavar : str
        Placeholder of the value in the help; None means N, X, or the name.
    flags : tuple of str
        Spellings on the command line, if not ``--name``.
    is_path : bool
        Whether to store it as an absolute path.
    is_stored : bool
        Whether it may be in a configuration file.
    is_joined : bool
        Whether values that are given several times are one, with commas between them.
    needs_trust : {"", "runs", "writes"}
        What a configuration file could make the command do with it: run code, or write to any
        path. Only the command line may, or ``--trust`` allows it.
    """

    name: str
    kind: type
    default: Any
    topic: str
    help: str
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    is_path: bool = False
    is_stored: bool = True
    is_joined: bool = False
    needs_trust: Literal["", "runs", "writes"] = ""

    @property
    def spelling(self) -> str:
        """The option on the command line, without its value."""
        if self.flags:
            return ", ".join(self.flags)
        long = "--" + self.name.replace("_", "-")
        has_no = self.kind is bool and self.default is not False
        return f"{long}/--no-{long[2:]}" if has_no else long

    @property
    def shown_value(self) -> str | None:
        """Placeholder of the value in the help; None for flags."""
        if self.name == "verbose":
            return None
        return self.metavar or {int: "N", float: "X", str: self.name.upper()}.get(self.kind)

    @classmethod
    def of_field(cls, field: _core.FieldInfo) -> TrainOption:
        """Return the option for a row of the extension's table."""
        kinds = {"flag": bool, "whole": int, "number": float, "text": str}
        default = shown_value(field, field.default_value)
        help_, _, _ = field.meaning.partition(". ")
        help_ = help_.removesuffix(".") + "."
        if default is None:
            help_ += f"  [default: {field.none_is}]"
        flags = ["--" + name.replace("_", "-") for name in (field.option, *field.aliases)]
        return cls(
            field.option,
            str if field.is_duration else kinds[field.kind],
            default,
            field.topic,
            help_,
            "DURATION" if field.is_duration else "|".join(field.choices) or None,
            tuple(flags) if field.aliases else (),
        )

    @classmethod
    def of_session(cls, option: SessionOption) -> TrainOption:
        """Return the option for a row of the session options that is on the command line."""
        command = option.command
        assert command is not None
        help_ = command.help or option.first_sentence
        if command.type is list:
            help_ = help_.removesuffix(".") + "; may be given several times."
        if command.none_is:
            help_ += f"  [default: {command.none_is}]"
        flags = ["--" + name.replace("_", "-") for name in (option.name, command.alias) if name]
        return cls(
            option.name,
            command.type,
            command.default,
            command.topic,
            help_,
            command.metavar,
            tuple(flags) if command.alias else (),
        )

    def parameter(self) -> inspect.Parameter:
        """Return the option as a parameter of the function that typer calls."""
        is_list = self.kind is list or self.is_joined
        annotation: Any = list[str] if is_list else self.kind
        if self.default is None or is_list:
            annotation = annotation | None
        if self.name == "model":
            info: Any = typer.Argument(metavar=self.metavar, help=self.help)
        else:
            info = typer.Option(
                *self.spelling.split(", "),
                metavar=self.shown_value,
                help=self.help,
                rich_help_panel=self.topic,
                count=self.name == "verbose",
                show_default=self.name != "verbose",
            )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=Annotated[annotation, info],
        )
