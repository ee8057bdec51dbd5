"""Training of a model that computes its loss: parameters and session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.shape_inference

import onnxgrad as og
from onnxgrad.compat.models import load_proto
from onnxgrad.compat.onnxruntime.io_binding import IOBinding
from onnxgrad.compat.onnxruntime.run_options import check_run_options
from onnxgrad.compat.onnxruntime.values import array_of
from onnxgrad.compat.onnxruntime.values import providers as known_providers

__all__ = ["NodeArg", "TrainingParameters", "TrainingSession", "check_providers", "node_args"]

NodeArg = og.NodeArg

_NORM = "global_gradient_norm"

# Names of optimizers and of their attributes -> onnxgrad's names.
_OPTIMIZERS = {"SGDOptimizer": "sgd", "AdamOptimizer": "adamw", "LambOptimizer": "lamb"}
_ATTRIBUTES = {"alpha": "beta1", "beta": "beta2", "lambda": "weight_decay", "epsilon": "epsilon"}
_MAX_NORM = 1.0  # norm of enable_grad_norm_clip in onnxruntime-training

# The only supported values of some parameters.
_NEUTRAL: dict[str, tuple[Any, str]] = {
    "use_mixed_precision": (False, "weights are trained in their own type"),
    "gradient_accumulation_steps": (1, "use accumulate of onnxgrad.TrainingSession or Trainer"),
    "set_gradients_as_graph_outputs": (False, "use outputs of onnxgrad.TrainingSession"),
    "world_size": (1, "training is on one machine"),
    "model_with_gradient_graph_path": ("", "use onnx_derivative(..., path_name=...)"),
    "model_with_training_graph_path": ("", "use onnxgrad.training_step"),
}


class TrainingParameters:
    """The parameters of a `TrainingSession`.

    Attributes
    ----------
    loss_output_name : str
    weights_to_train : set of str
    training_optimizer_name : str, Optimizer or onnx.ModelProto
        ``"SGDOptimizer"``, ``"AdamOptimizer"``, ``"LambOptimizer"``, any name or object of
        `onnxgrad.optimizers`, or an update as a graph, see `onnxgrad.optimizers.User`.
    optimizer_attributes_map, optimizer_int_attributes_map : dict
        Attributes by weight: ``{weight: {"alpha": 0.9, "beta": 0.999, "lambda": 0, ...}}``; for
        onnxgrad's optimizers, the options of their class. Other weights have the defaults.
    lr_params_feed_name : str, default="Learning_Rate"
    enable_grad_norm_clip : bool, default=False
        Whether to scale gradients down if their total norm is above 1. The output
        ``global_gradient_norm`` is the norm before scaling.

    Notes
    -----
    `use_mixed_precision`, `gradient_accumulation_steps`, `set_gradients_as_graph_outputs`,
    `world_size`, `model_with_gradient_graph_path` and `model_with_training_graph_path` are refused
    with other values than their defaults.
    """

    def __init__(self) -> None:
        self.loss_output_name = ""
        self.weights_to_train: Iterable[str] = set()
        self.training_optimizer_name: Any = "SGDOptimizer"
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
        """Refuse unsupported values.

        Raises
        ------
        NotImplementedError
            An unsupported value; the message names the parameter.
        """
        for name, (neutral, hint) in _NEUTRAL.items():
            if getattr(self, name) != neutral:
                raise NotImplementedError(f"{name}={getattr(self, name)!r} is refused: {hint}.")

    def optimizer(self) -> Any:
        """Return the optimizer of the first weight by name.

        Raises
        ------
        NotImplementedError
            An attribute that the optimizer does not have.
        """
        found = self._optimizers()
        return next(iter(found.values())) if found else self._described({})

    def groups(self) -> list[og.optimizers.ParameterGroup]:
        """Return groups for the weights whose attributes differ from those of `optimizer`."""
        if not self.optimizer_attributes_map and not self.optimizer_int_attributes_map:
            return []
        first = self.optimizer()
        return [
            og.optimizers.ParameterGroup(weight, optimizer=optimizer)
            for weight, optimizer in self._optimizers().items()
            if optimizer != first
        ]

    def _optimizers(self) -> dict[str, Any]:
        """Return the optimizer of each weight."""
        tables = (self.optimizer_attributes_map, self.optimizer_int_attributes_map)
        found: dict[str, Any] = {}
        for weight in sorted(self.weights_to_train):
            attributes: dict[str, float] = {}
            for table in tables:
                attributes |= table.get(weight, {})
            found[weight] = self._described(attributes)
        return found

    def _described(self, attributes: Mapping[str, float]) -> Any:
        return _optimizer(self.training_optimizer_name, attributes)


def _optimizer(name: Any, options: Mapping[str, float]) -> Any:
    if isinstance(name, onnx.ModelProto):
        name = og.optimizers.User(name)
    if isinstance(name, og.optimizers.Optimizer):
        return name.replace(**options)
    if name not in _OPTIMIZERS:
        try:
            return og.optimizers.from_name(name).replace(**options)
        except og.OptionError as error:
            known = [*_OPTIMIZERS, *og.optimizers.names()]
            raise NotImplementedError(
                f"Unexpected training_optimizer_name={name!r}, expected one of {known}."
            ) from error
    described = og.optimizers.from_name(_OPTIMIZERS[name])
    attributes = _ATTRIBUTES if "beta1" in vars(described) else {}
    ours = {"weight_decay": 0.0}
    for option, value in options.items():
        if option in ("do_bias_correction", "weight_decay_mode") and value == int(
            option == "do_bias_correction"
        ):
            continue  # our optimizer's behavior
        if option not in attributes:
            raise NotImplementedError(
                f"{name} has no attribute {option}={value} here, only {[*attributes]}."
            )
        ours[attributes[option]] = value
    return described.replace(**ours)


class TrainingSession:
    """Trains weights of a model whose output `loss_output_name` is the loss of a batch.

    Parameters
    ----------
    path_or_bytes : path, bytes or onnx.ModelProto
    parameters : TrainingParameters
    sess_options : SessionOptions, default=None
        No effect; computation is always deterministic.
    providers, provider_options : list, default=None
        Only the CPU's provider is available.
    for_epochs : bool, default=False
        Whether `use_trainer` will be called; single steps are then compiled when first needed.
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
        self._options: dict[str, Any] = {
            "trainable": self.weights,
            "untie": False,
            "device": device,
        }
        self._options["groups"] = parameters.groups()
        if parameters.enable_grad_norm_clip:
            self._options["clip_norm"] = _MAX_NORM
        self._session: og.TrainingSession | None = None
        self._trainer: og.Trainer | None = None
        self._newest: og.TrainingSession | None = None
        if not for_epochs:
            self._use_session()

    def _parts(self) -> tuple[onnx.ModelProto, Any, Any]:
        """Return model, loss and optimizer for onnxgrad."""
        name = self._parameters.loss_output_name
        loss = og.losses.Output(name, target="", reduction="sum")
        return self._model, loss, self._parameters.optimizer()

    def _use_session(self) -> og.TrainingSession:
        """Return the session for single steps, with the newest weights."""
        if self._session is None:
            wanted = [*self._outputs, "gradient_norm"]
            self._session = og.TrainingSession(*self._parts(), outputs=wanted, **self._options)
        self._take_over(self._session)
        return self._session

    def use_trainer(self, seed: int) -> og.Trainer:
        """Return the trainer for epochs, with the newest weights; its loss is a sum."""
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
        """Do one step and return outputs from before the update.

        Parameters
        ----------
        output_names : list of str or None
            None means all outputs of the model, and ``global_gradient_norm``.
        input_feed : dict
            The inputs of the model and ``Learning_Rate`` [1].
        run_options : RunOptions, default=None
            `terminate` and `only_execute_path_to_fetches` are refused; others have no effect.
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
        """Do one step on the bound inputs, and store the outputs in the binding."""
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
        """Return the outputs of the model, with inferred shapes, and the norm."""
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
                if dim.dim_param.startswith("unk__"):  # a name generated by shape inference
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
        """Set weights; with `strict`, all weights must be given."""
        newest = self._newest or self._use_session()
        state = newest.state()
        unknown = set(dictionary) - set(self.weights)
        if unknown or (strict and len(dictionary) != len(self.weights)):
            raise ValueError(f"Expected the weights {self.weights}, not {[*dictionary]}.")
        given = {name: array_of(value) for name, value in dictionary.items()}
        newest.load_state({**state, **given})

    def trained_model(self) -> onnx.ModelProto:
        """Return the model with the current weights."""
        return og.set_weights(self._model, self.get_state())

    def __repr__(self) -> str:
        return f"TrainingSession(weights={self.weights}, outputs={self._outputs})"


def check_providers(providers: Sequence[Any]) -> list[str]:
    """Return the names of execution providers, which may have options.

    Raises
    ------
    ValueError
        An unknown provider.
    """
    names = [one if isinstance(one, str) else one[0] for one in providers]
    known = known_providers()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"Unexpected providers {unknown}, expected some of {[*known]}.")
    return names


def device_of(providers: Sequence[Any] | None) -> str:
    """Return the device of the first execution provider, with its option ``device_id``.

    Raises
    ------
    ValueError
        An unknown provider.
    """
    given = providers or ["CPUExecutionProvider"]
    device = known_providers()[check_providers(given)[0]]
    number = 0 if isinstance(given[0], str) else int(dict(given[0][1]).get("device_id", 0))
    return f"{device}:{number}" if number else device


def node_args(values: Iterable[onnx.ValueInfoProto]) -> list[og.NodeArg]:
    """Return descriptions of inputs or outputs like onnxruntime's."""
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
