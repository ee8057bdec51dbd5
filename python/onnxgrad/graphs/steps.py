"""Models with a loss, and training steps as models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, flag, patterns, plain_text, positive_int
from onnxgrad.base.engine_options import training_mode_of
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model
from onnxgrad.losses import LossLike, to_core_loss
from onnxgrad.optimizers import OptimizerLike, as_optimizer, update_options
from onnxgrad.precision import as_precision
from onnxgrad.schedules import as_schedule
from onnxgrad.session_options import LossOptions, StepOptions
from onnxgrad.session_options.model_changes import changed_model
from onnxgrad.session_options.taking import takes_session_options, with_defaults
from onnxgrad.session_options.teaching import taught_loss, teacher_model

if TYPE_CHECKING:
    import onnx

__all__ = ["add_loss", "add_training_info", "training_step"]


@checked_names
@takes_session_options(LossOptions)
def add_loss(
    model: ModelLike,
    loss: LossLike = "auto",
    *,
    loss_name: str = "loss",
    keep_outputs: bool = True,
    target_opset: int | None = None,
    **options: Unpack[LossOptions],
) -> onnx.ModelProto:
    """Return a model with a loss as its first output.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
        See `onnxgrad.losses`.
    loss_name : str, default="loss"
        Preferred name of the new output, of shape [] (or [N] with ``reduction="none"``).
    keep_outputs : bool, default=True
        Whether to keep the model's outputs, after the loss.
    target_opset : int, default=None
        Operator set of the result, 9 to 26; None means that of `model`, which may be too old to
        express the loss.
    **options : LossOptions

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
    given = with_defaults(LossOptions, options)
    kind = kind_if(given["like"], model, given["path"])
    student = to_core_model(model)
    task = to_core_loss(loss, given["target"], given["sample_weight"], penalty=given["penalty"])
    teacher = teacher_model(given["teacher"], student)
    described = taught_loss(task, student, teacher, given["distill"])
    opset = 0 if target_opset is None else positive_int("target_opset", target_opset)
    name, keeps = plain_text("loss_name", loss_name, "loss"), flag("keep_outputs", keep_outputs)
    native = _core.add_loss(student, described, name, keeps, opset)
    return deliver(native, given["path"], kind)


@checked_names
@takes_session_options(StepOptions)
def training_step(
    model: ModelLike,
    loss: LossLike = "auto",
    optimizer: OptimizerLike = "sgd",
    *,
    gradients: bool = False,
    target_opset: int = 26,
    **options: Unpack[StepOptions],
) -> onnx.ModelProto:
    """Return a training step as one model: loss, gradient and update.

    It trains in any runtime that feeds the outputs ``next/<state>`` back as inputs ``<state>``.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
    optimizer : str or Optimizer, default="sgd"
        Any but L-BFGS, which is a loop around loss and gradient.
    gradients : bool, default=False
        Whether to add the outputs ``<weight>_grad``.
    target_opset : int, default=26
        Operator set of the result, 9 to 26, as for `gradient`.
    **options : StepOptions

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
    given = with_defaults(StepOptions, options)
    kind = kind_if(given["like"], model, given["path"])
    student = to_core_model(model)
    adapted = changed_model(student, given)
    native = _core.training_step(
        adapted,
        gradients=flag("gradients", gradients),
        target_opset=positive_int("target_opset", target_opset),
        **_native_options(loss, optimizer, given, student, adapted),
    )
    return deliver(native, given["path"], kind)


@checked_names
@takes_session_options(StepOptions)
def add_training_info(
    model: ModelLike,
    loss: LossLike = "auto",
    optimizer: OptimizerLike = "adam",
    *,
    target_opset: int | None = None,
    **options: Unpack[StepOptions],
) -> onnx.ModelProto:
    """Return a model that describes its own training, as ONNX defines it (TrainingInfoProto).

    `Trainer`, `TrainingSession` and ``onnxgrad train`` train such a model without a loss or an
    optimizer; so can any runtime that executes ``training_info``. See also
    `Trainer.with_training_info`, which writes a training as it is now. A schedule cannot have a
    `schedules.Plateau`, which follows the losses of epochs.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
    optimizer : str or Optimizer, default="adam"
        Any but L-BFGS, which is a loop around loss and gradient.
    target_opset : int, default=None
        Operator set of the whole file, 9 to 26; None is that of `model`, or 26 if the training
        cannot be expressed in it.
    **options : StepOptions

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
    given = with_defaults(StepOptions, options)
    kind = kind_if(given["like"], model, given["path"])
    student = to_core_model(model)
    adapted = changed_model(student, given)
    native = _core.add_training_info(
        adapted,
        target_opset=0 if target_opset is None else positive_int("target_opset", target_opset),
        **_native_options(loss, optimizer, given, student, adapted),
    )
    return deliver(native, given["path"], kind)


def _native_options(
    loss: LossLike,
    optimizer: OptimizerLike,
    given: StepOptions,
    student: _core.Model,
    adapted: _core.Model,
) -> dict[str, Any]:
    """Convert loss, optimizer and options for the extension.

    `adapted` is the student with the head and the adapter that the options ask for.
    """
    described = as_optimizer(optimizer)
    schedule, updates = given["schedule"], given["updates"]
    task = to_core_loss(loss, given["target"], given["sample_weight"], penalty=given["penalty"])
    teacher = teacher_model(given["teacher"], student)
    return {
        "loss": taught_loss(task, adapted, teacher, given["distill"]),
        "optimizer": described._native(),
        "trainable": patterns("trainable", given["trainable"]),
        "frozen": patterns("frozen", given["frozen"]),
        "untie": flag("untie", given["untie"]),
        "update": update_options(
            described.lr,
            given["groups"],
            given["clip_value"],
            given["clip_norm"],
            given["accumulate"],
            given["average"],
            given["sam"],
        ),
        "stop_gradient": patterns("stop_gradient", given["stop_gradient"]),
        "training_mode": training_mode_of(given["training_mode"]),
        "precision": as_precision(given["precision"])._native(),
        "schedule": None if schedule is None else as_schedule(schedule)._native(),
        "updates": 0 if updates is None else positive_int("updates", updates),
        "epochs": positive_int("epochs", given["epochs"]),
        "inline_functions": flag("inline", given["inline"]),
    }
