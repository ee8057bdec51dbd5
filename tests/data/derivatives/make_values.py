"""Derivatives of three functions by JAX, in float64.

Run with JAX (``python tests/data/derivatives/make_values.py``); writes values.json next to this
file. tests/python/test_derivatives.py has the same functions as ONNX models.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


def classifier(p):
    """Cross-entropy of two layers."""
    hidden = jnp.tanh(p["x"] @ p["w1"] + p["b1"])
    logits = hidden @ p["w2"]
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(3), jnp.array([0, 2, 1])])


def recurrent(p):
    """A state that each row changes; the sum of squares of all states."""

    def step(state, row):
        state = jnp.tanh(state @ p["u"] + row)
        return state, state

    return jnp.sum(jax.lax.scan(step, p["s"], p["x"])[1] ** 2)


def attention(p):
    """One head of causal attention; no scalar."""
    scores = p["q"] @ p["k"].T / np.sqrt(2.0)
    mask = np.tril(np.ones((4, 4), bool))
    return jax.nn.softmax(jnp.where(mask, scores, -1e30)) @ p["v"]


SHAPES = {
    classifier: {"x": (3, 2), "w1": (2, 3), "b1": (3,), "w2": (3, 3)},
    recurrent: {"s": (2,), "u": (2, 2), "x": (3, 2)},
    attention: {"q": (4, 2), "k": (4, 2), "v": (4, 3)},
}


def plain(tree):
    """Return arrays as nested lists."""
    return jax.tree.map(lambda array: np.asarray(array).tolist(), tree)


def values(function, shapes):
    """Return the point, the tangents, and the derivatives there."""
    rng = np.random.default_rng(3)
    point = {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}
    tangents = {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}
    result, jvp = jax.jvp(function, (point,), (tangents,))
    found = {"point": point, "tangents": tangents, "jvp": jvp}
    cotangent = rng.uniform(-1, 1, np.shape(result))
    found |= {"cotangent": cotangent, "vjp": jax.vjp(function, point)[1](cotangent)[0]}
    if not np.shape(result):
        found["hvp"] = jax.jvp(jax.grad(function), (point,), (tangents,))[1]
        found["hessian"] = jax.hessian(function)(point)
    return plain(found)


def main():
    """Write the file."""
    found = {function.__name__: values(function, shapes) for function, shapes in SHAPES.items()}
    file = Path(__file__).with_name("values.json")
    file.write_text(json.dumps({"jax": jax.__version__, "values": found}) + "\n")


if __name__ == "__main__":
    main()
