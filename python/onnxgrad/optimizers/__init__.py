"""Optimizers, as immutable descriptions, and groups of weights.

Formulas and defaults are those of ``torch.optim`` if it has the optimizer. w is a weight, g its
gradient, lr the learning rate, t the number of the step from 1. An optimizer can also be given by
its name: ``"adamw"``, ``"nesterov"``, ... (see `names`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import listed, positive_int, real_number
from onnxgrad.base.checks import patterns as pattern_list
from onnxgrad.base.depth import blocks_of
from onnxgrad.base.description import Description
from onnxgrad.base.family import Family
from onnxgrad.base.models import ModelLike, to_core_model
from onnxgrad.errors import OptionError
from onnxgrad.optimizers import described
from onnxgrad.optimizers.averages import (
    EMA,
    SWA,
    AverageLike,
    SharpnessLike,
    as_average,
    as_sharpness,
)
from onnxgrad.optimizers.base import Average, Optimizer
from onnxgrad.optimizers.described import *  # noqa: F403
from onnxgrad.optimizers.user import User, traced

__all__ = [
    "EMA",
    "SWA",
    "Average",
    "AverageLike",
    "Optimizer",
    "OptimizerLike",
    "ParameterGroup",
    "SharpnessLike",
    "User",
    "from_name",
    "layerwise_decay",
    "names",
    "traced",
]
__all__ += described.__all__


class ParameterGroup(Description):
    """Weights with their own learning rate, weight decay or optimizer.

    Parameters
    ----------
    patterns : str or list of str
        Names or glob patterns of trained weights; if several groups match, the first one applies.
    lr : float, default=None
        Learning rate of the group; None means the optimizer's. A schedule scales all rates alike.
    lr_factor : float, default=1
        Learning rate as a multiple of the optimizer's.
    weight_decay : float, default=None
        None means the optimizer's.
    optimizer : Optimizer or str, default=None
        Another optimizer for these weights (not L-BFGS), with its rate and decay unless these are
        given too. None means the optimizer of all weights.

    Examples
    --------
    >>> import onnxgrad as og
    >>> trainer = og.Trainer(
    ...     linear_model,
    ...     optimizer=og.optimizers.AdamW(lr=1e-3),
    ...     groups=[og.optimizers.ParameterGroup("intercept", lr=1e-2, weight_decay=0)],
    ... )
    """

    patterns: tuple[str, ...]
    lr: float | None
    lr_factor: float
    weight_decay: float | None
    optimizer: Optimizer | None

    def __init__(
        self,
        patterns: str | Iterable[str],
        lr: float | None = None,
        lr_factor: float = 1.0,
        weight_decay: float | None = None,
        optimizer: OptimizerLike | None = None,
    ) -> None:
        super().__init__(
            patterns=tuple(pattern_list("patterns", patterns)),
            lr=None if lr is None else real_number("lr", lr),
            lr_factor=real_number("lr_factor", lr_factor),
            weight_decay=None
            if weight_decay is None
            else real_number("weight_decay", weight_decay),
            optimizer=None if optimizer is None else as_optimizer(optimizer),
        )
        if not self.patterns:
            raise OptionError(
                what="a group of weights needs a pattern",
                value="patterns",
                hint="Give a name, or a pattern such as 'fc*'.",
            )
        if lr is not None and lr_factor != 1:
            raise OptionError(
                what="a group takes lr or lr_factor, not both",
                value="lr_factor",
                hint="Give one of them.",
            )

    def _native(self, lr: float) -> _core.ParameterGroup:
        native = _core.ParameterGroup()
        native.patterns = list(self.patterns)
        native.weight_decay = self.weight_decay
        native.rate_factor = self.lr_factor
        own = self.lr
        if self.optimizer is not None:
            native.optimizer = self.optimizer._native()
            if own is None and self.optimizer.lr != lr:
                own = self.optimizer.lr * self.lr_factor
        if own is not None:
            if lr == 0:
                raise OptionError(
                    what="a group with its own lr needs an optimizer with lr above 0",
                    value="lr",
                    hint="Give the optimizer a learning rate, or the group lr_factor.",
                )
            native.rate_factor = own / lr
        return native


OptimizerLike: TypeAlias = "Optimizer | str"
"""An optimizer or its name."""

_FAMILY = Family(Optimizer)
_FAMILY.fill(globals())
from_text, to_text = _FAMILY.from_text, _FAMILY.to_text


def names() -> list[str]:
    """Return the names of all optimizers, sorted."""
    return _FAMILY.names()


def from_name(name: str) -> Optimizer:
    """Return the optimizer of that name, with its defaults.

    Raises
    ------
    OptionError
        An unknown name; the message suggests the nearest one.

    Examples
    --------
    >>> from_name("rmsprop")
    RMSProp(lr=0.01, alpha=0.99, epsilon=1e-08, weight_decay=0.0, momentum=0.0, centered=False)
    """
    return _FAMILY.from_name(name)


def as_optimizer(optimizer: OptimizerLike, lr: float | None = None) -> Optimizer:
    """Return an optimizer, given as such or by name, with another learning rate if given."""
    described = _FAMILY.take(optimizer)
    return described if lr is None else described.replace(lr=lr)


def layerwise_decay(
    model: ModelLike, decay: float = 0.9, *, weight_decay: float | None = None
) -> list[ParameterGroup]:
    """Return groups whose learning rates fall from the head to the first layers.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        The model that is trained.
    decay : float, default=0.9
        The head has the optimizer's rate, the block before it `decay` times that, and so on. Layers
        with a common number in their names (``encoder.layer.3``) are a block.
    weight_decay : float, default=None
        As for `ParameterGroup`.

    Examples
    --------
    >>> import onnxgrad as og
    >>> [group.lr_factor for group in og.optimizers.layerwise_decay(linear_model, 0.5)]
    [1.0]
    """
    decay = real_number("decay", decay, open_minimum=True)
    weights = [weight for weight in to_core_model(model).weights if weight.trainable]
    return [
        ParameterGroup(names, lr_factor=decay**depth, weight_decay=weight_decay)
        for depth, names in enumerate(blocks_of(weights))
    ]


def update_options(
    lr: float,
    groups: ParameterGroup | Iterable[ParameterGroup],
    clip_value: float | None,
    clip_norm: float | None,
    accumulate: int,
    average: AverageLike | None = None,
    sam: SharpnessLike | None = None,
) -> _core.UpdateOptions:
    """Check and convert the options that apply to all optimizers."""
    options = _core.UpdateOptions()
    several = listed(groups)
    for group in several:
        if not isinstance(group, ParameterGroup):
            raise OptionError(
                what=f"groups: a {type(group).__name__} is not a ParameterGroup",
                value="groups",
                hint='For example groups=[optimizers.ParameterGroup("fc*", lr=1e-4)].',
            )
    options.groups = [group._native(lr) for group in several]
    if clip_value is not None:
        options.clip_value = real_number("clip_value", clip_value, open_minimum=True)
    if clip_norm is not None:
        options.clip_norm = real_number("clip_norm", clip_norm, open_minimum=True)
    options.accumulate = positive_int("accumulate", accumulate)
    if average is not None:
        options.average = as_average(average)._native()
    if sam is not None:
        options.set_sharpness_aware(*as_sharpness(sam))
    return options
