"""The weights of a session and its state: models, views, copies, lists and averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import flag, several, unknown_name
from onnxgrad.base.models import Kind, deliver
from onnxgrad.data.arrays import ArrayLike, from_native, to_feeds
from onnxgrad.errors import DataError, OptionError

if TYPE_CHECKING:
    import os

    import onnx

__all__ = ["SessionWeights", "weight_kind"]

_KINDS = ("evaluated", "average", "trained")


def weight_kind(weights: str, further: Iterable[str] = ()) -> _core.WeightKind:
    """Return the kind of weights of that name; `further` names are for messages alone.

    Raises
    ------
    OptionError
        An unknown name.
    """
    if not isinstance(weights, str) or weights not in _KINDS:
        raise unknown_name("weights", weights, [*_KINDS, *further])
    kind: _core.WeightKind = getattr(_core.WeightKind, weights)
    return kind


class SessionWeights:
    """The methods of `TrainingSession` that concern its weights."""

    _core: _core.TrainingSession
    _kind: Kind
    _start: Any  # the model before an adapter that waits for the integers under it, or None
    _first_values: dict[str, np.ndarray[Any, Any]]  # of that adapter, before anybody set them
    _awaits_rows: bool  # whether the model is quantized by the rows of the first fit

    def trained_model(self, *, like: bool = False, weights: str = "evaluated") -> onnx.ModelProto:
        """Return the model as it was loaded, with the current weights.

        With `like` it is of the kind that was given; see `gradient`. `weights` is ``"average"`` or
        ``"trained"`` where the session has an `average` of them; by default those that it
        evaluates.
        """
        self._check_is_quantized()
        return self._delivered(self._core.trained_model(weight_kind(weights)), like)

    def _delivered(self, model: Any, like: bool) -> onnx.ModelProto:
        return deliver(model, kind=self._kind if flag("like", like) else None)

    def merged_model(self, *, like: bool = False) -> onnx.ModelProto:
        """Return the model without its adapters, with weights that do what these did.

        With `like` it is of the kind that was given; see `gradient`.

        Raises
        ------
        ModelError
            There are no adapters, or a weight cannot take them; see `adapters.merge`.
        """
        return self._delivered(_core.merge_adapters(self._core.trained_model()), like)

    def _check_is_quantized(self) -> None:
        """Refuse to write a model that `quantize` has yet to change."""
        if not self._awaits_rows:
            return
        raise OptionError(
            what="quantize= has not measured the ranges of activations yet, so there is no "
            "quantized model to write",
            value="quantize",
            hint="Call fit first, give calibration= some rows, or quantize the weights alone: "
            "quantize={'weights': 'int8', 'activations': False}.",
        )

    def _trained_values(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the trained weights, by name."""
        views = self._core.weights()
        names = (weight.name for weight in self._core.trained_weights)
        return {name: from_native(views[name]).copy() for name in names if name in views}

    def _values_that_were_set(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the trained weights if any is no longer as `_start` with an adapter has it.

        Untouched ones are made again over the integers: magnitudes of DoRA are norms of these.
        """
        now, first = self._trained_values(), self._first_values
        is_set = any(not np.array_equal(now[name], first[name]) for name in now.keys() & first)
        return now if is_set else {}

    @property
    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read-only views of the current weights, by name: the next step changes them.

        On other devices than the CPU they are copies.
        """
        views = {name: from_native(value) for name, value in self._core.weights().items()}
        for view in views.values():
            view.flags.writeable = False
        return views

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of the weights and the optimizer state, by name."""
        return {name: from_native(value) for name, value in self._core.state().items()}

    def load_state(self, state: Mapping[str, ArrayLike]) -> None:
        """Set all weights and the optimizer state to a result of `state`, all or nothing.

        Raises
        ------
        CheckpointError
            An unknown or missing name, or a wrong dtype or shape.
        """
        self._core.load_state(to_feeds(state))

    @property
    def has_average(self) -> bool:
        """Whether there is an average of the weights: of `average`, or of the optimizer."""
        return bool(self._core.has_average)

    @property
    def uses_average(self) -> bool:
        """Whether evaluation, prediction and trained models use the average; it can be set."""
        return bool(self._core.uses_average)

    @uses_average.setter
    def uses_average(self, value: bool) -> None:
        self._core.uses_average = flag("uses_average", value)

    @property
    def weight_names(self) -> list[str]:
        """Names of the weights in the order of `get_weights`."""
        return sorted(self._core.weights())

    def get_weights(self) -> list[np.ndarray[Any, Any]]:
        """Return copies of the weights and running statistics, in the order of their names.

        The order does not change when weights are frozen. For federated learning.
        """
        views = self._core.weights()
        return [from_native(views[name]).copy() for name in self.weight_names]

    def set_weights(self, weights: Sequence[ArrayLike]) -> None:
        """Set all weights to a list like that of `get_weights`; the optimizer's state is kept.

        An average of them continues from these values.

        Raises
        ------
        DataError
            A wrong number of arrays.
        CheckpointError
            A wrong dtype or shape; nothing has changed then.
        """
        names = self.weight_names
        weights = several("weights", weights, "arrays")
        if len(weights) != len(names):
            raise DataError(
                what=f"set_weights: {len(weights)} arrays for {len(names)} weights",
                hint="Give one array for each of weight_names, as get_weights returns them.",
            )
        self._set_weights(dict(zip(names, weights, strict=True)))

    def save_adapter(
        self, folder: str | os.PathLike[str], *, name: str = "", kind: str = "peft"
    ) -> None:
        """Write an adapter with its current weights to a folder; see `adapters.save`."""
        from onnxgrad.adapters.functions import save_core

        save_core(self._core.trained_model(), folder, name, kind)

    def load_adapter(self, folder: str | os.PathLike[str], *, name: str = "") -> None:
        """Set the weights of an adapter of the session to those of a folder.

        Nothing is compiled again, and the optimizer's state is kept.

        Parameters
        ----------
        folder : path
            Of an adapter of the same layers, rank and scale; see `adapters.load`.
        name : str, default=""
            Which adapter of the session; empty means the only one.

        Raises
        ------
        ModelError
            The session has no such adapter, or one of other layers.
        CheckpointError
            The files cannot be read.
        """
        from onnxgrad.adapters.functions import loaded_state

        self._set_weights(loaded_state(self._core.trained_model(), folder, name, self.state()))

    def _set_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Set some weights, and what began at their values: averages, z of schedule-free AdamW."""
        state = self.state()
        changed: dict[str, Any] = {**state, **weights}
        for name, value in weights.items():
            for slot in (f"average/{name}", f"schedule_free_z/{name}"):
                if slot in state:
                    changed[slot] = value
        self.load_state(changed)
