"""Write optax.npz: 50 training steps by Lion and LAMB, which torch does not have.

    python tests/data/optimizers/make_optax_values.py      # in an environment with jax and optax

The problem is that of make_reference_values.py, whose batches and first weights (reference.npz) are
read. Everything is float64. tests/python/test_optimizers.py reads the file.

Written with optax 0.2.8, jax 0.10.2 and numpy 2.4.6.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

FOLDER = Path(__file__).resolve().parent
KEPT = (1, 2, 10, 50)  # after these steps the weights are kept

CASES = {
    "lion": optax.lion(0.02, weight_decay=0.0),
    "lion_options": optax.lion(0.02, b1=0.8, b2=0.95, weight_decay=0.5),
    "lamb": optax.lamb(0.05, weight_decay=0.01),
    "lamb_options": optax.lamb(0.05, b1=0.8, b2=0.95, eps=1e-3, weight_decay=0.2),
}


def loss_of(params, x, y):
    """Mean squared error of x W + b."""
    return jnp.mean((x @ params["W"] + params["b"] - y) ** 2)


def run(optimizer, problem):
    """Weights after the steps of KEPT."""
    params = {"W": jnp.asarray(problem["weights"]), "b": jnp.asarray(problem["bias"])}
    state = optimizer.init(params)
    kept = []
    for step, (x, y) in enumerate(zip(problem["x"], problem["y"], strict=True)):
        gradients = jax.grad(loss_of)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        if step + 1 in KEPT:
            kept.append(np.concatenate([np.ravel(params["W"]), params["b"]]))
    return np.array(kept)


def main():
    """Write the file."""
    jax.config.update("jax_enable_x64", True)
    with np.load(FOLDER / "reference.npz") as arrays:
        problem = {name: arrays[name] for name in ("x", "y", "weights", "bias")}
    arrays = {f"optimizer/{name}": run(optimizer, problem) for name, optimizer in CASES.items()}
    assert all(array.dtype == np.float64 for array in arrays.values())
    path = FOLDER / "optax.npz"
    np.savez_compressed(path, **arrays)
    versions = f"optax {optax.__version__}, jax {jax.__version__}, numpy {np.__version__}"
    print(f"{path.name}: {path.stat().st_size} bytes, {versions}")


if __name__ == "__main__":
    main()
