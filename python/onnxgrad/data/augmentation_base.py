"""Base class of random changes of rows."""

from __future__ import annotations

from onnxgrad.base.described import Described

__all__ = ["Augmentation"]


class Augmentation(Described):
    """Base class of changes of rows."""

    _family = "augmentation"
