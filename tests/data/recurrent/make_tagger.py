"""Write tagger.npz: the training of a bidirectional LSTM tagger, by JAX in float64.

    python tests/data/recurrent/make_tagger.py

A sentence of up to 9 words gets one of 5 tags per word: embedding, LSTM in both directions over the
sentence's own length, one dense layer. Twenty steps of gradient descent on batches of 6 sentences,
in order; the loss of a step is the mean cross-entropy over the words of its batch. jax.grad
differentiates; the cell is written out from its formulas, the second direction runs over sentences
that are reversed one by one.

Arrays: `words` [24, 9], `lengths` [24], `tags` [24, 9] (-100 after the end), `first/<weight>` and
`last/<weight>` in the layout of ONNX's LSTM, `losses` [20].

Written with jax 0.10.2, numpy 2.4.6.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

SENTENCES, STEPS, WORDS, TAGS = 24, 9, 30, 5
FEATURES, HIDDEN = 8, 6
BATCH, EPOCHS, RATE = 6, 5, 2.0


def lstm(x, length, w, r, b):
    """Hidden states [steps, HIDDEN] of one sentence; zeros after its end."""

    def step(state, x_t):
        h, c = state
        i, o, f, n = jnp.split(w @ x_t + r @ h + b[: 4 * HIDDEN] + b[4 * HIDDEN :], 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(n)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros(HIDDEN)
    _, states = jax.lax.scan(step, (zeros, zeros), x)
    return jnp.where(jnp.arange(STEPS)[:, None] < length, states, 0)


def reverse(x, length):
    """The first `length` rows in reverse order."""
    positions = jnp.arange(STEPS)
    return x[jnp.where(positions < length, length - 1 - positions, positions)]


def scores(weights, words, length):
    x = weights["embedding"][words]
    w, r, b = weights["W"], weights["R"], weights["B"]
    forward = lstm(x, length, w[0], r[0], b[0])
    backward = reverse(lstm(reverse(x, length), length, w[1], r[1], b[1]), length)
    both = jnp.concatenate([forward, backward], axis=1)
    return both @ weights["dense"] + weights["bias"]


def loss(weights, words, lengths, tags):
    logits = jax.vmap(scores, in_axes=(None, 0, 0))(weights, words, lengths)
    valid = tags >= 0
    picked = jnp.take_along_axis(
        jax.nn.log_softmax(logits), jnp.where(valid, tags, 0)[..., None], axis=-1
    )[..., 0]
    return -jnp.sum(jnp.where(valid, picked, 0)) / jnp.sum(valid)


def main():
    rng = np.random.default_rng(12)
    lengths = rng.integers(1, STEPS + 1, SENTENCES).astype(np.int32)
    words = rng.integers(0, WORDS, (SENTENCES, STEPS))
    tags = words % TAGS
    tags = np.where(np.arange(STEPS) < lengths[:, None], tags, -100)

    def uniform(*shape):
        return rng.uniform(-0.5, 0.5, shape).astype(np.float32).astype(np.float64)

    first = {
        "embedding": uniform(WORDS, FEATURES),
        "W": uniform(2, 4 * HIDDEN, FEATURES),
        "R": uniform(2, 4 * HIDDEN, HIDDEN),
        "B": uniform(2, 8 * HIDDEN),
        "dense": uniform(2 * HIDDEN, TAGS),
        "bias": uniform(TAGS),
    }
    weights = {name: jnp.asarray(value) for name, value in first.items()}
    value_and_gradient = jax.jit(jax.value_and_grad(loss))
    losses = []
    for _ in range(EPOCHS):
        for start in range(0, SENTENCES, BATCH):
            rows = slice(start, start + BATCH)
            value, gradient = value_and_gradient(weights, words[rows], lengths[rows], tags[rows])
            weights = {name: weights[name] - RATE * gradient[name] for name in weights}
            losses.append(float(value))
    np.savez_compressed(
        Path(__file__).parent / "tagger.npz",
        words=words,
        lengths=lengths,
        tags=tags,
        losses=np.array(losses),
        **{f"first/{name}": value for name, value in first.items()},
        **{f"last/{name}": np.asarray(value) for name, value in weights.items()},
    )


if __name__ == "__main__":
    main()
