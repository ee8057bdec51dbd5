"""Command classes: suggestions for unknown options, and messages with command-line spellings."""

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
from onnxgrad.base.messages import print_stderr
from onnxgrad.cli.spelling import Spelling, message, spell_options, spellings
from onnxgrad.errors import Error

__all__ = ["Command", "TopicsCommand", "message_of", "plain_warnings", "usage_error"]

# Spellings of the options of the running command.
_running: ContextVar[Mapping[str, Spelling] | None] = ContextVar("running", default=None)


def message_of(error: Error) -> str:
    """Return the text of an error with options spelled as the running command does."""
    return message(error, _running.get() or {})


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings of onnxgrad as plain lines, without their source location; hide all others."""

    def show(text: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if category.__module__.partition(".")[0] == "onnxgrad":
            print_stderr(f"warning: {spell_options(str(text), _running.get() or {})}")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


class Command(TyperCommand):
    """A command that suggests the nearest option and spells options in messages as it does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options; suggest the nearest one for an unknown option."""
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
    # A class of click, which some versions of typer vendor.
    return sys.modules[typer.BadParameter.__module__].NoSuchOption


def usage_error() -> Any:
    """Return click's class of errors that it reports itself."""
    return sys.modules[typer.BadParameter.__module__].ClickException


class TopicsCommand(Command):
    """A command whose help groups its options under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of each topic; those without one come last."""
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
