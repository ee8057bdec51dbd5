"""The options of sessions, which trainers, passes and functions that write models take too.

Signatures, docstrings, the command line, its help and tables of documents are made of a row; only
bindings and calls are written by hand. scripts/generate.py reads this file without its package.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["SESSION_OPTIONS", "TAKERS", "CommandOption", "SessionOption", "defaults_of"]

Taker: TypeAlias = Literal["session", "trainer", "pass", "step", "loss", "derivative"]

# A kind of function with the same options -> name of its typed dictionary, and the functions.
TAKERS: dict[Taker, tuple[str, tuple[str, ...]]] = {
    "session": ("SessionOptions", ("TrainingSession",)),
    "trainer": ("TrainerOptions", ("Trainer",)),
    "pass": ("PassOptions", ("ForwardBackward",)),
    "step": ("StepOptions", ("training_step", "add_training_info")),
    "loss": ("LossOptions", ("add_loss",)),
    "derivative": ("DerivativeOptions", ("gradient", "vjp", "jvp", "hvp", "hessian")),
}

_ALL: tuple[Taker, ...] = ("session", "trainer", "pass", "step")
_TRAINING: tuple[Taker, ...] = ("session", "trainer", "step")
_ENGINE: tuple[Taker, ...] = ("session", "trainer", "pass")
_MODEL, _OPTIMIZER, _PROCESS = "Model and loss", "Optimizer", "This process"


class CommandOption(NamedTuple):
    """How an option is given to ``onnxgrad train``.

    Attributes
    ----------
    topic : str
        Heading in the help.
    type : type
        str, int, float, bool, or list (of str; the option may be given several times).
    metavar : str
        Placeholder of the value in the help; None means N, X, or the name.
    alias : str
        Another name of the option.
    help : str
        Empty: the first sentence of the meaning.
    none_is : str
        What happens without the option, if its default is None.
    """

    topic: str
    type: type
    default: Any = None
    metavar: str | None = None
    alias: str = ""
    help: str = ""
    none_is: str = ""


class SessionOption(NamedTuple):
    """An option, given by name.

    Attributes
    ----------
    annotation : str
        Type in signatures.
    type : str
        Type in docstrings.
    takers : keys of `TAKERS`
    meaning : str
        Sentences. The first is complete in itself; the others are in `TrainingSession` alone.
    command : CommandOption or None
        None: not on the command line, or not as it is in Python.
    """

    name: str
    annotation: str
    default: Any
    type: str
    takers: tuple[Taker, ...]
    meaning: str
    command: CommandOption | None = None

    @property
    def first_sentence(self) -> str:
        """The first sentence of the meaning, with its full stop."""
        return self.meaning.partition(". ")[0].removesuffix(".") + "."


def defaults_of(taker: Taker) -> dict[str, Any]:
    """Return the options that a kind of function takes, with their defaults."""
    return {option.name: option.default for option in SESSION_OPTIONS if taker in option.takers}


_PATTERNS, _NAMES = "str | Iterable[str] | None", "str or list of str"
_MODE, _MODES = "bool | str", '"auto", True or False'

SESSION_OPTIONS: tuple[SessionOption, ...] = (
    SessionOption(
        "target",
        "str",
        "label",
        "str",
        ("session", "step", "loss"),
        "Preferred name of the input for targets: class numbers int64 [N] for a classifier, else "
        "values of the type and shape of the scores. With several losses there is one input "
        "``<target>_<output>`` for each. `target_name` and `target_names` of a session are the "
        "names.",
    ),
    SessionOption(
        "sample_weight",
        "str | None",
        None,
        "str",
        ("session", "step", "loss"),
        "Name of an input [N] with a weight for each row; None adds no such input.",
    ),
    SessionOption(
        "penalty",
        "PenaltyLike | None",
        None,
        "Penalty, list of Penalty or dict",
        ("session", "trainer", "step", "loss"),
        "Penalty on weights to add to the loss, see `onnxgrad.losses.Penalty`; a dictionary is "
        '``{"coef": {"l2": 0.01}}``.',
        CommandOption(
            _MODEL,
            list,
            metavar="PENALTY",
            help="l1 sum |w| + l2 sum w^2: l1=X,l2=Y for all weight matrices, or "
            "PATTERN:l1=X,l2=Y.",
        ),
    ),
    SessionOption(
        "trainable",
        _PATTERNS,
        None,
        _NAMES,
        _TRAINING,
        'Names or glob patterns of the weights to train; ``"head"`` is the last layer, '
        '``"last:3"`` that and the three before it. None means all parameters; `onnxgrad.report` '
        "gives the reason for each exception.",
        CommandOption(_MODEL, list, metavar="PATTERN"),
    ),
    SessionOption(
        "frozen",
        _PATTERNS,
        None,
        _NAMES,
        _ALL,
        "Names or glob patterns of the weights to keep as they are.",
        CommandOption(_MODEL, list, metavar="PATTERN", alias="freeze"),
    ),
    SessionOption(
        "new_head",
        "HeadLike | None",
        None,
        "int or dict",
        _ALL,
        "Replace the last layer by a new one for this number of classes. A dictionary has the "
        'arguments of `replace_head`: ``{"classes": 2, "labels": ["no", "yes"]}``.',
        CommandOption(
            _MODEL,
            int,
            help="Replace the last layer by a new one for this number of classes.",
            none_is="the head of the file",
        ),
    ),
    SessionOption(
        "lora",
        "LoRALike | None",
        None,
        "int, LoRA or dict",
        _ALL,
        "LoRA: train low-rank matrices of this rank beside the linear layers, instead of the "
        'model\'s own weights. A dictionary or `adapters.LoRA` gives all options: ``{"rank": 8, '
        '"alpha": 16, "targets": ["*q_proj*"]}``.',
        CommandOption(
            _MODEL,
            int,
            help="LoRA: train low-rank matrices of this rank beside layers.",
            none_is="no adapter",
        ),
    ),
    SessionOption(
        "adapter",
        "AdapterLike | None",
        None,
        "str, Adapter or dict",
        _ALL,
        'Another way to train few weights: ``"dora"``, ``"ia3"``, ``"bitfit"``, ``"norms"`` or a '
        "description; see `onnxgrad.adapters`.",
        CommandOption(
            _MODEL,
            str,
            metavar="NAME",
            help="Another way to train few weights, NAME or NAME:option=value,...: lora, dora, "
            "ia3, bitfit or norms.",
            none_is="no adapter",
        ),
    ),
    SessionOption(
        "teacher",
        "TeacherLike | None",
        None,
        'path, bytes, onnx.ModelProto or "self"',
        ("session", "trainer", "step", "loss"),
        "Model that this one also learns from: its outputs, by default, are a further target "
        "beside the labels. It reads the same inputs and is not trained. "
        '``"self"`` is the model itself, before what the options change in it.',
        CommandOption(
            _MODEL,
            str,
            metavar="FILE",
            help="Model whose outputs MODEL also learns, or self: MODEL before its adapters.",
            none_is="none",
        ),
    ),
    SessionOption(
        "distill",
        "DistillLike | None",
        None,
        "str or dict",
        ("session", "trainer", "step", "loss"),
        "What is learnt from the teacher. ``temperature`` (2) of the Kullback-Leibler divergence, "
        "times its square; ``alpha`` (0.5), the fraction of the loss that is the teacher's: with 1 "
        'there are no labels; ``outputs``: ``"auto"``, ``"kl"``, ``"mse"`` or ``"none"``; '
        "``values``: inner values, ``{student: teacher}`` or ``{student: (teacher, "
        '"squared_error" or "cosine", factor)}``, with a trained projection if widths differ; '
        "``attention``: factor of the squared error of attention maps, found by structure, or "
        "``{student: teacher}``; ``teacher_output``; ``inputs``: ``{teacher's: student's}``; "
        "``seed``.",
        CommandOption(
            _MODEL,
            str,
            metavar="OPTIONS",
            help="What is learnt from --teacher, as in temperature=4,alpha=1,outputs=mse "
            "or outputs=none,values=VALUE|VALUE_OF_TEACHER.",
            none_is="temperature=2,alpha=0.5",
        ),
    ),
    SessionOption(
        "base",
        "BaseLike | None",
        None,
        "str or dict",
        _ALL,
        'Pack the weights under an adapter: ``"int4"``, ``"int8"`` or ``"nf4"`` (QLoRA). '
        '``"nf4:block_size=64"`` or a dictionary has the arguments of `quantize_weights`.',
        CommandOption(
            _MODEL,
            str,
            metavar="FORMAT",
            help="Pack the weights under --lora or --adapter: int4, int8 or nf4, or "
            "FORMAT:block_size=64.",
            none_is="the weights of the file",
        ),
    ),
    SessionOption(
        "quantize",
        "QuantizeLike | None",
        None,
        "str, Quantization or dict",
        _ALL,
        'Train with integer weights and activations: ``"int8"`` or ``"int4"`` weights, or a '
        "`quantization.Quantization`. The trained model is a file with integers. A `Trainer` "
        "without `calibration` quantizes at its first `fit`. Beside an adapter, which freezes "
        "them, give `base`, or say `activations`. Files that are quantized already need no option.",
        CommandOption(
            _MODEL,
            str,
            metavar="NAME",
            help="Train with integer weights and activations, NAME or NAME:option=value,...: "
            "int8 or int4.",
            none_is="as in the file",
        ),
    ),
    SessionOption(
        "calibration",
        "CalibrationLike | None",
        None,
        "array, dict of arrays, or list of these",
        _ALL,
        "Rows that `quantize` measures the activations of; see `quantize`.",
    ),
    SessionOption(
        "untie",
        "bool",
        True,
        "bool",
        _ALL,
        "Whether to train weights separately that are one in the file by accident. They are read "
        "by several layers, and are one only because they have the same values in every new "
        "network (all zeros, all ones); in the trained model they are separate too: ``b``, "
        "``b_1``, ``b_2``.",
        CommandOption(_MODEL, bool, True, help="Train equal weights of several layers separately."),
    ),
    SessionOption(
        "outputs",
        "Sequence[str]",
        (),
        "list of str",
        ("session",),
        'What `step` returns besides the loss: outputs of the model, ``"<weight>_grad"``, or '
        '``"gradient_norm"``.',
    ),
    SessionOption(
        "groups",
        "ParameterGroup | Iterable[ParameterGroup]",
        (),
        "list of ParameterGroup",
        _TRAINING,
        "Weights with their own learning rate, weight decay or optimizer; see "
        "`onnxgrad.optimizers`.",
    ),
    SessionOption(
        "clip_value",
        "float | None",
        None,
        "float",
        _TRAINING,
        "Clip each element of each gradient to [-clip_value, clip_value].",
        CommandOption(_OPTIMIZER, float, help="Clip each element of a gradient to [-X, X]."),
    ),
    SessionOption(
        "clip_norm",
        "float | None",
        None,
        "float",
        _TRAINING,
        "Scale all gradients down to at most this total Euclidean norm.",
        CommandOption(_OPTIMIZER, float),
    ),
    SessionOption(
        "accumulate",
        "int",
        1,
        "int",
        _TRAINING,
        "Update at every n-th step, with the gradient over the rows of n batches.",
        CommandOption(
            _OPTIMIZER, int, 1, help="Number of batches whose gradients make up an update."
        ),
    ),
    SessionOption(
        "average",
        "AverageLike | None",
        None,
        "str, Average or dict",
        _TRAINING,
        'Keep an average of the weights and running statistics: ``"ema"``, ``"swa"`` or '
        '``"ema:decay=0.99"``; see `onnxgrad.optimizers.EMA`. It is part of the step and of its '
        "state, and evaluation, prediction, the choice of the best epoch and saved models use it.",
        CommandOption(
            _OPTIMIZER,
            str,
            metavar="NAME",
            help="Average of the weights, NAME or NAME:option=value,...: ema or swa.",
            none_is="no average",
        ),
    ),
    SessionOption(
        "sam",
        "SharpnessLike | None",
        None,
        "float or dict",
        _TRAINING,
        "Sharpness-aware minimization: take gradients at w + sam * g / |g|, in a second pass over "
        'each batch. With ``{"rho": 0.5, "adaptive": True}`` at w + rho w^2 g / |w g| (Foret et '
        "al., 2021; Kwon et al., 2021).",
        CommandOption(_OPTIMIZER, float, metavar="RHO", none_is="gradients at w"),
    ),
    SessionOption(
        "stop_gradient",
        _PATTERNS,
        None,
        _NAMES,
        (*_ALL, "derivative"),
        "Values of the model, or nodes (all their outputs), also in subgraphs, that no gradient "
        "flows through.",
        CommandOption(
            _MODEL, list, metavar="NAME", help="Value or node that no gradient flows through."
        ),
    ),
    SessionOption(
        "training_mode",
        _MODE,
        "auto",
        _MODES,
        _ALL,
        "Whether, in training, Dropout drops elements and BatchNormalization uses the statistics "
        "of the batch (and updates the running ones), even if the model was exported for "
        'inference. ``"auto"``: Dropout, and each BatchNormalization whose scale or bias is '
        "trained. Evaluation, prediction and the trained model use inference mode, with the "
        "running statistics of the training.",
        CommandOption(
            _MODEL,
            str,
            "auto",
            "MODE",
            help="Whether Dropout and BatchNormalization are in training mode: auto, on or off.",
        ),
    ),
    SessionOption(
        "open_batch",
        _MODE,
        "auto",
        _MODES,
        ("session", "trainer"),
        "What to do with a model whose file fixes the number of rows of a batch, as exports do by "
        'default. ``"auto"``: inputs take any number of rows where that is possible (see '
        "`onnxgrad.open_batch`), and the trained model has the shapes of the file. True: the "
        "trained model has an open batch too; an error if it cannot be opened. False: nothing is "
        "opened. Where nothing is opened, `evaluate`, `predict` and `Trainer` run the model on as "
        "many rows as the file says, and fill up what is left with rows of weight 0; `step` takes "
        "whole batches. `batch_line` says what was done.",
        CommandOption(
            _MODEL,
            str,
            "auto",
            "MODE",
            help="Whether a batch size that MODEL fixes is opened: auto (for the training only), "
            "on (also in the trained model) or off.",
        ),
    ),
    SessionOption(
        "precision",
        "PrecisionLike",
        "float32",
        '{"float32", "bf16", "fp16"} or Precision',
        _ALL,
        "What steps, or separate passes, multiply and store in 16 bits, see `onnxgrad.Precision`; "
        "not with L-BFGS. The weights stay float32.",
        CommandOption(
            _MODEL,
            str,
            "float32",
            "NAME",
            help="What is multiplied and stored in 16 bits: float32 (nothing), bf16 or fp16, or "
            "fp16:loss_scale=X,growth_interval=N.",
        ),
    ),
    SessionOption(
        "skip_non_finite",
        "bool",
        False,
        "bool",
        ("session",),
        "Whether a step whose loss or new weights are NaN or infinite changes nothing.",
    ),
    SessionOption(
        "evaluation_only",
        "bool",
        False,
        "bool",
        ("session",),
        "Whether there is no gradient and no update: `evaluate` and `predict` only, for models "
        "without weights to train too.",
    ),
    SessionOption(
        "device",
        "str | None",
        None,
        "str",
        _ENGINE,
        'Device to compute on: one of `onnxgrad.devices.available`, or ``"auto"`` for the first '
        "one other than the CPU that passes a check, else the CPU; None means that of the "
        "environment variable ``ONNXGRAD_DEVICE``, without it the CPU.",
        CommandOption(
            _PROCESS,
            str,
            help="Device to compute on: cpu, auto or one of a plugin.",
            none_is="ONNXGRAD_DEVICE, or cpu",
        ),
    ),
    SessionOption(
        "math",
        "str",
        "float32",
        '{"float32", "tf32"}',
        _ENGINE,
        'How a device computes products and convolutions of float32: ``"tf32"`` lets it round '
        'their factors to 10 bits where that is faster. The CPU always computes ``"float32"``.',
        CommandOption(_PROCESS, str, "float32", help="Products on a device: float32 or tf32."),
    ),
    SessionOption(
        "deterministic",
        "bool",
        True,
        "bool",
        _ENGINE,
        "Whether repeated runs have the same bits.",
        CommandOption(_PROCESS, bool, True),
    ),
    SessionOption(
        "threads",
        "int | None",
        None,
        "int",
        _ENGINE,
        "Number of threads; None means the cores that this process may use, but at most "
        "``OMP_NUM_THREADS``.",
        CommandOption(
            _PROCESS, int, help="Number of threads.", none_is="all cores, or OMP_NUM_THREADS"
        ),
    ),
    SessionOption(
        "seed", "int", 0, "int", ("session", "pass"), "Seed of Dropout and other random operators."
    ),
    SessionOption(
        "memory_limit",
        "int | str | None",
        None,
        "int or str",
        _ENGINE,
        'Bytes that may be used, or text as in ``"2GB"`` or ``"500 MiB"``: weights, optimizer '
        "state, values of a step, and the model's file. Where a step would need more, it computes "
        "values again instead of keeping them for the gradient; results of steps have the same "
        "bits, those of separate passes agree up to rounding. `memory` returns what that costs. "
        "An error lists the least limit that works.",
        CommandOption(
            _PROCESS,
            str,
            metavar="SIZE",
            help="What the training may use, as in 2GB: values of a step are computed again to "
            "fit.",
        ),
    ),
    SessionOption(
        "dist",
        "DataParallelLike | None",
        None,
        '"auto", Workers, distributed.DataParallel or None',
        ("session",),
        "The other workers of a data-parallel training; the feeds of `step` are then the rows of "
        'this worker. ``"auto"``: those that the launcher of this process started.',
    ),
    SessionOption(
        "schedule",
        "ScheduleLike | None",
        None,
        "str or Schedule",
        ("step",),
        "See `onnxgrad.schedules`: the rate of each update is computed from ``learning_rate`` and "
        "the number of updates, which is then part of the state.",
    ),
    SessionOption(
        "updates",
        "int | None",
        None,
        "int",
        ("step",),
        "Number of updates of the whole training, for schedules whose length is relative to it and "
        "for those that count epochs.",
    ),
    SessionOption(
        "epochs", "int", 1, "int", ("step",), "Number of epochs that these updates make up."
    ),
    SessionOption(
        "keep_outputs",
        "bool",
        False,
        "bool",
        ("derivative",),
        "Whether to keep the differentiated outputs, after the derivatives.",
    ),
    SessionOption(
        "target_opset",
        "int",
        26,
        "int",
        ("derivative",),
        "Operator set of the result, 9 to 26. Operators that it lacks are expressed by others as "
        "far as it has them.",
    ),
    SessionOption(
        "inline",
        "bool",
        False,
        "bool",
        ("step", "derivative"),
        "Whether to inline model-local functions, for runtimes that do not support them.",
    ),
    SessionOption(
        "path",
        "str | os.PathLike[str] | None",
        None,
        "str or path",
        ("step", "loss", "derivative"),
        "Where to write the result as well. Above 2 GiB its large tensors go to a file next to it.",
    ),
    SessionOption(
        "like",
        "bool",
        False,
        "bool",
        ("step", "loss", "derivative"),
        "Whether to return the kind of model that was given, not an ``onnx.ModelProto``: bytes, an "
        "``onnx_ir.Model``, an ``ONNXProgram``, or `path`. Other kinds are refused.",
    ),
)
