"""Pairs of answers of which one is preferred, for direct preference optimization."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import positive_int
from onnxgrad.data.arrays import from_native, to_native
from onnxgrad.data.sources import Session, Source
from onnxgrad.data.tokens.documents import IGNORED, Document, pairs_of
from onnxgrad.data.tokens.inputs import completed, token_input, token_limit
from onnxgrad.data.tokens.places import check_length
from onnxgrad.data.tokens.source import fixed_length
from onnxgrad.data.tokens.text import TokenizerLike, as_tokenizer, token_number
from onnxgrad.errors import DataError, OptionError

__all__ = ["Preferences", "log_probabilities"]

_LENGTH = 256
Array = np.ndarray[Any, Any]


class Preferences(Source):
    """Pairs of a chosen and a rejected answer, for ``loss="dpo"``.

    Parameters
    ----------
    data : path or list of dict
        JSON lines or Parquet, or objects, with ``chosen`` and ``rejected`` and, unless these have
        it, ``prompt``: texts, lists of tokens, or messages. Only the answers count.
    sequence_length : int, default=None
        Tokens of a row, at least those of the longest pair. None means the number that the model
        fixes, else those of the longest pair.
    tokenizer : path, tokenizers.Tokenizer or "bytes", default=None
        As for `Tokens`.
    batch_size : int, default=4
        Pairs of a step.
    pad : int, default=None
        Token that fills rows; None means that of the tokenizer, else 0.

    Notes
    -----
    Log-probabilities of the answers before the training are computed once, by the model that the
    trainer was given: with new adapters, the frozen base. Batches keep pairs together: they come
    in another order in each epoch, and `fit` takes no `batch_size` and no fraction as `validation`.

    Examples
    --------
    >>> import onnxgrad as og
    >>> pairs = [{"prompt": "2+2=", "chosen": "4", "rejected": "5"}]
    >>> og.data.Preferences(pairs, tokenizer="bytes").pairs
    1
    """

    has_own_batches = True
    keeps_batches = True

    def __init__(
        self,
        data: Any,
        sequence_length: int | None = None,
        *,
        tokenizer: TokenizerLike | None = None,
        batch_size: int = 4,
        pad: int | None = None,
    ) -> None:
        self.data = data
        self.tokenizer = as_tokenizer(tokenizer)
        if sequence_length is not None:
            sequence_length = positive_int("sequence_length", sequence_length, 2)
        self.sequence_length = sequence_length
        self.batch_size = positive_int("batch_size", batch_size)
        own = None if self.tokenizer is None else self.tokenizer.pad
        given = token_number("pad", pad)
        self._pad = given if given is not None else own or 0
        self._found = pairs_of(data, self.tokenizer, None)
        self._reference: tuple[Any, Array] | None = None

    def __repr__(self) -> str:
        data = repr(self.data) if isinstance(self.data, (str, os.PathLike)) else "<pairs>"
        return f"Preferences({data})"

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return len(self._found)

    def like(self, data: Any) -> Preferences:
        """Return a source of other data with the options of this one."""
        return Preferences(
            data,
            self.sequence_length,
            tokenizer=self.tokenizer,
            batch_size=self.batch_size,
            pad=self._pad,
        )

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        core = session._core
        if _core.loss_name(core.loss.function) != "dpo":
            raise OptionError(
                what="pairs of answers need the loss 'dpo'",
                value="loss",
                hint="Give loss='dpo', or og.data.Tokens of single answers.",
            )
        reader = _Pairs(self, session)
        return _core.PythonSource(reader.start, reader.next, 2 * self.pairs)

    def _laid(self, session: Session) -> tuple[Array, Array, Array]:
        """Return tokens, labels and segments [2P, T] of the pairs, in turn."""
        documents = [one for pair in self._found for one in pair]
        longest = max(len(one.ids) for one in documents)
        width = self.sequence_length or fixed_length(session._core) or longest
        check_length(session, width, "sequence_length")
        if longest > width:
            raise DataError(
                what=f"an answer with its prompt has {longest} tokens, more than {width}",
                value="sequence_length",
                hint="Give a larger sequence_length, or leave such pairs out.",
            )
        return _laid_out(documents, width, self._pad)

    def _references(self, session: Any, rows: tuple[Array, Array, Array]) -> Array:
        """Return the log-probability [2P] of each answer before the training."""
        model = session._model
        if self._reference is None or self._reference[0] is not model:
            self._reference = (model, log_probabilities(session, *rows, self.batch_size))
        return self._reference[1]


def _laid_out(documents: list[Document], width: int, pad: int) -> tuple[Array, Array, Array]:
    ids = np.full((len(documents), width), pad, np.int64)
    labels = np.full_like(ids, IGNORED)
    segments = np.full_like(ids, -1)
    for row, one in enumerate(documents):
        ids[row, : len(one.ids)] = one.ids
        labels[row, : len(one.ids)] = one.labels
        segments[row, : len(one.ids)] = 0
    return ids, labels, segments


def log_probabilities(
    session: Any, ids: Array, labels: Array, segments: Array, batch_size: int
) -> Array:
    """Return the log-probability [N] of the labels of rows, by a session's model as it was given.

    Raises
    ------
    OptionError
        The scores are no output of the model.
    """
    model, core = session._model, session._core
    name = core.loss.scores
    if name not in [value.name for value in core.outputs]:
        raise OptionError(
            what=f"the scores '{name}' are no output of the model",
            value="loss",
            hint="Add it to the outputs of the model, with onnx.utils or when it is exported.",
        )
    engine = _core.InferenceSession(model, _core.EngineOptions())
    token = token_input(core.inputs)
    if token is None:
        raise DataError(what="the model has no input of tokens [N, T]", hint="Export it with one.")
    found = []
    for first in range(0, len(ids), 2 * batch_size):
        part = slice(first, first + 2 * batch_size)
        feeds = completed(core.inputs, {token: ids[part]}, segments=segments[part])
        native = {key: to_native(value, key) for key, value in feeds.items()}
        scores = from_native(engine.run([name], native)[0]).astype(np.float64)[:, :-1]
        scores -= scores.max(axis=-1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        target = labels[part, 1:]
        taken = np.take_along_axis(log_p, np.maximum(target, 0)[..., None], axis=-1)[..., 0]
        found.append(np.where(target < 0, 0.0, taken).sum(axis=1))
    return np.concatenate(found)


class _Pairs:
    """Passes batches of pairs to the extension."""

    def __init__(self, source: Preferences, session: Any) -> None:
        core = session._core
        self._inputs = list(core.inputs)
        self._name = token_input(self._inputs) or ""
        rows = source._laid(session)
        limit = token_limit(core)
        if limit is not None and int(rows[0].max()) >= limit:
            raise DataError(
                what=f"a pair has token {int(rows[0].max())}, but the model has {limit}",
                hint="Use the tokenizer of the model.",
            )
        self._ids, self._labels, self._segments = rows
        self._reference = source._references(session, rows)
        self._size = source.batch_size
        self._batches: list[Array] = []
        self._first = 0

    def start(self, epoch: int, shuffle: bool, seed: int) -> None:
        """Begin a pass."""
        order = np.arange(len(self._ids) // 2)
        if shuffle:
            order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(order)
        self._batches = [
            order[first : first + self._size] for first in range(0, len(order), self._size)
        ][::-1]
        self._first = 0

    def next(self) -> _core.Dataset | None:
        """Return the next batch, or None."""
        if not self._batches:
            return None
        pairs = self._batches.pop()
        rows = np.stack([2 * pairs, 2 * pairs + 1], axis=1).ravel()
        inputs = completed(
            self._inputs, {self._name: self._ids[rows]}, segments=self._segments[rows]
        )
        target = np.concatenate(
            [self._reference[rows][:, None], self._labels[rows].astype(np.float64)], axis=1
        )
        native = {name: to_native(value, name) for name, value in inputs.items()}
        chunk = _core.Dataset(native, to_native(target, "pairs"), {}, None, self._first)
        self._first += len(rows)
        return chunk
