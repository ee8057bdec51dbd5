"""Chats written out by the template of a tokenizer, within limits of time and size."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from onnxgrad.base.optional import import_optional
from onnxgrad.errors import DataError

__all__ = ["written_chat"]

_MOST_SECONDS = 10.0
_MOST_TURNS = 100_000  # of loops and calls of macros
_MOST_CHARACTERS = 1 << 24
_MOST_NUMBER = 100_000  # a width, a count: as sandboxed ranges have


def written_chat(
    source: str, messages: Any, config: Mapping[str, Any], where: str
) -> tuple[str, list[tuple[int, int]]]:
    """Return a chat as a text, and the first and the end character of each answer in it.

    Raises
    ------
    DataError
        The template fails, takes too long, or writes earlier messages otherwise in a longer chat.
    """
    messages = _messages(messages, where)
    write = _writer(source, config, where)
    whole = write(messages, prompt=False)
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = write(messages[:i], prompt=True) if i else ""
        after = write(messages[: i + 1], prompt=False)
        if not (whole.startswith(after) and after.startswith(before)):
            raise DataError(
                what=f"{where}: the chat template writes message {i} otherwise in a longer chat",
                detail="Its answers cannot be told from the rest then.",
                hint="Give chats with one answer, or learn whole chats with answers_only=False.",
            )
        spans.append((len(before), len(after)))
    return whole, spans


def _messages(given: Any, where: str) -> list[dict[str, Any]]:
    is_list = isinstance(given, list) and bool(given)
    if not is_list or not all(isinstance(one, dict) and "role" in one for one in given):
        raise DataError(
            what=f"{where}: messages is not a list of objects with a role",
            hint='Give [{"role": "user", "content": "..."}, {"role": "assistant", ...}].',
        )
    return [dict(one) for one in given]


def _writer(source: str, config: Mapping[str, Any], where: str) -> Callable[..., str]:
    """Return a function that writes a part of a chat."""
    environment = _environment()
    tokens = {name: _text_of(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}

    def write(part: list[dict[str, Any]], *, prompt: bool) -> str:
        environment.budget.start()
        try:
            template = environment.from_string(environment.counted(source))
            pieces = []
            for piece in template.generate(messages=part, add_generation_prompt=prompt, **tokens):
                environment.budget.spend(characters=len(piece))
                pieces.append(piece)
            return "".join(pieces)
        except Exception as error:
            raise DataError(
                what=f"{where}: the chat template fails: {error}",
                hint="Check the messages and their roles, and the chat_template.",
            ) from error

    return write


class _Budget(threading.local):
    """Turns of loops, seconds and characters that one text of a thread may take."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error
        self.start()

    def start(self) -> None:
        self._turns = self._characters = 0
        self._end = time.monotonic() + _MOST_SECONDS

    def spend(self, turns: int = 0, characters: int = 0) -> None:
        self._turns += turns
        self._characters += characters
        if self._turns > _MOST_TURNS:
            raise self._error(f"it makes more than {_MOST_TURNS} turns of loops")
        if self._characters > _MOST_CHARACTERS:
            raise self._error(f"it writes more than {_MOST_CHARACTERS} characters")
        if time.monotonic() > self._end:
            raise self._error(f"it takes more than {_MOST_SECONDS:g} seconds")

    def check_numbers(self, numbers: Any) -> None:
        for number in numbers:
            if isinstance(number, int) and abs(number) > _MOST_NUMBER:
                raise self._error(f"it passes a number above {_MOST_NUMBER}")


@functools.cache
def _environment() -> Any:
    """Return an environment that runs no code of a template beyond expressions on its values.

    Each turn of a loop and each call of a macro is counted, and texts are not multiplied, padded or
    formatted without limit.
    """
    extensions = import_optional("jinja2.ext", "a chat template")
    sandbox = import_optional("jinja2.sandbox", "a chat template")
    exceptions = import_optional("jinja2.exceptions", "a chat template")
    nodes = import_optional("jinja2.nodes", "a chat template")
    base: Any = extensions.Extension
    sandboxed: Any = sandbox.ImmutableSandboxedEnvironment

    class Generation(base):  # type: ignore[misc]
        """Reads ``{% generation %}`` blocks, which mark answers, as their contents."""

        tags = {"generation"}  # noqa: RUF012 (the interface of jinja2)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def _turn(self) -> None:
            self.environment.budget.spend(turns=1)

    class Environment(sandboxed):  # type: ignore[misc]
        """Counts turns and limits sizes."""

        intercepted_binops = frozenset(["*", "**", "%"])

        def counted(self, source: str) -> Any:
            """Return the template with a call in the body of each loop and macro."""
            tree = self.parse(source)
            extension = self.extensions[Generation.identifier]
            for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
                call = nodes.ExprStmt(extension.call_method("_turn")).set_lineno(node.lineno)
                node.body.insert(0, call)
            return tree

        def call(self, context: Any, function: Any, *values: Any, **options: Any) -> Any:
            self.budget.check_numbers((*values, *options.values()))
            return super().call(context, function, *values, **options)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator != "%" or isinstance(left, str):
                self.budget.check_numbers((left, right))
            if operator == "%" and isinstance(left, str) and _has_width(left):
                raise exceptions.SecurityError("it formats with a width")
            if operator == "*" and (hasattr(left, "__len__") or hasattr(right, "__len__")):
                size = max(len(one) for one in (left, right) if hasattr(one, "__len__"))
                times = next((one for one in (left, right) if isinstance(one, int)), 0)
                self.budget.spend(characters=size * max(times, 0))
            return super().call_binop(context, operator, left, right)

    def limited(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def checked(*values: Any, **options: Any) -> Any:
            environment.budget.check_numbers((*values, *options.values()))
            return function(*values, **options)

        return checked

    def refuse(message: str) -> None:
        raise exceptions.TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
    )
    environment.budget = _Budget(exceptions.SecurityError)
    filters = {**environment.filters, "tojson": tojson}
    environment.filters.update({name: limited(one) for name, one in filters.items()})
    environment.globals["raise_exception"] = refuse
    return environment


def _has_width(format_text: str) -> bool:
    """Return whether a format has a number or * between % and its letter, as in ``%9d``."""
    return any(part.lstrip("-+ #0")[:1] in "123456789*." for part in format_text.split("%")[1:])


def _text_of(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")
