"""Changes of a model that its training begins with: a new head, an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxgrad import _core
from onnxgrad.base.heads import with_head

__all__ = ["changed_model"]


def changed_model(model: _core.Model, given: Mapping[str, Any], seed: int = 0) -> _core.Model:
    """Return the model with what `new_head`, `lora` and `adapter` ask for.

    A new head is trained beside an adapter.
    """
    if given["new_head"] is not None:
        model = with_head(model, given["new_head"], seed)
    if given["lora"] is None and given["adapter"] is None:
        return model
    from onnxgrad.adapters.described import adapted

    full = () if given["new_head"] is None else ("head",)
    return adapted(model, given["lora"], given["adapter"], seed, full)
