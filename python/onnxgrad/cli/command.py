"""Commands of the command line: unknown options, and messages that spell options as it does."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import typer
from typer.core import TyperCommand

from onnxgrad.base.checks import nearest_name
from onnxgrad.base.messages import say
from onnxgrad.cli.wording import Spelling, in_words_of, message, spellings
from onnxgrad.errors import Error

__all__ = ["Command", "TopicsCommand", "message_of", "plain_warnings"]

# How the command that runs spells its options.
_running: ContextVar[Mapping[str, Spelling] | None] = ContextVar("running", default=None)


def message_of(error: Error) -> str:
    """Return the text of an error with options spelled as the running command does."""
    return message(error, _running.get() or {})


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show the warnings of onnxgrad as lines without a place in its source, and no others."""

    def show(text: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if category.__module__.partition(".")[0] == "onnxgrad":
            say(f"warning: {in_words_of(_running.get() or {}, str(text))}")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


class Command(TyperCommand):
    """A command that suggests the nearest option, and whose messages spell options as it does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; for an unknown one suggest the nearest."""
        try:
            return super().parse_args(ctx, args)
        except _no_such_option() as error:
            names = {parameter.name: parameter for parameter in self.get_params(ctx)}
            flags = {
                flag.lstrip("-").replace("-", "_"): flag
                for parameter in names.values()
                if parameter.param_type_name == "option"
                for flag in (*parameter.opts, *parameter.secondary_opts)
                if flag.startswith("--")
            }
            near = nearest_name(str(error.option_name), flags)
            error.possibilities = [] if near is None else [flags[near]]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        token = _running.set(spellings(self.get_params(ctx)))
        try:
            return super().invoke(ctx)
        finally:
            _running.reset(token)


def _no_such_option() -> Any:
    # Of click, which typer may have as a part of its own.
    return sys.modules[typer.BadParameter.__module__].NoSuchOption


class TopicsCommand(Command):
    """A command whose help has its options under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of each topic; those that have none come last."""
        topics: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            topic = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None)
            topics.setdefault(topic or "Other", []).append(record)
        for topic, records in topics.items():
            with formatter.section(topic):
                formatter.write_dl(records)
