"""Texts as tokens: tokenizers, and chats written out by a template."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.base.checks import positive_int
from onnxgrad.base.opening import open_input
from onnxgrad.base.optional import import_optional
from onnxgrad.data.tokens.chats import written_chat
from onnxgrad.errors import DataError, OptionError

__all__ = ["Tokenizer", "TokenizerLike", "as_tokenizer", "checked_text", "token_number"]

TokenizerLike: TypeAlias = Any
"""``"bytes"``, a tokenizer.json, the folder of one, or a `tokenizers.Tokenizer`."""

Ids: TypeAlias = "np.ndarray[Any, Any]"
_CONFIG = "tokenizer_config.json"
_MOST_CONFIG_BYTES = 64 << 20
_MOST_TOKEN = 2**31 - 1


class Tokenizer:
    """Encodes texts, with the numbers of special tokens and the template of chats.

    Attributes
    ----------
    size : int
        Number of tokens.
    end, pad, mask : int or None
        Tokens that end a document, fill rows, and stand for what a masked model predicts.
    """

    def __init__(self, size: int, config: Mapping[str, Any] | None = None) -> None:
        self.size = size
        self._config = config or {}
        self.end = self._special("eos_token")
        self.pad = self._special("pad_token")
        self.mask = self._special("mask_token")

    def encode(self, text: str) -> tuple[Ids, Ids]:
        """Return the tokens [M] of a text, and the character at which each begins [M]."""
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        raise NotImplementedError

    def number_of(self, token: str) -> int | None:
        """Return the number of a token, if there is one of that name."""
        raise NotImplementedError

    def _special(self, role: str) -> int | None:
        token = self._config.get(role)
        if isinstance(token, Mapping):
            token = token.get("content")
        return self.number_of(token) if isinstance(token, str) else None

    def chat(self, messages: Any, where: str) -> tuple[Ids, Ids]:
        """Return the tokens [M] of a chat, and whether each is of an answer of the assistant [M].

        Raises
        ------
        DataError
            There is no template, it cannot write these messages, or it changes earlier ones.
        """
        template = self._template()
        text, spans = written_chat(template, messages, self._config, where)
        ids, starts = self.encode(checked_text(text, where))
        is_answer = np.zeros(len(ids), bool)
        for first, end in spans:
            is_answer |= (starts >= first) & (starts < end)
        return ids, is_answer

    def _template(self) -> str:
        template = self._config.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = [one for one in template if isinstance(one, Mapping)]
            defaults = [one.get("template") for one in named if one.get("name") == "default"]
            template = defaults[0] if defaults else None
        if not isinstance(template, str):
            raise DataError(
                what="chats need a template, and the tokenizer has none",
                value="tokenizer",
                hint=f"Give tokenizer= a folder with a {_CONFIG} that has a chat_template.",
            )
        return template


class _Bytes(Tokenizer):
    """The bytes of UTF-8 as tokens 0 to 255."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(256, config)

    def encode(self, text: str) -> tuple[Ids, Ids]:
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        begins = (ids & 0xC0) != 0x80  # not a continuation of a character
        return ids, np.cumsum(begins) - 1

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(one) & 0xFF for one in ids).decode(errors="replace")

    def number_of(self, token: str) -> int | None:
        return ord(token) if len(token) == 1 and ord(token) < 128 else None


class _Library(Tokenizer):
    """A tokenizer of the package tokenizers."""

    def __init__(self, tokenizer: Any, config: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        super().__init__(int(tokenizer.get_vocab_size()), config)
        if self.mask is None:
            self.mask = self.number_of("[MASK]")
        if self.pad is None:
            self.pad = self.number_of("[PAD]")

    def encode(self, text: str) -> tuple[Ids, Ids]:
        found = self._tokenizer.encode(text, add_special_tokens=False)
        starts = [first for first, _ in found.offsets]
        return np.array(found.ids, np.int64), np.array(starts, np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode([int(one) for one in ids]))

    def number_of(self, token: str) -> int | None:
        number = self._tokenizer.token_to_id(token)
        return None if number is None else int(number)


def token_number(option: str, value: Any) -> int | None:
    """Return the number of a token that an option gives, or None."""
    return None if value is None else positive_int(option, value, 0, _MOST_TOKEN)


def checked_text(text: str, where: str) -> str:
    """Return a text, if it is one in UTF-8: JSON can describe half a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            what=f"{where}: character {error.start} of the text is a surrogate, half a character",
            hint="Write it in UTF-8, or replace it when the text is written.",
        ) from None
    return text


def as_tokenizer(given: TokenizerLike) -> Tokenizer | None:
    """Return a tokenizer; None stays None.

    Raises
    ------
    DataError
        The file cannot be read.
    OptionError
        An object that is no tokenizer.
    """
    if given is None or isinstance(given, Tokenizer):
        return given
    if isinstance(given, str) and given == "bytes":
        return _Bytes()
    if isinstance(given, (str, os.PathLike)):
        return _read(Path(given))
    inner = getattr(given, "backend_tokenizer", given)  # of transformers
    if not all(hasattr(inner, name) for name in ("encode", "decode", "token_to_id")):
        raise OptionError(
            what=f"tokenizer: a {type(given).__name__} is no tokenizer",
            value="tokenizer",
            hint="Give a tokenizer.json, its folder, a tokenizers.Tokenizer, or 'bytes'.",
        )
    return _Library(inner, _config_of(given))


def _config_of(given: Any) -> dict[str, Any]:
    names = ("chat_template", "eos_token", "bos_token", "pad_token", "mask_token")
    return {name: getattr(given, name) for name in names if getattr(given, name, None) is not None}


def _read(path: Path) -> Tokenizer:
    folder = path if path.is_dir() else path.parent
    config = _read_config(folder)
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.is_file() and config.get("tokenizer_class") == "bytes":
        return _Bytes(config)
    tokenizers = import_optional("tokenizers", f"tokenizer '{path}'")
    try:
        with open_input(file) as opened:
            text = opened.read().decode()
        return _Library(tokenizers.Tokenizer.from_str(text), config)
    except Exception as error:  # (the package raises Exception itself)
        raise DataError(
            what=f"{file}: not a readable tokenizer",
            file=str(file),
            detail=str(error),
            hint="Give a tokenizer.json as the package tokenizers writes it, or its folder.",
        ) from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    config: dict[str, Any] = {}
    try:
        if path.is_file():
            with open_input(path) as file:
                read = json.loads(file.read(_MOST_CONFIG_BYTES).decode())
            config = read if isinstance(read, dict) else {}
        template = folder / "chat_template.jinja"
        if "chat_template" not in config and template.is_file():
            with open_input(template) as file:
                config["chat_template"] = file.read(_MOST_CONFIG_BYTES).decode()
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            what=f"{path}: not readable",
            file=str(path),
            detail=str(error),
            hint="Save the tokenizer again.",
        ) from error
    return config
