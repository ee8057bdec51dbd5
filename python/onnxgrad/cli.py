"""The command line: ``onnxgrad train | gradient | report | versions``.

Exit status: 0 done; 1 a fault of onnxgrad; 2 wrong usage; 3 model or gradient; 4 data; 5 diverged;
6 an output file; 7 device; 130 interrupted; 143 terminated.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from onnxgrad import errors, losses, optimizers, schedules
from onnxgrad._models import to_core_model
from onnxgrad._runs import RunFolder, stored_options
from onnxgrad._tables import Table, read_table
from onnxgrad._versions import show_versions
from onnxgrad.callbacks import Verbosity
from onnxgrad.graphs import SCHEMES, core_gradient, core_initialize
from onnxgrad.reports import report as make_report
from onnxgrad.reports import weight_change
from onnxgrad.sessions import Evaluation
from onnxgrad.trainer import Trainer

__all__ = ["app", "main"]

EXIT_STATUS: dict[type[BaseException], int] = {
    errors.InternalError: 1,
    errors.OptionError: 2,
    errors.ModelError: 3,
    errors.UnsupportedOperatorError: 3,
    errors.GradientError: 3,
    errors.ShapeError: 3,
    errors.DataError: 4,
    errors.ConvergenceError: 5,
    errors.CheckpointError: 6,
    errors.DeviceError: 7,
    KeyboardInterrupt: 130,
}

_EXIT_HELP = (
    "Exit status: 0 done, 1 fault of onnxgrad, 2 usage, 3 model or gradient, 4 data, 5 diverged, "
    "6 output file, 7 device, 130 interrupted, 143 terminated."
)


def _example(line: str) -> str:
    return f"\b\nExample:\n  {line}"  # \b: lines are not joined or broken


app = typer.Typer(
    name="onnxgrad",
    help="Trains ONNX models.",
    epilog=f"{_EXIT_HELP}\n\n{_example('onnxgrad versions')}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Command = TypeVar("Command", bound=Callable[..., None])


def _with_exit_status(command: Command) -> Command:
    """Turn the exceptions of a command into messages and exit statuses."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except _Terminated:
            print("terminated", file=sys.stderr)
            raise typer.Exit(143) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except errors.InternalError as error:
            _report_fault(error)
        except errors.Error as error:
            print(_message(error), file=sys.stderr)
            raise typer.Exit(EXIT_STATUS.get(type(error), 1)) from None
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OSError) as error:
            _report_fault(error)

    return wrapped  # type: ignore[return-value]


class _Terminated(KeyboardInterrupt):
    """SIGTERM came, which ends a training as Ctrl-C does: after its present step, and saved."""


def _terminate(_signal: int, _frame: object) -> None:
    raise _Terminated


def _message(error: errors.Error) -> str:
    name = type(error).__name__
    text = str(error)
    return text if text.startswith(name) else f"{name}: {text}"


def _report_fault(error: BaseException) -> None:
    import traceback

    traceback.print_exception(error)
    print("\nThis is a fault of onnxgrad; please report it with these lines:\n", file=sys.stderr)
    show_versions(sys.stderr)
    raise typer.Exit(1) from None


# ------------------------------------------------------------------------------------------- train


@app.command(
    epilog=_example(
        "onnxgrad train model.onnx --data train.csv --target y -o trained.onnx --epochs 20"
    )
)
@_with_exit_status
def train(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The .onnx file to train.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Rows to train on: a .csv file with a header line, or .npz."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column (array of an .npz) that is predicted."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write the result."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="How often all rows are gone through.")] = 10,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows of a step.  [default: 32; all with lbfgs]")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate.  [default: the optimizer's]")
    ] = None,
    optimizer: Annotated[str, typer.Option(help=", ".join(optimizers.names()) + ".")] = "adam",
    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of the rate: " + ", ".join(schedules.names()) + "."),
    ] = None,
    loss: Annotated[str, typer.Option(help=", ".join(losses.names()) + ".")] = "auto",
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|FILE", help="Share of the rows in (0, 1), or a file like --data."
        ),
    ] = None,
    weight_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column with a weight for each row.")
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="SCHEME", help=f"Draw the weights anew first: {', '.join(SCHEMES)}."),
    ] = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Weights to train; may be given several times."),
    ] = None,
    frozen: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Weights to leave as they are."),
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="A new order of the rows in each epoch.")] = True,
    seed: Annotated[int, typer.Option(help="Of shuffling, the split and --init.")] = 0,
    threads: Annotated[
        int | None, typer.Option(help="Number of threads.  [default: all cores]")
    ] = None,
    history: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the numbers of each epoch as CSV.")
    ] = None,
    run_dir: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="A new folder for options, metrics and checkpoints of this run."
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Go on with the run of this folder; needs no other option."
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(metavar="STEPS", help="[default: at the end of each epoch]")
    ] = None,
    keep: Annotated[int, typer.Option(help="Checkpoints that stay, beside the best.")] = 3,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="More details.")] = 0,
) -> None:
    """Train a model on a file of rows; write it with better weights."""
    options = dict(locals())  # by name: those of a run that goes on come from its folder
    _train(_run_folder(options), **options)


_NOT_STORED = ("quiet", "verbose")


def _run_folder(options: dict[str, Any]) -> RunFolder | None:
    """Return the folder of the run, if it has one; complete the options of `train` from it."""
    context = options.pop("context")
    run_dir, resume = options.pop("run_dir"), options.pop("resume")
    if run_dir is not None and resume is not None:
        raise errors.OptionError(
            what="both --run-dir and --resume were given",
            value="--resume",
            mend="--resume FOLDER alone goes on in that folder.",
        )
    folder = None
    if resume is not None:
        folder = RunFolder(resume, is_new=False)
        for name, value in folder.options().items():
            source = context.get_parameter_source(name)
            if name in options and (source is None or source.name != "COMMANDLINE"):
                options[name] = value
    for name, shown in (("model", "MODEL"), ("data", "--data"), ("target", "--target")):
        if options[name] is None:
            raise errors.OptionError(what=f"{shown} is missing", value=shown, mend="See --help.")
    if options["output"] is None:
        raise errors.OptionError(what="-o is missing", value="-o", mend="See --help.")
    _check_writable(options["output"])
    if run_dir is not None:
        folder = RunFolder(run_dir, is_new=True)
        folder.begin(stored_options(options, _NOT_STORED))
    return folder


def _train(
    folder: RunFolder | None,
    *,
    model: str,
    data: str,
    target: str,
    output: str,
    epochs: int,
    batch_size: int | None,
    lr: float | None,
    optimizer: str,
    schedule: str | None,
    loss: str,
    validation: str | None,
    weight_column: str | None,
    init: str | None,
    trainable: list[str] | None,
    frozen: list[str] | None,
    shuffle: bool,
    seed: int,
    threads: int | None,
    history: str | None,
    checkpoint_every: int | None,
    keep: int,
    quiet: bool,
    verbose: int,
) -> None:
    start = to_core_model(model)
    if init is not None:
        start = core_initialize(start, init, seed, weights=trainable)
    trainer = Trainer(
        start,
        loss,
        optimizer,
        lr=lr,
        schedule=schedule,
        seed=seed,
        threads=threads,
        trainable=trainable,
        frozen=frozen,
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    load = functools.partial(_load, trainer, target=target, weight_column=weight_column)
    rows = load(read_table(data))
    held_out = _validation(validation, load)
    level: Verbosity = 0 if quiet else (2 if verbose else "auto")
    try:
        trainer.fit(
            *rows,
            validation=held_out,
            epochs=epochs,
            batch_size=batch_size,
            shuffle=shuffle,
            callbacks=[] if folder is None else folder.callbacks(checkpoint_every, keep),
            verbose=level,
            resume=folder is not None,
        )
    except KeyboardInterrupt:
        trainer.save(output)
        print(f"wrote {output} as it was when interrupted", file=sys.stderr)
        if folder is not None:
            print(f"go on by: onnxgrad train --resume {folder.path}", file=sys.stderr)
        raise
    if history is not None:
        trainer.history.to_csv(history)
    is_share = isinstance(held_out, float)  # then the rows of the file are both
    print(_summary("all rows" if is_share else "train", trainer.evaluate(*rows)))
    if isinstance(held_out, tuple):
        print(_summary("validation", trainer.evaluate(*held_out)))
    elif held_out is not None and trainer.history:
        last = {name: values[-1] for name, values in trainer.history.items() if values}
        print(_summary("validation", Evaluation(last["val_loss"], last.get("val_accuracy"), 0)))
    trainer.save(output)
    print(f"wrote {output}")
    if trainer.checkpoint_problem:
        raise errors.CheckpointError(
            what=f"the last checkpoint could not be written: {trainer.checkpoint_problem}",
            file="" if folder is None else str(folder.checkpoints),
        )


Rows = tuple[Any, Any, Any]


def _load(trainer: Trainer, table: Table, target: str, weight_column: str | None) -> Rows:
    y = table.take(target, "--target")
    weight = None if weight_column is None else table.take(weight_column, "--weight-column")
    names = [value.name for value in trainer.session.get_inputs()]
    without = [target] if weight_column is None else [target, weight_column]
    return table.inputs(names, without), y, weight


def _validation(text: str | None, load: Callable[[Table], Rows]) -> float | Rows | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return load(read_table(text))


def _check_writable(path: str) -> None:
    """Refuse an output that cannot be written before the work is done, not after."""
    folder = Path(path).parent
    if not folder.is_dir():
        problem = f"there is no folder '{folder}'"
    elif Path(path).is_dir():
        problem = "it is a folder"
    elif not os.access(folder, os.W_OK):
        problem = f"the folder '{folder}' is not writable"
    else:
        return
    raise errors.CheckpointError(
        what=f"cannot write '{path}': {problem}", file=path, mend="Choose another place with -o."
    )


def _summary(name: str, result: Evaluation) -> str:
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.4f}"
    return f"{name}: loss {result.loss:.6g}{accuracy}"


# ----------------------------------------------------------------------------------- other commands


@app.command(epilog=_example("onnxgrad gradient model.onnx -o gradient.onnx --fill-grad"))
@_with_exit_status
def gradient(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx file.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Where to write the gradient.")
    ],
    wrt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Weight or input to differentiate with respect to; may be given several times.  "
            "[default: all trainable weights]",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--of",
            metavar="NAME",
            help="Output to differentiate; may be given several times.  "
            "[default: 'loss', else all floating outputs]",
        ),
    ] = None,
    fill_grad: Annotated[
        bool,
        typer.Option(
            "--fill-grad", help="The gradient of the outputs is ones, not one more input."
        ),
    ] = False,
    keep_outputs: Annotated[
        bool, typer.Option("--keep-outputs", help="The differentiated outputs stay.")
    ] = False,
    target_opset: Annotated[int, typer.Option(help="Operator set of the result, 9 to 26.")] = 26,
    inline: Annotated[
        bool, typer.Option("--inline", help="Leave no model-local functions.")
    ] = False,
) -> None:
    """Write the gradient of a model as a standard ONNX model."""
    _check_writable(output)
    result = core_gradient(
        to_core_model(model),
        wrt,
        outputs,
        fill_grad=fill_grad,
        keep_outputs=keep_outputs,
        target_opset=target_opset,
        inline=inline,
    )
    result.save(output)
    names = ", ".join(value.name for value in result.outputs)
    print(f"wrote {output} with the outputs {names}")


@app.command(epilog=_example("onnxgrad report model.onnx"))
@_with_exit_status
def report(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx file.")],
    before: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Also how the weights differ from this version."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show operators, weights, the loss, and what has no gradient."""
    found = make_report(model)
    changes = None if before is None else weight_change(before, model)
    if as_json:
        known = found.to_dict()
        if changes is not None:
            known["weight_changes"] = [change._asdict() for change in changes]
        print(json.dumps(known, indent=2))
        return
    print(str(found).rstrip())
    if changes is not None:
        print(f"\n{str(changes).rstrip()}")


@app.command(epilog=_example("onnxgrad versions"))
@_with_exit_status
def versions(
    full: Annotated[bool, typer.Option("--full", help="Also the path of the interpreter.")] = False,
) -> None:
    """Show versions of onnxgrad and of what it works with."""
    show_versions(full=full)


def main() -> None:
    """Run the command line."""
    app(prog_name="onnxgrad")


if __name__ == "__main__":
    main()
