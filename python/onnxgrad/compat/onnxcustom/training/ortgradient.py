"""Forward and backward passes of a model, for custom training loops."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from typing import Any

import onnx
import onnx.numpy_helper

import onnxgrad as og
from onnxgrad.compat.graphs import tools
from onnxgrad.compat.models import takes_models
from onnxgrad.compat.onnxcustom.training.base_onnx_class import (
    GraphFolder,
    check_graph_folder,
    save_graph,
)
from onnxgrad.compat.onnxcustom.training.excs import ProviderError
from onnxgrad.compat.onnxcustom.utils.onnxruntime_helper import (
    get_ort_device,
    ort_device_to_string,
    provider_to_device,
)
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import get_train_initializer
from onnxgrad.compat.onnxruntime.run_options import check_run_options
from onnxgrad.compat.onnxruntime.training_agent import (
    OrtModuleGraphBuilder,
    OrtModuleGraphBuilderConfiguration,
    OrtValueCache,
    PartialGraphExecutionState,
    TrainingAgent,
)
from onnxgrad.compat.onnxruntime.training_session import check_providers
from onnxgrad.compat.onnxruntime.values import (
    OrtDevice,
    OrtValue,
    OrtValueVector,
    array_of,
    write_into,
)

__all__ = ["OrtGradientForwardBackward", "OrtGradientForwardBackwardFunction"]


class OrtGradientForwardBackward:
    """Creates a class with the forward and backward passes of a model.

    Weights may be in any order, and the model may have subgraphs.

    Parameters
    ----------
    onnx_model : onnx.ModelProto
    weights_to_train : list of str, default=None
        Initializers that become inputs, after those of the model; None means all of floating type.
    input_names, output_names : list of str, default=None
        None means all.
    class_name : str, default=None
        Name of the class `cls_type_`.
    sess_options : default=None
        Stored; no effect.
    run_options : RunOptions, default=None
        `terminate` and `only_execute_path_to_fetches` are refused; others have no effect.
    providers : list of str, default=None
        None means the CPU's.
    provider_options : list of dict, default=None
        Not supported: options are refused.
    graph_builder_config : OrtModuleGraphBuilderConfiguration, default=None
        Names of weights and inputs, instead of all.
    device_index : int, default=0
        Must be 0 for the host.
    enable_logging : bool, default=False
        Whether to log to the logger ``onnxcustom``.
    debug : bool, default=False
        Whether to check the types of inputs.

    Attributes
    ----------
    cls_type_ : type
        A subclass of `OrtGradientForwardBackwardFunction`.
    """

    @takes_models("onnx_model")
    def __init__(
        self,
        onnx_model: onnx.ModelProto,
        weights_to_train: Sequence[str] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        class_name: str | None = None,
        sess_options: Any = None,
        providers: Sequence[str] | None = None,
        provider_options: Sequence[dict[str, Any]] | None = None,
        run_options: Any = None,
        graph_builder_config: OrtModuleGraphBuilderConfiguration | None = None,
        device_index: int = 0,
        enable_logging: bool = False,
        debug: bool = False,
    ) -> None:
        self.onnx_model = onnx_model
        self.class_name = class_name
        self.sess_options = sess_options
        self.run_options = run_options
        self.provider_options = provider_options
        self.graph_builder_config = graph_builder_config
        self.device_index = device_index
        self.enable_logging = enable_logging
        self.debug = debug
        self.providers = list(providers or ["CPUExecutionProvider"])
        try:
            check_providers(self.providers)
        except ValueError as error:
            raise ProviderError(str(error)) from error
        graph = onnx_model.graph
        initializers = {init.name for init in graph.initializer}
        config = graph_builder_config
        if weights_to_train is None and config is not None:
            weights_to_train = config.initializer_names_to_train or None
        if weights_to_train is None:
            weights_to_train = self._select_initializer_names(onnx_model)
        if not weights_to_train:
            raise ValueError(f"No weight to train was found in {sorted(initializers)}.")
        self.weights_to_train = list(weights_to_train)
        known = [value.name for value in graph.input if value.name not in initializers]
        self.input_names = known if input_names is None else list(input_names)
        outputs = [value.name for value in graph.output]
        self.output_names = outputs if output_names is None else list(output_names)
        for name, names in [
            *((name, known) for name in self.input_names),
            *((name, outputs) for name in self.output_names),
            *((name, sorted(initializers)) for name in self.weights_to_train),
        ]:
            if name not in names:
                raise ValueError(f"Unable to find {name!r} in {names}.")
        if any(provider_options or []):
            raise NotImplementedError(f"provider_options={provider_options!r} is not supported.")
        check_run_options(run_options)
        if device_index != 0 and self.providers[0] == "CPUExecutionProvider":
            raise ValueError(f"device_index={device_index}: the host has only device 0.")
        self._init_next()

    @staticmethod
    def _select_initializer_names(onnx_model: onnx.ModelProto) -> list[str]:
        return [*get_train_initializer(onnx_model)]

    @staticmethod
    def _provider_name_to_device_type(provider_name: str) -> int:
        try:
            return get_ort_device(provider_to_device(provider_name)).device_type()
        except ValueError as error:
            raise ProviderError(str(error)) from error

    @staticmethod
    def _repr_helper_(obj: Any, indent: int = 0) -> str:
        """Return the attributes of an object, one line each."""
        space = " " * indent
        lines = [
            f"{space}{name}={getattr(obj, name)!r}"[:100]
            for name in sorted(dir(obj))
            if not name.startswith("__") and not callable(getattr(obj, name))
        ]
        return "\n".join([f"{space}{type(obj).__name__}", *lines])

    def get_initializer(self, name: str, exc: bool = True) -> OrtValue | None:
        """Return an initializer as OrtValue; if there is none, raise an error or return None."""
        for init in self.onnx_model.graph.initializer:
            if init.name == name:
                # A copy: the tensor's memory is read-only, and a trained weight changes.
                return OrtValue(onnx.numpy_helper.to_array(init).copy())
        if exc:
            names = [init.name for init in self.onnx_model.graph.initializer]
            raise RuntimeError(f"Unable to find name {name!r} in {names}.")
        return None

    def _init_next(self) -> None:
        name = self.class_name or f"OrtGradientForwardBackwardFunction_{id(self)}"
        self._logger = logging.getLogger("onnxcustom") if self.enable_logging else None
        if self._logger is not None:
            self._logger.info("[OrtGradientForwardBackward] new class %r", name)
        attributes = self._create_onnx_graphs()
        self.cls_type_: Any = type(name, (OrtGradientForwardBackwardFunction,), attributes)

    def _create_onnx_graphs(self) -> dict[str, Any]:
        """Build the graphs and return the attributes of the class."""
        from onnxgrad.compat.mlprodict.onnx_tools.onnx_manipulations import (
            select_model_inputs_outputs,
        )

        model = self.onnx_model
        if self.output_names != [value.name for value in model.graph.output]:
            model = select_model_inputs_outputs(model, outputs=self.output_names)
        trained = tools.weights_as_inputs(model, self.weights_to_train)
        config = self.graph_builder_config or OrtModuleGraphBuilderConfiguration()
        config.initializer_names = config.initializer_names_to_train = self.weights_to_train
        builder = OrtModuleGraphBuilder()
        builder.initialize(model, config)
        gradient = onnx.load_model_from_string(builder.get_gradient_model())
        outputs = set(self.output_names)
        wrt = [
            value.name.removesuffix("_grad")
            for value in gradient.graph.output
            if value.name not in outputs
        ]
        feeds = [*self.input_names, *self.weights_to_train]
        devices = [
            OrtDevice(self._provider_name_to_device_type(self.providers[0]), 0, self.device_index)
        ]
        agent = TrainingAgent(trained, feeds, None, wrt, providers=self.providers)
        if self._logger is not None:
            self._logger.info("[OrtGradientForwardBackward] feeds=%r gradients=%r", feeds, wrt)
        return {
            "__doc__": "Forward and backward passes of a model.",
            "__module__": __name__,
            "_run_options": self.run_options,
            "_sess": og.InferenceSession(model),
            "_sess_eval": og.InferenceSession(trained),
            "_training_agent": agent,
            "_cache": OrtValueCache(),
            "_update_cache": False,
            "_states": [],
            "_logger": self._logger,
            "_input_names": self.input_names,
            "_debug": self.debug,
            "_grad_input_names": feeds,
            "_output_names": self.output_names,
            "_weights_to_train": self.weights_to_train,
            "_bw_fetches_names": [f"{name}_grad" for name in wrt],
            "_fw_outputs_device_info": devices * len(self.output_names),
            "_bw_outputs_device_info": devices * len(wrt),
            "_fw_no_grad_output_device_info": devices * len(self.output_names),
            "_graph_info": {"inputs": feeds, "outputs": self.output_names, "gradients": wrt},
            "_devices": devices,
            "_trained_onnx": gradient,
            "_optimized_pre_grad_model": trained,
            "_graph_builder": builder,
        }

    def new_instance(self) -> OrtGradientForwardBackwardFunction:
        """Return a new instance of the class `cls_type_`."""
        instance: OrtGradientForwardBackwardFunction = self.cls_type_()
        return instance

    def __getstate__(self) -> dict[str, Any]:
        state = {
            name: value
            for name, value in vars(self).items()
            if name not in ("cls_type_", "_logger")
        }
        for name in ("sess_options", "run_options"):
            state[name] = _picklable(state[name])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._init_next()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(weights_to_train={self.weights_to_train}, "
            f"input_names={self.input_names}, output_names={self.output_names})"
        )


class OrtGradientForwardBackwardFunction:
    """Base class of the classes that `OrtGradientForwardBackward` creates.

    Attributes
    ----------
    saved_tensors_ : list
        Stack of the inputs of forward passes that have had no backward pass yet.
    """

    _training_agent: TrainingAgent
    _run_options: Any
    _sess_eval: og.InferenceSession
    _logger: logging.Logger | None
    _debug: bool
    _devices: list[OrtDevice]
    _grad_input_names: list[str]
    _cache: OrtValueCache
    _trained_onnx: onnx.ModelProto
    _optimized_pre_grad_model: onnx.ModelProto

    def __init__(self) -> None:
        self.saved_tensors_: list[list[Any]] = []
        self.states_: list[PartialGraphExecutionState] = []

    @staticmethod
    def device_name(device: OrtDevice) -> str:
        """Return the name of a device."""
        return ort_device_to_string(device)

    @staticmethod
    def input_to_ort(
        tensors: Any, devices: Sequence[OrtDevice] | None = None, debug: bool = False
    ) -> OrtValueVector:
        """Convert arrays or OrtValues of either library to a vector, without copies.

        Raises
        ------
        TypeError
            With `debug`, if one of them is neither.
        """
        if isinstance(tensors, OrtValueVector):
            return tensors
        if debug:
            for i, tensor in enumerate(tensors):
                try:
                    array_of(tensor)
                except TypeError as error:
                    raise TypeError(f"Unexpected type for input {i}: {error}") from error
            if devices and len({device.device_type() for device in devices}) > 1:
                raise RuntimeError(f"Values on different devices: {list(devices)}.")
        return OrtValueVector(tensors)

    def save_for_backward(self, inputs: Sequence[Any]) -> None:
        """Push a shallow copy of a list of inputs onto the stack."""
        self.saved_tensors_.append(list(inputs))

    @property
    def saved_tensors(self) -> list[Any]:
        """Pop the last list of inputs from the stack."""
        return self.saved_tensors_.pop()

    def forward(
        self,
        inputs: Sequence[Any],
        training: bool = False,
        forward_outputs_cache: OrtValueVector | None = None,
    ) -> OrtValueVector:
        """Return the outputs.

        Parameters
        ----------
        inputs : list of arrays or OrtValues, or OrtValueVector
            Inputs of the model, then the weights; read in place. They must not be changed before
            the backward pass.
        training : bool, default=False
            Whether to save what the backward pass needs; several passes may be open.
        forward_outputs_cache : OrtValueVector, default=None
            Values whose memory the outputs are written to, if shapes and types are the same.
        """
        check_run_options(self._run_options)
        feeds = self.input_to_ort(inputs, self._devices, self._debug)
        if self._logger is not None:
            self._logger.debug("[%s.forward] training=%r", type(self).__name__, training)
        state = PartialGraphExecutionState() if training else None
        fetches = OrtValueVector()
        self._training_agent.run_forward(feeds, fetches, state, self._cache)
        if state is not None:
            self.states_.append(state)
            self.save_for_backward(feeds)
        return _into(forward_outputs_cache, fetches)

    def backward(
        self, grad_outputs: Sequence[Any], backward_outputs_cache: OrtValueVector | None = None
    ) -> OrtValueVector:
        """Return the gradients of inputs and weights, for the last forward pass that is open.

        Parameters
        ----------
        grad_outputs : list of arrays or OrtValues, or OrtValueVector
            The gradient of each output.
        backward_outputs_cache : OrtValueVector, default=None
            Values whose memory the gradients are written to.

        Raises
        ------
        RuntimeError
            If no pass is open.
        """
        if not self.states_:
            raise RuntimeError("backward() needs a forward pass with training=True before it.")
        check_run_options(self._run_options)
        feeds = self.input_to_ort(grad_outputs, self._devices, self._debug)
        if self._logger is not None:
            self._logger.debug("[%s.backward]", type(self).__name__)
        fetches = OrtValueVector()
        self._training_agent.run_backward(feeds, fetches, self.states_[-1])
        self.states_.pop()
        if self.saved_tensors_:
            self.saved_tensors_.pop()
        return _into(backward_outputs_cache, fetches)

    @classmethod
    def save_onnx_graph(
        cls,
        folder: GraphFolder,
        prefix: str | None = None,
        suffix: str | None = None,
    ) -> dict[str, Any]:
        """Write the gradient and the model with weights as inputs to files; return their paths.

        If the folder is the type ``bytes``, return the graphs as bytes.
        """
        check_graph_folder(folder)
        saved = {}
        for name in ("_trained_onnx", "_optimized_pre_grad_model"):
            file = f"{cls.__name__}.{prefix or ''}{name}{suffix or ''}.onnx"
            saved[name] = save_graph(getattr(cls, name), folder, file)
        return saved


def _picklable(value: Any) -> Any:
    """Return a value, or None if it cannot be pickled, such as stock onnxruntime's options."""
    try:
        pickle.dumps(value)
    except (TypeError, AttributeError, pickle.PicklingError):
        return None
    return value


def _into(cache: Any, values: OrtValueVector) -> OrtValueVector:
    """Write values into a cache and return it, reusing its memory if shapes and types match.

    Raises
    ------
    TypeError
        A cache of stock onnxruntime does not match; it cannot be changed.
    """
    if cache is None:
        return values
    for i, value in enumerate(values):
        new = value.numpy()
        old = array_of(cache[i]) if i < len(cache) else None
        if old is not None and old.shape == new.shape and old.dtype == new.dtype:
            write_into(cache[i], new)
        elif not isinstance(cache, list):
            found = "nothing" if old is None else f"{old.dtype} {list(old.shape)}"
            raise TypeError(
                f"cache: a {type(cache).__name__} has {found} at position {i}, expected "
                f"{new.dtype} {list(new.shape)}. Give a list or an OrtValueVector of "
                "onnxgrad.compat.onnxruntime, which can be changed."
            )
        elif old is None:
            cache.append(value)
        else:
            cache[i] = value
    filled: OrtValueVector = cache
    return filled
