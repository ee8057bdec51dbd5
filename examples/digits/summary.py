"""Prints the demo's results next to those of scikit-learn's own training, and checks them.

    python summary.py FOLDER SEEDS

Reads what make_model.py and `onnxgrad train` wrote into FOLDER: `trained_<seed>.onnx`,
`untrained_<seed>.onnx` (learning rate 0), `history.csv`. Everything is run with stock onnxruntime;
`trained.onnx` also with onnxgrad's engine. scikit-learn trains the same architecture on the same
rows, with the same batches and epochs. Draws `loss_curves.png`. Exit status 1 if the accuracy
is not what it should be.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import onnxruntime
from make_model import fit

import onnxgrad as og


def read_csv(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and labels."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float32)
    return table[:, :-1], table[:, -1].astype(np.int64)


def accuracy(session: object, rows: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of rows whose label output is right."""
    predicted = session.run(["output_label"], {"X": rows})[0]
    return float(np.mean(predicted == labels))


def draw(folder: Path) -> Path:
    """Draw the loss curves of the first training."""
    from onnxgrad.plotting import loss_curves

    mpl.use("Agg")
    names, *lines = (folder / "history.csv").read_text(encoding="utf-8").split()
    columns = np.array([[float(cell) for cell in line.split(",")] for line in lines]).T
    ax = loss_curves(dict(zip(names.split(","), columns.tolist(), strict=True)))
    ax.set_title("Handwritten digits: scikit-learn's pipeline trained by onnxgrad")
    path = folder / "loss_curves.png"
    ax.figure.savefig(path, dpi=120)
    return path


def main(folder: Path, seeds: range) -> int:
    """Print the table; return the exit status."""
    train, held_out = read_csv(folder / "train.csv"), read_csv(folder / "held_out.csv")
    reference = [fit(seed, *train) for seed in seeds]

    def scores(pattern: str, data: tuple[np.ndarray, np.ndarray]) -> list[float]:
        files = [folder / pattern.format(seed) for seed in seeds]
        return [accuracy(onnxruntime.InferenceSession(file), *data) for file in files]

    table = np.array(
        [
            scores("trained_{}.onnx", train),
            scores("trained_{}.onnx", held_out),
            [pipeline.score(*train) for pipeline in reference],
            [pipeline.score(*held_out) for pipeline in reference],
        ]
    )
    print(f"\naccuracy ({len(train[1])} rows to train on, {len(held_out[1])} held out):\n")
    print("           onnxgrad            scikit-learn")
    print("seed       train  held out     train  held out")
    for seed, row in zip(seeds, table.T, strict=True):
        print(f"{seed:<8}{row[0]:8.4f}{row[1]:10.4f}{row[2]:10.4f}{row[3]:10.4f}")
    mean = table.mean(axis=1)
    print(f"{'mean':<8}{mean[0]:8.4f}{mean[1]:10.4f}{mean[2]:10.4f}{mean[3]:10.4f}\n")

    untrained = float(np.mean(scores("untrained_{}.onnx", held_out)))
    print(f"with learning rate 0, held out: {untrained:.4f}")
    path = folder / "trained.onnx"
    engines = [og.InferenceSession(path), onnxruntime.InferenceSession(path)]
    ours, stock = (accuracy(session, *held_out) for session in engines)
    print(f"trained.onnx, held out: {ours:.4f} with onnxgrad, {stock:.4f} with onnxruntime")
    print(f"loss curves: {draw(folder)}")

    checks = {
        "held-out accuracy of at least 0.96": mean[1] >= 0.96,
        "not below scikit-learn's by more than 0.01": mean[1] >= mean[3] - 0.01,
        "below 0.2 with learning rate 0": untrained < 0.2,
        "the same accuracy in onnxruntime": ours == stock,
    }
    for text, holds in checks.items():
        if not holds:
            print(f"FAILED: {text}", file=sys.stderr)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), range(int(sys.argv[2]))))
