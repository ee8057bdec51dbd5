"""Parameter-efficient fine-tuning: a few small weights are trained instead of a model's own.

`LoRA`, `DoRA` and `IA3` add weights to a model, `BitFit` and `Norms` choose some that it has. They
are given to a `Trainer`, a `TrainingSession`, `ForwardBackward` or `training_step` as ``lora=`` or
``adapter=``, or added to a model by `add`:

>>> import onnxgrad as og
>>> trainer = og.Trainer("bert.onnx", lora=8)                           # doctest: +SKIP
>>> trainer.fit(X, y)                                                   # doctest: +SKIP
>>> trainer.save_adapter("folder")       # PEFT's files                 # doctest: +SKIP
>>> trainer.merge("trained.onnx")        # the file with new weights    # doctest: +SKIP

The result of `add` is an ordinary ONNX model, which any runtime runs. Its metadata list its
adapters, so that whatever trains it trains these alone.
"""

from onnxgrad.adapters.described import (
    IA3,
    Adapter,
    AdapterLike,
    BitFit,
    DoRA,
    LoRA,
    LoRALike,
    Norms,
    as_adapter,
)
from onnxgrad.adapters.functions import (
    AdapterInfo,
    AdapterLayer,
    add,
    as_inputs,
    load,
    merge,
    of,
    save,
    set_state,
    state,
)
from onnxgrad.base.quantized_weights import BaseLike

__all__ = [
    "IA3",
    "Adapter",
    "AdapterInfo",
    "AdapterLayer",
    "AdapterLike",
    "BaseLike",
    "BitFit",
    "DoRA",
    "LoRA",
    "LoRALike",
    "Norms",
    "add",
    "as_adapter",
    "as_inputs",
    "load",
    "merge",
    "of",
    "save",
    "set_state",
    "state",
]
