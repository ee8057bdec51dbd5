"""Write values.npz: losses of a student with a teacher, and of embeddings, with their gradients.

    python tests/data/distillation/make_torch_values.py

Everything is computed in float64 by torch and its autograd, without onnxgrad. Student and teacher
are the network of `network`, of widths 4 and 6; the encoder of the losses of embeddings is
tanh(x W + b). Names are "<case>/loss" and "<case>/<weight>", the gradient.

Written with torch 2.15.0.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own habit)

torch.set_default_dtype(torch.float64)
GENERATOR = torch.Generator().manual_seed(5)
ROWS, PLACES, COLUMNS, CLASSES, TEMPERATURE = 5, 3, 4, 3, 2.5


def normal(*shape):
    return torch.randn(*shape, generator=GENERATOR) * 0.7


def weights(width):
    square = (width, width)
    shapes = {"We": (COLUMNS, width), "Wq": square, "Wk": square, "Wv": square}
    shapes |= {"Wo": (width, CLASSES), "bo": (CLASSES,)}
    return {name: normal(*shape) for name, shape in shapes.items()}


def network(w, x):
    """Return hidden values, attention and scores of one layer of attention, with one head."""
    hidden = x @ w["We"]
    query, key, value = hidden @ w["Wq"], hidden @ w["Wk"], hidden @ w["Wv"]
    attention = F.softmax(query @ key.transpose(1, 2) / w["We"].shape[1] ** 0.5, dim=-1)
    scores = (attention @ value).mean(dim=1) @ w["Wo"] + w["bo"]
    return hidden, attention, scores


def divergence(s, t):
    log_q, p = F.log_softmax(s / TEMPERATURE, dim=1), F.softmax(t / TEMPERATURE, dim=1)
    return F.kl_div(log_q, p, reduction="batchmean") * TEMPERATURE**2


def cosine(a, b):
    return (1 - F.cosine_similarity(a, b, dim=-1)).mean()


def main():
    x, labels = normal(ROWS, PLACES, COLUMNS), torch.tensor([0, 2, 1, 1, 0])
    student, teacher, projection = weights(4), weights(6), normal(4, 6)
    values = {"x": x, "labels": labels, "projection": projection}
    values |= {f"student/{name}": value.clone() for name, value in student.items()}
    values |= {f"teacher/{name}": value for name, value in teacher.items()}
    own = {**student, "distillation.projection_1": projection}
    for value in own.values():
        value.requires_grad_()
    hidden, attention, scores = network(student, x)
    of_teacher, maps, targets = network(teacher, x)
    task = F.cross_entropy(scores, labels)
    cases = {
        "kl": divergence(scores, targets),
        "mse": F.mse_loss(scores, targets),
        "mixed": 0.6 * task + 0.4 * divergence(scores, targets),
        "values": F.mse_loss(hidden @ projection, of_teacher),
        "cosine": cosine(hidden @ projection, of_teacher),
        "attention": F.mse_loss(attention, maps),
        "all": 0.5 * task
        + 0.5
        * (
            divergence(scores, targets)
            + 0.25 * cosine(hidden @ projection, of_teacher)
            + 2 * F.mse_loss(attention, maps)
        ),
    }
    add(values, cases, own)

    w, b = normal(COLUMNS, 6), normal(6)
    views = [normal(ROWS, COLUMNS) for _ in range(3)]
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0])
    log_temperature = torch.tensor(0.3).log()
    values |= {"W": w.clone(), "b": b.clone(), "signs": signs}
    values |= {f"view_{i + 1}": view for i, view in enumerate(views)}
    own = {"W": w, "b": b, "info_nce.log_temperature": log_temperature}
    for value in own.values():
        value.requires_grad_()
    one, two, three = (torch.tanh(view @ w + b) for view in views)
    places = torch.arange(ROWS)

    def info_nce(a, *others, temperature=0.3):
        z = F.normalize(a) @ F.normalize(torch.cat(others)).T / temperature
        return F.cross_entropy(z, places)

    far = torch.cdist(one, two) + 1e9 * torch.eye(ROWS)
    hardest = (one - two).norm(dim=1) - far.min(dim=1).values + 2
    cases = {
        "info_nce": info_nce(one, two),
        "info_nce_symmetric": (info_nce(one, two) + info_nce(two, one)) / 2,
        "info_nce_negatives": info_nce(one, two, three),
        "info_nce_learnt": info_nce(one, two, temperature=log_temperature.exp()),
        "info_nce_prefixes": info_nce(one[:, :2], two[:, :2]) + info_nce(one, two),
        "triplet": F.triplet_margin_loss(one, two, three, margin=2.0, eps=0.0),
        "triplet_hardest": F.relu(hardest).mean(),
        "cosine_embedding": F.cosine_embedding_loss(one, two, signs, margin=0.1),
    }
    add(values, cases, own)
    arrays = {name: value.detach().numpy() for name, value in values.items()}
    np.savez_compressed(Path(__file__).with_name("values.npz"), **arrays)


def add(values, cases, own):
    """Add the loss of each case, and the gradients of the weights that it depends on."""
    for case, loss in cases.items():
        values[f"{case}/loss"] = loss
        found = torch.autograd.grad(loss, list(own.values()), retain_graph=True, allow_unused=True)
        for name, gradient in zip(own, found, strict=True):
            if gradient is not None:
                values[f"{case}/{name}"] = gradient


if __name__ == "__main__":
    main()
