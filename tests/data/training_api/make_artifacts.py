"""Stores artifacts of onnxruntime-training 1.19.2 and what it computes with them.

    python make_artifacts.py artifacts

Ran with onnxruntime-training 1.19.2, onnx 1.16.2, numpy 1.26.4, set up as for make_values.py.
"""

import sys
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

# Each has weights without values, which become random initializers.
MLP = """
<ir_version: 8, opset_import: ["" : 17]>
mlp (float[N, 3] X) => (float[N, 2] Y) {
  h = Gemm(X, w1, b1)
  r = Relu(h)
  Y = Gemm(r, w2, b2) }
"""
# Becomes LayerNormalization, Gelu and ConcatTraining.
TOKENS = """
<ir_version: 8, opset_import: ["" : 14]>
tokens (int64[N, 4] ids) => (float[N, 3] Y)
<float two = {2}, float eps = {1e-5}, float half = {0.5}, float one = {1}, float root = {1.4142135}>
{ e = Gather(table, ids)
  mean = ReduceMean <axes = [-1]> (e)
  d = Sub(e, mean)
  d2 = Pow(d, two)
  variance = ReduceMean <axes = [-1]> (d2)
  below = Add(variance, eps)
  sd = Sqrt(below)
  normal = Div(d, sd)
  scaled = Mul(normal, scale)
  n = Add(scaled, shift)
  q = MatMul(n, wq)
  k = Transpose <perm = [0, 2, 1]> (q)
  s = MatMul(q, k)
  p = Softmax(s)
  a = MatMul(p, n)
  ar = Div(a, root)
  erf = Erf(ar)
  erf1 = Add(erf, one)
  ae = Mul(a, erf1)
  g = Mul(ae, half)
  c = Concat <axis = -1> (g, q)
  z0, z1 = Split <axis = -1> (c)
  z = Add(z0, z1)
  m = ReduceMean <axes = [1], keepdims = 0> (z)
  Y = MatMul(m, head) }
"""
# The ratio is 0 because random numbers differ.
LINEAR = """
<ir_version: 8, opset_import: ["" : 17]>
linear (float[N, 3] X) => (float[N, 2] Y)
<float ratio = {0}, bool training = {1}>
{ d, mask = Dropout(X, ratio, training)
  product = MatMul(d, coef)
  Y = Add(product, intercept) }
"""
CASES = {
    "mlp": (
        MLP,
        {"w1": (3, 4), "b1": (4,), "w2": (4, 2), "b2": (2,)},
        [],
        "CrossEntropyLoss",
        lambda: onnxblock.optim.AdamW(
            weight_decay=0.1, clip_grad=onnxblock.optim.ClipGradNorm(0.5)
        ),
    ),
    "tokens": (
        TOKENS,
        {"table": (7, 4), "scale": (4,), "shift": (4,), "wq": (4, 4), "head": (4, 3)},
        [],
        "CrossEntropyLoss",
        lambda: artifacts.OptimType.AdamW,
    ),
    "linear": (
        LINEAR,
        {"coef": (3, 2), "intercept": (2,)},
        ["intercept"],
        "MSELoss",
        lambda: onnxblock.optim.SGD(clip_grad=onnxblock.optim.ClipGradNorm(2.0)),
    ),
}


def data(name, rng):
    labels = rng.integers(0, 2, 5).astype(np.int64)
    if name == "mlp":
        return rng.normal(size=(5, 3)).astype(np.float32), labels
    if name == "tokens":
        return rng.integers(0, 7, (5, 4)).astype(np.int64), labels
    return rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 2)).astype("f4")


def make(folder, name):
    text, shapes, frozen, loss, optimizer = CASES[name]
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model(text)
    for weight, shape in shapes.items():
        value = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, weight))
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        model,
        requires_grad=[weight for weight in shapes if weight not in frozen],
        frozen_params=frozen,
        loss=artifacts.LossType[loss],
        optimizer=optimizer(),
        artifact_directory=folder,
        nominal_checkpoint=True,
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    update = Optimizer(folder / "optimizer_model.onnx", module)
    X, y = data(name, rng)
    update.set_learning_rate(0.05)
    losses = []
    for step in range(6):
        losses.append(module(X, y))
        update.step()
        module.lazy_reset_grad()
        if step == 2:
            state.properties["epoch"] = 3
            state.properties["rate"] = 0.5
            state.properties["name"] = name
            CheckpointState.save_checkpoint(state, folder / "later", include_optimizer_state=True)
    values = {f"weight/{key}": parameter.data for key, parameter in state.parameters}
    values |= {"X": X, "y": y, "losses": np.array(losses)}
    tensors = [onnx.numpy_helper.from_array(value, key) for key, value in values.items()]
    onnxblock.save_checkpoint((tensors, []), folder / "values")


if __name__ == "__main__":
    for name in CASES:
        make(Path(sys.argv[1]) / name, name)
