"""Documents of tokens from files and objects: what a language model is trained on."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onnxgrad.base.checks import several
from onnxgrad.base.opening import open_input
from onnxgrad.data.shards import files_of, is_pattern
from onnxgrad.data.tokens.text import Tokenizer, checked_text
from onnxgrad.errors import DataError, OptionError

__all__ = ["IGNORED", "Document", "Stream", "documents_of", "pairs_of", "records_of"]

IGNORED = -100
"""Label of places that do not count."""

Ids = np.ndarray[Any, Any]

_IDS = ("input_ids", "ids", "tokens")
_TEXTS = ("text", "content")
_MOST = 2**31 - 1  # token
_SAMPLE = 1024  # tokens that the type of a file is found by


class Document(NamedTuple):
    """Tokens [M], the labels that are learnt [M] or `IGNORED`, and for a translation its source."""

    ids: Ids
    labels: Ids
    source: Ids | None = None


class Stream(NamedTuple):
    """One long row of tokens [M], in memory or in files, without or with separators."""

    ids: Ids | Joined
    where: str = "data"

    def take(self, first: int, end: int) -> Ids:
        """Return some tokens as int64; only their part of a file is read."""
        return _as_int64(self.ids[first:end], self.where)


class Joined:
    """Streams one after another, of which slices are read."""

    def __init__(self, parts: Sequence[Stream]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part.ids) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, wanted: slice) -> Ids:
        first, end, _ = wanted.indices(len(self))
        found = []
        for number in range(int(np.searchsorted(self._ends, first, "right")), len(self._parts)):
            part, last = self._parts[number], int(self._ends[number])
            begin = last - len(part.ids)
            if begin >= end:
                break
            found.append(part.take(max(first - begin, 0), end - begin))
        return np.concatenate(found)


def documents_of(
    data: Any,
    tokenizer: Tokenizer | None,
    *,
    dtype: str | None = None,
    columns: Sequence[str] = (),
    answers_only: bool = True,
    limit: int | None = None,
) -> Stream | list[Document]:
    """Read tokens from a path, a pattern of paths, an array [M] or [N, T], or a list of arrays.

    Raises
    ------
    DataError
        A file that cannot be read, or that has neither tokens nor texts.
    """
    if isinstance(data, (str, os.PathLike)):
        paths = files_of(data) if is_pattern(data) else [os.fspath(data)]
        parts = [_read(path, tokenizer, dtype, columns, answers_only) for path in paths]
        found = _joined(parts)
    elif isinstance(data, np.ndarray) and data.ndim == 1 and data.dtype.kind in "iu":
        found = Stream(data)
    else:
        documents = several("data", data, "arrays of tokens")
        found = [
            _document(_ids(one, f"sequence {i}", tokenizer)) for i, one in enumerate(documents)
        ]
    _check(found, limit, data)
    return found


def _document(ids: Ids, source: Ids | None = None) -> Document:
    return Document(ids, ids, source)


def _joined(parts: list[Stream | list[Document]]) -> Stream | list[Document]:
    if len(parts) == 1:
        return parts[0]
    streams = [part for part in parts if isinstance(part, Stream)]
    if len(streams) == len(parts):
        return Stream(Joined(streams))
    found: list[Document] = []
    for part in parts:
        if isinstance(part, Stream):
            found.append(_document(part.take(0, len(part.ids))))
        else:
            found += part
    return found


def _check(found: Stream | list[Document], limit: int | None, data: Any) -> None:
    """Refuse tokens that the model has no scores for."""
    if isinstance(found, Stream):
        if len(found.ids) == 0:
            raise DataError(what="no tokens", hint="Give a file that has some.")
        return  # a file is not read in advance
    if not found:
        raise DataError(what="no documents", hint="Give at least one.")
    for number, document in enumerate(found):
        for ids in (document.ids, document.source):
            if ids is None or not len(ids) or limit is None:
                continue
            if not 0 <= int(ids.min()) <= int(ids.max()) < limit:
                wrong = int(ids.max()) if int(ids.max()) >= limit else int(ids.min())
                raise out_of_range(wrong, limit, f"document {number}", data)


def out_of_range(token: int, limit: int | None, where: str, data: Any) -> DataError:
    """Return the error for a token that the model has no scores for."""
    path = os.fspath(data) if isinstance(data, (str, os.PathLike)) else ""
    return DataError(
        what=f"{path + ': ' if path else ''}{where} has token {token}, but "
        + ("tokens begin at 0" if limit is None else f"the model has {limit}"),
        file=path,
        hint="Use the tokenizer of the model; of a .bin file, check dtype='uint16' or 'uint32'.",
    )


def _read(
    path: str,
    tokenizer: Tokenizer | None,
    dtype: str | None,
    columns: Sequence[str],
    answers_only: bool,
) -> Stream | list[Document]:
    suffix = Path(path).suffix.lower()
    if suffix == ".bin":
        return Stream(_mapped(path, dtype), path)
    if suffix == ".npy":
        return _of_array(path)
    if suffix in (".txt", ".text"):
        ids = _encoded(_text_file(path), tokenizer, path)
        return Stream(ids, path)
    found = []
    for where, record in records_of(path):
        found.append(_of_record(record, where, tokenizer, columns, answers_only))
    return found


def _mapped(path: str, dtype: str | None) -> Ids:
    """Return the tokens of a .bin file; without a type, uint32 if uint16 has every second one 0."""
    if dtype is None:
        whole = _mapped(path, "uint16")
        first = whole[: 2 * _SAMPLE]
        are_wide = len(whole) % 2 == 0 and not first[1::2].any() and bool(first[::2].any())
        return _mapped(path, "uint32") if are_wide else whole
    size = np.dtype(dtype).itemsize
    try:
        with open_input(path) as file:
            count = os.fstat(file.fileno()).st_size
            if count % size or not count:
                raise DataError(
                    what=f"{path}: {count} bytes are no whole number of tokens of {dtype}",
                    file=path,
                    hint="Give dtype='uint16' or 'uint32', as they were written.",
                )
            return np.memmap(file, np.dtype(dtype).newbyteorder("<"), "r")
    except OSError as error:
        raise _unreadable(path, error) from error


def _of_array(path: str) -> Stream | list[Document]:
    try:
        with open_input(path):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise DataError(
            what=f"{path}: an array {list(array.shape)} of {array.dtype}, expected whole numbers "
            "[M] or [N, T]",
            file=path,
            hint="Save the tokens as integers; features X.npy need their targets: "
            "fit('X.npy', 'y.npy').",
        )
    if array.ndim == 1:
        return Stream(array, path)
    return [_document(_as_int64(row, f"{path}: row {i}")) for i, row in enumerate(array)]


def _text_file(path: str) -> str:
    try:
        with open_input(path) as file:
            return file.read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> DataError:
    return DataError(
        what=f"{path}: not readable",
        file=path,
        detail=str(error),
        hint="Check the path and the form of the file.",
    )


# ----------------------------------------------------------------------------------------- records


def records_of(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a .jsonl or .parquet file, with where each is."""
    suffix = Path(path).suffix.lower()
    if suffix == ".jsonl":
        yield from _json_lines(path)
    elif suffix == ".parquet":
        yield from _parquet(path)
    else:
        raise DataError(
            what=f"{path}: files of type '{suffix}' have no tokens",
            file=path,
            hint="Give a .bin, .npy, .parquet, .jsonl or .txt file.",
        )


def _json_lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with io.TextIOWrapper(open_input(path), encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise _no_object(path, number, f"not JSON: {error}") from None
                if not isinstance(record, dict):
                    raise _no_object(path, number, f"a {type(record).__name__}")
                yield f"{path}: line {number}", record
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _no_object(path: str, number: int, what: str) -> DataError:
    return DataError(
        what=f"{path}: line {number}: {what}, expected an object",
        file=path,
        hint="Give one JSON object in each line.",
    )


def _parquet(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from onnxgrad.data.parquet import open_parquet, reading_parquet

    number = 0
    with reading_parquet(path):
        for batch in open_parquet(path).iter_batches(batch_size=1024):
            for record in batch.to_pylist():
                yield f"{path}: row {number}", record
                number += 1


def _of_record(
    record: Mapping[str, Any],
    where: str,
    tokenizer: Tokenizer | None,
    columns: Sequence[str],
    answers_only: bool,
) -> Document:
    """Return the document of an object, by the names of its members."""
    if "messages" in record:
        if tokenizer is None:
            raise _no_tokenizer(where)
        ids, is_answer = tokenizer.chat(record["messages"], where)
        return Document(ids, np.where(is_answer, ids, IGNORED) if answers_only else ids)
    if "source" in record and "target" in record:
        target = _ids(record["target"], where, tokenizer)
        return _document(_ended(target, tokenizer), _ids(record["source"], where, tokenizer))
    if "prompt" in record and "completion" in record:
        return answer_of(record["prompt"], record["completion"], where, tokenizer, answers_only)
    for name in (*columns, *_IDS, *_TEXTS):
        if record.get(name) is not None:
            ids = _ids(record[name], where, tokenizer)
            labels = record.get("labels")
            if labels is not None and name in _IDS:
                return Document(ids, _labels(labels, len(ids), where))
            return _document(_ended(ids, tokenizer) if isinstance(record[name], str) else ids)
    members = ", ".join(map(repr, record)) or "nothing"
    raise DataError(
        what=f"{where}: neither tokens nor a text; it has {members}",
        hint="Give input_ids, text, messages, prompt and completion, or source and target; or name "
        "the column.",
    )


def answer_of(
    prompt: Any,
    answer: Any,
    where: str,
    tokenizer: Tokenizer | None,
    answers_only: bool = True,
) -> Document:
    """Return a prompt and its answer as a document whose labels are the answer."""
    if isinstance(answer, list) and answer and isinstance(answer[0], dict):  # messages
        if tokenizer is None:
            raise _no_tokenizer(where)
        before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
        ids, is_answer = tokenizer.chat([*before, *answer], where)
        return Document(ids, np.where(is_answer, ids, IGNORED) if answers_only else ids)
    first = _ids(prompt, where, tokenizer) if prompt is not None else np.zeros(0, np.int64)
    last = _ids(answer, where, tokenizer)
    last = _ended(last, tokenizer) if isinstance(answer, str) else last
    ids = np.concatenate([first, last])
    ignored = np.full(len(first), IGNORED, np.int64)
    return Document(ids, np.concatenate([ignored, last]) if answers_only else ids)


def pairs_of(
    data: Any, tokenizer: Tokenizer | None, limit: int | None
) -> list[tuple[Document, Document]]:
    """Read the chosen and the rejected answers to prompts: a path, or objects like its own.

    Raises
    ------
    DataError
        An object without a chosen or a rejected answer.
    """
    records: Iterable[tuple[str, Mapping[str, Any]]]
    if isinstance(data, (str, os.PathLike)):
        paths = files_of(data) if is_pattern(data) else [os.fspath(data)]
        records = (one for path in paths for one in records_of(path))
    else:
        records = ((f"pair {i}", one) for i, one in enumerate(several("data", data, "pairs")))
    found = []
    for where, record in records:
        if not isinstance(record, Mapping):
            raise DataError(
                what=f"{where}: a {type(record).__name__}, expected a dictionary",
                value="data",
                hint="Give prompt, chosen and rejected: texts, lists of tokens, or messages.",
            )
        missing = [name for name in ("chosen", "rejected") if record.get(name) is None]
        if missing:
            raise DataError(
                what=f"{where}: there is no '{missing[0]}'",
                hint="Give prompt, chosen and rejected: texts, lists of tokens, or messages.",
            )
        prompt = record.get("prompt")
        chosen, rejected = (
            answer_of(prompt, record[name], where, tokenizer) for name in ("chosen", "rejected")
        )
        found.append((chosen, rejected))
    _check([one for pair in found for one in pair], limit, data)
    return found


def _ended(ids: Ids, tokenizer: Tokenizer | None) -> Ids:
    if tokenizer is None or tokenizer.end is None:
        return ids
    return np.append(ids, tokenizer.end)


def _no_tokenizer(where: str) -> OptionError:
    return OptionError(
        what=f"{where}: a text, and no tokenizer is given",
        value="tokenizer",
        hint="Give tokenizer='tokenizer.json' of the model (--tokenizer), or 'bytes'.",
    )


def _encoded(text: str, tokenizer: Tokenizer | None, where: str) -> Ids:
    if tokenizer is None:
        raise _no_tokenizer(where)
    return tokenizer.encode(checked_text(text, where))[0]


def _labels(value: Any, count: int, where: str) -> Ids:
    """Return the labels [M] of a document of `count` tokens."""
    array = _array(value)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise DataError(
            what=f"{where}: labels are {list(array.shape)} of {array.dtype}, expected one whole "
            f"number for each of {count} tokens",
            hint=f"Give a list of them; {IGNORED} where a token is not learnt.",
        )
    return array.astype(np.int64)


def _array(value: Any) -> Ids:
    try:
        return np.asarray(value)
    except (TypeError, ValueError):  # lists of different lengths
        return np.asarray(value, object)


def _ids(value: Any, where: str, tokenizer: Tokenizer | None) -> Ids:
    """Return a text or a list of tokens as tokens [M]."""
    if isinstance(value, str):
        return _encoded(value, tokenizer, where)
    array = _array(value)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            what=f"{where}: an array {list(array.shape)} of {array.dtype}, expected tokens [M]",
            hint="Give a list of whole numbers, or a text.",
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) > _MOST):
        wrong = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise _no_token(wrong, where)
    return array.astype(np.int64)


def _as_int64(ids: Ids, where: str) -> Ids:
    """Return whole numbers as int64; larger ones of uint64 would become negative."""
    if ids.dtype == np.uint64 and ids.size and int(ids.max()) > _MOST:
        raise _no_token(int(ids.max()), where)
    return np.asarray(ids, np.int64)


def _no_token(number: int, where: str) -> DataError:
    return DataError(
        what=f"{where}: {number} is no token",
        hint=f"Tokens are whole numbers from 0 to {_MOST}.",
    )
