"""The base class of the estimators' generated parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import onnx
from sklearn.base import BaseEstimator

__all__ = ["ModelOrFactory", "Parameters"]

ModelOrFactory: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | Callable[..., Any]"
"""A model, or a function of (number of features, number of outputs) that returns one."""


class Parameters(BaseEstimator):  # type: ignore[misc]
    """An estimator whose constructor sets its parameters as they are."""

    def _take(self, arguments: Mapping[str, Any]) -> None:
        """Set the parameters from the local variables of ``__init__``."""
        for name in self._get_param_names():
            setattr(self, name, arguments[name])
