"""The options of ``onnxgrad train`` for adapters."""

from __future__ import annotations

from types import SimpleNamespace

from onnxgrad import _core, adapters, errors
from onnxgrad.adapters import LoRA
from onnxgrad.trainer import Trainer

__all__ = ["check_adapters", "lora_of"]


def lora_of(options: SimpleNamespace) -> LoRA | None:
    """Return the description of --lora and its options, if given."""
    if options.lora is None:
        return None
    return LoRA(
        options.lora,
        options.lora_alpha,
        targets=options.lora_targets or None,
        dropout=options.lora_dropout,
    )


def check_adapters(trainer: Trainer, options: SimpleNamespace) -> None:
    """Refuse, before the training, to merge or save an adapter that the model does not have."""
    model = trainer.session._model
    found = adapters.of(model)
    given = {"--merge": options.merge, "--save-adapter": options.save_adapter is not None}
    for shown, is_given in given.items():
        if is_given and not found:
            raise errors.OptionError(
                what=f"{shown} has no effect: the model has no adapters",
                value=shown,
                hint=f"Add --lora RANK or --adapter NAME, or leave {shown} out.",
            )
    if options.merge:
        _core.merge_adapters(model)  # an adapter that cannot be merged is refused now
    if options.save_adapter is not None and not any(one.layers for one in found):
        raise errors.OptionError(
            what="--save-adapter has no effect: the adapter adds nothing to the model",
            value="--save-adapter",
            hint="The trained model has all of it: give -o alone.",
        )
