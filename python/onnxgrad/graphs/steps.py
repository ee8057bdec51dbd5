"""Models with a loss, and training steps as models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, patterns, positive_int
from onnxgrad.base.engine_options import training_mode_of
from onnxgrad.base.models import ModelLike, deliver, to_core_model
from onnxgrad.losses import LossLike, PenaltyLike, to_core_loss
from onnxgrad.optimizers import OptimizerLike, ParameterGroup, as_optimizer, update_options
from onnxgrad.precision import PrecisionLike, as_precision
from onnxgrad.schedules import ScheduleLike, as_schedule

if TYPE_CHECKING:
    import onnx

__all__ = ["add_loss", "add_training_info", "training_step"]


@checked_names
def add_loss(
    model: ModelLike,
    loss: LossLike = "auto",
    *,
    target: str = "label",
    sample_weight: str | None = None,
    penalty: PenaltyLike | None = None,
    loss_name: str = "loss",
    keep_outputs: bool = True,
    target_opset: int | None = None,
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """Return a model with a loss as its first output.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
        See `onnxgrad.losses`.
    target : str, default="label"
        Preferred name of the new input for targets: class numbers int64 [N] for a classifier, else
        values of the type and shape of the scores. With several losses, one input
        ``<target>_<output>`` each.
    sample_weight : str, default=None
        Name of a new input [N] with a weight for each row; None adds no such input.
    penalty : Penalty, list of Penalty or dict, default=None
        See `onnxgrad.losses.Penalty`; a dictionary is ``{"coef": {"l2": 0.01}}``.
    loss_name : str, default="loss"
        Preferred name of the new output, of shape [] (or [N] with ``reduction="none"``).
    keep_outputs : bool, default=True
        Whether to keep the model's outputs, after the loss.
    target_opset : int, default=None
        Operator set of the result, 9 to 26; None means that of `model`, which may be too old to
        express the loss.
    path : str or path, default=None
        Where to write the result as well. Above 2 GiB its large tensors go to a file next to it.

    Returns
    -------
    onnx.ModelProto
        Operator set, IR version, names and nodes are those of `model`. An inner value that has the
        preferred name of an input or of the loss is renamed; if an input, output or initializer
        has it, a number is appended to the new name.

    Raises
    ------
    ModelError
        An invalid model, or one without a value that a loss can be applied to.

    Examples
    --------
    >>> import onnxgrad as og
    >>> with_loss = og.add_loss(linear_model, "squared_error")
    >>> [value.name for value in with_loss.graph.input], with_loss.graph.output[0].name
    (['X', 'label'], 'loss')
    """
    described = to_core_loss(loss, target, sample_weight or "", penalty=penalty)
    opset = 0 if target_opset is None else positive_int("target_opset", target_opset)
    return deliver(
        _core.add_loss(to_core_model(model), described, loss_name, bool(keep_outputs), opset), path
    )


@checked_names
def training_step(
    model: ModelLike,
    loss: LossLike = "auto",
    optimizer: OptimizerLike = "sgd",
    *,
    target: str = "label",
    sample_weight: str | None = None,
    penalty: PenaltyLike | None = None,
    trainable: str | Iterable[str] | None = None,
    frozen: str | Iterable[str] | None = None,
    untie: bool = True,
    groups: ParameterGroup | Iterable[ParameterGroup] = (),
    clip_value: float | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    stop_gradient: str | Iterable[str] | None = None,
    training_mode: bool | str = "auto",
    precision: PrecisionLike = "float32",
    schedule: ScheduleLike | None = None,
    updates: int | None = None,
    epochs: int = 1,
    gradients: bool = False,
    target_opset: int = 26,
    inline: bool = False,
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """Return a training step as one model: loss, gradient and update.

    It trains in any runtime that feeds the outputs ``next/<state>`` back as inputs ``<state>``.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
    optimizer : str or Optimizer, default="sgd"
        Any but L-BFGS, which is a loop around loss and gradient.
    target : str, default="label"
        Preferred name of the input for targets.
    sample_weight : str, default=None
        Name of an input [N] with a weight for each row; None adds no such input.
    penalty : Penalty, list of Penalty or dict, default=None
        See `onnxgrad.losses.Penalty`.
    trainable, frozen : str or list of str, default=None
        Names or glob patterns of weights.
    untie : bool, default=True
        Whether to train weights separately that are one in the file by accident; see
        `TrainingSession`.
    groups, clip_value, clip_norm, accumulate, stop_gradient, training_mode, precision
        As for `TrainingSession`.
    schedule : str or Schedule, default=None
        See `onnxgrad.schedules`: the rate of each update is computed from ``learning_rate`` and the
        number of updates, which is then part of the state.
    updates : int, default=None
        Number of updates of the whole training, for schedules whose length is relative to it and
        for those that count epochs.
    epochs : int, default=1
        Number of epochs that these updates make up.
    gradients : bool, default=False
        Whether to add the outputs ``<weight>_grad``.
    target_opset : int, default=26
        Operator set of the result, 9 to 26, as for `gradient`.
    inline : bool, default=False
        Whether to inline model-local functions.
    path : str or path, default=None
        Where to write the result as well. Above 2 GiB its large tensors go to a file next to it.

    Returns
    -------
    onnx.ModelProto
        Inputs: the model's, the target, the sample weight if there is one, ``learning_rate``
        (unless the schedule is `schedules.Optimal`, which takes no rate), with
        `schedules.Plateau` its current factor as ``plateau_factor`` (float64, rank 0), then the
        state: weights, optimizer state, ``step_count``, each with its initial value as default.
        Outputs: the loss, gradients if requested, then ``next/<state>`` in the same order.

    Raises
    ------
    ModelError, GradientError
        As for `add_loss` and `gradient`.

    Examples
    --------
    >>> import onnxgrad as og
    >>> step = og.training_step(linear_model, "squared_error", "sgd")
    >>> [output.name for output in step.graph.output][:2]
    ['loss', 'next/coef']
    """
    described = as_optimizer(optimizer)
    return deliver(
        _core.training_step(
            to_core_model(model),
            to_core_loss(loss, target, sample_weight or "", penalty=penalty),
            described._native(),
            patterns("trainable", trainable),
            patterns("frozen", frozen),
            bool(untie),
            update_options(described.lr, groups, clip_value, clip_norm, accumulate),
            bool(gradients),
            patterns("stop_gradient", stop_gradient),
            training_mode_of(training_mode),
            as_precision(precision)._native(),
            None if schedule is None else as_schedule(schedule)._native(),
            0 if updates is None else positive_int("updates", updates),
            positive_int("epochs", epochs),
            positive_int("target_opset", target_opset),
            bool(inline),
        ),
        path,
    )


@checked_names
def add_training_info(
    model: ModelLike,
    loss: LossLike = "auto",
    optimizer: OptimizerLike = "adam",
    *,
    target: str = "label",
    sample_weight: str | None = None,
    penalty: PenaltyLike | None = None,
    trainable: str | Iterable[str] | None = None,
    frozen: str | Iterable[str] | None = None,
    untie: bool = True,
    groups: ParameterGroup | Iterable[ParameterGroup] = (),
    clip_value: float | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    stop_gradient: str | Iterable[str] | None = None,
    training_mode: bool | str = "auto",
    precision: PrecisionLike = "float32",
    schedule: ScheduleLike | None = None,
    updates: int | None = None,
    epochs: int = 1,
    target_opset: int | None = None,
    inline: bool = False,
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """Return a model that describes its own training, as ONNX defines it (TrainingInfoProto).

    `Trainer`, `TrainingSession` and ``onnxgrad train`` train such a model without a loss or an
    optimizer; so can any runtime that executes ``training_info``. See also
    `Trainer.with_training_info`, which writes a training as it is now.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
    optimizer : str or Optimizer, default="adam"
        Any but L-BFGS, which is a loop around loss and gradient.
    target, sample_weight, penalty, trainable, frozen, untie, groups, clip_value, clip_norm
        As for `training_step`.
    accumulate, stop_gradient, training_mode, precision, schedule, updates, epochs
        As for `training_step`; but no schedule with `schedules.Plateau`, which follows the losses
        of epochs.
    target_opset : int, default=None
        Operator set of the whole file, 9 to 26; None is that of `model`, or 26 if the training
        cannot be expressed in it.
    inline : bool, default=False
        True leaves no model-local functions.
    path : str or path, default=None
        Where to write the result as well. Above 2 GiB its large tensors go to a file next to it.

    Returns
    -------
    onnx.ModelProto
        `model` with one ``training_info`` in standard operators, instead of any that it has. Its
        algorithm reads the target and the sample weight, computes the loss and a step of the
        optimizer, and has the learning rate, the optimizer's state and ``step_count`` as
        initializers; its bindings update these and the weights. The graph of the model is unchanged
        if the trained weights are initializers of it and its operator set can express the training;
        otherwise it is written anew, with every weight an initializer.

    Raises
    ------
    ModelError, GradientError
        As `training_step`.

    Examples
    --------
    >>> import onnxgrad as og
    >>> model = og.add_training_info(linear_model, "squared_error", "sgd")
    >>> [binding.key for binding in model.training_info[0].update_binding]
    ['coef', 'intercept']
    >>> og.Trainer(model).session.loss_line
    "loss: 'loss' of the training that the file describes"
    """
    described = as_optimizer(optimizer)
    native = _core.add_training_info(
        to_core_model(model),
        to_core_loss(loss, target, sample_weight or "", penalty=penalty),
        described._native(),
        patterns("trainable", trainable),
        patterns("frozen", frozen),
        bool(untie),
        update_options(described.lr, groups, clip_value, clip_norm, accumulate),
        patterns("stop_gradient", stop_gradient),
        training_mode_of(training_mode),
        as_precision(precision)._native(),
        None if schedule is None else as_schedule(schedule)._native(),
        0 if updates is None else positive_int("updates", updates),
        positive_int("epochs", epochs),
        0 if target_opset is None else positive_int("target_opset", target_opset),
        bool(inline),
    )
    return deliver(native, path)
