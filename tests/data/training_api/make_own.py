"""Stores artifacts of onnxgrad and what it computes with them, for a program in tests/install.

python make_own.py own
"""

import sys
from pathlib import Path

import numpy as np
import onnx.parser

from onnxgrad.compat.onnxruntime.training import artifacts
from onnxgrad.compat.onnxruntime.training.api import CheckpointState, Module, Optimizer

LINEAR = """
<ir_version: 8, opset_import: ["" : 17]>
linear (float[N, 3] X) => (float[N, 2] Y)
<float[3, 2] coef = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6}, float[2] intercept = {0.5, -0.5}>
{ product = MatMul(X, coef)
  Y = Add(product, intercept) }
"""

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    artifacts.generate_artifacts(
        onnx.parser.parse_model(LINEAR),
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        nominal_checkpoint=True,
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    update = Optimizer(folder / "optimizer_model.onnx", module)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3)).astype(np.float32)
    y = rng.normal(size=(20, 2)).astype(np.float32)
    update.set_learning_rate(0.05)
    losses = []
    for _ in range(6):
        losses.append(module(X, y))
        update.step()
        module.lazy_reset_grad()
    values = {f"weight/{name}": parameter.data for name, parameter in state.parameters}
    values |= {"X": X, "y": y, "losses": np.array(losses)}
    CheckpointState.save_checkpoint(CheckpointState(values, []), folder / "values")
