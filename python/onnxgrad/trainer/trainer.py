"""Training a model over a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, flag, positive_int, real_number
from onnxgrad.base.messages import Verbosity
from onnxgrad.base.models import Kind, ModelLike, to_core_model
from onnxgrad.base.typed_options import documents_options
from onnxgrad.callbacks import CallbackLike, EarlyStopping
from onnxgrad.callbacks.log import messages
from onnxgrad.callbacks.progress import progress_for
from onnxgrad.callbacks.several import CallbackList, stopping_of
from onnxgrad.data import Source
from onnxgrad.data.arrays import ArrayLike, NativeArray, from_native
from onnxgrad.data.changes import AugmentationLike, as_augmentations
from onnxgrad.data.columns import feeds_of
from onnxgrad.data.labels import (
    ClassWeight,
    Labels,
    native_class_weights,
    native_targets,
    with_class_weights,
)
from onnxgrad.data.notes import report_notes
from onnxgrad.data.rows import (
    NativeRows,
    as_source,
    check_alone,
    has_weight,
    named_inputs,
    own_tokens,
    validation_names,
)
from onnxgrad.data.tokens.places import check_length_of
from onnxgrad.data.unlabelled import read_if_unlabelled
from onnxgrad.distributed.data_parallel import DataParallelLike
from onnxgrad.errors import DataError, OptionError
from onnxgrad.history import History
from onnxgrad.losses import LossLike
from onnxgrad.metrics import MetricLike, native_metrics
from onnxgrad.optimizers import OptimizerLike, as_optimizer
from onnxgrad.schedules import ScheduleLike, as_schedule
from onnxgrad.session_options import TrainerOptions
from onnxgrad.session_options.taking import changed, takes_session_options, with_defaults
from onnxgrad.sessions import Evaluation, TrainingSession
from onnxgrad.sessions.training import describes_training
from onnxgrad.trainer.described import FitOptions
from onnxgrad.trainer.guards import one_at_a_time
from onnxgrad.trainer.hooks import FitHooks
from onnxgrad.trainer.options import complete, native_fit_options, takes_fit_options
from onnxgrad.trainer.row_checks import check_pairs, check_some_count
from onnxgrad.trainer.rows import (
    calibrated,
    convert,
    dataset,
    table_as_rows,
    unpack,
    validation_rows,
)

if TYPE_CHECKING:
    from onnxgrad.run_folder import RunFolder
    from onnxgrad.trainer.lr_finder import LrFinder

__all__ = ["Trainer"]

DataLike: TypeAlias = Any
"""An array, a dictionary of arrays, an iterable of batches, or a `data.Source`."""


@documents_options(TrainerOptions)
class Trainer(FitHooks):
    """Trains a model on arrays: epochs, shuffling, batches, validation, history.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or TrainingSession
        A session is used as it is, with its weights, loss and optimizer; options of the session
        cannot be given then.
    loss : str or Loss, default="auto"
        See `onnxgrad.losses`; ``"auto"`` chooses it by the head of the model.
    optimizer : str or Optimizer, default=None
        See `onnxgrad.optimizers`. None is ``"adam"``; with ``loss="auto"``, a model that describes
        its training itself (``training_info``) is trained as it says.
    lr : float, default=None
        Learning rate; None means the optimizer's own.
    schedule : str or Schedule, default=None
        How the learning rate changes in each `fit`, starting from the current one; see
        `onnxgrad.schedules`. None keeps it constant.
    seed : int, default=0
        Seed of shuffling, the validation split, and random operators.
    dist : "auto", Workers, distributed.DataParallel or None, default="auto"
        The workers of a data-parallel training, which all make the same calls. ``"auto"``: those
        that the launcher of this process started (mpirun, srun, torchrun), if it did. `batch_size`
        is then that of all workers together, and results are those of one worker; see
        docs/distributed.md. None: this process is alone.
    **options : TrainerOptions

    Attributes
    ----------
    history : History
        History of the last `fit`: a dictionary of lists with one number for each epoch; for very
        long fits see `max_history` of `fit`.
    session : TrainingSession
        The weights and the compiled training step.
    stop_reason : str
        Why the last `fit` ended before its last epoch; empty if it did not.
    checkpoint_problem : str
        Why the last checkpoint is missing; empty if it was written or not requested.
    skipped_steps : int
        Steps that the last ``fit(non_finite="skip")`` skipped.
    row_weights : numpy.ndarray or None
        For callbacks: weights of the rows with ``sampling="weighted"``, which `on_epoch_begin` may
        set for the coming epochs.
    is_best : bool
        For callbacks: whether the epoch that just ended is the best so far.
    run_dir : pathlib.Path or None
        The run folder of the last `fit`.
    validation_names : list of str
        Names of the validation results of the last `fit`: ``val_loss`` and so on.

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

    _fitting_thread = 0  # identifier of the thread that runs `fit`

    @checked_names
    @takes_session_options(TrainerOptions)
    def __init__(
        self,
        model: ModelLike | TrainingSession,
        loss: LossLike = "auto",
        optimizer: OptimizerLike | None = None,
        *,
        lr: float | None = None,
        schedule: ScheduleLike | None = None,
        seed: int = 0,
        dist: DataParallelLike | None = "auto",
        **options: Unpack[TrainerOptions],
    ) -> None:
        self.seed = positive_int("seed", seed, 0)
        self.schedule = None if schedule is None else as_schedule(schedule)
        if isinstance(model, TrainingSession):
            given = {
                "loss": loss != "auto",
                "optimizer": optimizer not in (None, "adam"),
                **dict.fromkeys(
                    changed(TrainerOptions, with_defaults(TrainerOptions, options)), True
                ),
                "device": False,  # that of the session, whichever is named
                "dist": dist is not None and dist != "auto",
            }
            _refuse_with_session(given)
            self.session = model
            if lr is not None:
                self.session.lr = lr
        else:
            kind = Kind.of(model)
            model = to_core_model(model)
            is_of_file = describes_training(model, loss, optimizer)
            optimizer = "adam" if optimizer is None else optimizer
            self.session = TrainingSession._waiting(
                model,
                loss=loss,
                optimizer=None if is_of_file else as_optimizer(optimizer, lr),
                seed=seed,
                dist=dist,
                **options,
            )
            self.session._kind = kind
            if is_of_file and lr is not None:
                self.session.lr = lr
        self._core = _core.Trainer(self.session._core)
        self.history = History()
        self.stop_reason = ""
        self.checkpoint_problem = ""
        self.skipped_steps = 0
        self.epochs = 0
        self.validation_names: list[str] = []
        self.is_best = False
        self._is_trial = self._is_weighted = False
        self.run_dir: Path | None = None
        self._labels = Labels()
        self._callbacks = CallbackList([])

    @one_at_a_time
    @checked_names
    @takes_fit_options
    def fit(
        self,
        X: DataLike,
        y: ArrayLike | Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        class_weight: ClassWeight | None = None,
        validation: float | Sequence[Any] | Source | None = None,
        metrics: MetricLike | Iterable[MetricLike] | Mapping[str, MetricLike] = (),
        augment: AugmentationLike = (),
        row_weights: ArrayLike | None = None,
        early_stopping: bool | EarlyStopping = False,
        run_dir: str | os.PathLike[str] | RunFolder | None = None,
        callbacks: CallbackLike | Iterable[CallbackLike] = (),
        verbose: Verbosity = "auto",
        resume: bool | str | os.PathLike[str] = False,
        **options: Unpack[FitOptions],
    ) -> Trainer:
        """Train for some epochs, continuing from the current weights.

        Parameters
        ----------
        X : array [N, ...], dict of str to array, iterable of batches, path, or data.Source
            Rows; for models with several inputs a dictionary by input name. NumPy arrays, objects
            with DLPack or that NumPy can convert, or SciPy sparse matrices, which are made dense in
            chunks. Contiguous arrays of the declared type are read in place and must not change
            meanwhile. Without `y`: batches ``(X, y)``, from an iterable or a function that returns
            one, or a source of `onnxgrad.data`. The path of a file is opened by
            `onnxgrad.data.open_file`, with the name of the target column as `y`.
        y : array [N] or [N, K], default=None
            Labels as the model lists them (numbers or strings), or values; with several losses a
            dictionary by the output of each loss. For tables, files and batches of tables, the name
            of a column, a list of those of one target, or a dictionary of names.
        sample_weight : array [N], default=None
            A nonnegative weight for each row or, if rows have several class labels, for each label,
            in the shape of the labels.
        class_weight : dict, "balanced" or None, default=None
            Weight of each class, by label; 1 for classes that are not listed. ``"balanced"`` means
            N / (number of classes * rows of the class), counting labels if rows have several. It
            multiplies the sample weights of the rows in X, not those of separate validation rows.
            If data is read in chunks, ``"balanced"`` reads all of it once more before the first
            step.
        validation : float, (X, y), (X, y, sample_weight), data.Source or None, default=None
            A fraction of the rows in (0, 1) to hold out for validation (stratified by class; if
            data is read in chunks, each row is drawn independently), or separate rows, or another
            table or the path of another file like `X`.
        metrics : name, function, list of these, or dict of str to these, default=()
            Further metrics of the validation; see `onnxgrad.metrics`.
        augment : str, data.Augmentation, or list of these, default=()
            Random changes of the training rows, in this order: ``["flip", "crop:padding=4",
            "mixup:alpha=0.2"]``; see `onnxgrad.data`.
        row_weights : array [N], default=None
            With ``sampling="weighted"``, how often each row is drawn. A callback can set
            `Trainer.row_weights` in `on_epoch_begin`, for a curriculum.
        early_stopping : bool or callbacks.EarlyStopping, default=False
            True means ``callbacks.EarlyStopping()``.
        run_dir : path or RunFolder, default=None
            A folder for the log, the options, checkpoints, the best and the last model; see
            `onnxgrad.run_folder`. ``resume=True`` continues the run in it. None writes nothing.
        callbacks : Callback, function, or list of these, default=()
            See `onnxgrad.callbacks`; a function is called with (trainer, logs) after each epoch.
        verbose : {"auto", 0, 1, 2}, default="auto"
            What to write to standard error: ``"auto"`` a line for each epoch, with a progress bar
            on a terminal; 0 nothing; 1 lines; 2 also the weights, inputs that are copied, and the
            plan.
        resume : bool or path, default=False
            Checkpoint of an earlier `fit` with the same data and options (`epochs`, the total
            number, and the learning rate may differ; see docs/checkpoints.md) to resume from, bit
            for bit as if it had not been stopped: a file, a
            folder (also of a run), whose newest valid checkpoint is used, or True for the folder of
            the `callbacks.Checkpoint` or of `run_dir`, if it has one.
        **options : FitOptions

        Returns
        -------
        Trainer
            Itself.

        Raises
        ------
        DataError
            NaN or infinity (the message names column and row), an unknown label, a wrong dtype,
            number of rows or columns. Raised before the first step for arrays, else when the chunk
            is read.
        ConvergenceError
            The loss became NaN or infinite; the message names step, batch and the first node whose
            result was not finite. The weights are the last finite ones.
        CheckpointError
            There is nothing to resume from, or the checkpoint is of another model, other data or
            other options (the message names the first difference), or the folder for checkpoints
            cannot be used. Raised before the first step; nothing has changed then.
        KeyboardInterrupt
            Ctrl-C, after the current step, whose weights are kept. Other signal handlers
            (``signal.signal``) are also called after the current step; if they return, training
            continues.

        Notes
        -----
        The loop releases the interpreter lock. Only one `fit` can run at a time.
        """
        chosen = complete(options)
        given = {**locals(), **chosen}
        verbose = verbose if self._is_first_worker else 0
        native = self._native_options(chosen)
        native.metrics = native_metrics(metrics, has_rows=validation is not None)
        X, validation = self._unlabelled(X, y), self._unlabelled(validation, y, is_pair=True)
        source, y, sample_weight = as_source(X, y, sample_weight)
        if chosen["batch_size"] is None and source is not None and source.has_own_batches:
            native.batch_size = _core.FitOptions.as_they_come
        self._collect_callbacks(given, verbose)
        native.augment = [one._native() for one in as_augmentations(augment)]
        self._is_weighted = chosen["sampling"] == "weighted"
        self.row_weights = None if row_weights is None else row_weights
        native.row_weights = self._take_row_weights()
        native.early_stopping = self._callbacks.early_stopping()
        self._callbacks.set_checkpoints(native, resume)
        if self.session._awaits_rows:
            self._core = calibrated(self.session, X if source is None else source)
        if source is not None:
            check_alone(source, y=y, sample_weight=sample_weight)
            rows = self._converted_source(source, validation, class_weight, native)
        else:
            validation = table_as_rows(validation, y, sample_weight)
            rows = self._converted_arrays(
                X, y, sample_weight, validation, class_weight, native, verbose
            )
        check_pairs(self.session, native)
        held_out = validation_rows(self.session, self._labels, validation, source, native)
        self.validation_names = (
            [] if validation is None else validation_names(self.session._core, native)
        )
        self._run(rows, native, held_out, verbose)
        return self

    def _unlabelled(self, X: Any, y: Any, *, is_pair: bool = False) -> Any:
        """Return the rows of the file `X` if the loss has no target, else `X`."""
        core = self.session._core
        rows = read_if_unlabelled(core, self.session._views, X, y)
        return (rows, None) if is_pair and rows is not X else rows

    @property
    def _is_first_worker(self) -> bool:
        parallel = self.session._data_parallel
        return parallel is None or parallel.is_first

    def _native_options(self, chosen: dict[str, Any]) -> _core.FitOptions:
        """Return the fit options and those of the trainer; a trial ignores losses like NaN."""
        if self._is_trial:
            chosen["non_finite"] = "ignore"
        native = native_fit_options(chosen)
        self.epochs = chosen["epochs"]
        native.discard = self._is_trial
        native.seed = self.seed
        if self.schedule is not None and not self._is_trial:
            native.schedule = self.schedule._native()
        return native

    def _collect_callbacks(self, fit: Mapping[str, Any], verbose: Verbosity) -> None:
        """Set the callbacks of a fit with these arguments: own ones, then those of the user."""
        parallel = self.session._data_parallel
        added: list[CallbackLike] = [] if self._is_trial else [*messages()]
        num_trained = sum(weight.num_parameters for weight in self.session.trained_weights)
        added += progress_for(verbose, num_trained)
        if fit["run_dir"] is not None:
            from onnxgrad.run_folder.folder import as_run_folder

            folder = as_run_folder(self, fit["run_dir"], fit)
            if parallel is not None:
                self.run_dir = Path(parallel.workers.broadcast(str(folder.path)))
                folder.move_to(self.run_dir)
            added += [folder, folder.checkpoint]
        added += stopping_of(fit["early_stopping"])
        several = CallbackList([*added, *CallbackList(fit["callbacks"]).callbacks]).callbacks
        self._callbacks = CallbackList(
            [one for one in several if self._is_first_worker or not one.first_worker_only]
        )

    def _converted_source(
        self, source: Source, validation: Any, class_weight: Any, options: _core.FitOptions
    ) -> NativeRows:
        """Return the reader of a source; the loss gets the weights that its rows have."""
        if source.keeps_batches and (
            options.batch_size != _core.FitOptions.as_they_come or isinstance(validation, float)
        ):
            raise OptionError(
                what=f"{source!r} has batches of its own: no other size, and no fraction of them "
                "as validation",
                value="batch_size",
                hint="Give the size to the source, and another source as validation.",
            )
        rows = self._settled(source.native(self.session))
        source.check_settled(self.session)
        if class_weight is not None:
            options.class_weights = native_class_weights(class_weight)
            self.session._use_sample_weight(per_position=self._has_positions())
        if has_weight(validation) or has_weight(source):
            self.session._use_sample_weight()
        return rows

    def _converted_arrays(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        validation: Any,
        class_weight: Any,
        options: _core.FitOptions,
        verbose: Verbosity,
    ) -> NativeRows:
        """Return arrays or a table as rows; they settle an automatic loss, labels and weights."""
        core = self.session._core
        takes_own = y is None
        y = own_tokens(core, X) if takes_own else y
        if y is None and self.session.target_name:
            raise DataError(what="y is missing", value="y", hint="Give the targets: fit(X, y).")
        rows = unpack(self.session, X, y, sample_weight)
        targets = {} if rows.y is None else native_targets(rows.y)
        if rows.y is not None and not isinstance(rows.y, Mapping):
            self._choose_loss(rows.X, targets[""])
            if takes_own and _core.loss_name(core.loss.function) != "causal_lm":
                raise DataError(
                    what="y is missing, and the model is no decoder, whose targets are its tokens",
                    value="y",
                    hint="Give the targets: fit(X, y).",
                )
            if core.loss.one_hot_targets:
                targets[""] = core.encode_target(targets[""], "")
                rows = rows._replace(y=from_native(targets[""]))
        feeds = feeds_of(rows.X)
        self._labels.learn(core, targets, feeds=feeds)
        if not self._is_trial:
            report_notes(core, rows.X, rows.y, validation, verbose)
        if class_weight is not None and self._has_positions():
            options.class_weights = native_class_weights(class_weight)
            self.session._use_sample_weight(per_position=True)
        elif class_weight is not None:
            weights = with_class_weights(class_weight, rows.y, rows.sample_weight)
            rows = rows._replace(sample_weight=weights)
        if rows.sample_weight is not None or has_weight(validation):
            per_position = self._weighs_positions(rows.sample_weight)
            self.session._use_sample_weight(per_position=per_position)
        converted = self._settled(convert(self.session, self._labels, rows, targets))
        check_some_count(core, targets)
        check_length_of(self.session, rows.X)
        return converted

    def lr_find(
        self,
        X: DataLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        min_lr: float = 1e-7,
        max_lr: float = 10.0,
        steps: int = 100,
        batch_size: int | None = None,
    ) -> LrFinder:
        """Try increasing learning rates, one step each, and undo the steps.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.
        min_lr, max_lr : float, default=1e-7, 10
        steps : int, default=100
            Maximum number of rates; the trial ends when the loss is four times its minimum.
        batch_size : int, default=None
            As for `fit`.

        Returns
        -------
        LrFinder
            With `lrs`, `losses`, `suggestion` and `plot`.
        """
        from onnxgrad.trainer.lr_finder import LrFinder

        steps = positive_int("steps", steps, 2)
        low = real_number("min_lr", min_lr, open_minimum=True)
        high = real_number("max_lr", max_lr, low, open_minimum=True)
        finder = LrFinder(low, high, steps)
        before = (self.history, self.stop_reason, self.session.lr)
        self._is_trial = True
        try:
            self.fit(
                X,
                y,
                sample_weight,
                epochs=steps,
                batch_size=batch_size,
                callbacks=[finder],
                verbose=0,
            )
        finally:
            self._is_trial = False
            self.history, self.stop_reason, self.session.lr = before
        return finder

    def stop(self, reason: str = "stop() was called") -> None:
        """End a running `fit` after its current step; callable from callbacks and other threads.

        Parameters
        ----------
        reason : str
            Value of `stop_reason`.
        """
        self.stop_reason = reason
        self._core.stop()

    def reset(self) -> None:
        """Restore the initial weights, and clear optimizer state and history."""
        self._core.reset()
        self.history = History()
        self.stop_reason = ""

    def evaluate(
        self,
        X: DataLike,
        y: ArrayLike | Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        metrics: MetricLike | Iterable[MetricLike] | Mapping[str, MetricLike] = (),
        batch_size: int = 256,
        allow_nan: bool = False,
    ) -> Evaluation:
        """Return loss, accuracy, number of rows and metrics; data and options as for `fit`."""
        X = self._unlabelled(X, y)
        source, y, sample_weight = as_source(X, y, sample_weight)
        if sample_weight is not None or has_weight(source):
            self.session._use_sample_weight(per_position=self._weighs_positions(sample_weight))
        wanted = native_metrics(metrics)
        rows = self._rows(source, X, y, sample_weight)
        size = positive_int("batch_size", batch_size)
        if source is None:
            check_length_of(self.session, X)
        result = self._core.evaluate(rows, size, wanted, flag("allow_nan", allow_nan))
        values = dict(zip([metric.name for metric in wanted], result.metrics, strict=True))
        return Evaluation(result.loss, result.accuracy, result.rows, values)

    def _has_positions(self) -> bool:
        """Return whether a row has several class labels, one for each position."""
        loss = self.session._core.loss
        return bool(loss.is_classifier) and len(loss.target.shape or ()) > 1

    def _choose_loss(self, X: Any, target: NativeArray) -> None:
        """Let the labels, and the tokens that they may be, decide what the loss leaves open."""
        core = self.session._core
        if len(core.loss.target.shape or ()) != 3 or core.loss.is_classifier:
            self._core.choose_loss(target)
            return
        inputs = dict(named_inputs(core, X))
        self._core.choose_loss_by_rows(_core.Dataset(inputs, target, {}, None, 0))

    def _weighs_positions(self, sample_weight: Any) -> bool:
        return self._has_positions() and len(np.shape(sample_weight)) > 1

    def _settled(self, rows: NativeRows) -> NativeRows:
        """Return the rows; their labels have decided what the loss left open."""
        if isinstance(rows, _core.DataSource):
            return self._core.choose_loss_by_chunk(rows) or rows
        self._core.choose_loss_by_rows(rows)
        return rows

    def _rows(self, source: Source | None, X: Any, y: Any, sample_weight: Any) -> NativeRows:
        if source is not None:
            return source.native(self.session)
        return dataset(self.session, self._labels, X, y, sample_weight)


def _refuse_with_session(given: Mapping[str, bool]) -> None:
    for option, is_given in given.items():
        if is_given:
            raise OptionError(
                what=f"{option} cannot be given together with a session",
                value=option,
                hint="Give it to the TrainingSession.",
            )
