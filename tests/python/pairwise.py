"""Few rows of parameter values in which every two values of two parameters meet."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def pairwise(
    parameters: Mapping[str, Sequence[Any]], is_valid: Callable[[Row], bool], seed: int = 0
) -> list[Row]:
    """Return rows that cover every pair of values which some valid row has.

    `is_valid` is asked about partial rows too, and says no to those that no value can fix.
    """
    random_ = random.Random(seed)
    open_pairs = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(parameters, 2)
        for x, y in itertools.product(parameters[a], parameters[b])
    }
    rows: list[Row] = []
    for first, second in sorted(open_pairs, key=str):
        if (first, second) not in open_pairs:
            continue
        row = _completed(dict([first, second]), parameters, is_valid, open_pairs, random_)
        if row is None:
            continue
        rows.append(row)
        open_pairs -= set(_pairs(row, parameters))
    return rows


def _pairs(row: Row, parameters: Mapping[str, Sequence[Any]]) -> Any:
    given = [(name, row[name]) for name in parameters if name in row]
    return itertools.combinations(given, 2)


def _completed(
    row: Row,
    parameters: Mapping[str, Sequence[Any]],
    is_valid: Callable[[Row], bool],
    open_pairs: set[Any],
    random_: random.Random,
) -> Row | None:
    if not is_valid(row):
        return None
    missing = [name for name in parameters if name not in row]
    if not missing:
        return row

    def gain(value: Any) -> tuple[int, float]:
        wider = {**row, missing[0]: value}
        return -len(open_pairs & set(_pairs(wider, parameters))), random_.random()

    for value in sorted(parameters[missing[0]], key=gain):
        whole = _completed({**row, missing[0]: value}, parameters, is_valid, open_pairs, random_)
        if whole is not None:
            return whole
    return None
