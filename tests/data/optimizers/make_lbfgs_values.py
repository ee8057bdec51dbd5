"""Writes lbfgs.npz: 50 steps of one iteration of torch's L-BFGS on a problem that is not quadratic.

Softmax cross-entropy of the rows of reference.npz (class: the largest target) with a penalty, in
float64 and float32. Run by hand, with any recent torch:

    python tests/data/optimizers/make_lbfgs_values.py
"""

from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent
STEPS = 50
L2 = 0.01
SCALES = (1, 2, 0.5, 0.3)  # scales of the columns: a curvature that differs by direction


def weights_after_each_step(stored, dtype):
    """Return [50, 15]: W and b, one after the other."""
    x = torch.tensor(stored["x"].reshape(-1, 4) * np.array(SCALES)).to(dtype)
    classes = torch.tensor(stored["y"].reshape(-1, 3).argmax(axis=1))
    w = torch.tensor(stored["weights"], dtype=dtype, requires_grad=True)
    b = torch.tensor(stored["bias"], dtype=dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [w, b],
        max_iter=1,
        max_eval=100,
        history_size=2,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-12,
        tolerance_change=0,
    )

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ w + b, classes)
        loss = loss + L2 * (w**2).sum() + L2 * (b**2).sum()
        loss.backward()
        return loss

    kept = []
    for _ in range(STEPS):
        optimizer.step(closure)
        kept.append(np.concatenate([w.detach().numpy().ravel(), b.detach().numpy()]))
    return np.array(kept, np.float64)


def main():
    """Write the file."""
    with np.load(FOLDER / "reference.npz") as arrays:
        stored = dict(arrays)
    values = {
        "float64": weights_after_each_step(stored, torch.float64),
        "float32": weights_after_each_step(stored, torch.float32).astype(np.float32),
    }
    path = FOLDER / "lbfgs.npz"
    np.savez_compressed(path, **values)
    print(f"{path.name}: {path.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
