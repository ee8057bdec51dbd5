"""Write large.npz: 50 training steps of a network by torch's optimizers, in sums of its weights.

    python tests/data/optimizers/make_large_values.py      # in an environment with torch

The network has weights W0 [100, 50], b0 [50], W1 [50, 10] and b1 [10], a hyperbolic tangent in
between, and mean squared error; a new batch of 16 rows in each step, everything float64. The
arrays are large enough for products that are updated block by block. The numbers
are those of tests/python/large_problem.py. Of
the weights after some steps the file has what `projected` keeps.

Written with torch 2.15.0.
"""

import sys
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1] / "python"))
from large_problem import KEPT, STEPS, make_large_problem, projected  # noqa: E402

CASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.005),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.005, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.002),
}


def run(make):
    """Return what is kept of the weights after the steps of KEPT."""
    x, y, weights = make_large_problem()
    w = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    optimizer = make(list(w.values()))
    kept = []
    for step in range(STEPS):
        optimizer.zero_grad()
        hidden = torch.tanh(torch.tensor(x[step]) @ w["W0"] + w["b0"])
        found = hidden @ w["W1"] + w["b1"]
        torch.nn.functional.mse_loss(found, torch.tensor(y[step])).backward()
        optimizer.step()
        if step + 1 in KEPT:
            kept.append(projected({name: value.detach().numpy() for name, value in w.items()}))
    return np.array(kept)


if __name__ == "__main__":
    path = FOLDER / "large.npz"
    np.savez_compressed(path, **{name: run(make) for name, make in CASES.items()})
    print(path, path.stat().st_size, "bytes, torch", torch.__version__)
