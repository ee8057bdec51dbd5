"""The workloads of all training systems: sizes, data, data order, files.

`WORKLOADS` is the one list. `generate()` writes, for each workload, what a peer in any language
can read:

    NAME.onnx         forward graph with the initial weights: opset 17, IR 8, symbolic batch "N",
                      input "X", output "Y", metadata "trainable" = names of the weights
    NAME.x.npy        inputs [rows, ...], float32 (int64 token numbers for a model with embeddings)
    NAME.y.npy        targets: float32 [rows, 1] for "mse", int64 [rows] for "ce", [rows, sequence]
                      for a language model (class axis of the output: the last)
    NAME.weights.npz  the same initial weights, for peers that have no ONNX reader
    workloads.json    the entries of WORKLOADS, with the number of steps and the trainable names

Batches are taken in order, never shuffled: step s of an epoch uses rows [s * batch, (s+1) * batch).
The reported loss is the mean of the training losses of the last epoch.

Importing this module needs the standard library only; reading the arrays needs numpy; writing the
files needs onnx and scikit-learn too:

    python workloads.py FOLDER [NAME...]
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import typing

if typing.TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """SGD, Adam or AdamW as PyTorch defines them (betas 0.9 and 0.999, epsilon 1e-8)."""

    name: str  # "sgd", "adam", "adamw"
    rate: float
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0

    def __str__(self) -> str:
        """Name and the settings that are not zero, as the table prints them."""
        fields = dataclasses.asdict(self)
        name = fields.pop("name")
        return ", ".join([name] + [f"{key} {value}" for key, value in fields.items() if value])


@dataclasses.dataclass(frozen=True)
class Transformer:
    """Sizes of an encoder, or of a causal language model, which predicts each next token.

    `vocabulary` 0 means that the input of an encoder is already embedded.
    """

    vocabulary: int
    layers: int
    width: int
    heads: int
    feed_forward: int
    sequence: int
    causal: bool = False


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model family with its sizes, the amount of data, the loss and the optimizer."""

    kind: str  # "linear", "mlp", "cnn", "resnet18", "mobilenetv2", "transformer"
    rows: int
    batch: int
    epochs: int
    loss: str  # "mse": mean squared error; "ce": softmax cross-entropy, mean of rows and positions
    optimizer: Optimizer
    features: int = 0  # dense models: columns of X
    hidden: tuple[int, ...] = ()  # dense models: widths of the hidden layers (ReLU)
    outputs: int = 10
    repeats: int = 5  # timed runs; each is a whole training
    transformer: Transformer | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.rows // self.batch

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


WORKLOADS: dict[str, Workload] = {
    "w1_linreg2": Workload(
        kind="linear", rows=1000, batch=10, epochs=200, loss="mse",
        optimizer=Optimizer("sgd", 1e-3), features=2, outputs=1,
    ),
    "w1_linreg100": Workload(
        kind="linear", rows=1000, batch=10, epochs=200, loss="mse",
        optimizer=Optimizer("sgd", 1e-3), features=100, outputs=1,
    ),
    "w2_mlp": Workload(
        kind="mlp", rows=750, batch=15, epochs=100, loss="mse",
        optimizer=Optimizer("sgd", 1e-5), features=100, hidden=(50, 10), outputs=1, repeats=7,
    ),
    "w2_mlp_nesterov": Workload(
        kind="mlp", rows=750, batch=15, epochs=100, loss="mse",
        optimizer=Optimizer("sgd", 1e-6, momentum=0.9, nesterov=True),
        features=100, hidden=(50, 10), outputs=1, repeats=7,
    ),
    "w3_mlp784": Workload(
        kind="mlp", rows=12800, batch=128, epochs=1, loss="ce",
        optimizer=Optimizer("adam", 1e-3), features=784, hidden=(512, 512), repeats=7,
    ),
    "w4_cnn": Workload(
        kind="cnn", rows=640, batch=64, epochs=5, loss="ce",
        optimizer=Optimizer("sgd", 0.003, momentum=0.9),
    ),
    "w5_resnet18": Workload(
        kind="resnet18", rows=160, batch=32, epochs=1, loss="ce",
        optimizer=Optimizer("sgd", 0.01), repeats=3,
    ),
    "w6_bert_tiny": Workload(
        kind="transformer", rows=80, batch=16, epochs=4, loss="ce",
        optimizer=Optimizer("adamw", 1e-3, decay=0.01),
        transformer=Transformer(1000, layers=2, width=128, heads=2, feed_forward=512, sequence=128),
    ),
    "w6_bert_base_layer": Workload(
        kind="transformer", rows=40, batch=8, epochs=1, loss="ce",
        optimizer=Optimizer("adamw", 1e-4, decay=0.01),
        transformer=Transformer(0, layers=1, width=768, heads=12, feed_forward=3072, sequence=128),
    ),
    "w7_causal_lm": Workload(
        kind="transformer", rows=20, batch=4, epochs=1, loss="ce",
        optimizer=Optimizer("adamw", 3e-4, decay=0.01), outputs=8192, repeats=3,
        transformer=Transformer(
            8192, layers=6, width=256, heads=4, feed_forward=1024, sequence=256, causal=True
        ),
    ),
    "w8_mobilenetv2": Workload(
        kind="mobilenetv2", rows=80, batch=16, epochs=1, loss="ce",
        optimizer=Optimizer("sgd", 0.001, momentum=0.9), repeats=3,
    ),
}  # fmt: skip
# MobileNetV2 (Sandler et al., 2018, table 2): expansion, filters and stride of each block.
MOBILENET_BLOCKS = [
    (expansion, filters, stride if index == 0 else 1)
    for expansion, filters, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for index in range(count)
]  # fmt: skip
DEFAULT_WORKLOADS = ("w1_linreg2", "w2_mlp", "w3_mlp784", "w4_cnn")


def make_data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """X and y of a workload, the same on every call. A regression workload needs scikit-learn."""
    import numpy as np

    workload = WORKLOADS[name]
    if workload.loss == "mse":
        from sklearn.datasets import make_regression
        from sklearn.model_selection import train_test_split

        inputs, targets = make_regression(
            n_samples=1000, n_features=workload.features, noise=10.0, random_state=0
        )
        if workload.kind == "mlp":
            inputs, _, targets, _ = train_test_split(inputs, targets, random_state=0)
        assert inputs.shape[0] == workload.rows
        return inputs.astype(np.float32), targets.astype(np.float32).reshape(-1, 1)
    generator = np.random.default_rng(4321)
    shape, sizes = [workload.rows, *input_shape(name)], workload.transformer
    if sizes is not None and sizes.vocabulary:
        inputs = generator.integers(0, sizes.vocabulary, size=shape, dtype=np.int64)
    else:
        inputs = generator.standard_normal(shape, dtype=np.float32)
    if sizes is not None and sizes.causal:  # the last position predicts the first token
        return inputs, np.roll(inputs, -1, axis=1)
    return inputs, generator.integers(0, workload.outputs, size=workload.rows, dtype=np.int64)


def input_shape(name: str) -> list[int]:
    """Shape of one row of X."""
    workload = WORKLOADS[name]
    if workload.kind == "cnn":
        return [1, 28, 28]
    if workload.kind == "resnet18":
        return [3, 32, 32]
    if workload.kind == "mobilenetv2":
        return [3, 96, 96]
    if workload.transformer is None:
        return [workload.features]
    sizes = workload.transformer
    return [sizes.sequence] if sizes.vocabulary else [sizes.sequence, sizes.width]


def generate(folder: pathlib.Path, names: list[str]) -> None:
    """Writes the files of the named workloads (see above) to `folder`."""
    import models  # needs onnx
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        model, graph = models.build(name)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
        inputs, targets = make_data(name)
        np.save(folder / f"{name}.x.npy", inputs)
        np.save(folder / f"{name}.y.npy", targets)
        np.savez(folder / f"{name}.weights.npz", **graph.initializers)
        index = folder / "workloads.json"
        known = json.loads(index.read_text()) if index.exists() else {}
        workload = WORKLOADS[name]
        known[name] = dict(
            dataclasses.asdict(workload), steps=workload.steps, trainable=graph.trainable
        )
        index.write_text(json.dumps(known, indent=1) + "\n")


def load_data(folder: pathlib.Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """X and y as written by `generate`."""
    import numpy as np

    return np.load(folder / f"{name}.x.npy"), np.load(folder / f"{name}.y.npy")


def load_weights(folder: pathlib.Path, name: str) -> dict[str, np.ndarray]:
    """Every initializer of the model by name, in the order of the ONNX file."""
    import numpy as np

    with np.load(folder / f"{name}.weights.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def load_trainable(folder: pathlib.Path, name: str) -> list[str]:
    """Names of the weights to train, in the order of the ONNX file."""
    return json.loads((folder / "workloads.json").read_text())[name]["trainable"]


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]), sys.argv[2:] or list(WORKLOADS))
