"""Adapters, integers, 16 bits, accumulation, workers, checkpoints and entry points in pairs.

Each learns what one plain run in Python learns: of one worker, in float32, in whole batches,
without a checkpoint, on a file whose packed weights were made float ones before.

As a program, this file is the script that several workers run.
"""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad as og
from forking import run_module
from onnxgrad.sklearn.base import _SEEDS
from pairwise import pairwise
from support import BUILD
from test_quantized_base import batch, network

EPOCHS = 3
PROGRAM = BUILD / "tests/onnxgrad_fine_tuning"
QUANTIZED = {
    "float": {},
    "int4": {"base": "int4"},
    "nf4": {"base": "nf4:block_size=64"},
    "activations": {"quantize": "int8:activations=true"},
}


def is_valid(row):
    if row.get("adapter") == "bitfit" and row.get("quantized") == "activations":
        return False  # biases are integers, which adapters freeze
    if row.get("entry") != "estimator":
        return True
    return row.get("workers", 1) == 1 and not row.get("checkpoint")


ROWS = pairwise(
    {
        "adapter": ["lora:rank=3", "dora:rank=2", "ia3:targets=linear", "bitfit"],
        "quantized": list(QUANTIZED),
        "precision": ["float32", "bf16", "fp16"],
        "accumulate": [1, 2],
        "workers": [1, 2],
        "checkpoint": [False, True],
        "entry": ["python", "command", "estimator", "c++"],
    },
    is_valid,
)


# A scale whose first steps do not overflow.
PRECISIONS = {name: name for name in ("float32", "bf16")}
PRECISIONS["fp16"] = og.Precision("fp16", loss_scale=64)


def options_of(row):
    return {"adapter": row["adapter"], **QUANTIZED[row["quantized"]]}


def reference(row):
    """The scores and the trained weights, before and after a plain run."""
    x, y = batch(64)
    model = network()
    if row["quantized"] == "activations":
        model = og.quantize(model, x, "int8")
    elif row["quantized"] != "float":
        name, _, size = QUANTIZED[row["quantized"]]["base"].partition(":block_size=")
        model = og.quantize_weights(model, name, block_size=int(size or 32))
        model = og.dequantize_weights(model)
    seed = 3
    if row["entry"] == "estimator":  # which draws that of its trainer
        seed = int(np.random.RandomState(seed).randint(_SEEDS))
    trainer = og.Trainer(model, "cross_entropy", "sgd", lr=0.2, seed=seed, adapter=row["adapter"])

    def now():
        names = [weight.name for weight in trainer.session.trained_weights]
        weights = {name: trainer.session.weights[name].copy() for name in names}
        return trainer.predict(x), weights

    before = now()
    trainer.fit(x, y, epochs=EPOCHS, batch_size=16, shuffle=False, verbose=0)
    return before, now()


def train(folder, row):
    """Write trained.onnx of a run with a `Trainer`, in each worker."""
    x, y = batch(64)
    fit = {"batch_size": 16 // row["accumulate"], "shuffle": False, "verbose": 0}

    def trainer():
        return og.Trainer(
            network(), "cross_entropy", "sgd", lr=0.2, seed=3, threads=1, dist="auto",
            precision=PRECISIONS[row["precision"]], accumulate=row["accumulate"], **options_of(row),
        )  # fmt: skip

    one = trainer()
    if row["checkpoint"]:
        states = og.callbacks.Checkpoint(folder / "states")
        one.fit(x, y, epochs=EPOCHS - 1, callbacks=states, **fit)
        one = trainer()
        fit["resume"] = folder / "states"
    one.fit(x, y, epochs=EPOCHS, **fit)
    workers = one.session._data_parallel
    if workers is None or workers.workers.rank == 0:
        one.save(folder / "trained.onnx")


def run_script(folder, row):
    if row["workers"] == 1:
        train(folder, row)
        return
    launch = ("launch", "-n", "2", "--transport", "tcp", __file__, folder, json.dumps(row))
    done = run_module("onnxgrad", *launch)
    assert done.returncode == 0, done.stderr


def run_command(folder, row):
    x, y = batch(64)
    np.savez(folder / "rows.npz", x=x, label=y)
    onnx.save(network(), folder / "model.onnx")
    out = folder / "trained.onnx"
    options = {
        "data": folder / "rows.npz", "target": "label", "loss": "cross_entropy",
        "optimizer": "sgd", "lr": 0.2, "seed": 3, "threads": 1,
        "precision": row["precision"].replace("fp16", "fp16:loss_scale=64"),
        "accumulate": row["accumulate"], "batch-size": 16 // row["accumulate"], **options_of(row),
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    launch = ("launch", "-n", "2", "--transport", "tcp") if row["workers"] == 2 else ()
    calls = [[folder / "model.onnx", *words, "--no-shuffle", "--epochs", EPOCHS, "-o", out]]
    if row["checkpoint"]:
        calls[0][-3] = EPOCHS - 1
        calls[0] += ["--run-dir", folder / "run"]
        calls.append(["--resume", folder / "run", "--epochs", EPOCHS, "-o", out])
    for call in calls:
        done = run_module("onnxgrad", *launch, "train", *call)
        assert done.returncode == 0, done.stderr


def run_program(folder, row):
    """Train with the C++ interface."""
    x, y = batch(64)
    np.savez(folder / "rows.npz", x=x, label=y)
    onnx.save(network(), folder / "model.onnx")
    adapter, _, text = row["adapter"].partition(":")
    options = {"adapter": adapter, "precision": row["precision"], "accumulate": row["accumulate"]}
    options |= dict([text.split("=")] if text else [])
    options["batch"] = 16 // row["accumulate"]
    if base := QUANTIZED[row["quantized"]].get("base"):
        options["base"], _, size = base.partition(":block_size=")
        options |= {"block_size": size} if size else {}
    if row["quantized"] == "activations":
        options["quantize"] = "int8"
    if row["checkpoint"]:
        options["checkpoint"] = folder / "states"
    files = [folder / "model.onnx", folder / "rows.npz", folder / "trained.onnx"]
    command = [PROGRAM, *files, EPOCHS, *(f"{name}={value}" for name, value in options.items())]
    if row["workers"] == 2:
        done = run_module("onnxgrad", "launch", "-n", "2", "--transport", "tcp", *command)
    else:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


RUNS = {"python": run_script, "command": run_command, "c++": run_program}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(x)[:5] for x in row.values()))
def test_each_learns_what_a_plain_run_learns(row, tmp_path):
    (before, first), (wanted, last) = reference(row)
    x, y = batch(64)
    if row["entry"] == "estimator":
        estimator = og.sklearn.OnnxClassifier(
            network(), loss="cross_entropy", optimizer="sgd", lr=0.2, random_state=3, tol=None,
            max_iter=EPOCHS, batch_size=16 // row["accumulate"], shuffle=False,
            precision=PRECISIONS[row["precision"]], accumulate=row["accumulate"], **options_of(row),
        ).fit(x, y)  # fmt: skip
        model = estimator.to_onnx()
    else:
        if row["entry"] == "c++" and not PROGRAM.exists():
            pytest.skip("the program is built with the C++ tests, which this build lacks")
        RUNS[row["entry"]](tmp_path, row)
        model = onnx.load(tmp_path / "trained.onnx")
    (got,) = og.InferenceSession(model).run(None, {"x": x})
    error, moved = got - wanted, wanted - before
    if row["precision"] == "float32":
        assert np.abs(error).max() < 2e-3 * np.abs(moved).max()
    elif row["quantized"] == "activations":
        # Activations near the middle of two integers go to either: a change of the adapter by
        # 0.1 %, less than 16 bits make, moves single scores by 10 % of what was learnt.
        found = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
        for name, value in last.items():
            learnt = np.linalg.norm(value - first[name])
            assert np.linalg.norm(found[name] - value) < 0.1 * learnt, name
    else:
        assert np.abs(error).max() < 0.1 * np.abs(moved).max()


def test_magnitudes_are_norms_of_the_integers():
    """DoRA computes what its quantized base does before it learns, as PEFT's does."""
    x, y = batch(64)
    options = {"adapter": "dora:rank=2", "quantize": "int8:activations=true"}
    trainer = og.Trainer(network(), "cross_entropy", "sgd", lr=0.0, **options)
    trainer.fit(x, y, epochs=1, verbose=0)
    base = og.InferenceSession(og.quantize(network(), x, "int8"))
    np.testing.assert_allclose(trainer.predict(x), base.run(None, {"x": x})[0], 1e-4, 1e-5)


def test_a_trainer_that_waits_for_rows_keeps_its_adapter(tmp_path):
    """Weights that are set before the integers are made, in a pickle too."""
    x, y = batch(64)
    options = {"adapter": "lora:rank=2", "quantize": "int8:activations=true", "new_head": 9}
    other = og.Trainer(network(), "cross_entropy", "sgd", lr=0.2, seed=5, lora=2, new_head=9)
    other.fit(x, y, epochs=1, verbose=0)
    other.save_adapter(tmp_path)
    one = og.Trainer(network(), "cross_entropy", "sgd", lr=0.0, **options)
    one.session.load_adapter(tmp_path)
    want = {name: value.copy() for name, value in one.session.weights.items() if "lora" in name}
    assert len(want) == 4
    for trainer in (pickle.loads(pickle.dumps(one)), one):
        trainer.fit(x, y, epochs=1, verbose=0)
        assert trainer.predict(x).shape == (64, 9)
        for name, value in want.items():
            np.testing.assert_array_equal(trainer.session.weights[name], value)
        kinds = {node.op_type for node in trainer.trained_model().graph.node}
        assert "QuantizeLinear" in kinds


if __name__ == "__main__":
    train(Path(sys.argv[1]), json.loads(sys.argv[2]))
