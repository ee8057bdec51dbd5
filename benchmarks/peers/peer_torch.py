"""PyTorch, eager and compiled. Functional forward pass (no nn.Module cost), the faster of its CPU
optimizers, scaled_dot_product_attention, exact GELU. Variants: torch-eager, torch-compile (forward
with loss and its backward compiled), torch-bf16 (eager with autocast), each also as -cl
(channels-last convolutions)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
import worker
import workloads

Tensors = dict[str, torch.Tensor]
Forward = Callable[[torch.Tensor], torch.Tensor]


def dense(workload: workloads.Workload, weights: Tensors) -> Forward:
    count = len(workload.hidden) + 1

    def forward(x):
        for layer in range(count):
            x = F.linear(x, weights[f"W{layer}"], weights[f"B{layer}"])
            if layer < count - 1:
                x = F.relu(x)
        return x

    return forward


def convolutions(weights: Tensors) -> Forward:
    def forward(x):
        for layer in range(2):
            x = F.conv2d(x, weights[f"CW{layer}"], weights[f"CB{layer}"], padding=2)
            x = F.max_pool2d(F.relu(x), 2)
        return F.linear(x.flatten(1), weights["FW"], weights["FB"])

    return forward


def batch_norm(weights: Tensors, statistics: Tensors, x: torch.Tensor, name: str) -> torch.Tensor:
    return F.batch_norm(
        x, statistics[name + "_mean"], statistics[name + "_var"], weights[name + "_scale"],
        weights[name + "_bias"], training=True, momentum=0.1, eps=1e-5,
    )  # fmt: skip


def resnet18(weights: Tensors, statistics: Tensors) -> Forward:
    def normalise(x, name):
        return batch_norm(weights, statistics, x, name)

    def block(x, p, stride):
        inner = F.conv2d(x, weights[p + "c1"], stride=stride, padding=1)
        inner = F.relu(normalise(inner, p + "n1"), inplace=True)
        inner = normalise(F.conv2d(inner, weights[p + "c2"], padding=1), p + "n2")
        if p + "cs" in weights:
            x = normalise(F.conv2d(x, weights[p + "cs"], stride=stride), p + "ns")
        return F.relu(inner + x, inplace=True)

    def forward(x):
        x = F.relu(normalise(F.conv2d(x, weights["stem"], padding=1), "stem_bn"), inplace=True)
        for stage in range(4):
            for index in range(2):
                x = block(x, f"s{stage}b{index}", 2 if stage > 0 and index == 0 else 1)
        return F.linear(x.mean((2, 3)), weights["FW"], weights["FB"])

    return forward


def mobilenetv2(weights: Tensors, statistics: Tensors) -> Forward:
    def layer(x, name, stride=1, active=True):
        weight = weights[name]
        depthwise = weight.shape[1] == 1
        x = F.conv2d(
            x, weight, stride=stride, padding=weight.shape[2] // 2,
            groups=weight.shape[0] if depthwise else 1,
        )  # fmt: skip
        x = batch_norm(weights, statistics, x, name + "n")
        return F.relu6(x, inplace=True) if active else x

    def forward(x):
        x, channels = layer(x, "stem", 2), 32
        for index, (expansion, filters, stride) in enumerate(workloads.MOBILENET_BLOCKS):
            p = f"b{index}"
            inner = layer(x, p + "e") if expansion != 1 else x
            inner = layer(layer(inner, p + "d", stride), p + "p", active=False)
            x = x + inner if stride == 1 and channels == filters else inner
            channels = filters
        return F.linear(layer(x, "last").mean((2, 3)), weights["FW"], weights["FB"])

    return forward


def transformer(sizes: workloads.Transformer, weights: Tensors) -> Forward:
    width, heads = sizes.width, sizes.heads

    def linear(x, name):
        return F.linear(x, weights[name + "_w"], weights[name + "_b"])

    def normalise(x, name):
        return F.layer_norm(x, (width,), weights[name + "_g"], weights[name + "_b"], 1e-5)

    def split(x):
        return x.view(-1, sizes.sequence, heads, width // heads).transpose(1, 2)

    def attention(x, p):
        query, key, content = (split(linear(x, p + name)) for name in "qkv")
        mixed = F.scaled_dot_product_attention(query, key, content, is_causal=sizes.causal)
        return linear(mixed.transpose(1, 2).reshape(-1, sizes.sequence, width), p + "o")

    def feed_forward(x, p):
        return linear(F.gelu(linear(x, p + "f1")), p + "f2")

    def encoder(x):
        if sizes.vocabulary:
            x = normalise(F.embedding(x, weights["emb"]) + weights["pos"], "emb_ln")
        for layer in range(sizes.layers):
            p = f"l{layer}_"
            x = normalise(attention(x, p) + x, p + "ln1")
            x = normalise(feed_forward(x, p) + x, p + "ln2")
        return F.linear(x.mean(1), weights["FW"], weights["FB"])

    def language_model(x):
        x = F.embedding(x, weights["emb"]) + weights["pos"]
        for layer in range(sizes.layers):
            p = f"l{layer}_"
            x = attention(normalise(x, p + "ln1"), p) + x
            x = feed_forward(normalise(x, p + "ln2"), p) + x
        return F.linear(normalise(x, "last_ln"), weights["FW"]).flatten(0, 1)

    return language_model if sizes.causal else encoder


class Peer:
    version = torch.__version__

    def __init__(self, task: worker.Task) -> None:
        workload = self.workload = task.workload
        if task.variant.endswith("-cl") and task.inputs.ndim != 4:
            raise NotImplementedError("channels-last is for convolutions")
        torch.set_num_threads(task.threads)
        torch.set_num_interop_threads(1)
        self.eager = not task.variant.startswith("torch-compile")
        self.autocast = task.variant.startswith("torch-bf16")
        self.layout = (
            torch.channels_last if task.variant.endswith("-cl") else torch.contiguous_format
        )
        self.initial: Tensors = {}
        self.weights: Tensors = {}
        self.statistics: Tensors = {}
        self.copy_weights(task)
        self.batches = [
            (self.arranged(torch.from_numpy(x)), torch.from_numpy(y)) for x, y in task.batches()
        ]
        forward = self.forward()
        criterion = F.mse_loss if workload.loss == "mse" else F.cross_entropy

        def loss(x, y):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                return criterion(forward(x), y.flatten() if workload.loss == "ce" else y)

        self.loss = loss if self.eager else torch.compile(loss)
        self.make_optimizer()

    def arranged(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=self.layout) if tensor.ndim == 4 else tensor

    def copy_weights(self, task: worker.Task) -> None:
        """Dense weights become [out, in], as F.linear expects."""
        trainable = set(task.trainable)
        for name, value in task.weights.items():
            if name not in trainable and not name.endswith(("_mean", "_var")):
                continue
            tensor = torch.from_numpy(value)
            is_token_head = name == "FW" and "FB" not in trainable
            if (
                (self.workload.loss == "mse" and name.startswith("W"))
                or name.endswith("_w")
                or is_token_head
            ):
                tensor = tensor.t().contiguous()
            tensor = self.arranged(tensor)
            self.initial[name] = tensor.clone()
            group = self.weights if name in trainable else self.statistics
            group[name] = tensor.clone()
        for tensor in self.weights.values():
            tensor.requires_grad_(True)

    def forward(self) -> Forward:
        if self.workload.transformer is not None:
            return transformer(self.workload.transformer, self.weights)
        if self.workload.kind == "cnn":
            return convolutions(self.weights)
        if self.workload.kind == "resnet18":
            return resnet18(self.weights, self.statistics)
        if self.workload.kind == "mobilenetv2":
            return mobilenetv2(self.weights, self.statistics)
        return dense(self.workload, self.weights)

    def make_optimizer(self) -> None:
        settings, weights = self.workload.optimizer, list(self.weights.values())
        if settings.name == "sgd":
            # Measured: the fused one is slower for plain SGD on few weights, else faster.
            plain = self.eager and not settings.momentum
            flavour = {"foreach": False} if plain else {"fused": True}
            self.optimizer = torch.optim.SGD(
                weights, lr=settings.rate, momentum=settings.momentum,
                nesterov=settings.nesterov, **flavour,
            )  # fmt: skip
        elif settings.name == "adam":
            self.optimizer = torch.optim.Adam(weights, lr=settings.rate, eps=1e-8, fused=True)
        else:
            self.optimizer = torch.optim.AdamW(
                weights, lr=settings.rate, eps=1e-8, weight_decay=settings.decay, fused=True
            )

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def first(self) -> None:
        float(self.step(*self.batches[0]))

    def reset(self) -> None:
        with torch.no_grad():
            for group in (self.weights, self.statistics):
                for name, tensor in group.items():
                    tensor.copy_(self.initial[name])
        self.make_optimizer()

    def run(self) -> Sequence[float]:
        losses = []
        for _ in range(self.workload.epochs):
            for x, y in self.batches:
                losses.append(self.step(x, y))
        return [float(loss) for loss in losses]


if __name__ == "__main__":
    worker.main(Peer)
