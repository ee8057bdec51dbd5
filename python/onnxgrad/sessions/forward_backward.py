"""A model as a differentiable function, for custom training loops."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from onnxgrad import _core
from onnxgrad.base.checks import (
    checked_names,
    flag,
    nearest_or,
    path_text,
    patterns,
    plain_text,
    positive_int,
    shown,
)
from onnxgrad.base.engine_options import engine_options, training_mode_of
from onnxgrad.base.models import Kind, ModelLike, deliver, to_core_model
from onnxgrad.base.typed_options import documents_options
from onnxgrad.base.values import NodeArg, node_args
from onnxgrad.data.arrays import (
    ArrayLike,
    are_on_device,
    from_native,
    from_native_list,
    to_feeds,
    to_native,
)
from onnxgrad.data.device_arrays import result
from onnxgrad.data.maps import is_map, with_rows
from onnxgrad.errors import DataError, OptionError
from onnxgrad.precision import as_precision
from onnxgrad.profiles import Memory
from onnxgrad.session_options import PassOptions
from onnxgrad.session_options.model_changes import changed_model
from onnxgrad.session_options.taking import takes_session_options, with_defaults
from onnxgrad.sessions.gradient_feeds import GradientFeeds

if TYPE_CHECKING:
    import numpy as np
    import onnx

__all__ = ["ForwardBackward", "Gradients", "Outputs"]

Context = _core.ForwardContext


class Outputs(list["np.ndarray[Any, Any]"]):
    """The outputs of a forward pass: a list of arrays, with the context for `backward`.

    Attributes
    ----------
    context : Context or None
        The tensors saved by the pass; None if it was not for training. ``context.saved_bytes`` is
        the memory that they take in addition to inputs, outputs and weights.
    """

    def __init__(self, values: Iterable[np.ndarray[Any, Any]], context: Context | None) -> None:
        super().__init__(values)
        self.context = context


class Gradients(NamedTuple):
    """The gradients of a backward pass.

    Attributes
    ----------
    weights : dict of str to numpy.ndarray
        Gradients by name of the weight, with its shape and dtype.
    inputs : dict of str to numpy.ndarray
        Gradients by name of the input.
    """

    weights: dict[str, np.ndarray[Any, Any]]
    inputs: dict[str, np.ndarray[Any, Any]]


@documents_options(PassOptions)
class ForwardBackward:
    """Separate forward and backward passes of a model, for any gradient of its outputs.

    `forward` computes outputs and saves what the gradients need; `backward` takes gradients of the
    outputs and returns those of weights and inputs. Nothing is copied between them: inputs and
    weights are read in place, outputs and saved tensors belong to the result of `forward`.

    With ``precision="fp16"`` scale the gradients of the outputs yourself.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    weights : str or list of str, default=None
        Names or glob patterns of the weights to differentiate. None means all parameters; see
        `onnxgrad.report`.
    inputs : str or list of str, default=None
        Names of inputs to differentiate; None means all of floating type.
    input_gradients : bool, default=True
        Whether to compute gradients of inputs too.
    **options : PassOptions

    Raises
    ------
    GradientError
        Nodes have no gradient; the message names all of them.
    ModelError
        An invalid model, or a pattern or name that matches nothing.

    Notes
    -----
    Only one call can run at a time: a concurrent call from another thread raises `Error`. Objects
    can be pickled (model, options and current weights, but not open passes) and copied.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> layer = og.ForwardBackward(linear_model)
    >>> (y,) = layer.forward({"X": np.ones((3, 2), np.float32)})
    >>> gradients = layer.backward(np.ones_like(y))
    >>> {name: value.tolist() for name, value in gradients.weights.items()}
    {'coef': [[3.0], [3.0]], 'intercept': [3.0]}
    >>> gradients.inputs["X"].shape
    (3, 2)
    """

    @checked_names
    @takes_session_options(PassOptions)
    def __init__(
        self,
        model: ModelLike,
        *,
        weights: str | Iterable[str] | None = None,
        inputs: str | Iterable[str] | None = None,
        input_gradients: bool = True,
        **options: Unpack[PassOptions],
    ) -> None:
        given = with_defaults(PassOptions, options)
        self._options: dict[str, Any] = {
            **given,
            "weights": patterns("weights", weights),
            "frozen": patterns("frozen", given["frozen"]),
            "untie": flag("untie", given["untie"]),
            "inputs": patterns("inputs", inputs),
            "input_gradients": flag("input_gradients", input_gradients),
            "stop_gradient": patterns("stop_gradient", given["stop_gradient"]),
            "precision": as_precision(given["precision"]),
        }
        self._kind = Kind.of(model)
        self._build(changed_model(to_core_model(model), given, given["seed"]))

    def _build(self, model: _core.Model) -> None:
        options = self._options
        self._core = _core.ForwardBackward(
            model,
            options["weights"],
            options["frozen"],
            options["untie"],
            options["inputs"],
            options["input_gradients"],
            options["stop_gradient"],
            training_mode_of(options["training_mode"]),
            options["precision"]._native(),
            engine_options(
                options["device"],
                options["threads"],
                options["seed"],
                options["memory_limit"],
                math=options["math"],
                deterministic=options["deterministic"],
            ),
        )
        self._inputs = self._core.inputs
        self._has_maps = any(map(is_map, self._inputs))
        self._input_names = [value.name for value in self._inputs]
        self._output_names = [value.name for value in self._core.outputs]

    def forward(
        self,
        inputs: Mapping[str, ArrayLike] | Sequence[ArrayLike] | np.ndarray[Any, Any],
        training: bool = True,
        *,
        to_host: bool = True,
    ) -> Outputs:
        """Return the outputs for `inputs`.

        Parameters
        ----------
        inputs : dict of str to array, list of arrays in the order of the model, or one array
            Arrays of the declared types. Contiguous ones are read in place; with `training`, they
            and the outputs must not be changed before the backward pass.
        training : bool, default=True
            Whether to save what a backward pass needs.
        to_host : bool, default=True
            False: outputs stay in the memory of the device; see `InferenceSession.run`. What a
            backward pass needs is always there.

        Returns
        -------
        Outputs
            A list of arrays in the order of the model, and the `context` of this pass. Several
            passes may be open. In place of the dictionaries of a ZipMap there is the array [N, C]
            that they are made of, which has a gradient.

        Raises
        ------
        DataError
            A missing or unknown input, or a dtype other than declared.
        ShapeError
            Shapes that do not fit each other or the model.
        """
        if hasattr(training, "__len__"):  # a second array, passed by position
            raise OptionError(
                what=f"training: {shown(training)}, expected True or False",
                value="training",
                hint="Give all inputs together: a list in their order, or a dictionary by name.",
            )
        given = _by_name(inputs, self._input_names, "inputs")
        if self._has_maps:
            given = with_rows(self._inputs, given)
        feeds = to_feeds(given, in_place=True)
        training = flag("training", training)
        if not flag("to_host", to_host) or are_on_device(feeds):
            placed, context = self._core.forward_on_device(feeds, training)
            arrays = [result(output, to_host=to_host) for output in placed]
            return Outputs(arrays, context if training else None)
        outputs, context = self._core.forward(feeds, training)
        return Outputs(from_native_list(outputs), context if training else None)

    def backward(
        self,
        output_gradients: (
            Mapping[str, ArrayLike] | Sequence[ArrayLike | None] | np.ndarray[Any, Any] | None
        ),
        context: Context | None = None,
        *,
        to_host: bool = True,
    ) -> Gradients:
        """Return the gradients of weights and inputs, and close the pass.

        Parameters
        ----------
        output_gradients : dict of str to array, list of arrays or one array
            The gradient of a scalar with respect to each output, with its shape and dtype, in the
            order of the outputs or by name. None or a missing one means zeros.
        context : Context, default=None
            ``outputs.context`` of the forward pass; None means the last open one, so that a stack
            of passes is traversed backwards.
        to_host : bool, default=True
            False: gradients stay in the memory of the device.

        Raises
        ------
        DataError, ShapeError
            Gradients that do not fit the outputs; the pass remains open.
        Error
            No pass is open, or the pass of `context` is already closed.
        """
        if isinstance(output_gradients, list) or not isinstance(output_gradients, Mapping):
            given = _as_list(output_gradients)
            if len(given) > len(self._output_names):
                raise DataError(
                    what=f"{len(given)} gradients were given for {len(self._output_names)} outputs",
                    hint="Give one for each output in their order, or a dictionary by name.",
                )
            by_name: Mapping[str, Any] = dict(zip(self._output_names, given, strict=False))
        else:
            by_name = output_gradients
        _check_names(by_name, self._output_names, "output")
        ordered = [by_name.get(name) for name in self._output_names]
        native = [
            None if value is None else to_native(value, name, in_place=True)
            for name, value in zip(self._output_names, ordered, strict=True)
        ]
        if not flag("to_host", to_host) or _core.DeviceTensor in map(type, native):
            pairs = self._core.backward_on_device(native, context)
            return Gradients(
                *({name: result(one, to_host=to_host) for name, one in part} for part in pairs)
            )
        weights, inputs = self._core.backward(native, context)
        return Gradients(
            {name: from_native(value) for name, value in weights.items()},
            {name: from_native(value) for name, value in inputs.items()},
        )

    def _gradient_feeds(self, name_of: Callable[[str], str]) -> GradientFeeds:
        return GradientFeeds(self.weight_names, name_of)

    def memory(self) -> Memory:
        """Return the memory that the object uses, by purpose.

        `activations` are those of the largest passes so far, with saved tensors and results that
        are in use or kept for reuse.
        """
        return Memory._of(self._core.memory())

    @property
    def contexts(self) -> list[Context]:
        """The open passes, the oldest first."""
        return self._core.contexts

    def discard(self, context: Context | None = None) -> None:
        """Close a pass (None: all open ones) without gradients, and free what it saved."""
        if not isinstance(context, Context | None):
            raise OptionError(
                what=f"context: {shown(context)} is no open pass",
                value="context",
                hint="Give what forward() returned.",
            )
        for open_pass in self.contexts if context is None else [context]:
            self._core.discard(open_pass)

    @property
    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read-only views (on other devices copies) of weights and running statistics, by name.

        Assigning a dictionary copies the given ones. Open passes keep the weights that they were
        run with.
        """
        views = {name: from_native(value) for name, value in self._core.weights().items()}
        for view in views.values():
            view.flags.writeable = False
        return views

    @weights.setter
    def weights(self, values: Mapping[str, ArrayLike]) -> None:
        self._core.set_weights(to_feeds(values))

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that `forward` takes."""
        return node_args(self._core.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs that `forward` returns."""
        return node_args(self._core.outputs)

    @property
    def weight_names(self) -> list[str]:
        """Names of the weights that have a gradient, in the order of the file."""
        return [weight.name for weight in self._core.weight_infos]

    @property
    def gradient_inputs(self) -> list[str]:
        """Names of the inputs that have a gradient."""
        return list(self._core.gradient_inputs)

    def trained_model(self, *, like: bool = False) -> onnx.ModelProto:
        """Return the model as it was loaded, with the current weights.

        With `like` it is of the kind that was given; see `gradient`.
        """
        return deliver(self._core.trained_model(), kind=self._kind if flag("like", like) else None)

    def graphs(
        self, *, target_opset: int = 26, inline: bool = False, like: bool = False
    ) -> dict[str, onnx.ModelProto]:
        """Return the graphs that are run, as models for any runtime.

        With `like` they are of the kind that was given; see `gradient`.

        Returns
        -------
        dict of str to onnx.ModelProto
            ``"inference"`` and ``"forward"``: the inputs are those of the model, then the weights;
            the outputs are those of the model, followed in ``"forward"`` by the saved tensors.
            ``"backward"``: the inputs are ``<output>_grad`` and, by the same names, inputs and
            outputs of ``"forward"``; the outputs are ``<weight>_grad`` and ``<input>_grad``.
        """
        kind = self._kind if flag("like", like) else None
        if kind is not None:
            kind.check()
        native = self._native_graphs(target_opset, inline)
        return {name: deliver(graph, kind=kind) for name, graph in native}

    def save(
        self,
        folder: str | os.PathLike[str],
        prefix: str = "",
        *,
        target_opset: int = 26,
        inline: bool = False,
    ) -> dict[str, str]:
        """Write the `graphs` to ``<folder>/<prefix><name>.onnx`` and return the paths by name.

        Raises
        ------
        CheckpointError
            If a file cannot be written.
        """
        base, prefix = pathlib.Path(path_text("folder", folder)), plain_text("prefix", prefix)
        paths = {}
        for name, graph in self._native_graphs(target_opset, inline):
            paths[name] = str(base / f"{prefix}{name}.onnx")
            graph.save(paths[name])
        return paths

    def _native_graphs(self, target_opset: int, inline: bool) -> list[tuple[str, _core.Model]]:
        opset = positive_int("target_opset", target_opset)
        core = self._core
        return [
            ("inference", core.inference_graph(opset, flag("inline", inline))),
            ("forward", core.forward_graph(opset, flag("inline", inline))),
            ("backward", core.backward_graph(opset, flag("inline", inline))),
        ]

    def __getstate__(self) -> dict[str, Any]:
        weights = {name: value.copy() for name, value in self.weights.items()}
        return {
            "model": self._core.trained_model().to_bytes(),
            "kind": self._kind,
            "options": self._options,
            "weights": weights,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["options"]
        self._kind = state.get("kind", Kind.of(b""))
        self._build(_core.Model.from_bytes(state["model"]))
        self.weights = state["weights"]

    def __repr__(self) -> str:
        return (
            f"ForwardBackward(inputs={self._input_names}, outputs={self._output_names}, "
            f"weights={self.weight_names})"
        )


def _as_list(values: Any) -> list[Any]:
    # A single array is a list of one.
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _by_name(values: Any, names: list[str], what: str) -> Mapping[str, Any]:
    if type(values) is dict or isinstance(values, Mapping):
        return values
    given = _as_list(values)
    if len(given) != len(names):
        raise DataError(
            what=f"{len(given)} {what} were given, expected {len(names)}",
            detail=f"In this order: {', '.join(repr(name) for name in names)}.",
            hint="Give one for each, or a dictionary by name.",
        )
    return dict(zip(names, given, strict=True))


def _check_names(values: Mapping[str, Any], names: list[str], what: str) -> None:
    for name in values:
        if name not in names:
            raise DataError(
                what=f"there is no {what} {name!r}",
                value=str(name),
                detail=f"Known: {', '.join(repr(known) for known in names)}.",
                hint=nearest_or(str(name), names),
            )
