"""The model of a trainer: prediction, freezing, saving and pickling."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxgrad import _core as native
from onnxgrad.base.checks import choice, flag, path_text
from onnxgrad.base.models import deliver, to_core_model
from onnxgrad.callbacks.several import CallbackList
from onnxgrad.data.arrays import ArrayLike, are_on_device, cast_number, from_native
from onnxgrad.data.maps import with_rows
from onnxgrad.data.rows import named_inputs, unpack_table
from onnxgrad.data.sparse import dense_pieces, has_sparse
from onnxgrad.data.tokens.places import check_length_of
from onnxgrad.files import write_file
from onnxgrad.history import History
from onnxgrad.sessions import TrainingSession
from onnxgrad.sessions.html import session_html
from onnxgrad.sessions.inference import as_declared, placed_as_declared
from onnxgrad.sessions.weights import weight_kind

if TYPE_CHECKING:
    import onnx

__all__ = ["TrainedModel", "trained_path"]


# Changes that the model in the pickle of a trainer has had.
_IN_THE_MODEL = dict.fromkeys(("new_head", "lora", "adapter"))

# Attributes in the pickle of a trainer, besides its session.
_PICKLED = (
    "seed",
    "schedule",
    "history",
    "stop_reason",
    "checkpoint_problem",
    "skipped_steps",
    "epochs",
    "validation_names",
    "run_dir",
    "_labels",
)


def trained_path(path: str) -> Path:
    """Return where ``save(path, weights="both")`` writes the trained weights."""
    other = Path(path)
    return other.with_name(f"{other.stem}.trained{other.suffix}")


class TrainedModel:
    """The methods of `Trainer` that concern its model."""

    session: TrainingSession
    history: History
    is_best: bool
    stop_reason: str
    _core: native.Trainer
    _callbacks: CallbackList
    _is_trial: bool
    _is_weighted: bool

    @property
    def worker_hosts(self) -> list[str]:
        """Hosts of the workers that train together, by rank; empty: there is one worker."""
        parallel = self.session._data_parallel
        return [] if parallel is None else parallel.workers.hosts

    def predict(
        self,
        X: ArrayLike | Mapping[str, ArrayLike],
        output: str | None = None,
        *,
        to_host: bool = True,
    ) -> Any:
        """Return an output of the model with the current weights.

        Parameters
        ----------
        X : array [N, ...] or dict of str to array
        output : str, default=None
            Name of the output; None means the first one (the label of a scikit-learn classifier).
        to_host : bool, default=True
            False: the output stays in the memory of the trainer's device; see
            `InferenceSession.run`.

        Returns
        -------
        numpy.ndarray [N, ...], DeviceArray [N, ...], or list of dict
            The output of a ZipMap is a dictionary for each row, as in onnxruntime.
        """
        core = self.session._core
        names = [value.name for value in core.outputs]
        if output is not None:
            choice("output", output, names)
        if has_sparse(X):
            parts = [self.predict(piece, output or names[0]) for piece in dense_pieces(X)]
            if isinstance(parts[0], list):
                return [row for part in parts for row in part]
            return np.concatenate(parts)
        of_model = self.session._of_model
        rows = with_rows(core.inputs, unpack_table(of_model, X)[0])
        feeds = dict(named_inputs(of_model, rows, in_place=True))
        dtypes = {value.name: value.dtype for value in core.inputs}
        feeds = {n: cast_number(value, dtypes.get(n, ""), n) for n, value in feeds.items()}
        name = output or names[0]
        check_length_of(self.session, feeds)
        if not flag("to_host", to_host) or are_on_device(feeds):
            placed = core.predict_on_device(feeds, [name])
            return placed_as_declared(placed, [name], core.outputs, to_host=to_host)[0]
        return as_declared([from_native(core.predict(feeds, [name])[0])], [name], core.outputs)[0]

    def freeze(self, patterns: str | Iterable[str]) -> None:
        """Keep trained weights as they are in the next `fit`; see `TrainingSession.freeze`."""
        self.session.freeze(patterns)

    def unfreeze(self, patterns: str | Iterable[str]) -> None:
        """Train weights that are frozen or were never trained; see `TrainingSession.unfreeze`."""
        self.session.unfreeze(patterns)

    def save(self, path: str | os.PathLike[str], *, weights: str = "evaluated") -> None:
        """Write the model as it was loaded, with the current weights.

        Everything else in the file is unchanged, byte for byte. The file is written under a
        temporary name and renamed, so it is never incomplete.

        Parameters
        ----------
        path : path
        weights : {"evaluated", "average", "trained", "both"}, default="evaluated"
            Which of the weights, where the session has an `average` of them. ``"evaluated"``: those
            that evaluation and prediction use. ``"both"``: the average to `path` and the trained
            ones to ``<stem>.trained<suffix>`` beside it.

        Raises
        ------
        CheckpointError
            If the file cannot be written.
        OptionError
            There is no average of the weights, or `quantize` waits for the rows of the first `fit`.
        """
        text = path_text("path", path)
        if isinstance(weights, str) and weights == "both":
            self.save(text, weights="average")
            self.save(trained_path(text), weights="trained")
            return
        self.session._check_is_quantized()
        self._core.save(text, weight_kind(weights, ("both",)))
        self._call("on_checkpoint", text)

    def trained_model(self, *, like: bool = False, weights: str = "evaluated") -> onnx.ModelProto:
        """Return the model as it was loaded, with the current weights.

        With `like` it is of the kind that was given; see `gradient`. For `weights` see `save`.
        """
        return self.session.trained_model(like=like, weights=weights)

    def get_weights(self) -> list[np.ndarray[Any, Any]]:
        """Return copies of the weights in a fixed order; see `TrainingSession.get_weights`."""
        return self.session.get_weights()

    def set_weights(self, weights: Sequence[ArrayLike]) -> None:
        """Set all weights; see `TrainingSession.set_weights`."""
        self.session.set_weights(weights)

    def merge(
        self, path: str | os.PathLike[str] | None = None, *, dequantize: bool = False
    ) -> onnx.ModelProto:
        """Return the model without its adapters, with weights that do what these did.

        Parameters
        ----------
        path : path, default=None
            Where to write it as well.
        dequantize : bool, default=False
            Whether packed weights become float ones.

        Raises
        ------
        ModelError
            There are no adapters, or a weight cannot take them; see `adapters.merge`.
        """
        model = self._core.trained_model()
        if flag("dequantize", dequantize):
            model = native.dequantize_weights(model)
        return deliver(native.merge_adapters(model), path)

    def save_adapter(
        self, folder: str | os.PathLike[str], *, name: str = "", kind: str = "peft"
    ) -> None:
        """Write an adapter with its current weights to a folder; see `adapters.save`."""
        self.session.save_adapter(folder, name=name, kind=kind)

    def load_adapter(self, folder: str | os.PathLike[str], *, name: str = "") -> None:
        """Set the weights of an adapter; see `TrainingSession.load_adapter`."""
        self.session.load_adapter(folder, name=name)

    def with_training_info(
        self, *, target_opset: int | None = None, inline: bool = False, like: bool = False
    ) -> onnx.ModelProto:
        """Return the trained model with its training; see `TrainingSession.with_training_info`.

        A schedule of the trainer is not part of it: the learning rate is the current one. See
        `add_training_info` for a training with a schedule.
        """
        return self.session.with_training_info(target_opset=target_opset, inline=inline, like=like)

    def _call(self, hook: str, *arguments: Any) -> bool:
        stop = self._callbacks.call(hook, self, *arguments)
        if stop and not self.stop_reason:
            self.stop_reason = f"requested by {hook} of a callback"
        return stop

    def __repr__(self) -> str:
        return f"Trainer({self.session._description()})"

    def _repr_html_(self) -> str:
        return session_html(self.session, self.history)

    def __getstate__(self) -> dict[str, Any]:
        """Return the model, the options, and a checkpoint as bytes."""
        import tempfile

        session = self.session
        start = session._start
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            session._core.save(str(path))
            checkpoint = path.read_bytes()
        return {
            "model": (session._model if start is None else start).to_bytes(),
            "float_weights": native.float_weights(session._model),
            "kind": session._kind,
            "arguments": {
                **session._arguments,
                "sample_weight": session._sample_weight or None,
                **(_IN_THE_MODEL if start is None else {}),
                "teacher": None if session._teacher is None else session._teacher.to_bytes(),
                "base": None,
                "quantize": session._arguments["quantize"] if session._awaits_rows else None,
                "calibration": None,
            },
            "weighs_positions": session._weighs_positions,
            "uses_average": session.uses_average,
            "trained": [weight.name for weight in session.trained_weights],
            "checkpoint": checkpoint,
            "attributes": {name: vars(self)[name] for name in _PICKLED},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        import tempfile

        model = to_core_model(state["model"])
        if floats := state.get("float_weights"):
            model = native.with_float_weights(model, floats)
        session = self.session = TrainingSession._waiting(model, **state["arguments"])
        session._kind = state.get("kind", session._kind)
        self._core = native.Trainer(session._core)
        if state["weighs_positions"]:
            session._use_sample_weight(per_position=True)
        now = {weight.name for weight in session.trained_weights}
        if added := set(state["trained"]) - now:
            session.unfreeze(added)
        if dropped := now - set(state["trained"]):
            session.freeze(dropped)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            write_file(path, state["checkpoint"])
            session._core.load(str(path))
        if session.has_average:
            session.uses_average = state.get("uses_average", True)
        vars(self).update(state["attributes"])
        self.is_best = self._is_trial = self._is_weighted = False
        self._callbacks = CallbackList([])
