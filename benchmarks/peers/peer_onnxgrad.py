"""onnxgrad itself, as users call it: a Trainer from a path, and Trainer.fit.

A timed run is one call of fit over all epochs. Neither the model nor its weights pass through
Python, and no module of the onnx package is imported: the start-up figures would show it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import worker
import workloads

import onnxgrad as og


def make_loss(workload: workloads.Workload) -> object:
    if workload.loss == "mse":
        return og.losses.SquaredError()
    is_language_model = workload.transformer is not None and workload.transformer.causal
    return og.losses.SoftmaxCrossEntropy(axis=-1 if is_language_model else None)


def make_optimizer(settings: workloads.Optimizer) -> object:
    if settings.name == "sgd":
        return og.optimizers.SGD(
            settings.rate, momentum=settings.momentum, nesterov=settings.nesterov
        )
    if settings.name == "adam":
        return og.optimizers.Adam(settings.rate)
    return og.optimizers.AdamW(settings.rate, weight_decay=settings.decay)


class Peer:
    version = og.__version__

    def __init__(self, task: worker.Task) -> None:
        self.task = task
        self.trainer = og.Trainer(
            str(task.model_path),
            loss=make_loss(task.workload),
            optimizer=make_optimizer(task.workload.optimizer),
            precision="bf16" if task.variant.endswith("-bf16") else "float32",
            threads=task.threads,
            seed=0,
        )
        if "onnx" in sys.modules:
            raise AssertionError("training from a path imported the onnx package")

    def fit(self, rows: int, epochs: int) -> None:
        self.trainer.fit(
            self.task.inputs[:rows],
            self.task.targets[:rows],
            epochs=epochs,
            batch_size=self.task.workload.batch,
            shuffle=False,
            verbose=0,
        )

    def first(self) -> None:
        self.fit(self.task.workload.batch, epochs=1)

    def reset(self) -> None:
        self.trainer.reset()

    def run(self) -> Sequence[float]:
        self.fit(self.task.workload.rows, self.task.workload.epochs)
        return self.trainer.history["train_loss"]


if __name__ == "__main__":
    worker.main(Peer)
