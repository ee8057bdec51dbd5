"""The history of a fit: losses and metrics of each epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onnxgrad.base.optional import import_optional
from onnxgrad.files import write_file

if TYPE_CHECKING:
    import os

    from onnxgrad import _core

__all__ = ["History", "cell_text", "log_of"]


class History(dict[str, list[float]]):
    """A dictionary of lists with one number for each epoch.

    A fit that ends within an epoch (`max_steps`, a time limit, `stop`) has the training loss of its
    part too. A fit with more than `max_history` epochs (65,536) keeps only every second, fourth,
    eighth, ... epoch, and always the first, the best and the newest one.

    The keys are ``epoch``, ``train_loss``, ``val_loss``, ``val_accuracy`` and ``val_<metric>``
    (with validation; NaN for epochs without), ``lr``, ``seconds`` and ``rows_per_s``; for data read
    in chunks ``data_wait_s``, the time that training waited for rows; with several targets
    ``train_loss_<output>``, the loss of each without its factor; and with ``fit(grad_norm=True)``
    ``grad_norm``, the total norm of all gradients before clipping, averaged over the steps; with
    ``fit(noise_scale=True)`` ``noise_scale``, the gradient noise scale in rows.
    With several workers ``network_wait_s``, the seconds in which training waited for other workers
    (the mean of all), ``slowest_rank``, the worker that waited least, and ``slowest_lag_s``, how
    much longer it computed than the mean of the others; ``rows_per_s`` is that of all workers.

    Attributes
    ----------
    best_epoch : int or None
        The epoch with the lowest validation (or training) loss, or the best monitored value.
    monitor : str
        The key of the number that the best epoch was chosen by; empty for the validation (or
        training) loss.
    kept_epoch : int or None
        The epoch that the weights are from: `best_epoch` after ``early_stopping=`` or
        ``keep_best=True``, else the last one. None if the fit ended within an epoch, by an error,
        or before its first epoch was done.

    Examples
    --------
    >>> history = History.from_logs([{"train_loss": 2.0}, {"train_loss": 1.0}])
    >>> history["train_loss"]
    [2.0, 1.0]
    """

    def __init__(self, *columns: Any) -> None:
        super().__init__(*columns)
        self.best_epoch: int | None = None
        self.monitor = ""
        self.kept_epoch: int | None = None

    @property
    def kept(self) -> dict[str, float]:
        """The numbers of `kept_epoch`, by name; empty if there is none."""
        if self.kept_epoch is None or self.kept_epoch not in self.get("epoch", ()):
            return {}
        index = self["epoch"].index(self.kept_epoch)
        return {name: values[index] for name, values in self.items()}

    @property
    def kept_line(self) -> str:
        """The epoch that was kept, if it is not the last one: ``"kept the weights of epoch 8"``."""
        epochs = self.get("epoch", ())
        if self.kept_epoch is None or not epochs or self.kept_epoch == epochs[-1]:
            return ""
        name = self.monitor or ("val_loss" if "val_loss" in self else "train_loss")
        value = self.kept.get(name, math.nan)
        number = "" if math.isnan(value) else f" ({name} {value:.6g})"
        return f"kept the weights of epoch {self.kept_epoch}{number}"

    def __repr__(self) -> str:
        best = "" if self.best_epoch is None else f", best epoch {self.best_epoch}"
        kept = "" if self.kept_epoch is None else f", weights of epoch {self.kept_epoch}"
        epochs = len(self.get("epoch", ()))
        return f"History(<{epochs} epochs{best}{kept}>, {super().__repr__()})"

    @classmethod
    def from_logs(cls, logs: Iterable[Mapping[str, float]]) -> History:
        """Return the history of these epochs."""
        history = cls()
        for log in logs:
            history.append(log)
        return history

    def append(self, log: Mapping[str, float]) -> None:
        """Add an epoch; missing values are NaN."""
        if log.keys() == self.keys():
            for name, value in log.items():
                self[name].append(value)
            return
        epochs = max((len(column) for column in self.values()), default=0)
        for name in log:
            self.setdefault(name, [math.nan] * epochs)
        for name, column in self.items():
            column.append(log.get(name, math.nan))

    def replace_from(self, index: int, log: Mapping[str, float]) -> None:
        """Set the epoch at `index` and remove later ones."""
        for column in self.values():
            del column[index:]
        self.append(log)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a line of names and a line for each epoch to a CSV file.

        Raises
        ------
        CheckpointError
            The file cannot be written.
        """
        write_file(path, self.csv_text())

    def csv_text(self) -> str:
        """Return the content of the file that `to_csv` writes."""
        rows = zip(*self.values(), strict=False)
        lines = [",".join(self), *(",".join(cell_text(value) for value in row) for row in rows)]
        return "\n".join(lines) + "\n"

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per epoch.

        Raises
        ------
        ImportError
            pandas is not installed (also an `onnxgrad.OptionError`).
        """
        return import_optional("pandas", "History.to_pandas").DataFrame(dict(self))

    def plot(self, ax: Any = None) -> Any:
        """Draw the loss curves; see `onnxgrad.plotting.loss_curves`.

        Raises
        ------
        DataError
            There are no epochs yet.
        """
        from onnxgrad.plotting import loss_curves

        return loss_curves(self, ax)

    def _repr_html_(self) -> str:
        from html import escape  # needed in notebooks only

        head = "".join(f"<th>{escape(name)}</th>" for name in self)
        last = list(zip(*self.values(), strict=False))[-10:]
        body = "".join(
            "<tr>" + "".join(f"<td>{value:.6g}</td>" for value in row) + "</tr>" for row in last
        )
        note = f"<p>{self.kept_line}</p>" if self.kept_line else ""
        return f"<table><tr>{head}</tr>{body}</table>{note}"


def log_of(epoch: _core.EpochLog, *, is_streamed: bool = False) -> dict[str, float]:
    """Return the `logs` argument of callbacks: numbers by the names of `Trainer.history`."""
    logs = {"epoch": float(epoch.epoch), "train_loss": epoch.train_loss}
    logs.update(epoch.target_losses)
    if epoch.val_loss is not None:
        logs["val_loss"] = epoch.val_loss
    if epoch.val_accuracy is not None:
        logs["val_accuracy"] = epoch.val_accuracy
    logs.update(epoch.val_metrics)
    if epoch.grad_norm is not None:
        logs["grad_norm"] = epoch.grad_norm
    if epoch.noise_scale is not None:
        logs["noise_scale"] = epoch.noise_scale
    logs["lr"] = epoch.learning_rate
    logs["seconds"] = epoch.seconds
    logs["rows_per_s"] = epoch.rows_per_s
    if is_streamed or epoch.data_wait_s > 0:
        logs["data_wait_s"] = epoch.data_wait_s
    if epoch.slowest_rank >= 0:
        logs["network_wait_s"] = epoch.network_wait_s
        logs["slowest_rank"] = float(epoch.slowest_rank)
        logs["slowest_lag_s"] = epoch.slowest_lag_s
    return logs


def cell_text(value: float) -> str:
    """Return a number as the shortest string that is parsed back to the same value."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
