"""What all optimizers have."""

from __future__ import annotations

from onnxgrad.base.described import Described

__all__ = ["Optimizer"]


class Optimizer(Described):
    """What all optimizers have in common."""

    lr: float

    _family = "optimizer"
