"""A model as a function with a gradient, for training loops that live outside."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxgrad import _core
from onnxgrad.base.checks import (
    checked_names,
    nearest_or,
    path_text,
    patterns,
    positive_int,
    shown,
)
from onnxgrad.base.engine_options import engine_options, training_mode_of
from onnxgrad.base.models import ModelLike, to_core_model, to_proto
from onnxgrad.base.values import NodeArg, node_args
from onnxgrad.data.arrays import ArrayLike, from_native, from_native_list, to_feeds, to_native
from onnxgrad.errors import DataError, OptionError

if TYPE_CHECKING:
    import numpy as np
    import onnx

__all__ = ["ForwardBackward", "Gradients", "Outputs"]

Context = _core.ForwardContext


class Outputs(list["np.ndarray[Any, Any]"]):
    """The outputs of a forward pass: a list of arrays, and the pass to hand to `backward`.

    Attributes
    ----------
    context : Context or None
        What the pass has saved; None if it was not for training. ``context.saved_bytes`` says how
        much memory that takes besides inputs, outputs and weights.
    """

    def __init__(self, values: Iterable[np.ndarray[Any, Any]], context: Context | None) -> None:
        super().__init__(values)
        self.context = context


class Gradients(NamedTuple):
    """The gradients of a backward pass.

    Attributes
    ----------
    weights : dict of str to numpy.ndarray
        By name of the weight, with its shape and dtype.
    inputs : dict of str to numpy.ndarray
        By name of the input.
    """

    weights: dict[str, np.ndarray[Any, Any]]
    inputs: dict[str, np.ndarray[Any, Any]]


class ForwardBackward:
    """Separate forward and backward passes of a model, with any gradient of its outputs.

    `forward` computes outputs and keeps what the gradients need; `backward` takes gradients of the
    outputs and returns those of weights and inputs. Between the two nothing is copied: inputs and
    weights are read where they lie, outputs and saved tensors belong to what `forward` returned.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    weights, frozen : str or list of str, default=None
        Names or glob patterns of the weights to differentiate, and of those that are constants. By
        default, all are differentiated that are parameters; see `onnxgrad.report`.
    untie : bool, default=True
        Whether weights that are one in the file by accident are differentiated apart, and are apart
        in the trained model; see `TrainingSession`.
    inputs : str or list of str, default=None
        Names of inputs to differentiate; None is all of floating type.
    input_gradients : bool, default=True
        False computes the gradients of weights alone.
    stop_gradient : str or list of str, default=None
        Values of the model, or nodes for all their outputs, also in subgraphs: no gradient flows
        past them.
    training_mode : "auto", True or False, default="auto"
        Whether Dropout drops and BatchNormalization takes the statistics of the batch, in a model
        that was exported for inference. ``"auto"``: Dropout, and each BatchNormalization whose
        scale or bias is trained. So it is in passes for
        training alone; they also update the running statistics.
    device : {"cpu"}, default="cpu"
    threads : int, default=None
        None takes the cores that this process may use, or as many as ``OMP_NUM_THREADS`` says if
        that is fewer.
    seed : int, default=0
        Of Dropout and other random operators.

    Raises
    ------
    GradientError
        Nodes have no gradient; names all of them.
    ModelError
        No valid model, a pattern or name that matches nothing.

    Notes
    -----
    One call at a time: a call while another thread is inside raises `Error`. Objects can be
    pickled (model, options and current weights; not open passes) and copied.

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
    def __init__(
        self,
        model: ModelLike,
        *,
        weights: str | Iterable[str] | None = None,
        frozen: str | Iterable[str] | None = None,
        untie: bool = True,
        inputs: str | Iterable[str] | None = None,
        input_gradients: bool = True,
        stop_gradient: str | Iterable[str] | None = None,
        training_mode: bool | str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        self._options: dict[str, Any] = {
            "weights": patterns("weights", weights),
            "frozen": patterns("frozen", frozen),
            "untie": bool(untie),
            "inputs": patterns("inputs", inputs),
            "input_gradients": bool(input_gradients),
            "stop_gradient": patterns("stop_gradient", stop_gradient),
            "training_mode": training_mode,
            "device": device,
            "threads": threads,
            "seed": seed,
        }
        self._build(to_core_model(model))

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
            engine_options(options["device"], options["threads"], options["seed"]),
        )
        self._input_names = [value.name for value in self._core.inputs]
        self._output_names = [value.name for value in self._core.outputs]

    def forward(
        self,
        inputs: Mapping[str, ArrayLike] | Sequence[ArrayLike] | np.ndarray[Any, Any],
        training: bool = True,
    ) -> Outputs:
        """Return the outputs for `inputs`.

        Parameters
        ----------
        inputs : dict of str to array, list of arrays in the order of the model, or one array
            Arrays of the declared types. Contiguous ones are read in place: with `training`, they
            and the outputs must not be changed before the backward pass.
        training : bool, default=True
            False saves nothing, and no backward pass can follow.

        Returns
        -------
        Outputs
            A list of arrays in the order of the model, and the `context` of this pass. Several
            passes may be open.

        Raises
        ------
        DataError
            A missing or unknown input, or another dtype than declared.
        ShapeError
            Shapes that do not fit each other or the model.
        """
        if hasattr(training, "__len__"):  # one more array
            raise OptionError(
                what=f"training: {shown(training)}, expected True or False",
                value="training",
                hint="Give all inputs together: a list in their order, or a dictionary by name.",
            )
        feeds = to_feeds(_by_name(inputs, self._input_names, "inputs"))
        outputs, context = self._core.forward(feeds, bool(training))
        return Outputs(from_native_list(outputs), context if training else None)

    def backward(
        self,
        output_gradients: (
            Mapping[str, ArrayLike] | Sequence[ArrayLike | None] | np.ndarray[Any, Any] | None
        ),
        context: Context | None = None,
    ) -> Gradients:
        """Return the gradients of weights and inputs, and close the pass.

        Parameters
        ----------
        output_gradients : dict of str to array, list of arrays or one array
            The gradient of a scalar with respect to each output, with its shape and dtype, in the
            order of the outputs or by name. None or a missing one stands for zeros.
        context : Context, default=None
            ``outputs.context`` of the forward pass; None takes the last one that is open, so that
            a stack of passes is traversed backwards.

        Raises
        ------
        DataError, ShapeError
            Gradients that do not fit the outputs; the pass stays open.
        Error
            No pass is open, or the backward pass of `context` has been done.
        """
        if not isinstance(output_gradients, Mapping):
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
            None if value is None else to_native(value, name)
            for name, value in zip(self._output_names, ordered, strict=True)
        ]
        weights, inputs = self._core.backward(native, context)
        return Gradients(
            {name: from_native(value) for name, value in weights.items()},
            {name: from_native(value) for name, value in inputs.items()},
        )

    @property
    def contexts(self) -> list[Context]:
        """The open passes, the oldest first."""
        return self._core.contexts

    def discard(self, context: Context | None = None) -> None:
        """Close a pass (None: all that are open) without gradients, and free what it saved."""
        for open_pass in self.contexts if context is None else [context]:
            self._core.discard(open_pass)

    @property
    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read-only views of the current weights and running statistics, by name.

        Setting copies any number of them.
        Open passes keep the weights that they were run with.
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
        """Return the outputs that `forward` gives."""
        return node_args(self._core.outputs)

    @property
    def weight_names(self) -> list[str]:
        """Weights that get a gradient, in the order of the file."""
        return [weight.name for weight in self._core.weight_infos]

    @property
    def gradient_inputs(self) -> list[str]:
        """Inputs that get a gradient."""
        return list(self._core.gradient_inputs)

    def trained_model(self) -> onnx.ModelProto:
        """Return the model as it was loaded, with the current weights."""
        return to_proto(self._core.trained_model())

    def graphs(self, *, target_opset: int = 26, inline: bool = False) -> dict[str, onnx.ModelProto]:
        """Return the graphs that are run, as models for any runtime.

        Returns
        -------
        dict of str to onnx.ModelProto
            ``"inference"`` and ``"forward"``: inputs are those of the model, then the weights; the
            outputs are those of the model, in ``"forward"`` followed by what is saved.
            ``"backward"``: inputs are ``<output>_grad`` and, under their names there, inputs and
            outputs of ``"forward"``; outputs are ``<weight>_grad`` and ``<input>_grad``.
        """
        return {name: to_proto(graph) for name, graph in self._native_graphs(target_opset, inline)}

    def save(
        self,
        folder: str | os.PathLike[str],
        prefix: str = "",
        *,
        target_opset: int = 26,
        inline: bool = False,
    ) -> dict[str, str]:
        """Write each of `graphs` to ``<folder>/<prefix><name>.onnx`` and return the paths.

        Raises
        ------
        CheckpointError
            If a file cannot be written.
        """
        base = pathlib.Path(path_text("folder", folder))
        paths = {}
        for name, graph in self._native_graphs(target_opset, inline):
            paths[name] = str(base / f"{prefix}{name}.onnx")
            graph.save(paths[name])
        return paths

    def _native_graphs(self, target_opset: int, inline: bool) -> list[tuple[str, _core.Model]]:
        opset = positive_int("target_opset", target_opset)
        core = self._core
        return [
            ("inference", core.inference_graph(opset, bool(inline))),
            ("forward", core.forward_graph(opset, bool(inline))),
            ("backward", core.backward_graph(opset, bool(inline))),
        ]

    def __getstate__(self) -> dict[str, Any]:
        weights = {name: value.copy() for name, value in self.weights.items()}
        return {
            "model": self._core.trained_model().to_bytes(),
            "options": self._options,
            "weights": weights,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["options"]
        self._build(_core.Model.from_bytes(state["model"]))
        self.weights = state["weights"]

    def __repr__(self) -> str:
        return (
            f"ForwardBackward(inputs={self._input_names}, outputs={self._output_names}, "
            f"weights={self.weight_names})"
        )


def _as_list(values: Any) -> list[Any]:
    # A single array stands for a list of one.
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _by_name(values: Any, names: list[str], what: str) -> Mapping[str, Any]:
    if isinstance(values, Mapping):
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
                detail=f"There are {', '.join(repr(known) for known in names)}.",
                hint=nearest_or(str(name), names),
            )
