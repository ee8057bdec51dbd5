"""What all optimizers have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad import _core
from onnxgrad.base.described import Described

__all__ = ["Optimizer"]


class Optimizer(Described):
    """What all optimizers have in common."""

    lr: float

    @staticmethod
    def _table() -> Sequence[_core.DescriptionInfo]:
        return _core.optimizer_table()

    @staticmethod
    def _make(type_: str, options: dict[str, Any]) -> Any:
        return _core.make_optimizer(type_, options)
