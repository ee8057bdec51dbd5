"""Writes the input of the demo: a pipeline as scikit-learn users export it, and its data.

    python make_model.py FOLDER

FOLDER gets `pipeline.onnx` (StandardScaler and MLPClassifier, exported by skl2onnx with its default
options: a label output and a ZipMap), `train.csv` and `held_out.csv` (a fixed stratified split of
scikit-learn's handwritten digits).
"""

import sys
import warnings
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

EPOCHS = 30
BATCH_SIZE = 32
LEARNING_RATE = 1e-3


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows to train on, held-out rows, and the labels of both."""
    rows, labels = load_digits(return_X_y=True)
    return tuple(train_test_split(rows, labels, test_size=0.25, random_state=0, stratify=labels))


def fit(seed: int, rows: np.ndarray, labels: np.ndarray) -> Pipeline:
    """Return the pipeline as scikit-learn trains it by itself."""
    network = MLPClassifier(
        (64, 32),
        alpha=0.0,
        batch_size=BATCH_SIZE,
        learning_rate_init=LEARNING_RATE,
        max_iter=EPOCHS,
        n_iter_no_change=EPOCHS + 1,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is intended
        return make_pipeline(StandardScaler(), network).fit(rows, labels)


def write_csv(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    """Write the rows with a header line, the label in the last column."""
    header = ",".join([*(f"pixel_{i}" for i in range(rows.shape[1])), "digit"])
    table = np.column_stack([rows, labels])
    np.savetxt(path, table, fmt="%d", delimiter=",", header=header, comments="")


def main(folder: Path) -> None:
    """Write everything."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, held_out_rows, labels, held_out_labels = split()
    write_csv(folder / "train.csv", rows, labels)
    write_csv(folder / "held_out.csv", held_out_rows, held_out_labels)

    proto = to_onnx(fit(0, rows, labels), rows[:1].astype(np.float32))
    (folder / "pipeline.onnx").write_bytes(proto.SerializeToString())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
