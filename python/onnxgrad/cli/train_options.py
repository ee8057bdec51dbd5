"""The options of ``onnxgrad train``: the table behind parser, help, configuration and docs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import typer

from onnxgrad import losses, metrics, optimizers, schedules
from onnxgrad.base.described import row_of
from onnxgrad.cli.train_option import TrainOption
from onnxgrad.graphs.weights import SCHEMES
from onnxgrad.session_options import table as session_options

__all__ = ["FIT_OPTIONS", "OPTIONS", "SESSION_OPTIONS", "TrainOption", "with_parameters"]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) + "."


_DATA, _MODEL, _OPTIMIZER = "Data", "Model and loss", "Optimizer"
_END, _VALIDATION, _RESULTS = "When training ends", "Validation", "Results"
_PROCESS, _WORKERS = "This process", "Several workers"

FIT_OPTIONS = {
    field.option: TrainOption.of_field(field)
    for field in row_of("fit_option", "FitOptions").fields
    if field.topic
}


SESSION_OPTIONS = {
    option.name: TrainOption.of_session(option)
    for option in session_options.SESSION_OPTIONS
    if option.command is not None
}


def _rows(topic: str) -> list[TrainOption]:
    """Return the options of sessions, then of fits, with that heading."""
    several = [*SESSION_OPTIONS.values(), *FIT_OPTIONS.values()]
    return [option for option in several if option.topic == topic]


OPTIONS: tuple[TrainOption, ...] = (
    TrainOption("model", str, None, "", "The .onnx file to train.", "MODEL", is_path=True),
    TrainOption(
        "data",
        str,
        None,
        _DATA,
        "Rows to train on: .csv or .tsv with a header line, .npz, .parquet, or .npy; or a pattern "
        "of several files.",
        "FILE",
        is_path=True,
    ),
    TrainOption(
        "sequence_length",
        int,
        None,
        _DATA,
        "Tokens of a row, of a language model: --data is then a .bin, .npy, .parquet, .jsonl or "
        ".txt file of tokens or texts.  [default: that of the model, its places up to 1024, else "
        "256]",
        "TOKENS",
    ),
    TrainOption(
        "tokenizer",
        str,
        None,
        _DATA,
        "A tokenizer.json or its folder, for texts; or bytes.",
        "FILE",
    ),
    TrainOption(
        "separator",
        int,
        None,
        _DATA,
        "Token that ends a document in a file of tokens.",
        "TOKEN",
    ),
    TrainOption(
        "target",
        str,
        None,
        _DATA,
        "Column (or array of an .npz file) to predict; for .npy, its file. May be given several "
        "times for a model of several numbers.",
        "NAME",
        is_joined=True,
    ),
    TrainOption(
        "sample_weight",
        str,
        None,
        _DATA,
        "Column with a weight for each row; for .npy, its file.",
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
        "Column separator of a .csv file.  [default: a comma; a tab in .tsv]",
        "CHARACTER",
    ),
    *_rows(_DATA),
    TrainOption(
        "augment",
        list,
        None,
        _DATA,
        "Random change of the training rows, NAME or NAME:option=value,...: crop, cutmix, flip, "
        "mixup or noise; may be given several times.",
        "NAME",
    ),
    TrainOption(
        "row_weights",
        str,
        None,
        _DATA,
        "Column with how often each row is drawn, for --sampling weighted.",
        "NAME",
    ),
    TrainOption(
        "folds",
        int,
        None,
        _DATA,
        "Cross-validate: train once for each of so many parts of the rows, on the others, and "
        "write nothing.",
    ),
    TrainOption(
        "stream",
        bool,
        None,
        _DATA,
        "Read the files in chunks while training.  [default: if they are larger than a quarter of "
        "the free memory]",
    ),
    TrainOption(
        "loss",
        str,
        "auto",
        _MODEL,
        f"NAME or NAME:option=value,...: {_names(losses.names())}; or output:NAME, a loss that the "
        "model computes itself.",
    ),
    TrainOption(
        "class_axis",
        int,
        None,
        _MODEL,
        "Class axis of the scores, such as -1, for a cross-entropy on three or more axes.  "
        "[default: the axis missing from the labels' shape]",
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
    *_rows(_MODEL),
    TrainOption(
        "lora_targets",
        list,
        None,
        _MODEL,
        "Layer to adapt with --lora: a pattern of names, or attention, mlp, linear, conv; may be "
        "given several times.  [default: all linear layers but the last]",
        "PATTERN",
    ),
    TrainOption(
        "lora_alpha",
        float,
        None,
        _MODEL,
        "Scale of --lora, divided by its rank.  [default: the rank]",
    ),
    TrainOption(
        "lora_dropout", float, 0.0, _MODEL, "Fraction of their inputs that --lora's matrices drop."
    ),
    TrainOption("init", str, None, _MODEL, f"Draw new weights first: {_names(SCHEMES)}", "SCHEME"),
    TrainOption(
        "operators",
        list,
        None,
        _MODEL,
        "Own operators: an .onnx file with functions, a .py file or a module that registers them; "
        "may be given several times.",
        "FILE",
        needs_trust="runs",
    ),
    TrainOption(
        "float32_nodes",
        list,
        None,
        _MODEL,
        "Node, operator or glob pattern that stays float32 with --precision; may be given several "
        "times.",
        "PATTERN",
    ),
    TrainOption(
        "optimizer",
        str,
        None,
        _OPTIMIZER,
        f"NAME or NAME:option=value,...: {_names(optimizers.names())}  [default: adam; as the "
        "model's file describes, if it does]",
    ),
    TrainOption(
        "lr",
        str,
        None,
        _OPTIMIZER,
        "Learning rate, or 'auto' to find one in a short trial.  [default: the optimizer's]",
        "RATE",
    ),
    TrainOption(
        "schedule",
        str,
        None,
        _OPTIMIZER,
        f"Learning rate schedule, NAME or NAME:option=value,...: {_names(schedules.names())}",
    ),
    TrainOption(
        "weight_decay", float, None, _OPTIMIZER, "Weight decay.  [default: the optimizer's]"
    ),
    *_rows(_OPTIMIZER),
    *_rows(_END),
    TrainOption(
        "early_stopping",
        bool,
        False,
        _END,
        "Stop when there is no more improvement, and restore the best weights.",
    ),
    TrainOption(
        "patience",
        int,
        None,
        _END,
        "Stop after this many epochs without improvement; implies --early-stopping.  [default: 10]",
    ),
    TrainOption(
        "min_delta",
        float,
        None,
        _END,
        "Smallest change that counts as improvement; implies --early-stopping.  [default: 1e-4]",
    ),
    TrainOption(
        "monitor",
        str,
        None,
        _END,
        "Metric to monitor; implies --early-stopping.  [default: val_loss, else train_loss]",
        "NAME",
    ),
    TrainOption(
        "validation",
        str,
        None,
        _VALIDATION,
        "Fraction of the rows in (0, 1), or a file like --data.",
        "FRACTION|FILE",
        is_path=True,
    ),
    *_rows(_VALIDATION),
    TrainOption(
        "metrics",
        list,
        None,
        _VALIDATION,
        f"Further metrics, NAME,...: {_names(metrics.names())}",
        "NAMES",
    ),
    *_rows(_RESULTS),
    TrainOption(
        "sample",
        str,
        None,
        _RESULTS,
        "Write a continuation of this text after each epoch, with the --tokenizer.",
        "TEXT",
    ),
    TrainOption(
        "output",
        str,
        None,
        _RESULTS,
        "File to write the trained model to.  [default: last.onnx in the run folder]",
        "FILE",
        ("-o", "--output"),
        is_path=True,
        needs_trust="writes",
    ),
    TrainOption(
        "overwrite",
        bool,
        False,
        _RESULTS,
        "Allow -o to replace MODEL itself.",
    ),
    TrainOption(
        "merge",
        bool,
        False,
        _RESULTS,
        "Merge the adapters into the weights of the model that -o writes.",
    ),
    TrainOption(
        "save_weights",
        str,
        "evaluated",
        _RESULTS,
        "Which weights -o writes with --average: evaluated, average, trained, or both (the trained "
        "ones beside the average).",
        "KIND",
    ),
    TrainOption(
        "save_adapter",
        str,
        None,
        _RESULTS,
        "Write the adapter to this folder, as PEFT does.",
        "FOLDER",
        is_path=True,
        needs_trust="writes",
    ),
    TrainOption(
        "history",
        str,
        None,
        _RESULTS,
        "Write the losses and metrics of each epoch as CSV.",
        "FILE",
        is_path=True,
        needs_trust="writes",
    ),
    TrainOption(
        "run_dir",
        str,
        None,
        _RESULTS,
        "New folder for options, metrics, models and checkpoints of this run.  [default: "
        "runs/<model> if there is no -o]",
        "FOLDER",
        is_stored=False,
    ),
    TrainOption(
        "resume",
        str,
        None,
        _RESULTS,
        "Continue the run in this folder; needs no other option. auto: the run in --run-dir, or "
        "begin it.",
        "FOLDER|auto",
        is_stored=False,
    ),
    TrainOption(
        "checkpoint_every",
        int,
        None,
        _RESULTS,
        "Steps between checkpoints in a run folder.  [default: one at the end of each epoch]",
        "STEPS",
    ),
    TrainOption("keep", int, 3, _RESULTS, "Number of checkpoints to keep, besides the best."),
    TrainOption(
        "tensorboard",
        bool,
        False,
        _RESULTS,
        "Write a TensorBoard event file to the run folder.",
    ),
    TrainOption(
        "zero",
        int,
        0,
        _WORKERS,
        "1: divide the optimizer's state among the workers.",
        "0|1",
    ),
    TrainOption("bfloat16_gradients", bool, False, _WORKERS, "Send gradients as bfloat16."),
    TrainOption(
        "sync_batch_norm",
        bool,
        False,
        _WORKERS,
        "BatchNormalization takes its statistics over the rows of all workers.",
    ),
    TrainOption(
        "sync_every",
        int,
        1,
        _WORKERS,
        "More than 1: exchange what the weights have changed after so many steps, not gradients.",
        "STEPS",
    ),
    TrainOption(
        "config",
        str,
        None,
        _PROCESS,
        "TOML file with these options; those on the command line take precedence.",
        "FILE",
        is_stored=False,
    ),
    TrainOption(
        "trust",
        bool,
        False,
        _PROCESS,
        "Let the file of --config or --resume name operators, which are run as code, and output "
        "and history, which are written.",
        is_stored=False,
    ),
    TrainOption(
        "print_config",
        bool,
        False,
        _PROCESS,
        "Print all options as such a file and exit.",
        is_stored=False,
    ),
    TrainOption(
        "dry_run",
        bool,
        False,
        _PROCESS,
        "Check everything, do a few steps and report what would be done; write nothing.",
        is_stored=False,
    ),
    TrainOption("seed", int, 0, _PROCESS, "Seed of shuffling, the split, Dropout and --init."),
    *_rows(_PROCESS),
    TrainOption(
        "log_level",
        str,
        None,
        _PROCESS,
        "Show messages of the logger 'onnxgrad' from this level: debug, info or warning.",
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


def with_parameters(function: Callable[..., None]) -> Callable[..., None]:
    """Declare a parameter for each option on `function`, which takes ``**options``."""
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    parameters = [context, *(option.parameter() for option in OPTIONS)]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    return function
