"""The command ``onnxgrad train``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onnxgrad import errors, losses, optimizers, precision, schedules
from onnxgrad.base.checks import unknown_name
from onnxgrad.base.messages import Verbosity, print_stderr
from onnxgrad.base.models import to_core_model
from onnxgrad.callbacks import Callback, CallbackLike, EarlyStopping, SampleText, TensorBoard
from onnxgrad.cli.adapting import check_adapters, lora_of
from onnxgrad.cli.console import OutputClosedError, out
from onnxgrad.cli.derivatives import load_all
from onnxgrad.cli.dry_run import dry_run
from onnxgrad.cli.exit_status import EXIT_REQUEUE
from onnxgrad.cli.folds import check_folds, run_folds
from onnxgrad.cli.option_files import joined, merged, stored, stored_option
from onnxgrad.cli.outputs import (
    HistoryFile,
    check_outputs,
    history_error,
    save_output,
    save_unfinished,
)
from onnxgrad.cli.rows import TrainData, open_train_data, takes_tokens
from onnxgrad.cli.spelling import continuation
from onnxgrad.cli.train_options import FIT_OPTIONS, SESSION_OPTIONS
from onnxgrad.data.columns import name_list
from onnxgrad.data.tables import column_names
from onnxgrad.distributed import DataParallel, Workers, connect
from onnxgrad.errors import printable
from onnxgrad.graphs.weights import SCHEMES, core_initialize
from onnxgrad.history import History
from onnxgrad.losses import penalties
from onnxgrad.optimizers import Optimizer
from onnxgrad.run_folder import RunFolder
from onnxgrad.run_folder.description import to_toml
from onnxgrad.sessions import Evaluation
from onnxgrad.trainer import Trainer
from onnxgrad.trainer.model import trained_path

__all__ = ["Terminated", "run"]


_LORA_OPTIONS = ("lora_targets", "lora_alpha", "lora_dropout")
_OUTPUT_OPTIONS = ("overwrite", "merge", "save_weights")
_VALIDATION_OPTIONS = tuple(
    name for name, option in FIT_OPTIONS.items() if option.topic == "Validation"
)


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C: it ends a training after a step, and the model is saved.

    Attributes
    ----------
    status : int
        Exit status of the process.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def run(context: Any, given: Mapping[str, Any]) -> None:
    """Train with the options `given` on the command line and the files that they name."""
    workers = connect()
    options = _resolved(context, given, workers)
    options.workers = workers
    options.is_first = workers.rank == 0  # the one that writes and prints
    options.quiet = options.quiet or not options.is_first
    if options.print_config:
        _say(options, to_toml(stored(vars(options))).rstrip())
        return
    _log_to_stderr(options.log_level)
    if options.folds is not None:
        check_folds(options)
    if options.is_first:
        _report_left_out(options)
        check_outputs(options)
    trainer = _trainer(options)
    check_adapters(trainer, options)
    _choose_target(trainer, options)
    options.signals = _Signals(workers)
    data = open_train_data(trainer, options)
    if data.is_streamed and not options.quiet:
        print_stderr(printable(f"rows are read in chunks from {options.data}"))
    if options.folds is not None:
        run_folds(lambda: _trainer(options), data, options, _fit_options(options, data))
        return
    if options.dry_run:
        dry_run(trainer, data, options, _fit_options(options, data))
        return
    if options.lr == "auto":
        options.lr = _suggested_rate(trainer, data, options)
    folder = _folder(options)
    if folder is not None and not options.quiet:
        print_stderr(printable(f"run folder: {folder.path}"))
    history = _history(options)
    _fit(trainer, data, options, folder, history)
    _finish(trainer, data, options, folder, history)


def _say(options: SimpleNamespace, text: str) -> None:
    if options.is_first:
        out(text)


def _resolved(context: Any, given: Mapping[str, Any], workers: Workers) -> SimpleNamespace:
    """Return the options, completed from a configuration file or the run to resume."""
    options = joined(given)
    repeats_start = options["resume"] == "auto"  # with the options of the first one
    if repeats_start:
        _choose_run(options, workers)
    chosen = [name for name in ("run_dir", "resume", "config") if options[name] is not None]
    if "resume" in chosen and len(chosen) > 1:
        other = "--" + next(name for name in chosen if name != "resume").replace("_", "-")
        raise errors.OptionError(
            what=f"both {other} and --resume were given",
            value="--resume",
            hint="Use --resume FOLDER alone to continue the run in that folder.",
        )
    left_out: dict[str, Any] = {}
    if options["config"] is not None:
        options = merged(context, options, Path(options["config"]))
    if options["resume"] is not None:
        config = Path(options["resume"]) / "config.toml"
        if not config.is_file():
            raise errors.OptionError(
                what=f"--resume: '{options['resume']}' is not a run folder",
                value="--resume",
                hint="Give the --run-dir of an earlier training.",
            )
        if not repeats_start:
            _refuse_of_first_run(context, options)
        options = merged(context, options, config, left_out=left_out)
        if options["lr"] == "auto":
            options["lr"] = stored_option(config, "lr")
    for name, shown in (("model", "MODEL"), ("data", "--data")):
        if options[name] is None:
            raise errors.OptionError(what=f"{shown} is missing", value=shown, hint="See --help.")
    needs_folder = options["output"] is None or options["tensorboard"]
    needs_folder = needs_folder and options["folds"] is None
    if needs_folder and options["run_dir"] is None and options["resume"] is None:
        options["run_dir"] = str(Path("runs") / Path(options["model"]).stem)
    _refuse_without_effect(context, options)
    return SimpleNamespace(**options, left_out=left_out)


def _report_left_out(options: SimpleNamespace) -> None:
    """Report what a run folder names and is not written, since it may be somebody else's."""
    config = Path(options.resume or "") / "config.toml"
    if "output" in options.left_out:
        text = (
            f"'{options.left_out['output']}', the output in {config}, is not written without "
            f"--trust or -o: the model goes to {Path(options.resume) / 'last.onnx'}"
        )
        print_stderr(printable(text))
    if "history" in options.left_out:
        text = (
            f"'{options.left_out['history']}', the history in {config}, is not written without "
            "--trust or --history"
        )
        print_stderr(printable(text))


def _how_to_continue(options: SimpleNamespace, folder: RunFolder) -> str:
    """Return the command that resumes the run, with all that the run folder may not decide."""
    more = []
    for flag, value in (("-o", options.output), ("--history", options.history)):
        more += [] if value is None else [flag, value]
    for source in options.operators or ():
        more += ["--operators", source]
    return continuation(folder.path, more)


def _choose_run(options: dict[str, Any], workers: Workers) -> None:
    """Resume the run in the run folder, or begin it: ``--resume auto``."""
    if options["run_dir"] is None and options["model"] is None:
        raise errors.OptionError(
            what="--resume auto: there is neither MODEL nor --run-dir",
            value="--resume",
            hint="Give the options of the training: they are those of its first start, too.",
        )
    folder = options["run_dir"] or str(Path("runs") / Path(options["model"]).stem)
    # The first worker may create it before others look.
    exists = workers.broadcast(str((Path(folder) / "config.toml").is_file())) == "True"
    options["resume"], options["run_dir"] = (folder, None) if exists else (None, folder)


def _refuse_without_effect(context: Any, options: Mapping[str, Any]) -> None:
    """Refuse options given on the command line that have no effect without another option."""
    has_folder = options["run_dir"] is not None or options["resume"] is not None
    needs = (
        (("checkpoint_every", "keep"), has_folder, "a run folder", "--run-dir FOLDER"),
        (_VALIDATION_OPTIONS, options["validation"] is not None, "a validation", "--validation"),
        (_OUTPUT_OPTIONS, options["output"] is not None, "an output", "-o FILE"),
        (_LORA_OPTIONS, options["lora"] is not None, "LoRA", "--lora RANK"),
    )
    for names, is_given, what, how in needs:
        for name in names:
            source = context.get_parameter_source(name)
            if is_given or source is None or source.name != "COMMANDLINE":
                continue
            shown = "--" + name.replace("_", "-")
            raise errors.OptionError(
                what=f"{shown} has no effect without {what}",
                value=shown,
                hint=f"Add {how}, or leave {shown} out.",
            )


def _refuse_of_first_run(context: Any, options: Mapping[str, Any]) -> None:
    """Refuse options on the command line that only the first start of a run can have."""
    has_effect = {"init": options["init"] is None, "lr": options["lr"] != "auto"}
    for name, is_fine in has_effect.items():
        source = context.get_parameter_source(name)
        if is_fine or source is None or source.name != "COMMANDLINE":
            continue
        shown = f"--{name} {options[name]}"
        raise errors.OptionError(
            what=f"{shown} has no effect on a run that is resumed: the checkpoint has the "
            + ("weights" if name == "init" else "rate that the trial found"),
            value=f"--{name}",
            hint=f"Leave --{name} out" + (", or give a number." if name == "lr" else "."),
        )


def _log_to_stderr(level: str | None) -> None:
    if level is None:
        return
    levels = ["debug", "info", "warning"]
    if level.lower() not in levels:
        raise unknown_name("--log-level", level, levels)
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("onnxgrad")
    logger.handlers = [handler]
    logger.setLevel(level.upper())


class _Signals(Callback):
    """Let signals, except an ignored SIGHUP, end the training and save the model.

    One worker gets `Terminated`. Several get the same signal at different moments, and an exception
    between two messages would leave the others waiting: the training is asked to stop, which all of
    them do with the same step, and what comes after it together is not disturbed.
    """

    def __init__(self, workers: Workers) -> None:
        self.status = 0
        self._requeues = {signal.SIGUSR1}
        self._is_alone = workers.size == 1
        self._has_begun = False
        self._trainer: Trainer | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        if not self._is_alone:
            self._requeues.add(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._receive)
        signal.signal(signal.SIGUSR1, self._receive)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(signal.SIGHUP, self._receive)

    def _receive(self, number: int, _frame: object) -> None:
        status = EXIT_REQUEUE if number in self._requeues else 128 + number
        if self._is_alone or not self._has_begun:
            raise Terminated(status)
        self.status = max(self.status, status)
        if self._trainer is not None:
            self._trainer.stop(f"signal {signal.Signals(number).name}")

    @contextlib.contextmanager
    def stopping(self, trainer: Trainer) -> Iterator[None]:
        """Stop this training from now on, instead of raising an exception anywhere."""
        self._trainer, self._has_begun = trainer, True
        try:
            yield
        finally:
            self._trainer = None

    def on_epoch_end(self, trainer: Any, logs: Mapping[str, float]) -> bool:  # noqa: ARG002 (interface)
        """Stop if the signal came before the loop had begun, where it went unheard."""
        return self.status != 0


# ------------------------------------------------------------------------------------- the trainer


def _trainer(options: SimpleNamespace) -> Trainer:
    load_all(options.operators)
    start = to_core_model(options.model)
    if options.init is not None:
        if options.init not in SCHEMES:
            raise unknown_name("init", options.init, SCHEMES)
        start = core_initialize(
            start, options.init, options.seed, weights=options.trainable, untie=options.untie
        )
    return Trainer(
        start,
        losses.from_text(options.loss, options.class_axis),
        _optimizer(options),
        schedule=None if options.schedule is None else schedules.from_text(options.schedule),
        seed=options.seed,
        **_session_options(options),
        dist=DataParallel(
            options.workers,
            bfloat16=options.bfloat16_gradients,
            sync_batch_norm=options.sync_batch_norm,
            zero=options.zero,
            sync_every=options.sync_every,
        ),
    )


def _session_options(options: SimpleNamespace) -> dict[str, Any]:
    """Return the options of the session as Python takes them."""
    given = {name: getattr(options, name) for name in SESSION_OPTIONS}
    modes: dict[str, str | bool] = {"auto": "auto", "on": True, "off": False}
    for name in ("training_mode", "open_batch"):
        if given[name] not in modes:
            raise unknown_name(name, given[name], list(modes))
        given[name] = modes[given[name]]
    given["penalty"] = [penalties.from_text(text) for text in options.penalty or ()] or None
    given["lora"] = lora_of(options)
    described = precision.from_text(options.precision)
    nodes = options.float32_nodes or ()
    given["precision"] = dataclasses.replace(described, float32_nodes=nodes)
    return given


def _choose_target(trainer: Trainer, options: SimpleNamespace) -> None:
    """Take the target column that the model's file names, if none is given."""
    if takes_tokens(options):
        return
    if options.target is None and trainer.session.optimizer is None:
        options.target = trainer.session.target_name or None
    if options.target is None and not trainer.session.target_name:
        return  # of a teacher alone, or of pairs
    if options.target is None:
        names = column_names(options.data, options.delimiter)
        raise errors.OptionError(
            what="--target is missing",
            value="--target",
            detail=f"{options.data} has {name_list(names, 30)}." if names else "",
            hint="Give the name of the column to predict.",
        )


def _optimizer(options: SimpleNamespace) -> Optimizer | None:
    described = [options.optimizer, options.weight_decay, options.lr]
    if described == [None, None, None]:  # use the training that the model's file describes, if any
        return None
    optimizer = optimizers.from_text(options.optimizer or "adam")
    if options.weight_decay is not None:
        if "weight_decay" not in vars(optimizer):
            raise errors.OptionError(
                what=f"--weight-decay: {options.optimizer} has none",
                value="--weight-decay",
                hint="Give --penalty l2=X.",
            )
        optimizer = optimizer.replace(weight_decay=options.weight_decay)
    if options.lr is None or options.lr == "auto":
        return optimizer
    try:
        return optimizer.replace(lr=float(options.lr))
    except ValueError as error:
        if isinstance(error, errors.Error):
            raise
        raise errors.OptionError(
            what=f"--lr: '{options.lr}' is neither a number nor 'auto'",
            value="--lr",
            hint="Give a number such as 0.001, or 'auto' to find one.",
        ) from None


def _suggested_rate(trainer: Trainer, data: TrainData, options: SimpleNamespace) -> str:
    """Set the learning rate that a short trial suggests, and return it as a string."""
    size = None if data.has_batches else options.batch_size
    rate = trainer.lr_find(*data.rows, batch_size=size).suggestion
    if rate is None:
        raise errors.OptionError(
            what="--lr auto: the loss does not fall clearly at any rate between 1e-7 and 10",
            value="--lr",
            hint="Give a number, and check that the loss suits the data.",
        )
    trainer.session.lr = rate
    if not options.quiet:
        print_stderr(f"learning rate: {rate:.3g}, found in a trial")
    return repr(rate)


# -------------------------------------------------------------------------------------------- fit


def _folder(options: SimpleNamespace) -> RunFolder | None:
    path = options.resume or options.run_dir
    if path is None:
        return None
    every: Any = "epoch" if options.checkpoint_every is None else options.checkpoint_every
    return RunFolder(
        path,
        stored({**vars(options), **options.left_out}),
        resume=options.resume is not None,
        every=every,
        keep=options.keep,
    )


def _fit_options(options: SimpleNamespace, data: TrainData) -> dict[str, Any]:
    """Return the options of `Trainer.fit`, except those for output files."""
    names = [name for text in options.metrics or () for name in text.split(",")]
    given = {name: getattr(options, name) for name in FIT_OPTIONS}
    if data.has_batches:
        given["batch_size"] = None
    return {
        "class_weight": data.class_weight,
        "validation": data.validation,
        "metrics": [name.strip() for name in names],
        "augment": options.augment or (),
        "row_weights": options.row_weight_values,
        "early_stopping": _early_stopping(options),
        **given,
    }


def _early_stopping(options: SimpleNamespace) -> bool | EarlyStopping:
    given = {name: getattr(options, name) for name in ("patience", "min_delta", "monitor")}
    given = {name: value for name, value in given.items() if value is not None}
    return EarlyStopping(**given) if given else bool(options.early_stopping)


def _history(options: SimpleNamespace) -> HistoryFile | None:
    if options.history is None or not options.is_first:
        return None
    return HistoryFile(options.history, append=options.resume is not None)


def _fit(
    trainer: Trainer,
    data: TrainData,
    options: SimpleNamespace,
    folder: RunFolder | None,
    history: HistoryFile | None,
) -> None:
    level: Verbosity = 0 if options.quiet else (2 if options.verbose else "auto")
    callbacks: list[CallbackLike | Callback] = [] if history is None else [history]
    if options.tensorboard and folder is not None:
        callbacks.append(TensorBoard(folder.path))
    if options.sample is not None:
        callbacks.append(SampleText(options.sample, tokenizer=options.tokenizer))
    if options.workers.size > 1:
        callbacks.append(options.signals)
    before = trainer.session.steps
    try:
        with options.signals.stopping(trainer):
            trainer.fit(
                *data.rows,
                **_fit_options(options, data),
                run_dir=folder,
                callbacks=callbacks,
                verbose=level,
                resume=options.resume is not None,
            )
    except KeyboardInterrupt as ended:
        _keep_interrupted(trainer, options, folder)
        _end_together(options, ended)
        raise
    except Exception:
        if options.is_first:
            _keep_unfinished(trainer, options, folder, before)
        raise
    else:
        try:
            _end_together(options, None)
        except Terminated:
            _keep_interrupted(trainer, options, folder)
            raise


def _end_together(options: SimpleNamespace, ended: KeyboardInterrupt | None) -> None:
    """Let all workers end in the way of the one that a signal reached."""
    own = options.signals.status if ended is None else getattr(ended, "status", 130)
    status = max(int(text) for text in options.workers.gather(str(own)))
    if ended is None and status != 0:
        raise Terminated(status)


def _keep_interrupted(trainer: Trainer, options: SimpleNamespace, folder: RunFolder | None) -> None:
    if not options.is_first:
        return
    if options.output is not None and not trainer.session._awaits_rows:
        save_output(trainer, options.output)
        print_stderr(printable(f"wrote {options.output} as it was when interrupted"))
    if folder is not None:
        print_stderr(printable(_how_to_continue(options, folder)))


def _keep_unfinished(
    trainer: Trainer, options: SimpleNamespace, folder: RunFolder | None, before: int
) -> None:
    """Save the model of a training that failed, and report where."""
    if trainer.session.steps == before:
        return
    path = _last(folder)
    if options.output is not None or (folder is not None and folder.problem):
        path = save_unfinished(trainer, options.output or str(path))
    if path is not None:
        print_stderr(
            printable(f"the model as it was after step {trainer.session.steps} is in {path}")
        )
    if folder is not None:
        print_stderr(printable(_how_to_continue(options, folder)))


def _last(folder: RunFolder | None) -> str | None:
    return None if folder is None else str(folder.path / "last.onnx")


def _finish(
    trainer: Trainer,
    data: TrainData,
    options: SimpleNamespace,
    folder: RunFolder | None,
    history: HistoryFile | None,
) -> None:
    """Write the model, then print its losses."""
    written = options.output or _last(folder)
    if not options.is_first:
        _results(trainer, data, options)
        return
    if options.output is not None:
        save_output(trainer, options.output, merge=options.merge, weights=options.save_weights)
    elif folder is not None and folder.problem:
        save_output(trainer, str(written), own=True)
    if options.save_adapter is not None:
        trainer.save_adapter(options.save_adapter)
    with contextlib.suppress(OutputClosedError):  # the model has been written
        try:
            for line in _results(trainer, data, options):
                out(line)
        finally:
            out(printable(f"wrote {written}"))
            if options.output is not None and options.save_weights == "both":
                out(printable(f"wrote the trained weights to {trained_path(options.output)}"))
            if options.save_adapter is not None:
                out(printable(f"wrote the adapter to {options.save_adapter}"))
    if error := history_error(history, options):
        raise error
    if trainer.checkpoint_problem:
        raise errors.CheckpointError(
            what=f"the last checkpoint could not be written: {trainer.checkpoint_problem}",
            file="" if folder is None else str(folder.checkpoint.path),
            hint="Free space on the disk; the trained model itself has been written.",
        )


def _results(trainer: Trainer, data: TrainData, options: SimpleNamespace) -> list[str]:
    is_fraction = isinstance(data.validation, float)  # validation rows come from the training rows
    nan = options.allow_nan
    result = trainer.evaluate(*data.rows, allow_nan=nan)
    lines = [_summary("all rows" if is_fraction else "train", result)]
    if data.validation is not None and not is_fraction:
        held_out = data.validation if isinstance(data.validation, tuple) else (data.validation,)
        lines.append(_summary("validation", trainer.evaluate(*held_out, allow_nan=nan)))
    elif is_fraction and trainer.history.get("val_loss"):
        lines.append(_validation_of(trainer.history))
    restores = options.keep_best or _early_stopping(options)
    if trainer.history.kept_epoch is not None and restores:
        lines.append(f"weights of epoch {trainer.history.kept_epoch}")
    return lines


def _validation_of(history: History) -> str:
    """Return the validation of the weights that were kept, or else the last one and its epoch."""
    logs, name = history.kept, "validation"
    if math.isnan(logs.get("val_loss", math.nan)):
        epochs = [i for i, value in enumerate(history["val_loss"]) if not math.isnan(value)]
        if not epochs:
            return "validation: none was done"
        logs = {name: values[epochs[-1]] for name, values in history.items()}
        name = f"validation after epoch {int(logs['epoch'])}"
    return _summary(name, Evaluation(logs["val_loss"], logs.get("val_accuracy"), 0))


def _summary(name: str, result: Evaluation) -> str:
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.4f}"
    return f"{name}: loss {result.loss:.6g}{accuracy}"
