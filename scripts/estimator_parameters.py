"""The parameters of the estimators of onnxgrad.sklearn, of which their signatures are generated.

scikit-learn reads the parameters of an estimator from the signature of its constructor, which has
to name each of them. Those that have the name of a session option are that option.
"""

from typing import Any, NamedTuple


class Parameter(NamedTuple):
    """A parameter of both estimators, or of the classifier alone.

    Attributes
    ----------
    name : str
    annotation : str
        Type in the signature.
    default : object
    type : str
        Type in the docstring.
    meaning : str
        Empty: nothing but the type.
    of_classifier : str
        The meaning for the classifier, if it is another one.
    is_of_classifier : bool
        Whether the regressor does not have it.
    """

    name: str
    annotation: str
    default: Any
    type: str
    meaning: str = ""
    of_classifier: str = ""
    is_of_classifier: bool = False


_MODEL = (
    "Any ONNX model with one numeric input, whose weights training starts from; or a function of "
    "(number of features, number of {}) that returns one. None builds a multi-layer perceptron "
    "with `hidden_layer_sizes`, see `multi_layer_perceptron`."
)

# A string stands for the session option of that name.
PARAMETERS: tuple[Parameter | str, ...] = (
    Parameter(
        "model",
        "ModelOrFactory | None",
        None,
        "path, bytes, onnx.ModelProto or function",
        _MODEL.format("targets"),
        of_classifier=_MODEL.format("classes"),
    ),
    Parameter(
        "hidden_layer_sizes",
        "int | Sequence[int]",
        (100,),
        "int or sequence of int",
        "Only without `model`.",
    ),
    Parameter(
        "activation",
        "str",
        "relu",
        "str",
        '``"relu"``, ``"leaky_relu"``, ``"tanh"``, ``"logistic"`` or ``"identity"``. Only without '
        "`model`.",
    ),
    Parameter(
        "loss",
        "LossLike",
        "auto",
        "str or Loss",
        'See `onnxgrad.losses`; ``"auto"`` means squared error. A network built here for '
        '``"poisson"`` ends in an exponential.',
        of_classifier='See `onnxgrad.losses`; ``"auto"`` chooses it by the head of a given model, '
        "else softmax cross-entropy, or binary cross-entropy for two classes or several labels per "
        "row. Regression losses get 0 and 1 for each class.",
    ),
    "penalty",
    Parameter(
        "optimizer", "OptimizerLike", "adam", "str or Optimizer", "See `onnxgrad.optimizers`."
    ),
    Parameter(
        "lr", "float | None", None, "float", "Learning rate; None means the optimizer's own."
    ),
    Parameter(
        "schedule",
        "ScheduleLike | None",
        None,
        "str or Schedule",
        "How the learning rate changes in each `fit`, see `onnxgrad.schedules`.",
    ),
    "groups",
    "clip_value",
    "clip_norm",
    "accumulate",
    "average",
    "sam",
    Parameter(
        "batch_size",
        'int | Literal["auto"]',
        "auto",
        'int or "auto"',
        '``"auto"`` means 200, or all rows if there are fewer or with L-BFGS.',
    ),
    Parameter("max_iter", "int", 200, "int", "Maximum number of epochs of a `fit`."),
    Parameter(
        "tol",
        "float | None",
        1e-4,
        "float",
        "Stop if the loss has not improved by `tol` for `n_iter_no_change` epochs; None always "
        "trains for `max_iter` epochs.",
    ),
    Parameter("n_iter_no_change", "int", 10, "int"),
    Parameter(
        "early_stopping",
        "bool",
        False,
        "bool",
        "Whether to monitor the loss on rows held out for validation, and restore the weights of "
        "the best epoch.",
    ),
    Parameter(
        "validation_fraction",
        "float",
        0.1,
        "float",
        "Fraction of the rows held out for validation with `early_stopping`.",
    ),
    Parameter(
        "class_weight",
        'Mapping[Any, float] | Literal["balanced"] | None',
        None,
        'dict, "balanced" or None',
        'Weight of each class, by which sample weights are multiplied; ``"balanced"`` gives all '
        "classes the same total weight.",
        is_of_classifier=True,
    ),
    Parameter("shuffle", "bool", True, "bool", "A new order of the rows in each epoch."),
    Parameter(
        "warm_start",
        "bool",
        False,
        "bool",
        "Whether another `fit` continues from the weights and the optimizer state of the last one.",
    ),
    Parameter(
        "initializer",
        "str | None",
        None,
        "str",
        'How to draw new weights, see `onnxgrad.initialize`. None means ``"auto"`` for a network '
        "built here; a given model keeps its weights.",
    ),
    "trainable",
    "frozen",
    "untie",
    "new_head",
    "lora",
    "adapter",
    "teacher",
    "distill",
    "base",
    "quantize",
    "stop_gradient",
    "training_mode",
    "open_batch",
    "precision",
    Parameter(
        "dtype",
        'Literal["float32", "float64"] | None',
        None,
        '{"float32", "float64"}',
        "Dtype of a network built here; None means float32 if `X` is, else float64.",
    ),
    Parameter(
        "callbacks",
        "Iterable[CallbackLike]",
        (),
        "list of Callback or function",
        "See `onnxgrad.callbacks`.",
    ),
    Parameter(
        "random_state",
        "int | np.random.RandomState | None",
        None,
        "int, RandomState or None",
        "Seed of weights, shuffling, the validation split and random operators.",
    ),
    "device",
    "math",
    "deterministic",
    Parameter(
        "threads",
        "int | None",
        None,
        "int",
        "Number of threads; None means OpenMP's limit: all cores, or less in joblib's workers and "
        "with threadpoolctl.",
    ),
    Parameter(
        "verbose",
        'int | Literal["auto"]',
        0,
        '{0, 1, 2, "auto"}',
        "As for `onnxgrad.Trainer.fit`.",
    ),
)
