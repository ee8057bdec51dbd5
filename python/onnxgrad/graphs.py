"""Functions from models to models: losses, gradients, whole training steps, new weights."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxgrad import _core
from onnxgrad._arrays import ArrayLike, to_feeds
from onnxgrad._checks import checked_names, path_text, patterns, positive_int, unknown_name
from onnxgrad._columns import name_list
from onnxgrad._engine_options import training_mode_of
from onnxgrad._models import ModelLike, to_core_model, to_proto
from onnxgrad.losses import LossLike, PenaltyLike, to_core_loss
from onnxgrad.optimizers import OptimizerLike, ParameterGroup, as_optimizer, update_options
from onnxgrad.schedules import ScheduleLike, as_schedule

if TYPE_CHECKING:
    import onnx

__all__ = ["add_loss", "gradient", "initialize", "set_weights", "training_step"]

SCHEMES = (
    "auto",
    "glorot_uniform",
    "glorot_normal",
    "he_uniform",
    "he_normal",
    "lecun_uniform",
    "lecun_normal",
    "uniform",
    "normal",
    "zeros",
)


@checked_names
def gradient(
    model: ModelLike,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    *,
    fill_grad: bool = False,
    keep_outputs: bool = False,
    target_opset: int = 26,
    inline: bool = False,
) -> onnx.ModelProto:
    """Return the gradient of a model as a model of standard ONNX operators.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    wrt : str or list of str, default=None
        Weights and inputs to differentiate with respect to; None is all trainable weights.
    outputs : str or list of str, default=None
        Outputs to differentiate; None is ``"loss"`` if there is one, else all floating outputs.
    fill_grad : bool, default=False
        False: the gradient of each output is a new input ``<output>_grad`` of its shape. True: it
        is ones, so that the result is the gradient of the sum of all elements of the outputs.
    keep_outputs : bool, default=False
        Whether the differentiated outputs stay, after the gradients.
    target_opset : int, default=26
        Operator set of the result, 9 to 26; below 17 many gradients cannot be said.
    inline : bool, default=False
        True leaves no model-local functions, for runtimes that do not know them.

    Returns
    -------
    onnx.ModelProto
        Inputs: those of `model` that are needed, each weight of `wrt` (no longer an initializer),
        then ``<output>_grad``. Outputs: ``<name>_grad`` for each name of `wrt`, with its shape and
        dtype. Inner values of `model` with such a name get another; where an input, a weight or an
        output that stays has it, the new name ends in ``_1``.

    Raises
    ------
    GradientError
        Names every node on a path to `wrt` that has no gradient.
    ModelError
        No valid model, an unknown name, or an operator set that is out of range or too old.

    Examples
    --------
    >>> import onnxgrad as og
    >>> grad = og.gradient(linear_model, fill_grad=True)
    >>> [output.name for output in grad.graph.output]
    ['coef_grad', 'intercept_grad']
    """
    result, zeros = core_gradient(
        to_core_model(model),
        wrt,
        outputs,
        fill_grad=fill_grad,
        keep_outputs=keep_outputs,
        target_opset=target_opset,
        inline=inline,
    )
    if zeros and sum(value.name.endswith("_grad") for value in result.outputs) == len(zeros):
        warnings.warn(zeros_text(zeros), stacklevel=3)
    return to_proto(result)


def zeros_text(names: Sequence[str]) -> str:
    """Return what is said of gradients that are zero whatever the inputs are."""
    return (
        f"the gradient of {name_list(names)} is zero whatever the inputs are: the outputs do not "
        "depend on it, or through operators alone that are constant between their steps"
    )


def core_gradient(
    model: _core.Model,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    *,
    fill_grad: bool = False,
    keep_outputs: bool = False,
    target_opset: int = 26,
    inline: bool = False,
) -> tuple[_core.Model, list[str]]:
    """Do what `gradient` does, on the extension's models.

    Returns the gradient, and the names in `wrt` whose gradient is zero whatever the inputs are.
    """
    return _core.gradient(
        model,
        patterns("wrt", wrt),
        patterns("outputs", outputs),
        bool(fill_grad),
        bool(keep_outputs),
        positive_int("target_opset", target_opset),
        bool(inline),
    )


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
) -> onnx.ModelProto:
    """Return a model with a loss as its first output.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
        See `onnxgrad.losses`.
    target : str, default="label"
        Wanted name of the new input for targets: class numbers int64 [N] for a classifier, else
        values of the type and shape of the scores. Of several losses, ``<target>_<output>`` each.
    sample_weight : str, default=None
        Name of a new input [N] with a weight for each row; None is no such input.
    penalty : Penalty, list of Penalty or dict, default=None
        See `onnxgrad.losses.Penalty`; a dictionary is ``{"coef": {"l2": 0.01}}``.
    loss_name : str, default="loss"
        Wanted name of the new output, of shape [] (or [N] with ``reduction="none"``).
    keep_outputs : bool, default=True
        Whether the model's outputs stay, after the loss.
    target_opset : int, default=None
        Operator set of the result, 9 to 26; None is that of `model`, which may be too old to write
        the loss in.

    Returns
    -------
    onnx.ModelProto
        Operator set, IR version, names and nodes are those of `model`. Where an inner value has the
        wanted name of an input or of the loss, that value gets another; where an input, output or
        initializer has it, a number is added to the new name.

    Raises
    ------
    ModelError
        No valid model, or nothing a loss can be put on.

    Examples
    --------
    >>> import onnxgrad as og
    >>> with_loss = og.add_loss(linear_model, "squared_error")
    >>> [value.name for value in with_loss.graph.input], with_loss.graph.output[0].name
    (['X', 'label'], 'loss')
    """
    described = to_core_loss(loss, target, sample_weight or "", penalty=penalty)
    opset = 0 if target_opset is None else positive_int("target_opset", target_opset)
    return to_proto(
        _core.add_loss(to_core_model(model), described, loss_name, bool(keep_outputs), opset)
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
    training_mode: bool | str = "auto",
    schedule: ScheduleLike | None = None,
    updates: int | None = None,
    epochs: int = 1,
    gradients: bool = False,
    target_opset: int = 26,
    inline: bool = False,
) -> onnx.ModelProto:
    """Return a whole training step as one model: loss, gradient and update.

    Feeding the outputs ``next/<state>`` back as the inputs ``<state>`` trains in any runtime.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
    optimizer : str or Optimizer, default="sgd"
        Any but L-BFGS, which is a loop around loss and gradient.
    target : str, default="label"
        Wanted name of the input for targets.
    sample_weight : str, default=None
        Name of an input [N] with a weight for each row; None is no such input.
    penalty : Penalty, list of Penalty or dict, default=None
        See `onnxgrad.losses.Penalty`.
    trainable, frozen : str or list of str, default=None
        Names or glob patterns of weights.
    untie : bool, default=True
        Whether weights that are one in the file by accident are trained apart; see
        `TrainingSession`.
    groups, clip_value, clip_norm, accumulate, training_mode
        As for `TrainingSession`.
    schedule : str or Schedule, default=None
        See `onnxgrad.schedules`: the rate of each update follows from ``learning_rate`` and the
        count of updates, which is part of the state then.
    updates : int, default=None
        Updates of the whole training, for schedules whose length is a share of it or all of it, and
        for those that count epochs.
    epochs : int, default=1
        The epochs that these updates are.
    gradients : bool, default=False
        Whether ``<weight>_grad`` are outputs too.
    target_opset : int, default=26
        Operator set of the result, 9 to 26, as for `gradient`.
    inline : bool, default=False
        True leaves no model-local functions.

    Returns
    -------
    onnx.ModelProto
        Inputs: the model's, the target, the sample weight if there is one, ``learning_rate``
        (unless it is scheduled by `schedules.Optimal`, which takes no rate), with a
        `schedules.Plateau` its factor so far as ``plateau_factor`` (float64, rank 0), then the
        state: weights, optimizer state, ``step_count``, each with its first value as default.
        Outputs: the loss, gradients if asked for, then ``next/<state>`` in the same order.

    Raises
    ------
    ModelError, GradientError
        As `add_loss` and `gradient`.

    Examples
    --------
    >>> import onnxgrad as og
    >>> step = og.training_step(linear_model, "squared_error", "sgd")
    >>> [output.name for output in step.graph.output][:2]
    ['loss', 'next/coef']
    """
    described = as_optimizer(optimizer)
    return to_proto(
        _core.training_step(
            to_core_model(model),
            to_core_loss(loss, target, sample_weight or "", penalty=penalty),
            described._native(),
            patterns("trainable", trainable),
            patterns("frozen", frozen),
            bool(untie),
            update_options(described.lr, groups, clip_value, clip_norm, accumulate),
            bool(gradients),
            training_mode_of(training_mode),
            None if schedule is None else as_schedule(schedule)._native(),
            0 if updates is None else positive_int("updates", updates),
            positive_int("epochs", epochs),
            positive_int("target_opset", target_opset),
            bool(inline),
        )
    )


@checked_names
def initialize(
    model: ModelLike,
    scheme: str = "auto",
    seed: int = 0,
    *,
    weights: str | Iterable[str] | None = None,
    untie: bool = True,
) -> onnx.ModelProto:
    """Return a model with new random weights; everything else stays byte for byte as it was.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    scheme : str, default="auto"
        ``"auto"`` draws as scikit-learn's multi-layer perceptrons do for dense layers, and what is
        usual for others; or ``"glorot_uniform"``, ``"glorot_normal"``, ``"he_uniform"``,
        ``"he_normal"``, ``"lecun_uniform"``, ``"lecun_normal"``, ``"uniform"``, ``"normal"``,
        ``"zeros"``.
    seed : int, default=0
        The same seed draws the same weights on every machine.
    weights : str or list of str, default=None
        Names or glob patterns of the weights to draw; None is the trainable ones.
    untie : bool, default=True
        Whether weights that are one in the file by accident become several, each with numbers of
        its own; see `TrainingSession`.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        No valid model, or a pattern that matches nothing.

    Examples
    --------
    >>> import onnxgrad as og
    >>> one, two = og.initialize(linear_model, seed=1), og.initialize(linear_model, seed=2)
    >>> one == og.initialize(linear_model, seed=1), one == two
    (True, False)
    """
    core = core_initialize(to_core_model(model), scheme, seed, weights=weights, untie=untie)
    return to_proto(core)


def core_initialize(
    model: _core.Model,
    scheme: str = "auto",
    seed: int = 0,
    *,
    weights: str | Iterable[str] | None = None,
    untie: bool = True,
) -> _core.Model:
    """Do what `initialize` does, on the extension's models."""
    if scheme not in SCHEMES:
        raise unknown_name("scheme", scheme, SCHEMES)
    return _core.initialize(
        model, scheme, positive_int("seed", seed, 0), patterns("weights", weights), bool(untie)
    )


@checked_names
def set_weights(
    model: ModelLike, weights: Mapping[str, ArrayLike] | str | os.PathLike[str]
) -> onnx.ModelProto:
    """Return a model with these weights; everything else stays byte for byte as it was.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    weights : dict of str to array, or path
        Each with the dtype and shape of the weight; or the path of a checkpoint or of any other
        safetensors file. Names may be those of weights that training takes apart (``b_1``).

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        An unknown weight, or another dtype or shape.
    CheckpointError
        The file is damaged or no safetensors file.
    """
    if isinstance(weights, (str, os.PathLike)):
        named = _core.load_weights(path_text("weights", weights))
    else:
        named = to_feeds(weights)
    return to_proto(_core.set_weights(to_core_model(model), named))
