"""The options of ``onnxgrad train``: one table, of which parser, help, files and docs are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from onnxgrad import losses, metrics, optimizers, schedules
from onnxgrad.base.checks import is_number, nearest_or
from onnxgrad.base.described import row_of
from onnxgrad.cli.train_option import TrainOption
from onnxgrad.errors import OptionError
from onnxgrad.graphs.weights import SCHEMES

__all__ = [
    "FIT_OPTIONS",
    "OPTIONS",
    "TrainOption",
    "merged",
    "stored",
    "with_parameters",
]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) + "."


_DATA, _MODEL, _OPTIMIZER = "Data", "Model and loss", "Optimizer"
_END, _VALIDATION, _RESULTS = "When training ends", "Validation", "Results"
_PROCESS = "This process"

FIT_OPTIONS = {
    field.option: TrainOption.of_field(field)
    for field in row_of("fit_option", "FitOptions").fields
    if field.topic
}


def _rows(topic: str) -> list[TrainOption]:
    return [option for option in FIT_OPTIONS.values() if option.topic == topic]


OPTIONS: tuple[TrainOption, ...] = (
    TrainOption("model", str, None, "", "The .onnx file to train.", "MODEL", is_path=True),
    TrainOption(
        "data",
        str,
        None,
        _DATA,
        "Rows to train on: .csv or .tsv with a header line, .npz, .parquet, or .npy.",
        "FILE",
        is_path=True,
    ),
    TrainOption(
        "target",
        str,
        None,
        _DATA,
        "Column (array of an .npz) that is predicted; of .npy its file.",
        "NAME",
    ),
    TrainOption(
        "sample_weight",
        str,
        None,
        _DATA,
        "Column with a weight for each row; of .npy its file.",
        "NAME",
        ("--sample-weight", "--weight-column"),
    ),
    TrainOption(
        "ignored",
        list,
        None,
        _DATA,
        "Column to leave out; may be given several times.",
        "NAME",
    ),
    TrainOption(
        "delimiter",
        str,
        None,
        _DATA,
        "What separates the columns of a .csv file.  [default: a comma; a tab in .tsv]",
        "CHARACTER",
    ),
    *_rows(_DATA),
    TrainOption(
        "stream",
        bool,
        None,
        _DATA,
        "Read the files in chunks while training.  [default: those above a quarter of the "
        "free memory]",
    ),
    TrainOption(
        "loss",
        str,
        "auto",
        _MODEL,
        f"NAME or NAME:option=value,...: {_names(losses.names())}; or output:NAME, the loss that "
        "the model has already.",
    ),
    TrainOption(
        "class_axis",
        int,
        None,
        _MODEL,
        "Axis of the scores that has the classes, such as -1, of a cross-entropy on three axes or "
        "more.  [default: the one that the labels' shape leaves out]",
        "AXIS",
    ),
    TrainOption(
        "class_weight",
        str,
        None,
        _MODEL,
        "'balanced', or weights by label: LABEL=WEIGHT,...",
        "WEIGHTS",
    ),
    TrainOption(
        "penalty",
        list,
        None,
        _MODEL,
        "l1 sum |w| + l2 sum w^2, as l1=X,l2=Y for all weight matrices or PATTERN:l1=X,l2=Y; may "
        "be given several times.",
        "PENALTY",
    ),
    TrainOption("init", str, None, _MODEL, f"Draw new weights first: {_names(SCHEMES)}", "SCHEME"),
    TrainOption(
        "trainable",
        list,
        None,
        _MODEL,
        "Weights to train, by name or glob pattern; may be given several times.",
        "PATTERN",
    ),
    TrainOption(
        "frozen",
        list,
        None,
        _MODEL,
        "Weights to leave as they are; may be given several times.",
        "PATTERN",
        ("--frozen", "--freeze"),
    ),
    TrainOption("untie", bool, True, _MODEL, "Train equal weights of several layers apart."),
    TrainOption(
        "stop_gradient",
        list,
        None,
        _MODEL,
        "Value or node that no gradient flows past; may be given several times.",
        "NAME",
    ),
    TrainOption(
        "training_mode",
        str,
        "auto",
        _MODEL,
        "Whether Dropout and BatchNormalization train: auto, on or off.",
        "MODE",
    ),
    TrainOption(
        "optimizer",
        str,
        "adam",
        _OPTIMIZER,
        f"NAME or NAME:option=value,...: {_names(optimizers.names())}",
    ),
    TrainOption(
        "lr",
        str,
        None,
        _OPTIMIZER,
        "Learning rate, or 'auto': by a short trial.  [default: the optimizer's]",
        "RATE",
    ),
    TrainOption(
        "schedule",
        str,
        None,
        _OPTIMIZER,
        f"Of the rate, NAME or NAME:option=value,...: {_names(schedules.names())}",
    ),
    TrainOption(
        "weight_decay", float, None, _OPTIMIZER, "Weight decay.  [default: the optimizer's]"
    ),
    TrainOption(
        "clip_norm", float, None, _OPTIMIZER, "Scale gradients down to this norm of all together."
    ),
    TrainOption(
        "clip_value", float, None, _OPTIMIZER, "Clip each element of a gradient to [-X, X]."
    ),
    TrainOption(
        "accumulate", int, 1, _OPTIMIZER, "Batches whose gradients are put together for an update."
    ),
    *_rows(_END),
    TrainOption(
        "early_stopping",
        bool,
        False,
        _END,
        "End when nothing improves, with the best weights.",
    ),
    TrainOption(
        "patience",
        int,
        None,
        _END,
        "Epochs without improvement that early stopping waits for, and early stopping.  "
        "[default: 10]",
    ),
    TrainOption(
        "min_delta", float, None, _END, "The same: what counts as improvement.  [default: 1e-4]"
    ),
    TrainOption(
        "monitor",
        str,
        None,
        _END,
        "The same: the number that is watched.  [default: val_loss, else train_loss]",
        "NAME",
    ),
    TrainOption(
        "validation",
        str,
        None,
        _VALIDATION,
        "Share of the rows in (0, 1), or a file like --data.",
        "SHARE|FILE",
        is_path=True,
    ),
    *_rows(_VALIDATION),
    TrainOption(
        "metrics",
        list,
        None,
        _VALIDATION,
        f"Further numbers, NAME,... of {_names(metrics.names())}",
        "NAMES",
    ),
    *_rows(_RESULTS),
    TrainOption(
        "output",
        str,
        None,
        _RESULTS,
        "Where to write the trained model.  [default: last.onnx of the run folder]",
        "FILE",
        ("-o", "--output"),
        is_path=True,
    ),
    TrainOption(
        "overwrite",
        bool,
        False,
        _RESULTS,
        "-o may be MODEL itself, which is replaced.",
    ),
    TrainOption(
        "history",
        str,
        None,
        _RESULTS,
        "Write the numbers of each epoch as CSV.",
        "FILE",
        is_path=True,
    ),
    TrainOption(
        "run_dir",
        str,
        None,
        _RESULTS,
        "A new folder for options, metrics, models and checkpoints of this run.  [default: "
        "runs/<model> if there is no -o]",
        "FOLDER",
        is_stored=False,
    ),
    TrainOption(
        "resume",
        str,
        None,
        _RESULTS,
        "Continue the run of this folder; needs no other option.",
        "FOLDER",
        is_stored=False,
    ),
    TrainOption(
        "checkpoint_every",
        int,
        None,
        _RESULTS,
        "Of a run folder.  [default: at the end of each epoch]",
        "STEPS",
    ),
    TrainOption("keep", int, 3, _RESULTS, "Checkpoints that are kept, besides the best."),
    TrainOption(
        "tensorboard",
        bool,
        False,
        _RESULTS,
        "Write an event file into the run folder.",
    ),
    TrainOption(
        "config",
        str,
        None,
        _PROCESS,
        "A TOML file with these options; those on the command line take precedence.",
        "FILE",
        is_stored=False,
    ),
    TrainOption(
        "print_config",
        bool,
        False,
        _PROCESS,
        "Print all options as such a file, and exit.",
        is_stored=False,
    ),
    TrainOption(
        "dry_run",
        bool,
        False,
        _PROCESS,
        "Check everything, do a few steps, report what would be done; write nothing.",
        is_stored=False,
    ),
    TrainOption("seed", int, 0, _PROCESS, "Of shuffling, the split, Dropout and --init."),
    TrainOption(
        "threads",
        int,
        None,
        _PROCESS,
        "Number of threads.  [default: all cores, or OMP_NUM_THREADS]",
    ),
    TrainOption("device", str, "cpu", _PROCESS, "Where to compute: cpu, or auto."),
    TrainOption(
        "log_level",
        str,
        None,
        _PROCESS,
        "Show the messages of the logger 'onnxgrad' from this level on: debug, info, warning.",
        "LEVEL",
        is_stored=False,
    ),
    TrainOption(
        "quiet", bool, False, _PROCESS, "No progress.", flags=("-q", "--quiet"), is_stored=False
    ),
    TrainOption(
        "verbose", int, 0, _PROCESS, "More details.", flags=("-v", "--verbose"), is_stored=False
    ),
)

_BY_NAME = {option.name: option for option in OPTIONS}


def with_parameters(function: Callable[..., None]) -> Callable[..., None]:
    """Give `function`, which takes the context and ``**options``, a parameter for each option."""
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    parameters = [context, *(option.parameter() for option in OPTIONS)]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    return function


# ---------------------------------------------------------------------------------------- files


_OTHER_NAMES = {
    flag.removeprefix("--").replace("-", "_"): option.name
    for option in OPTIONS
    for flag in option.flags
}


def merged(context: Any, given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the options: those of the command line, then of the file `path`, then the defaults.

    Raises
    ------
    OptionError
        The file cannot be read, or has a key or a value that makes no sense.
    """
    result = dict(given)
    for key, value in _read(path).items():
        name = key.replace("-", "_")
        option = _BY_NAME.get(_OTHER_NAMES.get(name, name))
        if option is None or not option.is_stored:
            known = [one.name for one in OPTIONS if one.is_stored]
            raise OptionError(
                what=f"{path}: there is no option '{key}'",
                file=str(path),
                value=key,
                hint=nearest_or(name, known, "'onnxgrad train --help' lists all."),
            )
        source = context.get_parameter_source(option.name)
        if source is None or source.name != "COMMANDLINE":
            result[option.name] = _converted(option, value, path)
    return result


def stored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as they are written down: without those that are not set, paths in full."""
    result = {}
    for option in OPTIONS:
        value = options[option.name]
        if value is None or not option.is_stored:
            continue
        is_path = option.is_path and not is_number(value)
        if option.name in ("target", "sample_weight"):  # of .npy these are files, too
            is_path = str(options["data"]).endswith(".npy")
        result[option.name] = str(Path(value).absolute()) if is_path else value
    return result


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: no TOML, or no UTF-8
        problem = error.strerror if isinstance(error, OSError) else str(error)
        raise OptionError(
            what=f"cannot read '{path}': {problem}",
            file=str(path),
            hint="Give a TOML file with lines such as epochs = 20.",
        ) from error


_KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _converted(option: TrainOption, value: Any, path: Path) -> Any:
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if option.kind is list:
        values = value if isinstance(value, list) else [value]
        if all(isinstance(one, str) for one in values):
            return values
    elif option.kind is str and is_real:  # such as lr, max_time, validation
        return repr(value)
    elif option.kind is float and is_real:
        return float(value)
    elif type(value) is option.kind:
        return value
    expected = _KINDS.get(option.kind, "a text, or a list of texts")
    raise OptionError(
        what=f"{path}: {option.name} is {value!r}, expected {expected}",
        file=str(path),
        value=option.name,
        hint=f"Give {expected}.",
    )
