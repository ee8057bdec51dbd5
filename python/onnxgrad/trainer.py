"""Training a model over a dataset."""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from onnxgrad import _core
from onnxgrad._arrays import ArrayLike, cast_number, from_native, to_native
from onnxgrad._checks import path_text, positive_int, real_number, unknown_name
from onnxgrad._class_weights import ClassWeight, with_class_weights
from onnxgrad._models import ModelLike, to_proto
from onnxgrad.callbacks import (
    CallbackLike,
    CallbackList,
    Checkpoint,
    CheckpointWarning,
    EarlyStopping,
    Progress,
)
from onnxgrad.errors import DataError, Error, OptionError
from onnxgrad.history import History, log_of
from onnxgrad.losses import LossLike, PenaltyLike, to_core_loss
from onnxgrad.optimizers import OptimizerLike, ParameterGroup, as_optimizer
from onnxgrad.schedules import ScheduleLike, as_schedule
from onnxgrad.sessions import Evaluation, TrainingSession

if TYPE_CHECKING:
    import os

    import numpy as np
    import onnx

__all__ = ["Trainer"]

Verbosity = Literal["auto", 0, 1, 2]


_NON_FINITE = {
    "raise": _core.OnNonFinite.raise_error,
    "stop": _core.OnNonFinite.stop,
    "skip": _core.OnNonFinite.skip,
    "ignore": _core.OnNonFinite.ignore,
}

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _one_at_a_time(
    fit: Callable[Concatenate[Trainer, _P], _R],
) -> Callable[Concatenate[Trainer, _P], _R]:
    # Refuses a second call before it has changed anything of the first one's.
    @functools.wraps(fit)
    def guarded(self: Trainer, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if self._fitting_thread:
            is_callback = self._fitting_thread == threading.get_ident()
            who = "the callback that makes this call" if is_callback else "fit in another thread"
            raise Error(
                what=f"the trainer is busy: it is running {who}",
                mend="Wait for the end of the training, or use another trainer.",
            )
        self._fitting_thread = threading.get_ident()
        try:
            return fit(self, *args, **kwargs)
        finally:
            self._fitting_thread = 0

    return guarded


class Trainer:
    """Trains a model on arrays: epochs, shuffling, batches, validation, history.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or TrainingSession
        A session is taken as it is, with its weights, loss and optimizer; the options that
        describe these cannot be given again.
    loss : str or Loss, default="auto"
        See `onnxgrad.losses`; ``"auto"`` takes it from the head of the model.
    optimizer : str or Optimizer, default="adam"
        See `onnxgrad.optimizers`.
    penalty : Penalty, list of Penalty or dict, default=None
        See `onnxgrad.losses.Penalty`; a dictionary is ``{"coef": {"l2": 0.01}}``.
    lr : float, default=None
        Learning rate; None is the optimizer's own.
    schedule : str or Schedule, default=None
        How the learning rate changes in each `fit`, from the present one on; see
        `onnxgrad.schedules`. None leaves it as it is.
    seed : int, default=0
        Of shuffling, the validation split, and random operators.
    threads : int, default=None
        None takes the cores that this process may use.
    trainable, frozen : str or list of str, default=None
        Names or glob patterns of the weights to train and of those that stay as they are.
    groups, clip_value, clip_norm, accumulate, training_mode
        See `TrainingSession`.
    device : {"cpu"}, default="cpu"

    Attributes
    ----------
    history : History
        Of the last `fit`: a dictionary of lists with one number for each epoch.
    session : TrainingSession
        The weights, and what is done with them in a step.
    stop_reason : str
        Why the last `fit` ended before its last epoch; empty if it did not.
    checkpoint_problem : str
        Why the last checkpoint is missing; empty if it is there, or none was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> X = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    >>> y = X @ np.array([[1.0], [-2.0]], np.float32) + 0.5
    >>> trainer = og.Trainer(linear_model, optimizer="sgd", lr=0.1)
    >>> trainer.fit(X, y, epochs=20, verbose=0).history["train_loss"][-1] < 1e-6
    True
    >>> trainer.predict(np.array([[1.0, 1.0]], np.float32)).round(2)
    array([[-0.5]], dtype=float32)
    """

    _fitting_thread = 0  # its id while `fit` runs

    def __init__(
        self,
        model: ModelLike | TrainingSession,
        loss: LossLike = "auto",
        optimizer: OptimizerLike = "adam",
        *,
        penalty: PenaltyLike | None = None,
        lr: float | None = None,
        schedule: ScheduleLike | None = None,
        seed: int = 0,
        threads: int | None = None,
        trainable: str | Iterable[str] | None = None,
        frozen: str | Iterable[str] | None = None,
        groups: ParameterGroup | Iterable[ParameterGroup] = (),
        clip_value: float | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        training_mode: bool | str = "auto",
        device: str = "cpu",
    ) -> None:
        self.seed = positive_int("seed", seed, 0)
        self.schedule = None if schedule is None else as_schedule(schedule)
        if isinstance(model, TrainingSession):
            given = {
                "loss": loss != "auto",
                "penalty": penalty is not None,
                "optimizer": optimizer != "adam",
                "threads": threads is not None,
                "trainable": trainable is not None,
                "frozen": frozen is not None,
                "groups": groups != (),
                "clip_value": clip_value is not None,
                "clip_norm": clip_norm is not None,
                "accumulate": accumulate != 1,
                "training_mode": training_mode != "auto",
            }
            for option, is_given in given.items():
                if is_given:
                    raise OptionError(
                        what=f"{option} cannot be given together with a session",
                        value=option,
                        mend="Give it to the TrainingSession.",
                    )
            self.session = model
            if lr is not None:
                self.session.lr = lr
            self._core = _core.Trainer(self.session._core)
        else:
            self.session = _OwnSession(
                model,
                loss,
                as_optimizer(optimizer, lr),
                penalty=penalty,
                trainable=trainable,
                frozen=frozen,
                groups=groups,
                clip_value=clip_value,
                clip_norm=clip_norm,
                accumulate=accumulate,
                training_mode=training_mode,
                device=device,
                threads=threads,
                seed=seed,
            )
            self._core = self.session._trainer
        # The extension's trainer owns the session; the Python session refers to it.
        self.session._core = self._core.session
        self.history = History()
        self.stop_reason = ""
        self.checkpoint_problem = ""
        self.epochs = 0
        self._callbacks = CallbackList([])

    @_one_at_a_time
    def fit(
        self,
        X: ArrayLike | Mapping[str, ArrayLike],
        y: ArrayLike | Mapping[str, ArrayLike],
        sample_weight: ArrayLike | None = None,
        *,
        class_weight: ClassWeight | None = None,
        validation: float | Sequence[Any] | None = None,
        epochs: int = 10,
        batch_size: int | None = None,
        shuffle: bool = True,
        callbacks: Iterable[CallbackLike] = (),
        verbose: Verbosity = "auto",
        allow_nan: bool = False,
        non_finite: str = "raise",
        resume: bool | str | os.PathLike[str] = False,
    ) -> Trainer:
        """Train for some epochs, going on from the present weights.

        Parameters
        ----------
        X : array [N, ...] or dict of str to array
            Rows, for models with several inputs by input name. NumPy, DLPack, or anything that
            NumPy can read. Contiguous arrays of the declared type are read in place and must not
            change meanwhile.
        y : array [N] or [N, K]
            Labels as the model lists them (numbers or texts), or values; with several losses a
            dictionary by the output that each is on.
        sample_weight : array [N], default=None
            A weight of at least 0 for each row.
        class_weight : dict, "balanced" or None, default=None
            A weight for the rows of each class, by label; others count 1. ``"balanced"`` is
            N / (number of classes * number of rows of the class). They multiply the sample weights
            of the rows in X, not those of validation rows of their own.
        validation : float, (X, y), (X, y, sample_weight) or None, default=None
            A share of the rows in (0, 1) that is kept for validation (the same share of each
            class), or rows of its own.
        epochs : int, default=10
        batch_size : int, default=None
            None is 32 rows, or all rows with `optimizers.LBFGS`.
        shuffle : bool, default=True
            A new order of the rows in each epoch, given by `seed` and the number of the epoch.
        callbacks : list of Callback or function, default=()
            See `onnxgrad.callbacks`; a function is called with (trainer, logs) after each epoch.
        verbose : {"auto", 0, 1, 2}, default="auto"
            ``"auto"`` writes a line for each epoch to standard error, with a bar on a terminal;
            0 nothing, 1 lines, 2 also the weights and the plan.
        allow_nan : bool, default=False
            Whether NaN and infinity in X are let through.
        non_finite : {"raise", "stop", "skip", "ignore"}, default="raise"
            What a loss that is NaN or infinite does: raise `ConvergenceError`, end the training
            with the message as `stop_reason`, leave out the step (weights and optimizer state stay,
            also where only the new weights would not be finite), or nothing.
        resume : bool or path, default=False
            Goes on from a checkpoint of an earlier `fit` with the same data and options (`epochs`,
            the number in all, may differ), bit for bit as if that had not been stopped: from this
            file, from the newest whole one of this folder, or with True from the newest one of the
            `callbacks.Checkpoint`, if there is any.

        Returns
        -------
        Trainer
            Itself.

        Raises
        ------
        DataError
            NaN or infinity (names column and row), an unknown label, wrong dtype, rows or columns.
            Raised before the first step.
        ConvergenceError
            The loss became NaN or infinite; names step, batch and the first node whose result was
            not finite. The weights are the last finite ones.
        CheckpointError
            Nothing to resume from, or a checkpoint of another model, of other data or options;
            names the first difference. A folder for checkpoints that cannot be used. Raised before
            the first step; nothing has changed then.
        KeyboardInterrupt
            Ctrl-C, after the present step; the weights of that step stay, and can be saved.

        Notes
        -----
        The loop does not hold the interpreter lock. One `fit` at a time.
        """
        options = _core.FitOptions()
        options.epochs = self.epochs = positive_int("epochs", epochs)
        if batch_size is not None:
            options.batch_size = positive_int("batch_size", batch_size)
        options.schedule = None if self.schedule is None else self.schedule._native()
        options.shuffle = bool(shuffle)
        options.seed = self.seed
        options.allow_nan = bool(allow_nan)
        if non_finite not in _NON_FINITE:
            raise unknown_name("non_finite", non_finite, list(_NON_FINITE))
        options.on_non_finite = _NON_FINITE[non_finite]
        if class_weight is not None:
            sample_weight = with_class_weights(class_weight, y, sample_weight)
        if sample_weight is not None or _has_weight(validation):
            self._use_sample_weight(y)
        data = self._dataset(X, y, sample_weight)
        held_out = self._validation(validation, options)
        self._callbacks = CallbackList([*_progress(verbose), *callbacks])
        for callback in self._callbacks.callbacks:
            if isinstance(callback, EarlyStopping):
                options.early_stopping = _core.EarlyStopping(
                    callback.patience, callback.min_delta, callback.restore_best
                )
            elif isinstance(callback, Checkpoint):
                options.checkpoint = _core.CheckpointOptions(
                    callback.path, callback.every_steps, callback.keep, callback.best
                )
                if resume is True:
                    options.resume, options.resume_if_any = callback.path, True
        if not isinstance(resume, bool):
            options.resume = path_text("resume", resume)
        elif resume and not options.resume:
            raise OptionError(
                what="resume=True, but there is no callbacks.Checkpoint",
                value="resume",
                mend="Add one, or give the path of a checkpoint.",
            )
        self._choose_loss(y)
        self._run(data, options, held_out, verbose)
        return self

    def _run(
        self,
        data: _core.Dataset,
        options: _core.FitOptions,
        held_out: _core.Dataset | None,
        verbose: Verbosity,
    ) -> None:
        self.history = History()
        self.stop_reason = ""
        if verbose != 0:
            print(self.session.loss_line, file=sys.stderr)
        if verbose == 2:
            for weight in self.session.trained_weights:
                print(f"trained: {weight.name} {list(weight.shape)}", file=sys.stderr)
        listeners = self._callbacks
        steps = [c.every_n_steps for c in listeners.handlers("on_step_end") if c.every_n_steps]
        options.every_n_steps = min(steps, default=0)
        hooks_epoch = any(
            listeners.handlers(hook)
            for hook in ("on_epoch_begin", "on_epoch_end", "on_validation_end")
        )
        saves = options.checkpoint is not None or options.resume
        try:
            if self._call("on_train_begin") or self._call("on_epoch_begin"):
                return
            self._core.fit(
                data,
                options,
                held_out,
                self._on_epoch_end if hooks_epoch else None,
                self._on_step_end if steps else None,
                self._on_checkpoint if saves else None,
                threading.current_thread() is threading.main_thread(),
            )
        except BaseException as error:
            self._collect()
            if isinstance(error, KeyboardInterrupt):
                self.stop_reason = "interrupted"
            self._call("on_exception", error)
            raise
        else:
            self._collect()
        finally:
            self._call("on_train_end")
        if verbose == 2:
            print(self.session.plan_summary(), file=sys.stderr)

    def _collect(self) -> None:
        native = self._core.history
        self.history = History.from_logs(log_of(epoch) for epoch in native.epochs)
        self.stop_reason = self.stop_reason or native.stop_reason
        self.checkpoint_problem = native.checkpoint_problem

    def _call(self, hook: str, *arguments: Any) -> bool:
        stop = self._callbacks.call(hook, self, *arguments)
        if stop and not self.stop_reason:
            self.stop_reason = f"asked for by {hook} of a callback"
        return stop

    def _on_epoch_end(self, epoch: _core.EpochLog) -> bool:
        logs = log_of(epoch)
        if epoch.epoch == len(self.history.get("epoch", ())) + 1:
            self.history.append(logs)
        else:  # the fit was resumed
            self._collect()
        stop = "val_loss" in logs and self._call("on_validation_end", logs)
        stop = self._call("on_epoch_end", logs) or stop
        if not stop and epoch.epoch < self.epochs and not self.stop_reason:
            stop = self._call("on_epoch_begin")
        return stop or bool(self.stop_reason)

    def _on_step_end(self, step: _core.StepLog) -> bool:
        logs = {
            "epoch": float(step.epoch),
            "step": float(step.step),
            "train_loss": step.loss,
        }
        return self._call("on_step_end", logs) or bool(self.stop_reason)

    def _on_checkpoint(self, path: str, problem: str) -> None:
        if problem:
            warnings.warn(f"checkpoint '{path}': {problem}", CheckpointWarning, stacklevel=2)
        else:
            self._call("on_checkpoint", path)

    def stop(self, reason: str = "stop() was called") -> None:
        """End a running `fit` after its present step; callable from callbacks and other threads.

        Parameters
        ----------
        reason : str
            What `stop_reason` will say.
        """
        self.stop_reason = reason
        self._core.stop()

    def reset(self) -> None:
        """Go back to the first weights, an empty optimizer state and an empty history."""
        self._core.reset()
        self.history = History()
        self.stop_reason = ""

    def predict(
        self, X: ArrayLike | Mapping[str, ArrayLike], output: str | None = None
    ) -> np.ndarray[Any, Any]:
        """Return an output of the model with the present weights.

        Parameters
        ----------
        X : array [N, ...] or dict of str to array
        output : str, default=None
            Name of the output; None is the first one (of a classifier of scikit-learn the label).

        Returns
        -------
        numpy.ndarray [N, ...]
        """
        outputs = self.session._core.outputs
        names = [value.name for value in outputs]
        if output is not None and output not in names:
            raise unknown_name("output", output, names)
        feeds = dict(self._inputs(X))
        dtypes = {value.name: value.dtype for value in self.session._core.inputs}
        feeds = {n: cast_number(value, dtypes.get(n, ""), n) for n, value in feeds.items()}
        return from_native(self.session._core.predict(feeds, [output or names[0]])[0])

    def evaluate(
        self,
        X: ArrayLike | Mapping[str, ArrayLike],
        y: ArrayLike | Mapping[str, ArrayLike],
        sample_weight: ArrayLike | None = None,
        *,
        batch_size: int = 256,
    ) -> Evaluation:
        """Return loss and accuracy over rows, as (loss, accuracy, rows); data as for `fit`."""
        if sample_weight is not None:
            self._use_sample_weight(y)
        data = self._dataset(X, y, sample_weight)
        result = self._core.evaluate(data, positive_int("batch_size", batch_size))
        return Evaluation(result.loss, result.accuracy, result.rows)

    def freeze(self, patterns: str | Iterable[str]) -> None:
        """Keep trained weights as they are in the next `fit`; see `TrainingSession.freeze`."""
        self.session.freeze(patterns)

    def unfreeze(self, patterns: str | Iterable[str]) -> None:
        """Train weights again, or for the first time; see `TrainingSession.unfreeze`."""
        self.session.unfreeze(patterns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as it was loaded, with the present weights.

        Everything else in the file stays byte for byte as it was. The file is written under
        another name first, so there is never half a file under this one.

        Raises
        ------
        CheckpointError
            If the file cannot be written.
        """
        text = path_text("path", path)
        self._core.save(text)
        self._call("on_checkpoint", text)

    def trained_model(self) -> onnx.ModelProto:
        """Return the model as it was loaded, with the present weights."""
        return to_proto(self._core.trained_model())

    def __reduce__(self) -> str:
        raise TypeError("a Trainer cannot be pickled; save(path) writes the trained model")

    def _choose_loss(self, y: ArrayLike | Mapping[str, ArrayLike]) -> _core.LossInfo:
        """Settle an automatic loss by the labels."""
        if isinstance(y, Mapping):
            return self._core.session.loss
        return self._core.choose_loss(to_native(y, "y"))

    def _use_sample_weight(self, y: ArrayLike | Mapping[str, ArrayLike]) -> None:
        """Give the loss an input for sample weights; weights and optimizer state stay."""
        session = self.session
        if session._sample_weight:
            return
        chosen = self._choose_loss(y).function
        before = session._core
        session._sample_weight = "sample_weight"
        session._chosen = chosen
        session._build()
        self._core = _core.Trainer(session._core)
        session._core = self._core.session
        session._core.continue_from(before)

    def _inputs(self, X: ArrayLike | Mapping[str, ArrayLike]) -> Iterable[tuple[str, Any]]:
        if isinstance(X, Mapping):
            return [(str(name), to_native(value, str(name))) for name, value in X.items()]
        names = [value.name for value in self.session._core.inputs]
        if len(names) != 1:
            raise DataError(
                what=f"X is one array, but the model has {len(names)} inputs",
                value="X",
                mend=f"Give a dictionary with {', '.join(repr(name) for name in names)}.",
            )
        return [(names[0], to_native(X, "X"))]

    def _dataset(self, X: Any, y: Any, sample_weight: Any) -> _core.Dataset:
        weight = None if sample_weight is None else to_native(sample_weight, "sample_weight")
        inputs = dict(self._inputs(X))
        if isinstance(y, Mapping):
            targets = {str(name): to_native(value, str(name)) for name, value in y.items()}
            return _core.Dataset(inputs, None, targets, weight)
        return _core.Dataset(inputs, to_native(y, "y"), {}, weight)

    def _validation(
        self, validation: float | Sequence[Any] | None, options: _core.FitOptions
    ) -> _core.Dataset | None:
        if validation is None:
            return None
        if isinstance(validation, (tuple, list)):
            if len(validation) not in (2, 3):
                raise OptionError(
                    what=f"validation: {len(validation)} arrays, expected (X, y)",
                    value="validation",
                )
            weight = validation[2] if len(validation) == 3 else None
            return self._dataset(validation[0], validation[1], weight)
        share: Any = validation
        options.validation_fraction = real_number("validation", share, 0.0, 1.0, open_minimum=True)
        return None


class _OwnSession(TrainingSession):
    """A session that was made by a trainer, which may still settle an automatic loss."""

    _trainer: _core.Trainer

    def _build(self) -> None:
        if self._sample_weight:
            super()._build()
            return
        self._trainer = _core.Trainer(
            self._model,
            to_core_loss(self._loss, self._target, penalty=self._penalty),
            self._optimizer._native(),
            self._trainable,
            self._frozen,
            self._update,
            self._training_mode,
            self._engine,
        )


def _progress(verbose: Verbosity) -> list[Progress]:
    if verbose not in ("auto", 0, 1, 2):
        raise OptionError(what=f"verbose: {verbose!r}, expected 'auto', 0, 1 or 2", value="verbose")
    if verbose == 0:
        return []
    return [Progress(bar=None if verbose == "auto" else False)]


def _has_weight(validation: Any) -> bool:
    return (
        isinstance(validation, (tuple, list))
        and len(validation) == 3
        and (validation[2] is not None)
    )
