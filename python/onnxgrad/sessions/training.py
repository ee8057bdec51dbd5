"""Training a model step by step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from onnxgrad import _core
from onnxgrad.base.checks import (
    checked_names,
    flag,
    listed,
    path_text,
    plain_text,
    positive_int,
    real_number,
)
from onnxgrad.base.checks import patterns as pattern_list
from onnxgrad.base.engine_options import batch_opening_of, engine_options_of, training_mode_of
from onnxgrad.base.models import Kind, ModelLike, to_core_model
from onnxgrad.base.typed_options import documents_options
from onnxgrad.base.values import Evaluation, NodeArg, WeightInfo, node_args, weight_infos
from onnxgrad.data.arrays import (
    ArrayLike,
    are_on_device,
    from_native,
    from_native_list,
    to_feeds,
    to_native,
)
from onnxgrad.data.maps import is_map, with_rows
from onnxgrad.data.notes import warn
from onnxgrad.data.rows import own_tokens
from onnxgrad.data.tokens import completed
from onnxgrad.data.tokens.places import check_length_of
from onnxgrad.distributed.data_parallel import as_data_parallel
from onnxgrad.errors import DataError, OptionError, ShapeError
from onnxgrad.losses import LossLike, to_core_loss
from onnxgrad.losses.described import Auto
from onnxgrad.optimizers import Optimizer, OptimizerLike, as_optimizer, update_options
from onnxgrad.precision import as_precision
from onnxgrad.profiles import Memory, Profile, profiling
from onnxgrad.session_options import SessionOptions
from onnxgrad.session_options.model_changes import (
    awaits_rows,
    changed_model,
    check_adapter_is_trained,
    is_adapted,
    quantization_line,
)
from onnxgrad.session_options.taking import changed, takes_session_options, with_defaults
from onnxgrad.session_options.teaching import taught_loss, teacher_model
from onnxgrad.sessions.inference import NotPickled, as_declared, placed_as_declared
from onnxgrad.sessions.weights import SessionWeights

if TYPE_CHECKING:
    import os

    import numpy as np
    import onnx

__all__ = ["TrainingSession", "describes_training"]

StepLoss: TypeAlias = "float | np.ndarray[Any, Any]"


@documents_options(SessionOptions)
class TrainingSession(SessionWeights, NotPickled):
    """Trains a model step by step: loss, gradient and update are compiled into one step.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    loss : str or Loss, default="auto"
        See `onnxgrad.losses`.
    optimizer : str or Optimizer, default=None
        See `onnxgrad.optimizers`. None is ``"sgd"``; with ``loss="auto"``, a model that describes
        its training itself (``training_info``) is trained as it says, and the options that describe
        a training cannot be given.
    **options : SessionOptions

    Raises
    ------
    ModelError
        An invalid model, one without a value that a loss can be applied to, or a pattern that
        matches no weight.
    GradientError
        Nodes on the path to a trained weight have no gradient; the message names all of them.
    UnsupportedOperatorError
        The engine cannot run an operator.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> session = og.TrainingSession(linear_model, "squared_error", og.optimizers.SGD(lr=0.1))
    >>> X = np.array([[0, 1], [1, 0], [1, 1]], np.float32)
    >>> y = np.array([[2], [1], [3]], np.float32)
    >>> losses = [session.step({"X": X, "label": y}) for _ in range(100)]
    >>> losses[-1] < 0.05 * losses[0]
    True
    """

    @checked_names
    @takes_session_options(SessionOptions)
    def __init__(
        self,
        model: ModelLike,
        loss: LossLike = "auto",
        optimizer: OptimizerLike | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        given = with_defaults(SessionOptions, options)
        dist, threads = given["dist"], given["threads"]
        self._data_parallel = as_data_parallel(dist)
        if threads is None and self._data_parallel is not None:
            threads = self._data_parallel.workers.threads
        self._kind = Kind.of(model)
        start = to_core_model(model)
        self._awaits_rows = self._may_wait and awaits_rows(given)
        # Integers are made under an adapter: the model without it is kept until then.
        self._start = start if self._awaits_rows and is_adapted(given) else None
        without = {**given, "quantize": None} if self._awaits_rows else given
        self._model = changed_model(start, without, given["seed"])
        self._teacher = teacher_model(given["teacher"], start)
        self._is_of_file = describes_training(self._model, loss, optimizer)
        if self._is_of_file:
            _refuse_with_file(changed(SessionOptions, given))
        self._optimizer = (
            None if self._is_of_file else as_optimizer("sgd" if optimizer is None else optimizer)
        )
        self._outputs = pattern_list("outputs", given["outputs"])
        weight = given["sample_weight"]
        self._sample_weight = "" if weight is None else plain_text("sample_weight", weight)
        self._weighs_positions = False
        trainable = pattern_list("trainable", given["trainable"])
        check_adapter_is_trained(self._model, given, trainable)
        frozen = pattern_list("frozen", given["frozen"])
        groups = listed(given["groups"])
        stops = pattern_list("stop_gradient", given["stop_gradient"])
        # Iterators are read once.
        given |= {"trainable": trainable, "frozen": frozen, "outputs": self._outputs}
        given |= {"groups": groups, "stop_gradient": stops}
        self._arguments: dict[str, Any] = {"loss": loss, "optimizer": optimizer, **given}
        del self._arguments["dist"]
        self._threads = threads
        self._core = self._compiled(self._model)
        inputs = self._core.inputs
        self._of_model: Any = SimpleNamespace(inputs=inputs[: len(inputs) // self._views])
        self._first_trained = {weight.name for weight in self.trained_weights}
        self._first_values = {} if self._start is None else self._trained_values()
        if not self._is_of_file:
            self._warn_about_patterns([])

    _inputs_of: Any = None  # the session of the extension whose inputs are known
    _may_wait = False  # whether the rows to calibrate with may be given later

    @classmethod
    def _waiting(cls, model: ModelLike, **arguments: Any) -> TrainingSession:
        """Return a session for a `Trainer`, which calibrates it by `_quantize`."""
        session = cls.__new__(cls)
        session._may_wait = True
        session.__init__(model, **arguments)  # type: ignore[misc]
        return session

    def _compiled(self, model: _core.Model) -> _core.TrainingSession:
        """Return the session of the extension for a model with these arguments."""
        given = self._arguments
        task = to_core_loss(
            given["loss"], given["target"], self._sample_weight, penalty=given["penalty"]
        )
        self._views: int = task.views
        return _core.TrainingSession(
            model,
            taught_loss(task, model, self._teacher, given["distill"], given["seed"]),
            None if self._optimizer is None else self._optimizer._native(),
            given["trainable"],
            given["frozen"],
            flag("untie", given["untie"]),
            self._outputs,
            update_options(
                0.0 if self._optimizer is None else self._optimizer.lr,
                given["groups"],
                given["clip_value"],
                given["clip_norm"],
                given["accumulate"],
                given["average"],
                given["sam"],
            ),
            given["stop_gradient"],
            training_mode_of(given["training_mode"]),
            batch_opening_of(given["open_batch"]),
            as_precision(given["precision"])._native(),
            flag("skip_non_finite", given["skip_non_finite"]),
            flag("evaluation_only", given["evaluation_only"]),
            engine_options_of(given, self._threads),
            None if self._data_parallel is None else self._data_parallel._native(),
        )

    def _warn_about_patterns(self, patterns: list[str]) -> None:
        for text in self._core.pattern_warnings(patterns):
            warn(text, UserWarning)

    def _use_sample_weight(self, *, per_position: bool = False) -> None:
        """Give the loss an input for sample weights; weights and optimizer state are kept.

        With `per_position`, there is a weight for each label of a row, not one for the row.
        """
        if per_position or not self._sample_weight:
            self._sample_weight = self._sample_weight or "sample_weight"
            self._core.use_sample_weights(self._sample_weight, per_position)
            self._weighs_positions = self._weighs_positions or per_position

    def step(
        self, feeds: Mapping[str, ArrayLike]
    ) -> StepLoss | tuple[StepLoss, list[np.ndarray[Any, Any]]]:
        """Do one training step on a batch and return its loss before the update.

        Parameters
        ----------
        feeds : dict of str to array
            The inputs of the model, the target [N] or [N, K] under `target_name` (class numbers
            for a classifier; see `encode_target`), and the sample weight [N] if there is one.
            Inputs in the memory of the session's device are read in place; targets and weights are
            checked on the host.

        Returns
        -------
        float, or (float, list of numpy.ndarray) if `outputs` were requested
            With ``reduction="none"`` the loss is an array [N].

        Raises
        ------
        DataError
            A missing or unknown name, a wrong dtype, or a class number out of range.
        ShapeError
            Shapes that do not fit. The weights have not changed then.
        """
        native = self._feeds(feeds, has_target=True)
        core = self._core
        step = core.step_with_device_feeds if are_on_device(native) else core.step
        try:
            total, rows, outputs = step(native)
        except (DataError, ShapeError):
            check_length_of(self, feeds)
            raise
        loss: StepLoss = total if rows is None else from_native(rows)
        return (loss, from_native_list(outputs)) if self._outputs else loss

    def evaluate(self, feeds: Mapping[str, ArrayLike]) -> Evaluation:
        """Return loss and accuracy on a batch without an update; `feeds` as for `step`."""
        native = self._feeds(feeds, has_target=True)
        core = self._core
        evaluate = core.evaluate_with_device_feeds if are_on_device(native) else core.evaluate
        result = evaluate(native)
        return Evaluation(result.loss, result.accuracy, result.rows)

    def predict(
        self,
        feeds: Mapping[str, ArrayLike],
        output_names: Sequence[str] | None = None,
        *,
        to_host: bool = True,
    ) -> list[Any]:
        """Return outputs of the model with the current weights, as `InferenceSession.run` does."""
        names = pattern_list("output_names", output_names)
        native = self._feeds(feeds)
        try:
            if not flag("to_host", to_host) or are_on_device(native):
                placed = self._core.predict_on_device(native, names)
                return placed_as_declared(placed, names, self._core.outputs, to_host=to_host)
            outputs = from_native_list(self._core.predict(native, names))
        except (DataError, ShapeError):
            check_length_of(self, feeds)
            raise
        return as_declared(outputs, names, self._core.outputs)

    def _feeds(self, feeds: Mapping[str, ArrayLike], *, has_target: bool = False) -> dict[str, Any]:
        maps = type(feeds) is dict or isinstance(feeds, Mapping)
        if self._inputs_of is not self._core:
            self._inputs_of, self._inputs = self._core, self._core.inputs
            self._has_maps = any(map(is_map, self._inputs))
        if maps and len(feeds) <= len(self._inputs):  # keys and values, masks, targets
            feeds = completed(self._inputs, feeds)
            name = self.target_name if has_target else ""
            if name and name not in feeds:
                tokens = own_tokens(self._core, feeds)
                feeds = feeds if tokens is None else {**feeds, name: tokens}
        if maps and self._has_maps:
            feeds = with_rows(self._inputs, feeds)
        return to_feeds(feeds, in_place=True)

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs of the model, without target and sample weight."""
        return node_args(self._core.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs of the model."""
        return node_args(self._core.outputs)

    def freeze(self, patterns: str | Iterable[str]) -> None:
        """Keep trained weights as they are from the next step on.

        They and their optimizer state remain part of `state`; all others are trained as before.

        Parameters
        ----------
        patterns : str or list of str
            Names or glob patterns.

        Raises
        ------
        ModelError
            A pattern matches no trained weight, or nothing is left to train.

        Examples
        --------
        >>> import onnxgrad as og
        >>> session = og.TrainingSession(linear_model, optimizer="adam")
        >>> session.freeze("intercept")
        >>> [weight.name for weight in session.trained_weights]
        ['coef']
        >>> session.unfreeze("*")
        >>> [weight.name for weight in session.trained_weights]
        ['coef', 'intercept']
        """
        given = pattern_list("patterns", patterns)
        self._core.freeze(given)
        self._warn_about_patterns(given)

    def unfreeze(self, patterns: str | Iterable[str]) -> None:
        """Train floating-point weights that are frozen or were never trained.

        Parameters
        ----------
        patterns : str or list of str
            Names or glob patterns. A pattern selects parameters, and weights that were trained
            before; any other floating-point number, such as the ratio of a Dropout, is trained by
            its full name only. A weight continues from the optimizer state that it had.

        Raises
        ------
        ModelError
            A pattern matches no such weight, or the loss does not depend on a weight.
        GradientError
            Nodes on the path to a weight have no gradient.
        """
        given = pattern_list("patterns", patterns)
        self._core.unfreeze(given)
        self._warn_about_patterns(given)

    @property
    def loss_line(self) -> str:
        """The loss and the value that it is applied to, in one line."""
        return self._core.loss.line

    @property
    def loss_name(self) -> str:
        """Name of the loss, one of `losses.names`; never ``"auto"``."""
        return _core.loss_name(self._core.loss.function)

    @property
    def scores_name(self) -> str:
        """Name of the value of the model that the loss is applied to."""
        return self._core.loss.scores

    @property
    def target_name(self) -> str:
        """Name of the input for targets."""
        return self._core.loss.target.name

    @property
    def target_names(self) -> dict[str, str]:
        """Names of the inputs for targets, by the output of their loss."""
        loss = self._core.loss
        return {one.output: one.target.name for one in (loss, *loss.others)}

    @property
    def classes(self) -> np.ndarray[Any, Any] | None:
        """Labels of the classes [C] as the model lists them, or None."""
        classes = self._core.loss.classes
        return None if classes is None else from_native(classes)

    @property
    def class_axis(self) -> int | None:
        """Class axis of the scores if a row has several labels, else None."""
        axis: int | None = self._core.loss.class_axis
        return axis

    @property
    def is_classifier(self) -> bool:
        """Whether targets are classes."""
        return self._core.loss.is_classifier

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer; None if the model's file describes the training."""
        return self._optimizer

    @property
    def trained_weights(self) -> list[WeightInfo]:
        """The weights that are trained, in the order of the file."""
        return weight_infos(self._core.trained_weights)

    @property
    def weights_line(self) -> str:
        """Weights that are trained, those that are not and why, and those trained separately."""
        return self._core.weights_line

    @property
    def quantization_line(self) -> str:
        """Weights that `quantize` or `base` made integers; empty without them."""
        return "" if self._awaits_rows else quantization_line(self._model, self._arguments)

    @property
    def batch_line(self) -> str:
        """Treatment of a batch size that the file fixes; empty if the file has an open one."""
        return self._core.batch_line

    @property
    def fixed_batch(self) -> int | None:
        """Rows of every batch, if the file fixes them and they cannot be opened; else None."""
        return self._core.fixed_batch or None

    @property
    def lr(self) -> float:
        """Learning rate; a new one is used from the next step on.

        Of a training that the model's file describes, the initializer ``learning_rate`` of its
        algorithm; without one it is 0 and cannot be set.
        """
        return self._core.learning_rate

    @lr.setter
    def lr(self, value: float) -> None:
        self._core.learning_rate = real_number("lr", value)

    @property
    def steps(self) -> int:
        """Steps done since construction, `reset` or `load_state`."""
        return self._core.steps

    def encode_target(self, labels: ArrayLike, output: str = "") -> np.ndarray[Any, Any]:
        """Encode labels for the loss: class numbers int64 [N], or numbers [N, K].

        `output` selects one of several losses; empty means the first.

        Raises
        ------
        DataError
            An unknown label; the message names it, its row and the classes.
        """
        return from_native(
            self._core.encode_target(to_native(labels, "labels"), plain_text("output", output))
        )

    def reset(self) -> None:
        """Restore the initial weights and clear the optimizer state."""
        self._core.reset()

    def with_training_info(
        self, *, target_opset: int | None = None, inline: bool = False, like: bool = False
    ) -> onnx.ModelProto:
        """Return the trained model with its training, as it is now, as ``training_info``.

        What `add_training_info` writes, with the current weights, optimizer state and learning
        rate: a session on the result continues from here.

        Raises
        ------
        ModelError
            With L-BFGS, which is a loop around loss and gradient.
        """
        opset = 0 if target_opset is None else positive_int("target_opset", target_opset)
        return self._delivered(self._core.with_training_info(opset, flag("inline", inline)), like)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, from which training continues bit for bit.

        It has the weights, optimizer state, number of steps, learning rate and seed, as a
        safetensors file; see docs/checkpoints.md. The file is written under a temporary name and
        renamed, so it is never incomplete.

        Parameters
        ----------
        path : path
            Usually ends in ``.safetensors``. For the model itself see `trained_model`.

        Raises
        ------
        CheckpointError
            The file cannot be written, the disk is full, or the path is that of a checkpoint in a
            folder that a `fit` is writing to.

        Examples
        --------
        >>> import onnxgrad as og
        >>> session = og.TrainingSession(linear_model)
        >>> session.save("state.safetensors")
        >>> og.TrainingSession(linear_model).load("state.safetensors")
        """
        text = path_text("path", path)
        if text.endswith(".onnx"):
            raise OptionError(
                what=f"path: '{text}' is a model file, but a session saves a checkpoint",
                value="path",
                hint="Save it as .safetensors; onnx.save(session.trained_model(), path) writes the "
                "model.",
            )
        self._core.save(text)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint written by `save` or by a training with checkpoints.

        Everything is checked before anything is changed.

        Raises
        ------
        CheckpointError
            The file is damaged, or of another model, loss or optimizer; the message names the
            difference.
        """
        self._core.load(path_text("path", path))

    def plan_summary(self) -> str:
        """Return the kernels of the last step, one line each; empty before the first step."""
        return self._core.plan_summary()

    @contextlib.contextmanager
    def profiling(self) -> Iterator[Profile]:
        """Time the kernels of the steps inside a ``with`` block, including those of `Trainer.fit`.

        The `Profile` is filled in at the end of the block.

        Examples
        --------
        >>> import numpy as np
        >>> import onnxgrad as og
        >>> session = og.TrainingSession(linear_model, "squared_error")
        >>> feeds = {"X": np.ones((4, 2), np.float32), "label": np.ones((4, 1), np.float32)}
        >>> with session.profiling() as profile:
        ...     losses = [session.step(feeds) for _ in range(10)]
        >>> profile.kernels[0].calls
        10
        """
        with profiling(self._core) as profile:
            yield profile

    def memory(self) -> Memory:
        """Return the memory that the session uses, by purpose."""
        return Memory._of(self._core.memory())

    @property
    def num_compiled(self) -> int:
        """Plans compiled so far: one for each set of shapes, and for each branch of an If."""
        return self._core.num_compiled

    @property
    def num_cached(self) -> int:
        """Plans in the cache: at most 64 for input shapes, 64 for data-dependent ones."""
        return self._core.num_cached

    def __repr__(self) -> str:
        return f"TrainingSession({self._description()})"

    def _repr_html_(self) -> str:
        from onnxgrad.sessions.html import session_html

        return session_html(self)

    def _description(self) -> str:
        """Return a short description of loss, optimizer and progress."""
        weights = [weight.name for weight in self.trained_weights]
        names = ", ".join(weights[:3]) + (f", ... ({len(weights)})" if len(weights) > 3 else "")
        done = f"{self.steps} step{'s' * (self.steps != 1)}"
        loss = f"{self.loss_name or 'loss'} on '{self.scores_name}'"
        how = "trained as the file says" if self.optimizer is None else repr(self.optimizer)
        return f"{loss}, {how}, trains {names}, {done} done"


def describes_training(model: _core.Model, loss: LossLike, optimizer: OptimizerLike | None) -> bool:
    """Return whether the model's file says how to train it, and nothing else was asked for."""
    is_auto = isinstance(loss, Auto) or (isinstance(loss, str) and loss == "auto")
    return is_auto and optimizer is None and _core.has_training_info(model)


def _refuse_with_file(given: Iterable[str]) -> None:
    for option in ("target", "sample_weight", "penalty"):
        if option in given:
            raise OptionError(
                what=f"{option}= has no effect on the training that the model's file describes",
                value=option,
                hint="Pass loss= and optimizer= to train it otherwise than its file describes.",
            )
