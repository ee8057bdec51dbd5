"""Writes curves.json: losses of PyTorch with and without torch.autocast("cpu", torch.bfloat16).

Run by hand, with PyTorch and NumPy: python tests/data/precision/make_curves.py
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F  # noqa: N812

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "python"))
import precision_models as models  # noqa: E402


def perceptron(w, x):
    for i in range(3):
        x = F.linear(x, w[f"W{i}"].T, w[f"b{i}"])
        x = F.relu(x) if i < 2 else x
    return x


def transformer(w, x):
    rows, length, width = x.shape
    for i in range(models.LAYERS):
        q, k, v = (
            F.linear(x, w[f"{name}{i}"].T, w[f"{name}b{i}"])
            .reshape(rows, length, models.HEADS, -1)
            .transpose(1, 2)
            for name in "qkv"
        )
        p = F.softmax(q @ k.transpose(2, 3) * (width // models.HEADS) ** -0.5, dim=-1)
        c = (p @ v).transpose(1, 2).reshape(rows, length, width)
        x = x + F.linear(c, w[f"o{i}"].T, w[f"ob{i}"])
        x = F.layer_norm(x, (width,), w[f"scale0{i}"], w[f"shift0{i}"])
        u = F.gelu(F.linear(x, w[f"u{i}"].T, w[f"ub{i}"]))
        x = x + F.linear(u, w[f"d{i}"].T, w[f"db{i}"])
        x = F.layer_norm(x, (width,), w[f"scale1{i}"], w[f"shift1{i}"])
    return F.linear(x.mean(1), w["head"].T, w["headb"])


def convolutions(w, x):
    first = x
    for i, (rows, _, size, groups) in enumerate(models.CONVOLUTIONS):
        x = F.conv2d(x, w[f"w{i}"], padding=size // 2, groups=groups)
        mean, variance = torch.zeros(rows), torch.ones(rows)
        x = F.batch_norm(x, mean, variance, w[f"scale{i}"], w[f"shift{i}"], training=True)
        x = F.relu6(x) if i + 1 < len(models.CONVOLUTIONS) else x + first
        first = x if i == 0 else first
    return F.linear(x.mean((2, 3)), w["head"].T, w["headb"])


def curve(name, autocast):
    _, weights, batches = models.TRAININGS[name]
    w = {key: torch.tensor(value, requires_grad=True) for key, value in weights().items()}
    optimizer = torch.optim.Adam(w.values(), lr=models.RATE)
    losses = []
    for x, labels in batches():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = globals()[name](w, torch.tensor(x))
            loss = F.cross_entropy(scores, torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 6))
    return losses


def main():
    torch.set_num_threads(1)
    curves = {"torch": torch.__version__}
    for name in models.TRAININGS:
        curves[name] = {"float32": curve(name, False), "bf16": curve(name, True)}
    (HERE / "curves.json").write_text(json.dumps(curves, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
