"""The inputs of a language model besides its tokens: masks, places, empty keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad import _core

__all__ = ["completed", "token_input", "token_limit"]

Array = np.ndarray[Any, Any]

_PAST = ("past_key_values", "past_key", "past_value", "past.")


def _is_past(name: str) -> bool:
    return name.startswith(_PAST)


def _is_mask(name: str) -> bool:
    return name.endswith("attention_mask") or name == "mask"


def _is_filled(name: str) -> bool:
    others = ("position_ids", "token_type_ids", "cache_position", "use_cache_branch")
    return name in others or _is_past(name) or _is_mask(name)


def token_input(inputs: Sequence[_core.ValueInfo]) -> str | None:
    """Return the name of the input [N, T] that takes tokens, if the model has one."""
    found = [
        value.name
        for value in inputs
        if value.dtype in ("int64", "int32")
        and value.shape is not None
        and len(value.shape) == 2
        and not _is_filled(value.name)
    ]
    if "input_ids" in found:
        return "input_ids"
    return found[0] if len(found) == 1 else None


def token_limit(session: _core.TrainingSession) -> int | None:
    """Return the number of tokens that the scores are for, if it is known."""
    loss = session.loss
    if loss.num_classes:
        return int(loss.num_classes)
    scores = next((value for value in session.outputs if value.name == loss.scores), None)
    shape = (scores.shape if scores is not None else None) or ()
    return shape[-1] if len(shape) == 3 and isinstance(shape[-1], int) else None


def completed(
    inputs: Sequence[_core.ValueInfo],
    feeds: Mapping[str, Any],
    *,
    segments: Array | None = None,
    places: Array | None = None,
    is_causal: bool = True,
) -> Mapping[str, Any]:
    """Return feeds with the inputs that follow from the tokens.

    `segments` [N, T] numbers the documents of a row, -1 being padding; `places` [N, T] counts the
    tokens of each document. Feeds of other models are returned as they are.
    """
    missing = [value for value in inputs if value.name not in feeds and _is_filled(value.name)]
    name = token_input(inputs) if missing else None
    tokens = None if name is None else feeds.get(name)
    if tokens is None or np.ndim(tokens) != 2:
        return feeds
    filled = dict(feeds)
    rows, width = np.shape(tokens)
    if segments is None:
        segments = np.zeros((rows, width), np.int64)
    if places is None:
        places = np.broadcast_to(np.arange(width), (rows, width))
    for value in missing:
        dtype = np.dtype(value.dtype) if value.dtype != "bfloat16" else np.dtype(np.float32)
        if _is_past(value.name):
            filled[value.name] = np.zeros(_empty(value, rows), dtype)
        elif _is_mask(value.name):
            rank = len(value.shape or (0, 0))
            filled[value.name] = _mask(segments, dtype, rank, is_causal)
        elif value.name == "position_ids":
            filled[value.name] = np.ascontiguousarray(places, dtype)
        elif value.name == "cache_position":
            filled[value.name] = np.arange(width, dtype=dtype)
        elif value.name == "use_cache_branch":
            filled[value.name] = np.zeros(1, dtype)
        else:
            filled[value.name] = np.zeros((rows, width), dtype)
    return filled


def _empty(value: _core.ValueInfo, rows: int) -> tuple[int, ...]:
    """Return the shape of keys or values of no tokens: [N, heads, 0, size]."""
    shape = value.shape or ()
    return tuple(
        rows if axis == 0 else (size if isinstance(size, int) else 0)
        for axis, size in enumerate(shape)
    )


def _mask(segments: Array, dtype: np.dtype[Any], rank: int, is_causal: bool) -> Array:
    """Return 1 at tokens [N, T], or which tokens may see which: [N, T, T] or [N, 1, T, T].

    Masks of more axes are True or 1 where a token is seen, or numbers that are added to the scores
    of the attention: 0, and the smallest number of the type.
    """
    if rank <= 2:
        return (segments >= 0).astype(dtype)
    sees = segments[:, :, None] == segments[:, None, :]
    if is_causal:
        sees &= np.tril(np.ones(sees.shape[1:], bool))
    if rank == 4:
        sees = sees[:, None]
    if dtype.kind != "f":
        seen: Array = sees.astype(dtype)
        return seen
    added: Array = np.where(sees, 0, np.finfo(dtype).min).astype(dtype)
    return added
