"""Random changes of the rows that are trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import listed, positive_int
from onnxgrad.base.family import Family
from onnxgrad.data import augmentation
from onnxgrad.data.arrays import ArrayLike, from_native_list, to_native
from onnxgrad.data.augmentation_base import Augmentation
from onnxgrad.errors import OptionError

__all__ = [
    "Augmentation",
    "AugmentationLike",
    "as_augmentations",
    "augment",
    "augmentation_to_text",
]


AugmentationLike: TypeAlias = "Augmentation | str | Iterable[Augmentation | str]"
"""A change, its name with options ``"crop:padding=4"``, or several in order."""


_FAMILY = Family(Augmentation)
_FAMILY.fill(vars(augmentation))
augmentation_to_text = _FAMILY.to_text


def as_augmentations(augment: AugmentationLike) -> list[Augmentation]:
    """Return changes of rows, given as such or by name. Raises: OptionError."""
    if isinstance(augment, Mapping):
        raise OptionError(
            what="augment: a dictionary is no change of rows",
            value="augment",
            hint="Give options as in 'mixup:alpha=0.2', or an object of og.data.",
        )
    return [_FAMILY.take(one) for one in listed(augment)]


def augment(
    X: ArrayLike | Mapping[str, ArrayLike],
    y: ArrayLike | None = None,
    augment: AugmentationLike = (),
    *,
    seed: int = 0,
    epoch: int = 1,
) -> tuple[Any, np.ndarray[Any, Any] | None]:
    """Return changed copies of rows, as an epoch of ``fit(augment=...)`` has them.

    Parameters
    ----------
    X : array [N, ...] or dict of str to array
    y : array [N] or [N, K], default=None
        Class numbers that are mixed become probabilities [N, C].
    augment : Augmentation, str, or list of these
    seed : int, default=0
        That of the `Trainer`.
    epoch : int, default=1

    Returns
    -------
    X, y
        In the form that was given.

    Examples
    --------
    >>> import numpy as np
    >>> image = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    >>> augment(image, augment="flip:probability=1")[0].tolist()
    [[[[1.0, 0.0], [3.0, 2.0]]]]
    """
    is_dictionary = isinstance(X, Mapping)
    arrays: dict[str, Any] = dict(X) if isinstance(X, Mapping) else {"X": X}
    native = [to_native(np.ascontiguousarray(one), name) for name, one in arrays.items()]
    target = None if y is None else to_native(np.ascontiguousarray(y), "y")
    changes = [one._native() for one in as_augmentations(augment)]
    number = positive_int("epoch", epoch)
    changed = from_native_list(
        _core.augmented_rows(native, target, changes, positive_int("seed", seed, 0), number)
    )
    new_y = None if y is None else changed.pop()
    return (dict(zip(arrays, changed, strict=True)) if is_dictionary else changed[0]), new_y
