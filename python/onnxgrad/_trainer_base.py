"""What a trainer does beside its loop: rows made ready, predictions, the model."""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from onnxgrad import _core as native
from onnxgrad.base.checks import path_text, real_number, unknown_name
from onnxgrad.base.models import to_proto
from onnxgrad.callbacks.several import CallbackList
from onnxgrad.data import Source
from onnxgrad.data.arrays import ArrayLike, cast_number, from_native, to_native
from onnxgrad.data.columns import Feeds
from onnxgrad.data.files import source_like
from onnxgrad.data.labels import Labels
from onnxgrad.data.rows import NativeRows, named_inputs, unpack_table
from onnxgrad.data.sparse import dense_pieces, has_sparse, sparse_source
from onnxgrad.errors import Error, OptionError
from onnxgrad.files import write_file
from onnxgrad.history import History
from onnxgrad.sessions import TrainingSession

if TYPE_CHECKING:
    import onnx

__all__ = ["TrainerBase", "handled_signals", "one_at_a_time"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
TrainerT = TypeVar("TrainerT", bound="TrainerBase")


def one_at_a_time(
    fit: Callable[Concatenate[TrainerT, _P], _R],
) -> Callable[Concatenate[TrainerT, _P], _R]:
    """Refuse a second call before it has changed anything of the first one's."""

    @functools.wraps(fit)
    def guarded(self: TrainerT, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if self._fitting_thread:
            is_callback = self._fitting_thread == threading.get_ident()
            who = "the callback that makes this call" if is_callback else "fit in another thread"
            raise Error(
                what=f"the trainer is busy: it is running {who}",
                hint="Wait for the end of the training, or use another trainer.",
            )
        self._fitting_thread = threading.get_ident()
        try:
            return fit(self, *args, **kwargs)
        finally:
            self._fitting_thread = 0

    return guarded


def handled_signals() -> list[int]:
    """Return the signals that a function of Python handles; outside the main thread none."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [int(n) for n in signal.valid_signals() if callable(signal.getsignal(n))]


class TrainerBase:
    """What `Trainer` is made on."""

    session: TrainingSession
    _core: native.Trainer
    _labels: Labels
    _fitting_thread: int
    _callbacks: CallbackList
    _is_trial: bool
    history: History
    is_best: bool

    def _call(self, hook: str, *arguments: Any) -> bool:
        raise NotImplementedError

    def _num_trained(self) -> int:
        return sum(weight.num_parameters for weight in self.session.trained_weights)

    def _rows(self, source: Source | None, X: Any, y: Any, sample_weight: Any) -> NativeRows:
        if source is not None:
            return source.native(self.session)
        return self._dataset(X, y, sample_weight)

    def _choose_loss(self, y: ArrayLike | Mapping[str, ArrayLike] | None) -> None:
        """Settle an automatic loss by the labels."""
        if y is not None and not isinstance(y, Mapping):
            self._core.choose_loss(to_native(y, "y"))

    def _dataset(self, X: Any, y: Any, sample_weight: Any) -> NativeRows:
        X, y, sample_weight = unpack_table(self.session._core, X, y, sample_weight)
        feeds = X if isinstance(X, Feeds) else None
        weight = None if sample_weight is None else to_native(sample_weight, "sample_weight")
        labels, targets = None, {}
        if isinstance(y, Mapping):
            targets = {
                name: self._labels.native(self.session._core, value, name, feeds)
                for name, value in y.items()
            }
        elif y is not None or self.session.target_name:
            labels = self._labels.native(self.session._core, y, feeds=feeds)
        if has_sparse(X):
            return sparse_source(self.session._core, X, labels, targets, weight)
        inputs = dict(named_inputs(self.session._core, X))
        origin = None if feeds is None else feeds.origin
        return native.Dataset(inputs, labels, targets, weight, 0, origin)

    def _validation(
        self,
        validation: float | Sequence[Any] | Source | None,
        source: Source | None,
        options: native.FitOptions,
    ) -> NativeRows | None:
        if validation is None:
            return None
        validation = source_like(source, validation)
        if isinstance(validation, Source):
            return validation.native(self.session)
        if isinstance(validation, (tuple, list)):
            if len(validation) not in (2, 3):
                raise OptionError(
                    what=f"validation: {len(validation)} arrays, expected (X, y)",
                    value="validation",
                    hint="Give (X, y), (X, y, sample_weight), or a share such as 0.1.",
                )
            weight = validation[2] if len(validation) == 3 else None
            return self._dataset(validation[0], validation[1], weight)
        share: Any = validation
        if hasattr(share, "__len__"):
            raise OptionError(
                what=f"validation: one {type(share).__name__}, expected (X, y)",
                value="validation",
                hint="Give (X, y), or a share of the rows such as validation=0.1.",
            )
        options.validation_fraction = real_number("validation", share, 0.0, 1.0, open_minimum=True)
        return None

    def predict(
        self, X: ArrayLike | Mapping[str, ArrayLike], output: str | None = None
    ) -> np.ndarray[Any, Any]:
        """Return an output of the model with the present weights.

        Parameters
        ----------
        X : array [N, ...] or dict of str to array
        output : str, default=None
            Name of the output; None is the first one (of a classifier of scikit-learn the label).

        Returns
        -------
        numpy.ndarray [N, ...]
        """
        outputs = self.session._core.outputs
        names = [value.name for value in outputs]
        if output is not None and output not in names:
            raise unknown_name("output", output, names)
        if has_sparse(X):
            parts = [self.predict(piece, output or names[0]) for piece in dense_pieces(X)]
            return np.concatenate(parts)
        feeds = dict(named_inputs(self.session._core, unpack_table(self.session._core, X)[0]))
        dtypes = {value.name: value.dtype for value in self.session._core.inputs}
        feeds = {n: cast_number(value, dtypes.get(n, ""), n) for n, value in feeds.items()}
        return from_native(self.session._core.predict(feeds, [output or names[0]])[0])

    def freeze(self, patterns: str | Iterable[str]) -> None:
        """Keep trained weights as they are in the next `fit`; see `TrainingSession.freeze`."""
        self.session.freeze(patterns)

    def unfreeze(self, patterns: str | Iterable[str]) -> None:
        """Train weights again, or for the first time; see `TrainingSession.unfreeze`."""
        self.session.unfreeze(patterns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as it was loaded, with the present weights.

        Everything else in the file stays byte for byte as it was. The file is written under
        another name first, so there is never half a file under this one.

        Raises
        ------
        CheckpointError
            If the file cannot be written.
        """
        text = path_text("path", path)
        self._core.save(text)
        self._call("on_checkpoint", text)

    def trained_model(self) -> onnx.ModelProto:
        """Return the model as it was loaded, with the present weights."""
        return to_proto(self._core.trained_model())

    def __repr__(self) -> str:
        return f"Trainer({self.session._description()})"

    def _repr_html_(self) -> str:
        return _as_html(self.session, self.history)

    def __getstate__(self) -> dict[str, Any]:
        return pickled(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        unpickle(self, state)


_HTML_ROWS = 20  # of weights, in a notebook

# What a pickled trainer has beside its session.
_KEPT = (
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


def pickled(trainer: TrainerBase) -> dict[str, Any]:
    """Return what a trainer is made of: its model, its options, and a checkpoint as bytes."""
    session = trainer.session
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        session._core.save(str(path))
        checkpoint = path.read_bytes()
    return {
        "model": session._model.to_bytes(),
        "arguments": {**session._arguments, "sample_weight": session._sample_weight or None},
        "trained": [weight.name for weight in session.trained_weights],
        "checkpoint": checkpoint,
        "kept": {name: vars(trainer)[name] for name in _KEPT},
    }


def unpickle(trainer: TrainerBase, state: dict[str, Any]) -> None:
    """Make `trainer` that of `pickled`."""
    session = trainer.session = TrainingSession(state["model"], **state["arguments"])
    trainer._core = native.Trainer(session._core)
    now = {weight.name for weight in session.trained_weights}
    if added := set(state["trained"]) - now:
        session.unfreeze(added)
    if dropped := now - set(state["trained"]):
        session.freeze(dropped)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        write_file(path, state["checkpoint"])
        session._core.load(str(path))
    vars(trainer).update(state["kept"])
    trainer.is_best = trainer._is_trial = False
    trainer._callbacks = CallbackList([])


def _as_html(session: TrainingSession, history: Mapping[str, Sequence[float]]) -> str:
    """Return a small table: what is trained, how, and the last numbers of the history."""
    from html import escape  # needed in notebooks only

    lines = {
        "loss": session.loss_line.removeprefix("loss: "),
        "optimizer": repr(session.optimizer),
        "steps": f"{session.steps}, learning rate now {session.lr:g}",
    }
    lines |= {f"last {name}": f"{column[-1]:.6g}" for name, column in history.items() if column}
    cells = "".join(f"<tr><th>{escape(n)}</th><td>{escape(t)}</td></tr>" for n, t in lines.items())
    weights = "".join(
        f"<tr><td>{escape(weight.name)}</td><td>{list(weight.shape)}</td></tr>"
        for weight in session.trained_weights[:_HTML_ROWS]
    )
    left = len(session.trained_weights) - _HTML_ROWS
    more = f"<tr><td colspan='2'>and {left} more</td></tr>" if left > 0 else ""
    head = "<tr><th>trained weight</th><th>shape</th></tr>"
    return f"<table>{cells}</table><table>{head}{weights}{more}</table>"
