"""Stores what onnxruntime-training 1.19.2 computes with its newer interface.

    python make_values.py values.npz

Ran with onnxruntime-training-cpu 1.19.2, onnx 1.16.2, numpy 1.26.4. `onnxruntime.training` is
registered as a bare package so that its __init__ does not run, which wants torch for other things.
"""

import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

import onnxruntime

bare = types.ModuleType("onnxruntime.training")
bare.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
sys.modules["onnxruntime.training"] = bare
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, Module, Optimizer

LINEAR = """
<ir_version: 8, opset_import: ["" : 17]>
linear (float[N, 3] X) => (float[N, 2] Y)
<float[3, 2] coef = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6}, float[2] intercept = {0.5, -0.5}>
{ product = MatMul(X, coef)
  Y = Add(product, intercept) }
"""
# Its AdamW adds epsilon to sqrt(v) and not to sqrt(v / (1 - beta2^t)): next to none makes both equal.
OPTIMIZERS = {
    "AdamW": lambda: onnxblock.optim.AdamW(eps=1e-12),
    "SGD": lambda: artifacts.OptimType.SGD,
}


def run(loss, optimizer, X, y):
    """Loss, rate and parameters of eight steps; gradients of two batches are added up."""
    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(
            onnx.parser.parse_model(LINEAR), requires_grad=["coef", "intercept"], loss=loss,
            optimizer=optimizer, artifact_directory=folder,
        )
        path = Path(folder)
        state = CheckpointState.load_checkpoint(path / "checkpoint")
        module = Module(path / "training_model.onnx", state, path / "eval_model.onnx")
        update = Optimizer(path / "optimizer_model.onnx", module)
        print(loss, optimizer, update.get_learning_rate(), module.input_names())
        rows = []
        for step in range(8):
            # No LinearLRScheduler: version 1.19.2 exchanges its two numbers of steps.
            rate = update.get_learning_rate()
            module.train()
            losses = [module(X[part], y[part]) for part in (slice(0, 8), slice(8, 16))]
            update.step()
            update.set_learning_rate(0.02 * (step + 1))
            module.lazy_reset_grad()
            module.eval()
            values = [state.parameters[name].data.ravel() for name in ("coef", "intercept")]
            rows.append(np.concatenate([[rate], losses, [module(X, y)], *values]))
        return np.array(rows)


def main():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(16, 3)).astype(np.float32)
    y = (X @ rng.normal(size=(3, 2)) + 1).astype(np.float32)
    labels = (y[:, 0] > y[:, 1]).astype(np.int64)
    found = {"X": X, "y": y, "labels": labels}
    targets = {"MSELoss": y, "L1Loss": y, "CrossEntropyLoss": labels,
               "BCEWithLogitsLoss": (y > 0).astype(np.float32)}
    for loss, target in targets.items():
        for optimizer in ("AdamW", "SGD"):
            found[f"{loss}_{optimizer}"] = run(
                artifacts.LossType[loss], OPTIMIZERS[optimizer](), X, target
            )
    np.savez_compressed(sys.argv[1], **found)


if __name__ == "__main__":
    main()
