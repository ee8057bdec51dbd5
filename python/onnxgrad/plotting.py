"""Plots of trainings, drawn with matplotlib (``pip install matplotlib``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.base.checks import checked_axes, mapping
from onnxgrad.base.optional import import_optional
from onnxgrad.errors import DataError

__all__ = ["loss_curves"]


def loss_curves(history: Mapping[str, Sequence[float]], ax: Any = None) -> Any:
    """Plot training and validation loss over the epochs, and the accuracy on a second axis.

    Parameters
    ----------
    history : History or dict of lists
        Such as `Trainer.history`.
    ax : matplotlib.axes.Axes, default=None
        Where to draw; None creates a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    DataError
        There are no epochs.
    ImportError
        matplotlib is not installed.
    """
    columns = mapping("history", history, "lists")
    ax = None if ax is None else checked_axes("ax", ax)
    if not columns.get("train_loss"):
        raise DataError(
            what="the history has no epochs to plot",
            value="history",
            hint="Call fit() first; a fit that ends within its first epoch has none.",
        )
    if ax is None:
        plt = import_optional("matplotlib.pyplot", "a plot")
        ax = plt.figure(figsize=(7, 4), layout="constrained").add_subplot()
    epochs = history.get("epoch", range(1, len(history["train_loss"]) + 1))
    ax.plot(epochs, history["train_loss"], label="training loss", color="tab:blue")
    if "val_loss" in history:
        ax.plot(epochs, history["val_loss"], label="validation loss", color="tab:orange")
    ax.set(xlabel="epoch", ylabel="loss")
    losses = [*history["train_loss"], *history.get("val_loss", ())]
    known = [loss for loss in losses if math.isfinite(loss)]
    # Over less than a decade, a logarithmic axis has no more than one labelled tick.
    if known and min(known) > 0 and max(known) >= 10 * min(known):
        ax.set_yscale("log")
    ax.grid(visible=True, alpha=0.3)
    handles, labels = ax.get_legend_handles_labels()
    if "val_accuracy" in history:
        right = ax.twinx()
        right.plot(
            epochs, history["val_accuracy"], label="validation accuracy", color="tab:green", ls="--"
        )
        right.set(ylabel="accuracy", ylim=(0, 1.02))
        more = right.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    ax.legend(handles, labels, loc="best")
    return ax
