"""JAX on CPU. jax-jit: one jitted training step per batch, its state donated. jax-scan: one jitted
call per epoch (lax.scan over the batches), which leaves no Python between the steps. Convolutions
are in NHWC; batch normalisation keeps no running statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import worker
import workloads
from jax import lax

Forward = Callable[[dict, jax.Array], jax.Array]


def convolve(x, weight, stride=1, padding=0, groups=1):
    return lax.conv_general_dilated(
        x, weight, (stride, stride), [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
    )  # fmt: skip


def batch_norm(weights, x, name):
    mean = x.mean((0, 1, 2))
    variance = jnp.square(x).mean((0, 1, 2)) - jnp.square(mean)
    scale = lax.rsqrt(variance + 1e-5) * weights[name + "_scale"]
    return (x - mean) * scale + weights[name + "_bias"]


def dense(workload: workloads.Workload) -> Forward:
    count = len(workload.hidden) + 1

    def forward(weights, x):
        for layer in range(count):
            x = x @ weights[f"W{layer}"] + weights[f"B{layer}"]
            if layer < count - 1:
                x = jax.nn.relu(x)
        return x

    return forward


def convolutions(weights, x):
    for layer in range(2):
        x = convolve(x, weights[f"CW{layer}"], padding=2) + weights[f"CB{layer}"]
        x = lax.reduce_window(
            jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
    return x.reshape(x.shape[0], -1) @ weights["FW"] + weights["FB"]


def resnet18(weights, x):
    def normalise(x, name):
        return batch_norm(weights, x, name)

    def block(x, p, stride):
        inner = convolve(x, weights[p + "c1"], stride, 1)
        inner = jax.nn.relu(normalise(inner, p + "n1"))
        inner = normalise(convolve(inner, weights[p + "c2"], 1, 1), p + "n2")
        if p + "cs" in weights:
            x = normalise(convolve(x, weights[p + "cs"], stride, 0), p + "ns")
        return jax.nn.relu(inner + x)

    x = jax.nn.relu(normalise(convolve(x, weights["stem"], 1, 1), "stem_bn"))
    for stage in range(4):
        for index in range(2):
            x = block(x, f"s{stage}b{index}", 2 if stage > 0 and index == 0 else 1)
    return x.mean((1, 2)) @ weights["FW"] + weights["FB"]


def mobilenetv2(weights, x):
    def layer(x, name, stride=1, active=True):
        weight = weights[name]
        groups = weight.shape[3] if weight.shape[2] == 1 else 1
        x = convolve(x, weight, stride, weight.shape[0] // 2, groups)
        x = batch_norm(weights, x, name + "n")
        return jnp.clip(x, 0, 6) if active else x

    x, channels = layer(x, "stem", 2), 32
    for index, (expansion, filters, stride) in enumerate(workloads.MOBILENET_BLOCKS):
        p = f"b{index}"
        inner = layer(x, p + "e") if expansion != 1 else x
        inner = layer(layer(inner, p + "d", stride), p + "p", active=False)
        x = x + inner if stride == 1 and channels == filters else inner
        channels = filters
    return layer(x, "last").mean((1, 2)) @ weights["FW"] + weights["FB"]


def transformer(sizes: workloads.Transformer) -> Forward:
    width, heads, sequence = sizes.width, sizes.heads, sizes.sequence
    mask = np.triu(np.full((sequence, sequence), -np.inf, np.float32), 1) if sizes.causal else 0.0

    def linear(weights, x, name):
        return x @ weights[name + "_w"] + weights[name + "_b"]

    def normalise(weights, x, name):
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        scaled = (x - mean) * lax.rsqrt(variance + 1e-5) * weights[name + "_g"]
        return scaled + weights[name + "_b"]

    def attention(weights, x, p):
        query, key, content = (
            linear(weights, x, p + name).reshape(-1, sequence, heads, width // heads)
            for name in "qkv"
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.float32(np.sqrt(width // heads))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores + mask, axis=-1), content)
        return linear(weights, mixed.reshape(-1, sequence, width), p + "o")

    def feed_forward(weights, x, p):
        inner = jax.nn.gelu(linear(weights, x, p + "f1"), approximate=False)
        return linear(weights, inner, p + "f2")

    def encoder(weights, x):
        if sizes.vocabulary:
            x = normalise(weights, weights["emb"][x] + weights["pos"], "emb_ln")
        for layer in range(sizes.layers):
            p = f"l{layer}_"
            x = normalise(weights, attention(weights, x, p) + x, p + "ln1")
            x = normalise(weights, feed_forward(weights, x, p) + x, p + "ln2")
        return x.mean(1) @ weights["FW"] + weights["FB"]

    def language_model(weights, x):
        x = weights["emb"][x] + weights["pos"]
        for layer in range(sizes.layers):
            p = f"l{layer}_"
            x = attention(weights, normalise(weights, x, p + "ln1"), p) + x
            x = feed_forward(weights, normalise(weights, x, p + "ln2"), p) + x
        return normalise(weights, x, "last_ln") @ weights["FW"]

    return language_model if sizes.causal else encoder


def make_forward(workload: workloads.Workload) -> Forward:
    if workload.transformer is not None:
        return transformer(workload.transformer)
    if workload.kind == "cnn":
        return convolutions
    if workload.kind == "mobilenetv2":
        return mobilenetv2
    return resnet18 if workload.kind == "resnet18" else dense(workload)


def make_loss(workload: workloads.Workload) -> Callable:
    forward = make_forward(workload)

    def loss(weights, x, y):
        scores = forward(weights, x)
        if workload.loss == "mse":
            return jnp.mean(jnp.square(scores - y))
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), y[..., None], axis=-1))

    return loss


def sgd(settings: workloads.Optimizer, weights, velocity, gradient, count):
    mu = settings.momentum
    if mu:
        velocity = jax.tree.map(lambda v, g: mu * v + g, velocity, gradient)
        if settings.nesterov:
            gradient = jax.tree.map(lambda v, g: g + mu * v, velocity, gradient)
        else:
            gradient = velocity
    weights = jax.tree.map(lambda w, g: w - settings.rate * g, weights, gradient)
    return weights, velocity, count


def adam(settings: workloads.Optimizer, weights, moments, gradient, count):
    """Adam, or AdamW where a decay is set; `moments` are the first and the second."""
    count = count + 1
    rate, steps = settings.rate, count.astype(jnp.float32)
    correction1, correction2 = 1 - 0.9**steps, 1 - 0.999**steps
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradient)

    def update(w, m, v):
        step = (rate / correction1) * m / (jnp.sqrt(v / correction2) + 1e-8)
        return w * (1 - rate * settings.decay) - step

    return jax.tree.map(update, weights, first, second), (first, second), count


def converted(workload: workloads.Workload, name: str, value: np.ndarray) -> np.ndarray:
    """A weight of the ONNX file in the layout of the functions above."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)  # OIHW to HWIO
    if name == "FW" and workload.kind == "cnn":  # columns follow C, H, W: reorder to H, W, C
        value = value.reshape(10, 32, 7, 7).transpose(0, 2, 3, 1).reshape(10, -1)
    is_token_head = workload.transformer is not None and workload.transformer.causal
    transposed = (name == "FW" and not is_token_head) or (
        workload.loss == "ce" and name.startswith("W")
    )
    return value.T if transposed else value


def narrowed(array: np.ndarray) -> np.ndarray:
    """JAX's default integers have 32 bits."""
    return array.astype(np.int32) if array.dtype == np.int64 else array


class Peer:
    version = jax.__version__

    def __init__(self, task: worker.Task) -> None:
        workload = self.workload = task.workload
        self.scan = task.variant == "jax-scan"
        self.initial = {
            name: np.ascontiguousarray(converted(workload, name, task.weights[name]))
            for name in task.trainable
        }
        inputs = task.inputs.transpose(0, 2, 3, 1) if task.inputs.ndim == 4 else task.inputs
        shape = (workload.steps_per_epoch, workload.batch)
        inputs = narrowed(inputs).reshape(shape + inputs.shape[1:])
        targets = narrowed(task.targets).reshape(shape + task.targets.shape[1:])
        gradient = jax.value_and_grad(make_loss(workload))
        settings = workload.optimizer
        update = sgd if settings.name == "sgd" else adam

        def step(state, batch):
            weights, slots, count = state
            loss, grads = gradient(weights, *batch)
            return update(settings, weights, slots, grads, count), loss

        if self.scan:
            self.data = (jnp.asarray(inputs), jnp.asarray(targets))
            self.call = jax.jit(lambda state, data: lax.scan(step, state, data), donate_argnums=0)
        else:
            pairs = zip(inputs, targets, strict=True)
            self.data = [(jnp.asarray(x), jnp.asarray(y)) for x, y in pairs]
            self.call = jax.jit(step, donate_argnums=0)
        self.reset()

    def zeros(self) -> dict[str, jax.Array]:
        return {name: jnp.zeros(v.shape, jnp.float32) for name, v in self.initial.items()}

    def reset(self) -> None:
        settings = self.workload.optimizer
        weights = {name: jnp.array(value) for name, value in self.initial.items()}
        if settings.name == "sgd":
            slots = self.zeros() if settings.momentum else {}
        else:
            slots = (self.zeros(), self.zeros())
        self.state = jax.block_until_ready((weights, slots, jnp.zeros((), jnp.int32)))

    def first(self) -> None:
        data = self.data if self.scan else self.data[0]
        self.state, loss = self.call(self.state, data)
        jax.block_until_ready((self.state, loss))

    def run(self) -> Sequence[float]:
        losses, state = [], self.state
        for _ in range(self.workload.epochs):
            if self.scan:
                state, loss = self.call(state, self.data)
                losses.append(loss)
            else:
                for batch in self.data:
                    state, loss = self.call(state, batch)
                    losses.append(loss)
        jax.block_until_ready((state, losses))
        self.state = state
        return np.concatenate([np.ravel(np.asarray(value)) for value in losses])


if __name__ == "__main__":
    worker.main(Peer)
