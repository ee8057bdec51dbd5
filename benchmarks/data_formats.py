"""How fast each data format is read in training, and how busy the engine is meanwhile.

    .venv/bin/python benchmarks/data_formats.py [--mebibytes 256]

Writes a file of each format with the same number of float32 values (33 columns), then trains an
MLP on it for one epoch after a first one that warms the page cache. "MB/s" are bytes of the file
over the time of the epoch; "read only" the same without a training; "busy" is the share of the time
in which the engine did not wait for rows.
"""

import argparse
import itertools
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
from onnx import numpy_helper

import onnxgrad as og

COLUMNS = 32


def mlp(sizes):
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "X"
    for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        for name, shape in ((f"W{i}", (rows, columns)), (f"b{i}", (columns,))):
            array = rng.normal(scale=0.1, size=shape).astype(np.float32)
            weights.append(numpy_helper.from_array(array, name))
        last = i == len(sizes) - 2
        nodes.append(onnx.helper.make_node("MatMul", [value, f"W{i}"], [f"m{i}"]))
        nodes.append(onnx.helper.make_node("Add", [f"m{i}", f"b{i}"], ["Y" if last else f"a{i}"]))
        if not last:
            nodes.append(onnx.helper.make_node("Relu", [f"a{i}"], [f"h{i}"]))
            value = f"h{i}"
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "mlp",
        [info("X", onnx.TensorProto.FLOAT, ["N", sizes[0]])],
        [info("Y", onnx.TensorProto.FLOAT, ["N", sizes[-1]])],
        weights,
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def write_csv(folder, X, y):
    path = folder / "rows.csv"
    names = ",".join([*(f"c{i}" for i in range(X.shape[1])), "y"])
    table = np.column_stack([X, y])
    np.savetxt(path, table, delimiter=",", header=names, comments="", fmt="%.7g")
    return og.data.CsvFile(path)


def write_npy(folder, X, y):
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return og.data.NpyFiles(folder / "X.npy", folder / "y.npy")


def write_npz(folder, X, y):
    np.savez(folder / "rows.npz", X=X, y=y)
    return og.data.NpzFile(folder / "rows.npz")


def write_packed(folder, X, y):
    np.savez_compressed(folder / "rows.npz", X=X, y=y)
    return og.data.NpzFile(folder / "rows.npz")


def write_parquet(folder, X, y):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {f"c{i}": X[:, i] for i in range(X.shape[1])} | {"y": y}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=20000)
    return og.data.ParquetFile(folder / "rows.parquet")


def batches(_folder, X, y):
    return og.data.Batches(
        lambda: ((X[i : i + 256], y[i : i + 256]) for i in range(0, len(X), 256)), rows=len(X)
    )


FORMATS = {
    "CSV": write_csv,
    "NPY": write_npy,
    "NPZ": write_npz,
    "NPZ, compressed": write_packed,
    "Parquet": write_parquet,
    "generator": batches,
}
MODELS = {"small": [COLUMNS, 1], "large": [COLUMNS, 256, 256, 1]}


def read_seconds(source, session):
    best = np.inf
    for _ in range(2):
        reader = source.native(session)
        start = time.perf_counter()
        reader.start()
        while reader.next() is not None:
            pass
        best = min(best, time.perf_counter() - start)
    return best


def measure(name, X, y, threads):
    """Return size in MB, then MB/s reading only, and for each model (MB/s, busy share)."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        source = FORMATS[name](folder, X, y)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6 or X.nbytes / 1e6
        results = []
        read = None
        for sizes in MODELS.values():
            trainer = og.Trainer(
                mlp(sizes), "squared_error", "sgd", lr=1e-3, seed=0, threads=threads
            )
            trainer.fit(source, epochs=2, batch_size=256, verbose=0)
            read = read or size / read_seconds(source, trainer.session)
            seconds = trainer.history["seconds"][-1]
            wait = trainer.history.get("data_wait_s", [0.0])[-1]
            results.append((size / seconds, 1 - wait / seconds))
    return size, read, results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256, help="of the values as float32")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    options = parser.parse_args()
    rows = (options.mebibytes << 20) // (4 * (COLUMNS + 1))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
    y = X[:, 0] - X[:, 1]
    shown = [f"{'-'.join(map(str, sizes))}" for sizes in MODELS.values()]
    lines = [
        "| data | size | read only | " + " | ".join(f"{n}: MB/s | busy" for n in shown) + " |",
        "|---|---|---|" + "---|---|" * len(shown),
    ]
    for name in FORMATS:
        size, read, results = measure(name, X, y, options.threads)
        cells = [name, f"{size:.0f} MB", f"{read:.0f} MB/s"]
        for speed, busy in results:
            cells += [f"{speed:.0f}", f"{100 * busy:.0f} %"]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], file=sys.stderr)
    table = "\n".join(lines)
    note = (
        f"{rows} rows of {COLUMNS + 1} float32 values, batches of 256, SGD, {options.threads} "
        f"thread(s) of the engine and one that reads; {os.cpu_count()} cores, "
        f"{platform.machine()}; {time.strftime('%Y-%m-%d')}."
    )
    print(f"{table}\n\n{note}")


if __name__ == "__main__":
    main()
