"""Write adafactor.npz: 50 steps of torch's Adafactor on the problem of reference.npz.

    python tests/data/optimizers/make_adafactor_values.py      # in an environment with torch

The model is y = X W + b with mean squared error, everything float64. The file has [4, 15], W and b
one after the other, after the steps of KEPT.

Written with torch 2.15.0.
"""

from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent
KEPT = (1, 2, 10, 50)

CASES = {
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.3),
    "adafactor_options": lambda p: torch.optim.Adafactor(
        p, lr=0.2, beta2_decay=-0.6, eps=(1e-6, 0.05), d=1.2, weight_decay=0.1
    ),
}


def run(make, stored):
    """Return the weights after the steps of KEPT."""
    w = torch.tensor(stored["weights"], dtype=torch.float64, requires_grad=True)
    b = torch.tensor(stored["bias"], dtype=torch.float64, requires_grad=True)
    optimizer = make([w, b])
    kept = []
    for step in range(50):
        optimizer.zero_grad()
        x, y = (torch.tensor(stored[name][step], dtype=torch.float64) for name in ("x", "y"))
        torch.nn.functional.mse_loss(x @ w + b, y).backward()
        optimizer.step()
        if step + 1 in KEPT:
            kept.append(np.concatenate([one.detach().numpy().ravel() for one in (w, b)]))
    return np.array(kept)


if __name__ == "__main__":
    with np.load(FOLDER / "reference.npz") as stored:
        found = {f"optimizer/{name}": run(make, stored) for name, make in CASES.items()}
    np.savez_compressed(FOLDER / "adafactor.npz", **found)
    print(FOLDER / "adafactor.npz", "torch", torch.__version__)
