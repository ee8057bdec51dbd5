"""What all optimizers have."""

from __future__ import annotations

from typing import Any, ClassVar

from onnxgrad.base.description import Description

__all__ = ["Optimizer"]


class Optimizer(Description):
    """What all optimizers have in common."""

    lr: float

    _native_type: Any
    _native_names: ClassVar[dict[str, str]] = {"lr": "learning_rate"}

    def _native(self) -> Any:
        native = self._native_type()
        for name, value in vars(self).items():
            setattr(native, self._native_names.get(name, name), value)
        return native
