"""Training of a model whose loss is one of its outputs: parameters and session."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

import onnxgrad as og
from onnxgrad.compat.onnxruntime.io_binding import IOBinding
from onnxgrad.compat.onnxruntime.run_options import check_run_options
from onnxgrad.compat.onnxruntime.values import array_of

__all__ = ["NodeArg", "TrainingParameters", "TrainingSession", "node_args"]

NodeArg = og.NodeArg

_NORM = "global_gradient_norm"
_ROWS = "onnxgrad_loss_of_rows"

# Name of an optimizer -> its class here, and the names of its attributes.
_OPTIMIZERS: dict[str, tuple[str, dict[str, str]]] = {
    "SGDOptimizer": ("SGD", {}),
    "AdamOptimizer": (
        "AdamW",
        {"alpha": "beta1", "beta": "beta2", "lambda": "weight_decay", "epsilon": "epsilon"},
    ),
    "LambOptimizer": (
        "LAMB",
        {"alpha": "beta1", "beta": "beta2", "lambda": "weight_decay", "epsilon": "epsilon"},
    ),
}
_ADAM_DEFAULTS = {"weight_decay": 0.0}
_MAX_NORM = 1.0  # of enable_grad_norm_clip, as in onnxruntime-training

# Fields of the parameters that are refused with any other value.
_NEUTRAL: dict[str, tuple[Any, str]] = {
    "use_mixed_precision": (False, "weights are trained in their own type"),
    "gradient_accumulation_steps": (1, "use accumulate of onnxgrad.TrainingSession or Trainer"),
    "set_gradients_as_graph_outputs": (False, "use outputs of onnxgrad.TrainingSession"),
    "world_size": (1, "training is on one machine"),
    "model_with_gradient_graph_path": ("", "use onnx_derivative(..., path_name=...)"),
    "model_with_training_graph_path": ("", "use onnxgrad.training_step"),
}


class TrainingParameters:
    """What a `TrainingSession` trains, and how.

    Attributes
    ----------
    loss_output_name : str
    weights_to_train : set of str
    training_optimizer_name : str
        ``"SGDOptimizer"``, ``"AdamOptimizer"``, ``"LambOptimizer"``, or any name of
        `onnxgrad.optimizers`.
    optimizer_attributes_map, optimizer_int_attributes_map : dict
        Attributes by weight: ``{weight: {"alpha": 0.9, "beta": 0.999, "lambda": 0, ...}}``; for
        names of onnxgrad's optimizers, those of their class. A weight that is not named has the
        defaults. Only the weight decay (``lambda``) may differ between weights.
    lr_params_feed_name : str, default="Learning_Rate"
    enable_grad_norm_clip : bool, default=False
        Whether gradients are scaled down where the norm of all of them together is above 1. The
        output ``global_gradient_norm`` is the norm before that.

    Notes
    -----
    `use_mixed_precision`, `gradient_accumulation_steps`, `set_gradients_as_graph_outputs`,
    `world_size`, `model_with_gradient_graph_path` and `model_with_training_graph_path` are refused
    with other values than their defaults.
    """

    def __init__(self) -> None:
        self.loss_output_name = ""
        self.weights_to_train: Iterable[str] = set()
        self.training_optimizer_name = "SGDOptimizer"
        self.lr_params_feed_name = "Learning_Rate"
        self.optimizer_attributes_map: Mapping[str, Mapping[str, float]] = {}
        self.optimizer_int_attributes_map: Mapping[str, Mapping[str, int]] = {}
        self.use_mixed_precision = False
        self.model_with_gradient_graph_path = ""
        self.model_with_training_graph_path = ""
        self.world_rank = -1
        self.world_size = 1
        self.gradient_accumulation_steps = 1
        self.enable_grad_norm_clip = False
        self.set_gradients_as_graph_outputs = False

    def check(self) -> None:
        """Refuse what is not done.

        Raises
        ------
        NotImplementedError
            Names the field.
        """
        for name, (neutral, mend) in _NEUTRAL.items():
            if getattr(self, name) != neutral:
                raise NotImplementedError(f"{name}={getattr(self, name)!r} is refused: {mend}.")

    def optimizer(self) -> Any:
        """Return the description of the optimizer.

        Raises
        ------
        NotImplementedError
            An attribute that the optimizer does not have, or that differs between weights.
        """
        return self._optimizers()[0]

    def groups(self) -> list[og.optimizers.ParameterGroup]:
        """Return the weights whose weight decay is not that of `optimizer`."""
        if not self.optimizer_attributes_map:
            return []
        first, decays = self._optimizers()
        return [
            og.optimizers.ParameterGroup(weight, weight_decay=decay)
            for weight, decay in decays.items()
            if decay != first.weight_decay
        ]

    def _optimizers(self) -> tuple[Any, dict[str, float]]:
        """Return the optimizer of the first weight, and the weight decay of each that has one."""
        tables = (self.optimizer_attributes_map, self.optimizer_int_attributes_map)
        found: dict[str, Any] = {}
        for weight in sorted(self.weights_to_train):
            options: dict[str, float] = {}
            for table in tables:
                options |= table.get(weight, {})
            found[weight] = _optimizer(self.training_optimizer_name, options)
        if not found:
            return _optimizer(self.training_optimizer_name, {}), {}
        first = next(iter(found.values()))
        decays = {
            weight: optimizer.weight_decay
            for weight, optimizer in found.items()
            if hasattr(optimizer, "weight_decay")
        }
        for weight, optimizer in found.items():
            same = {"weight_decay": first.weight_decay} if weight in decays else {}
            if optimizer.replace(**same) != first:
                raise NotImplementedError(
                    f"optimizer_attributes_map: the attributes of {weight!r} differ from those of "
                    f"{next(iter(found))!r}; only the weight decay may, and a weight that is not "
                    "named has the defaults."
                )
        return first, decays


def _optimizer(name: str, options: Mapping[str, float]) -> Any:
    if name not in _OPTIMIZERS:
        try:
            return og.optimizers.from_name(name).replace(**options)
        except og.OptionError as error:
            known = [*_OPTIMIZERS, *og.optimizers.names()]
            raise NotImplementedError(
                f"Unexpected training_optimizer_name={name!r}, expected one of {known}."
            ) from error
    class_name, table = _OPTIMIZERS[name]
    ours = dict(_ADAM_DEFAULTS) if class_name != "SGD" else {}
    for option, value in options.items():
        if option in ("do_bias_correction", "weight_decay_mode") and value == int(
            option == "do_bias_correction"
        ):
            continue  # what our optimizer does
        if option not in table:
            raise NotImplementedError(
                f"{name} has no attribute {option}={value} here, only {[*table]}."
            )
        ours[table[option]] = value
    return getattr(og.optimizers, class_name)(**ours)


class TrainingSession:
    """Trains weights of a model whose output `loss_output_name` is the loss of a batch.

    Parameters
    ----------
    path_or_bytes : path, bytes or onnx.ModelProto
    parameters : TrainingParameters
    sess_options : SessionOptions, default=None
        ``use_deterministic_compute`` is always so.
    providers, provider_options : list, default=None
        Of providers only the CPU's is there.
    for_epochs : bool, default=False
        Whether it is begun with `use_trainer` and not with single steps, which then are compiled
        at the first one.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        parameters: TrainingParameters,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Any = None,
        *,
        for_epochs: bool = False,
    ) -> None:
        del sess_options, provider_options
        device = device_of(providers)
        parameters.check()
        model = load_proto(path_or_bytes)
        self._model = model
        self._parameters = parameters
        self._outputs = [output.name for output in model.graph.output]
        if parameters.loss_output_name not in self._outputs:
            raise ValueError(
                f"There is no output {parameters.loss_output_name!r}, only {self._outputs}."
            )
        names = [init.name for init in model.graph.initializer]
        self.weights = [name for name in names if name in set(parameters.weights_to_train)]
        missing = set(parameters.weights_to_train) - set(names)
        if missing:
            raise ValueError(f"There are no weights {sorted(missing)}, only {names}.")
        self._options: dict[str, Any] = {"trainable": self.weights, "device": device}
        self._options["groups"] = parameters.groups()
        if parameters.enable_grad_norm_clip:
            self._options["clip_norm"] = _MAX_NORM
        self._session: og.TrainingSession | None = None
        self._trainer: og.Trainer | None = None
        self._newest: og.TrainingSession | None = None
        if not for_epochs:
            self._use_session()

    def _parts(self) -> tuple[onnx.ModelProto, Any, Any]:
        """Return what onnxgrad trains: model, loss and optimizer."""
        model, loss = with_loss_of_rows(self._model, self._parameters.loss_output_name)
        return model, loss, self._parameters.optimizer()

    def _use_session(self) -> og.TrainingSession:
        """Return the session that does single steps, with the newest weights."""
        if self._session is None:
            wanted = [*self._outputs, "gradient_norm"]
            self._session = og.TrainingSession(*self._parts(), outputs=wanted, **self._options)
        self._take_over(self._session)
        return self._session

    def use_trainer(self, seed: int) -> og.Trainer:
        """Return the trainer of whole epochs, with the newest weights. Its loss is of a sum."""
        trainer = self._trainer
        if trainer is None or trainer.seed != seed:
            trainer = og.Trainer(*self._parts(), seed=seed, **self._options)
        self._take_over(trainer.session)
        self._trainer = trainer
        return trainer

    def _take_over(self, session: og.TrainingSession) -> None:
        if self._newest is not None and self._newest is not session:
            session.load_state(self._newest.state())
        self._newest = session

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[np.ndarray[Any, Any]]:
        """Do one step and return outputs, taken before the update.

        Parameters
        ----------
        output_names : list of str or None
            None is all: those of the model, and ``global_gradient_norm``.
        input_feed : dict
            The inputs of the model and ``Learning_Rate`` [1].
        run_options : RunOptions, default=None
            `terminate` and `only_execute_path_to_fetches` are refused; the others have no effect.
        """
        check_run_options(run_options)
        feeds = {name: array_of(value) for name, value in input_feed.items()}
        rate_name = self._parameters.lr_params_feed_name
        if rate_name not in feeds:
            raise ValueError(f"Required inputs ([{rate_name!r}]) are missing from input feed.")
        session = self._use_session()
        session.lr = float(feeds.pop(rate_name).reshape(-1)[0])
        values = session.step(feeds)[1]  # type: ignore[index]
        named = dict(zip([*self._outputs, _NORM], values, strict=True))
        named[_NORM] = named[_NORM].reshape(())
        names = [*named] if output_names is None else list(output_names)
        return [named[name] for name in names]

    def io_binding(self) -> IOBinding:
        """Return an object to bind inputs and outputs to, for `run_with_iobinding`."""
        return IOBinding([*self._outputs, _NORM])

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Do one step on what is bound; the outputs are then in the binding."""
        check_run_options(run_options)
        iobinding.run(self)

    @property
    def _sess(self) -> TrainingSession:
        return self

    def get_inputs(self) -> list[og.NodeArg]:
        """Return the inputs: those of the model, and the learning rate."""
        weights = {init.name for init in self._model.graph.initializer}
        values = [value for value in self._model.graph.input if value.name not in weights]
        rate = og.NodeArg(self._parameters.lr_params_feed_name, "tensor(float)", [1])
        return [*node_args(values), rate]

    def get_outputs(self) -> list[og.NodeArg]:
        """Return the outputs with their inferred shapes: those of the model, and the norm."""
        bare = onnx.ModelProto()
        bare.CopyFrom(self._model)
        for value in bare.graph.output:
            value.type.tensor_type.ClearField("shape")
        found = onnx.shape_inference.infer_shapes(bare).graph.output
        declared = self._model.graph.output
        values = [
            ours if ours.type.tensor_type.HasField("shape") else theirs
            for ours, theirs in zip(found, declared, strict=True)
        ]
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param.startswith("unk__"):  # a name that the inference made up
                    dim.Clear()
        return [*node_args(values), og.NodeArg(_NORM, "tensor(float)", [])]

    def get_providers(self) -> list[str]:
        """Return the execution providers."""
        return ["CPUExecutionProvider"]

    def get_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the weights, by name."""
        state = (self._newest or self._use_session()).state()
        return {name: state[name] for name in self.weights}

    def load_state(self, dictionary: Mapping[str, Any], strict: bool = False) -> None:
        """Set weights; those that are not given stay, unless `strict`."""
        newest = self._newest or self._use_session()
        state = newest.state()
        unknown = set(dictionary) - set(self.weights)
        if unknown or (strict and len(dictionary) != len(self.weights)):
            raise ValueError(f"Expected the weights {self.weights}, not {[*dictionary]}.")
        given = {name: array_of(value) for name, value in dictionary.items()}
        newest.load_state({**state, **given})

    def trained_model(self) -> onnx.ModelProto:
        """Return the model with the present weights."""
        return og.set_weights(self._model, self.get_state())

    def __repr__(self) -> str:
        return f"TrainingSession(weights={self.weights}, outputs={self._outputs})"


def load_proto(model: Any) -> onnx.ModelProto:
    """Return a model given as path, bytes or ModelProto as ModelProto."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, (bytes, bytearray, memoryview)):
        return onnx.load_model_from_string(bytes(model))
    return onnx.load(os.fspath(model))


def device_of(providers: Sequence[Any] | None) -> str:
    """Return the device of the first of a list of execution providers."""
    first = "CPUExecutionProvider" if not providers else providers[0]
    name = first if isinstance(first, str) else first[0]
    return {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}.get(name, name)


def node_args(values: Iterable[onnx.ValueInfoProto]) -> list[og.NodeArg]:
    """Return descriptions of inputs or outputs as onnxruntime gives them."""
    found = []
    for value in values:
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        name = {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)
        dims: list[int | str | None] = [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in tensor.shape.dim
        ]
        found.append(og.NodeArg(value.name, f"tensor({name})", dims))
    return found


def with_loss_of_rows(
    model: onnx.ModelProto, loss_name: str, rows_of: str | None = None
) -> tuple[onnx.ModelProto, Any]:
    """Return a model and a loss for `onnxgrad.Trainer`, for a model that has its loss already.

    The loss of the batch is given to its N rows in equal parts, [N, 1], as one more output; the
    loss, which ignores its target, is their sum: the number and the gradient that the model has.

    Parameters
    ----------
    model : onnx.ModelProto
    loss_name : str
        Output with one element.
    rows_of : str, default=None
        Input whose first dimension is N; None is the first.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    weights = {init.name for init in graph.initializer}
    first = next(value.name for value in graph.input if value.name not in weights)
    (output,) = (value for value in graph.output if value.name == loss_name)
    element = output.type.tensor_type.elem_type
    make = onnx.helper.make_node
    graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(np.array([0], np.int64), f"{_ROWS}/zero"),
            onnx.numpy_helper.from_array(np.array([1], np.int64), f"{_ROWS}/one"),
        ]
    )
    graph.node.extend(
        [
            make("Shape", [rows_of or first], [f"{_ROWS}/shape"]),
            make("Gather", [f"{_ROWS}/shape", f"{_ROWS}/zero"], [f"{_ROWS}/rows"]),
            make("Cast", [f"{_ROWS}/rows"], [f"{_ROWS}/count"], to=element),
            make("Div", [loss_name, f"{_ROWS}/count"], [f"{_ROWS}/part"]),
            make("Concat", [f"{_ROWS}/rows", f"{_ROWS}/one"], [f"{_ROWS}/column"], axis=0),
            make("Expand", [f"{_ROWS}/part", f"{_ROWS}/column"], [_ROWS]),
        ]
    )
    info = onnx.helper.make_tensor_value_info
    graph.output.append(info(_ROWS, element, [None, 1]))
    scores, target = (info(name, element, ["N", 1]) for name in ("scores", "target"))
    identity = onnx.helper.make_graph(
        [make("Identity", ["scores"], ["loss"])],
        "loss_of_rows",
        [scores, target],
        [info("loss", element, ["N", 1])],
    )
    opset = onnx.helper.make_opsetid("", 17)
    loss = onnx.helper.make_model(identity, opset_imports=[opset], ir_version=8)
    return result, og.losses.User(loss, output=_ROWS, reduction="sum")
