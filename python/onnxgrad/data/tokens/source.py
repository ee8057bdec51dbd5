"""The source of rows for language models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import choice, flag, plain_text, positive_int, real_number
from onnxgrad.data.arrays import to_native
from onnxgrad.data.sources import Session, Source
from onnxgrad.data.tokens.documents import IGNORED, Stream, documents_of, out_of_range
from onnxgrad.data.tokens.inputs import completed, token_input, token_limit
from onnxgrad.data.tokens.packing import PackedRows, StreamRows
from onnxgrad.data.tokens.places import check_length, default_length
from onnxgrad.data.tokens.text import TokenizerLike, as_tokenizer, token_number
from onnxgrad.errors import DataError, OptionError

__all__ = ["Tokens", "fixed_length"]

_LENGTH = 256
_CHUNK_ROWS = 16
_DECODER = "decoder_input_ids"
_MASK_AS_MASK, _MASK_AS_OTHER = 0.8, 0.1  # of the tokens that are predicted; the rest stay


class Tokens(Source):
    """Tokens or texts as rows of one length, for language models.

    The loss decides what is made of them: for ``"causal_lm"`` (and ``"auto"``) targets are the
    tokens; for ``"masked_lm"`` some tokens are masked, others in each epoch, and targets are these;
    a model with an input ``decoder_input_ids`` gets sources and targets, with
    ``loss="seq2seq_lm"``.

    Parameters
    ----------
    data : path, array [M] or list of array [M]
        A ``.bin`` file of uint16 or uint32, which is read as needed; an ``.npy`` file [M] or
        [N, T]; Parquet or JSON lines with a member ``input_ids`` (``ids``, ``tokens``), ``text``,
        ``messages``, ``prompt`` and ``completion``, or ``source`` and ``target``; a ``.txt`` file;
        a pattern of these; or tokens in memory: one stream, or a document for each array.
    sequence_length : int, default=None
        Tokens T of a row. None means the number that the model fixes, else that of its places, the
        rows of its table of positions, but at most 1024 (as in run_clm of transformers), else 256.
    tokenizer : path, tokenizers.Tokenizer or "bytes", default=None
        For texts: a ``tokenizer.json``, or a folder with it and ``tokenizer_config.json``, which
        has the special tokens and the template of chats. ``"bytes"`` are the bytes of UTF-8.
    packing : bool, default=True
        Whether several documents share a row. Positions count from 0 in each, and a mask [N, T, T]
        or [N, 1, T, T] lets no token see another document; a model with a mask [N, T] sees the
        documents before in its row.
    separator : int, default=None
        Token that ends a document in a stream. None means that a stream is one document.
    answers_only : bool, default=True
        Whether of ``messages`` only what the assistant says is learnt, of a ``prompt`` with its
        ``completion`` only that.
    column : str, default=None
        Member of Parquet and JSON lines that has the tokens or the text.
    dtype : {"uint16", "uint32"}, default=None
        Type of a ``.bin`` file. None means uint32 where every second uint16 is 0, else uint16.
    pad, mask_token, start_token : int, default=None
        Tokens that fill rows, mask, and begin a target. None means those of the tokenizer, else 0;
        `mask_token` must be known for a masked model.
    target_length : int, default=None
        Tokens of a target of ``"seq2seq_lm"``; None means `sequence_length`.
    mask_probability : float, default=0.15
        Fraction of the tokens that a masked model predicts. Of these 80 % are `mask_token`, 10 %
        another token, and 10 % stay (Devlin et al. 2018).

    Notes
    -----
    Of a causal model the first token of a document is never a target. Chunks of 16 rows are
    shuffled, then the rows of each block; masks are a function of seed, epoch and row. Inputs
    ``attention_mask``, ``position_ids``, ``token_type_ids`` and ``past_key_values.*`` (no tokens)
    are filled in.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> og.data.Tokens([np.arange(5), np.arange(3), np.arange(4)], 8).rows
    2
    """

    def __init__(
        self,
        data: Any,
        sequence_length: int | None = None,
        *,
        tokenizer: TokenizerLike | None = None,
        packing: bool = True,
        separator: int | None = None,
        answers_only: bool = True,
        column: str | None = None,
        dtype: str | None = None,
        pad: int | None = None,
        mask_token: int | None = None,
        start_token: int | None = None,
        target_length: int | None = None,
        mask_probability: float = 0.15,
    ) -> None:
        self.data = data
        self._kept: tuple[Any, StreamRows | PackedRows] | None = None
        if sequence_length is not None:
            sequence_length = positive_int("sequence_length", sequence_length, 2)
        self.sequence_length = sequence_length
        self.tokenizer = as_tokenizer(tokenizer)
        self.packing = flag("packing", packing)
        self._separator = token_number("separator", separator)
        self._answers_only = flag("answers_only", answers_only)
        self._columns = () if column is None else (plain_text("column", column, "text"),)
        self._dtype = None if dtype is None else choice("dtype", dtype, ("uint16", "uint32"))
        known = self.tokenizer
        own_pad, own_mask = (None, None) if known is None else (known.pad, known.mask)
        self._pad = _first(token_number("pad", pad), own_pad, 0)
        self._mask_token = token_number(
            "mask_token", own_mask if mask_token is None else mask_token
        )
        self._start = _first(token_number("start_token", start_token), own_pad, self._pad)
        if target_length is not None:
            target_length = positive_int("target_length", target_length, 2)
        self._target_length = target_length
        self._mask_probability = real_number(
            "mask_probability", mask_probability, 0.0, 1.0, open_minimum=True
        )

    def __repr__(self) -> str:
        data = repr(self.data) if isinstance(self.data, (str, os.PathLike)) else "<tokens>"
        return f"Tokens({data}, {self.sequence_length})"

    @property
    def rows(self) -> int:
        """Number of rows of an epoch."""
        return len(self._laid(self.sequence_length or _LENGTH, None, packs=self.packing))

    def like(self, data: Any) -> Tokens:
        """Return a source of other data with the options of this one."""
        import copy

        other = copy.copy(self)
        other.data, other._kept = data, None
        return other

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        reader = self._reader_for(session)
        return _core.PythonSource(
            reader.start, reader.next, reader.num_rows, take_rows=reader.take_rows
        )

    def _reader_for(self, session: Session) -> _Reader:
        core = session._core
        length = self.sequence_length or fixed_length(core) or default_length(session)
        check_length(session, length, "sequence_length")
        limit = token_limit(core)
        kind = _kind_of(core)
        is_pair = kind == "seq2seq_lm"
        laid = self._laid(length, limit, packs=self.packing and not is_pair, cuts=not is_pair)
        makers: dict[str, type[_Reader]] = {
            "causal_lm": _Causal,
            "masked_lm": _Masked,
            "seq2seq_lm": _Translated,
        }
        return makers[kind](self, core, laid, limit)

    def check_settled(self, session: Session) -> None:
        """Refuse a loss that was not found to be one of tokens."""
        loss = session._core.loss
        if _core.loss_name(loss.function) == "softmax_cross_entropy" and _ignored_of(loss) is None:
            raise OptionError(
                what="the loss softmax_cross_entropy is not one of tokens",
                value="loss",
                detail="An automatic loss is one where no score depends on a later token.",
                hint="Give loss='masked_lm' to a model whose scores do, else loss='causal_lm'.",
            )

    def _laid(
        self, length: int, limit: int | None, *, packs: bool, cuts: bool = True
    ) -> StreamRows | PackedRows:
        key = (length, limit, packs, cuts)
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, self._lay_out(*key))
        return self._kept[1]

    def _lay_out(
        self, length: int, limit: int | None, packs: bool, cuts: bool
    ) -> StreamRows | PackedRows:
        found = documents_of(
            self.data,
            self.tokenizer,
            dtype=self._dtype,
            columns=self._columns,
            answers_only=self._answers_only,
            limit=limit,
        )
        if not isinstance(found, Stream):
            return PackedRows(found, length, self._pad, packs=packs, cuts=cuts)
        laid = StreamRows(found, length, self._separator)
        if not len(laid):
            raise DataError(
                what=f"there are {len(found.ids)} tokens, fewer than one row of {length}",
                hint="Give a smaller sequence_length.",
            )
        return laid


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def fixed_length(session: _core.TrainingSession) -> int | None:
    """Return the number of tokens of a row, if the model fixes it."""
    name = token_input(session.inputs)
    shape = next((value.shape for value in session.inputs if value.name == name), None) or ()
    return shape[1] if len(shape) == 2 and isinstance(shape[1], int) else None


def _ignored_of(loss: _core.LossInfo) -> int | None:
    return getattr(loss.function, "ignore_index", None)


def _kind_of(session: _core.TrainingSession) -> str:
    """Return what rows are made of tokens for the loss of a session."""
    loss = session.loss
    name = _core.loss_name(loss.function)
    has_decoder = any(value.name == _DECODER for value in session.inputs)
    if name == "causal_lm":
        return "causal_lm"
    if name == "masked_lm" or _ignored_of(loss) is not None:
        return "seq2seq_lm" if has_decoder else "masked_lm"
    if has_decoder or len(loss.target.shape or ()) not in (2, 3) or loss.others:
        raise OptionError(
            what=f"the loss {name} is not one of tokens",
            value="loss",
            hint="Give loss='causal_lm', 'masked_lm' or 'seq2seq_lm'.",
        )
    return "causal_lm"  # which the first rows settle


class _Reader:
    """Passes rows to the extension; used by the reading thread."""

    def __init__(
        self,
        source: Tokens,
        session: _core.TrainingSession,
        laid: StreamRows | PackedRows,
        limit: int | None,
    ) -> None:
        self._source = source
        self._inputs = list(session.inputs)
        self._laid = laid
        self._limit = limit
        self._ignored = _first(_ignored_of(session.loss), IGNORED)
        self.num_rows = len(laid)
        self._range = (0, self.num_rows)
        self.order = np.zeros(0, np.int64)
        self._at = 0
        self._seed = self._epoch = 0
        name = token_input(self._inputs)
        if name is None:
            raise DataError(
                what="the model has no input of tokens [N, T]",
                detail=f"Its inputs are {', '.join(value.name for value in self._inputs)}.",
                hint="Export it with an input input_ids, int64 [N, T].",
            )
        self._name = name

    def start(self, epoch: int, shuffle: bool, seed: int) -> None:
        """Begin a pass: chunks in a random order; the rows of each keep theirs."""
        starts = np.arange(0, self.num_rows, _CHUNK_ROWS)
        if shuffle:
            starts = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(starts)
        order = (starts[:, None] + np.arange(_CHUNK_ROWS)).ravel()
        first, end = self._range
        self.order, self._at = order[order < self.num_rows][first:end], 0
        self._seed, self._epoch = seed, epoch

    def take_rows(self, begin: int, end: int) -> None:
        """Read these rows alone, in the order of a pass."""
        self._range = (begin, end)

    def next(self) -> _core.Dataset | None:
        """Return the next chunk, or None."""
        numbers = self.chunk()
        if not numbers:
            return None
        inputs, labels = self.arrays(numbers)
        native = {name: to_native(value, name) for name, value in inputs.items()}
        return _core.Dataset(native, to_native(labels, "labels"), {}, None, numbers[0])

    def chunk(self) -> list[int]:
        """Return the numbers of the next rows, which follow one another in the data."""
        found = self.order[self._at : self._at + _CHUNK_ROWS]
        ends = np.flatnonzero(np.diff(found) != 1)
        found = found[: ends[0] + 1] if len(ends) else found
        self._at += len(found)
        return [int(number) for number in found]

    def arrays(self, numbers: list[int]) -> tuple[Mapping[str, Any], np.ndarray[Any, Any]]:
        """Return inputs and labels of rows."""
        raise NotImplementedError

    def _checked(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or (self._limit is not None and most >= self._limit):
            wrong = least if least < 0 else most
            raise out_of_range(wrong, self._limit, "a row", self._source.data)
        return ids

    def _own(self, labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return labels with the number that the loss ignores."""
        return labels if self._ignored == IGNORED else np.where(labels < 0, self._ignored, labels)


class _Causal(_Reader):
    def __init__(self, source: Tokens, *arguments: Any) -> None:
        super().__init__(source, *arguments)
        if isinstance(self._laid, PackedRows) and not self._laid.has_targets:
            raise DataError(
                what="no token would be learnt: none follows another, or all labels are ignored",
                value="data",
                hint="Give longer documents; chats with answers of the assistant, or "
                "answers_only=False.",
            )

    def arrays(self, numbers: list[int]) -> tuple[Mapping[str, Any], np.ndarray[Any, Any]]:
        rows = self._laid.take(numbers)
        inputs = completed(
            self._inputs,
            {self._name: self._checked(rows.ids)},
            segments=rows.segments,
            places=rows.places,
        )
        return inputs, self._own(rows.labels)


class _Masked(_Reader):
    def arrays(self, numbers: list[int]) -> tuple[Mapping[str, Any], np.ndarray[Any, Any]]:
        rows = self._laid.take(numbers)
        self._checked(rows.ids)
        ids, labels = rows.ids.copy(), np.full_like(rows.ids, IGNORED)
        for row, number in enumerate(numbers):
            self._mask(number, rows.segments[row] >= 0, ids[row], labels[row])
        inputs = completed(
            self._inputs,
            {self._name: ids},
            segments=rows.segments,
            places=rows.places,
            is_causal=False,
        )
        return inputs, self._own(labels)

    def _mask(
        self, number: int, is_token: Any, ids: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]
    ) -> None:
        """Mask tokens of a row in place: a function of seed, epoch and row."""
        mask, size = self._source._mask_token, self._limit
        if mask is None:
            raise OptionError(
                what="a masked model needs a token that masks others",
                value="mask_token",
                hint="Give mask_token=, or a tokenizer that has one.",
            )
        key = [self._seed, self._epoch]
        random = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 1, number]))
        chosen = is_token & (random.random(len(ids)) < self._source._mask_probability)
        kind = random.random(len(ids))
        others = random.integers(0, size or mask + 1, len(ids))
        labels[chosen] = ids[chosen]
        ids[chosen & (kind < _MASK_AS_MASK)] = mask
        is_other = chosen & (kind >= _MASK_AS_MASK) & (kind < _MASK_AS_MASK + _MASK_AS_OTHER)
        ids[is_other] = others[is_other]


class _Translated(_Reader):
    """Sources [N, S] and targets [N, T]; the decoder reads targets behind the start token."""

    def arrays(self, numbers: list[int]) -> tuple[Mapping[str, Any], np.ndarray[Any, Any]]:
        source = self._source
        if isinstance(self._laid, StreamRows):
            raise _no_source()
        width = self._laid.length
        target_width = source._target_length or width
        count = len(numbers)
        ids = np.full((count, width), source._pad, np.int64)
        segments = np.full((count, width), -1, np.int64)
        labels = np.full((count, target_width), IGNORED, np.int64)
        for row, document in enumerate(self._laid.sources(numbers)):
            if document.source is None:
                raise _no_source()
            read, learnt = document.source[:width], document.labels[:target_width]
            ids[row, : len(read)] = read
            segments[row, : len(read)] = 0
            labels[row, : len(learnt)] = learnt
        before = np.where(labels[:, :-1] < 0, source._pad, labels[:, :-1])
        start = np.full((count, 1), source._start, np.int64)
        feeds: Mapping[str, Any] = {
            self._name: self._checked(ids),
            _DECODER: self._checked(np.concatenate([start, before], axis=1)),
        }
        inputs = self._with_decoder_mask(feeds, labels)
        filled = completed(self._inputs, inputs, segments=segments, is_causal=False)
        return filled, self._own(labels)

    def _with_decoder_mask(self, feeds: Mapping[str, Any], labels: Any) -> dict[str, Any]:
        found = dict(feeds)
        name = "decoder_attention_mask"
        dtype = next((one.dtype for one in self._inputs if one.name == name), None)
        if dtype is not None:
            found[name] = np.concatenate(
                [np.ones((len(labels), 1)), labels[:, :-1] >= 0], axis=1
            ).astype(dtype)
        return found


def _no_source() -> DataError:
    return DataError(
        what="the model reads a source and a target, and the data has no pairs of them",
        hint='Give JSON lines or Parquet with members "source" and "target".',
    )
