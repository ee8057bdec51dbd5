"""A rank that trains a workload of benchmarks/peers; rank 0 prints a line of JSON.

usage: rank_onnxgrad.py WORKLOAD STEPS [zero=1] [bfloat16=1]

WORKLOAD may be "gradients:MB[:LAYERS]", dense layers with so many MB of weights.
"""

from __future__ import annotations

import json
import pathlib
import resource
import sys
import time

import numpy as np

import onnxgrad as og

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
import peer_onnxgrad
import workloads

MODELS = pathlib.Path.home() / ".cache/onnxgrad/peers/models"


def gradients_model(megabytes: float, layers: int) -> tuple[bytes, int]:
    """Dense layers, as many as wide that their weights take so many MB; their width."""
    import onnx
    import onnx.helper as oh

    width = int((megabytes * 1e6 / 4 / layers) ** 0.5)
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "X"
    for layer in range(layers):
        array = (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(array, f"W{layer}"))
        nodes.append(oh.make_node("MatMul", [value, f"W{layer}"], [f"H{layer}"]))
        value = f"H{layer}"
    feeds = oh.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["N", width])
    output = oh.make_tensor_value_info(value, onnx.TensorProto.FLOAT, ["N", width])
    graph = oh.make_graph(nodes, "layers", [feeds], [output], weights)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), width


def main() -> None:
    name, steps = sys.argv[1], int(sys.argv[2])
    options = dict(text.split("=") for text in sys.argv[3:])
    threads = int(options.pop("threads", 1))
    workers = og.distributed.connect()
    if name.startswith("gradients:"):
        megabytes, _, layers = name.removeprefix("gradients:").partition(":")
        model, width = gradients_model(float(megabytes), int(layers or 1))
        batch = int(options.pop("batch", 8))
        X = np.random.default_rng(1).standard_normal((batch, width), dtype=np.float32)
        y, loss = X, og.losses.SquaredError()
        optimizer = options.pop("optimizer", "sgd")
    else:
        workload = workloads.WORKLOADS[name]
        model, batch = str(MODELS / f"{name}.onnx"), workload.batch
        X = np.load(MODELS / f"{name}.x.npy")[:batch]
        y = np.load(MODELS / f"{name}.y.npy")[:batch]
        loss = peer_onnxgrad.make_loss(workload)
        optimizer = peer_onnxgrad.make_optimizer(workload.optimizer)
    dist = None
    if workers.size > 1:
        chosen = {key: int(value) for key, value in options.items()}
        dist = og.distributed.DataParallel(workers, **chosen)
    trainer = og.Trainer(model, loss, optimizer, threads=threads, seed=0, dist=dist)
    rows = np.resize(np.arange(len(X)), batch * workers.size * steps)
    fit = {"epochs": 1, "batch_size": batch * workers.size, "shuffle": False, "verbose": 0}
    trainer.fit(X[rows[: batch * workers.size]], y[rows[: batch * workers.size]], **fit)
    X, y = X[rows], y[rows]
    best, sent, waited = 1e9, 0, 0.0
    for _ in range(3):
        workers.barrier()
        before = workers.traffic
        begin = time.perf_counter()
        trainer.fit(X, y, **fit)
        seconds = (time.perf_counter() - begin) / steps
        after = workers.traffic
        if seconds < best:
            best = seconds
            sent = (after.bytes_sent - before.bytes_sent) / steps
            waited = (after.seconds_waited - before.seconds_waited) / steps
    size = sum(int(np.prod(weight.shape)) for weight in trainer.session.trained_weights)
    if workers.rank == 0:
        line = {
            "step_ms": best * 1e3,
            "sent_mb": sent / 1e6,
            "waited_ms": waited * 1e3,
            "gradients_mb": size * 4 / 1e6,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "transport": workers.transport,
        }
        print("RESULT", json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
