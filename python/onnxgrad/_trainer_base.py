"""What a trainer does with rows before its loop runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from onnxgrad import _core as native
from onnxgrad._arrays import ArrayLike, to_native
from onnxgrad._checks import real_number
from onnxgrad._rows import Labels, NativeRows, named_inputs, unpack_table
from onnxgrad.data import Source, source_like
from onnxgrad.errors import Error, OptionError
from onnxgrad.losses import to_core_loss
from onnxgrad.sessions import TrainingSession

__all__ = ["OwnSession", "TrainerBase", "one_at_a_time"]

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
                mend="Wait for the end of the training, or use another trainer.",
            )
        self._fitting_thread = threading.get_ident()
        try:
            return fit(self, *args, **kwargs)
        finally:
            self._fitting_thread = 0

    return guarded


class OwnSession(TrainingSession):
    """A session that was made by a trainer, which may still settle an automatic loss."""

    _trainer: native.Trainer

    def _build(self) -> None:
        if self._sample_weight:
            super()._build()
            return
        self._trainer = native.Trainer(
            self._model,
            to_core_loss(self._loss, self._target, penalty=self._penalty),
            self._optimizer._native(),
            self._trainable,
            self._frozen,
            self._update,
            self._training_mode,
            self._engine,
        )


class TrainerBase:
    """The private half of `Trainer`."""

    session: TrainingSession
    _core: native.Trainer
    _labels: Labels
    _fitting_thread: int

    def _rows(self, source: Source | None, X: Any, y: Any, sample_weight: Any) -> NativeRows:
        if source is not None:
            return source.native(self.session)
        return self._dataset(X, y, sample_weight)

    def _choose_loss(self, y: ArrayLike | Mapping[str, ArrayLike] | None) -> native.LossInfo:
        """Settle an automatic loss by the labels."""
        if y is None or isinstance(y, Mapping):
            return self._core.session.loss
        return self._core.choose_loss(to_native(y, "y"))

    def _use_sample_weight(self, y: ArrayLike | Mapping[str, ArrayLike] | None) -> None:
        """Give the loss an input for sample weights; weights and optimizer state stay."""
        session = self.session
        if session._sample_weight:
            return
        chosen = self._choose_loss(y).function
        before = session._core
        session._sample_weight = "sample_weight"
        session._chosen = chosen
        session._build()
        self._core = native.Trainer(session._core)
        session._core = self._core.session
        session._core.continue_from(before)

    def _dataset(self, X: Any, y: Any, sample_weight: Any) -> native.Dataset:
        X, y, sample_weight = unpack_table(self.session, X, y, sample_weight)
        weight = None if sample_weight is None else to_native(sample_weight, "sample_weight")
        inputs = dict(named_inputs(self.session, X))
        if isinstance(y, Mapping):
            targets = {str(name): to_native(value, str(name)) for name, value in y.items()}
            return native.Dataset(inputs, None, targets, weight)
        return native.Dataset(inputs, self._labels.native(self.session, y), {}, weight)

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
                )
            weight = validation[2] if len(validation) == 3 else None
            return self._dataset(validation[0], validation[1], weight)
        share: Any = validation
        options.validation_fraction = real_number("validation", share, 0.0, 1.0, open_minimum=True)
        return None
