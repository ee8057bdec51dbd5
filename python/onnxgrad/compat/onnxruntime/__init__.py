"""onnxruntime-training's names on onnxgrad's engine.

Names unrelated to training come from stock onnxruntime if it is installed. Without it,
`InferenceSession`, `SessionOptions` and `RunOptions` are onnxgrad's. `get_device` always is: it
returns the device for training, whatever devices stock onnxruntime has.
"""

from __future__ import annotations

import importlib
from typing import Any

import onnxgrad as og
from onnxgrad.compat.onnxruntime.gradient_builder import GradientGraphBuilder
from onnxgrad.compat.onnxruntime.training_agent import (
    OrtModuleGraphBuilder,
    OrtModuleGraphBuilderConfiguration,
    OrtValueCache,
    PartialGraphExecutionState,
    TrainingAgent,
    TrainingGraphTransformerConfiguration,
)
from onnxgrad.compat.onnxruntime.training_session import (
    NodeArg,
    TrainingParameters,
    TrainingSession,
    check_providers,
    device_of,
)
from onnxgrad.compat.onnxruntime.values import (
    OrtDevice,
    OrtMemType,
    OrtValue,
    OrtValueVector,
    available_providers,
)
from onnxgrad.compat.onnxruntime.values import providers as known_providers

C_OrtValue = OrtValue

__all__ = [
    "C_OrtValue",
    "GradientGraphBuilder",
    "NodeArg",
    "OrtDevice",
    "OrtMemType",
    "OrtModuleGraphBuilder",
    "OrtModuleGraphBuilderConfiguration",
    "OrtValue",
    "OrtValueCache",
    "OrtValueVector",
    "PartialGraphExecutionState",
    "TrainingAgent",
    "TrainingGraphTransformerConfiguration",
    "TrainingParameters",
    "TrainingSession",
    "get_device",
]


def get_device() -> str:
    """Return the kind of device that training can use, ``"CPU"`` or ``"GPU"``."""
    return "GPU" if "CUDAExecutionProvider" in available_providers() else "CPU"


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "training":  # this package's, even if stock onnxruntime has one
        return importlib.import_module(f"{__name__}.training")
    try:
        import onnxruntime
    except ImportError:
        own = {
            "InferenceSession": _InferenceSession,
            "SessionOptions": _Options,
            "RunOptions": _Options,
            "get_available_providers": available_providers,
            "__version__": og.__version__,
        }
        if name in own:
            return own[name]
        raise AttributeError(f"{name!r} needs stock onnxruntime, which is not installed") from None
    try:
        return getattr(onnxruntime, name)
    except AttributeError:
        raise AttributeError(f"neither {__name__!r} nor stock onnxruntime has {name!r}") from None


class _Options:
    """Options of sessions or runs: any attribute can be set, none has an effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value


class _InferenceSession(og.InferenceSession):
    """onnxgrad's engine with the signature of onnxruntime's class."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
    ) -> None:
        del sess_options, provider_options
        known = known_providers()
        named = [(one, one if isinstance(one, str) else one[0]) for one in providers or ()]
        given = [one for one, name in named if name in known] or ["CPUExecutionProvider"]
        self._providers = check_providers(given)
        super().__init__(path_or_bytes, device=device_of(given))

    def run(
        self,
        output_names: Any,
        input_feed: Any,
        run_options: Any = None,
        *,
        adapter: str | None = None,
        to_host: bool = True,
    ) -> list[Any]:
        """Return the outputs."""
        del run_options
        return super().run(output_names, input_feed, adapter=adapter, to_host=to_host)

    def get_providers(self) -> list[str]:
        """Return the execution providers."""
        return self._providers
