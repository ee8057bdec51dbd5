"""Write torch_values.json: losses of PyTorch, reduced and weighted, and their gradients.

    python tests/data/losses/make_torch_values.py

Everything is computed in float64 by torch.nn.functional and torch's autograd, without onnxgrad. A
row of several columns has the mean of its elements as loss (torch's "none" gives the elements);
without sample weights, the mean of a cross-entropy is torch's own reduction. Each case has the
class of onnxgrad.losses that it is compared with, and its options.

Written with torch 2.15.0.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own habit)

torch.manual_seed(11)
torch.set_default_dtype(torch.float64)
ROWS = 6
WEIGHTS = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.5, 3.0])


def normal(*shape):
    """Numbers that are short in JSON."""
    return (torch.randn(*shape) * 1.5).round(decimals=3)


def row_means(elements):
    """Elements [N, ...] to rows [N]."""
    return elements.reshape(len(elements), -1).mean(dim=1)


def element_losses():
    """(name, class, options, elements(s, t), scores, targets) of losses of numbers."""
    one, three, vector = normal(ROWS, 1), normal(ROWS, 3), normal(ROWS)
    counts = torch.randint(0, 6, (ROWS, 3)).to(torch.float64)
    bits = torch.randint(0, 2, (ROWS, 3)).to(torch.float64)
    unit = torch.rand(ROWS, 3).clamp(0.02, 0.98).round(decimals=3)
    positive = normal(ROWS, 3).abs() + 0.1
    shares = torch.softmax(normal(ROWS, 3), dim=1).round(decimals=3)
    shares = shares / shares.sum(dim=1, keepdim=True)
    shares[0] = torch.tensor([1.0, 0.0, 0.0])

    def elastic(s, t):
        return 0.1 * F.l1_loss(s, t, reduction="none") + 0.9 * F.mse_loss(s, t, reduction="none")

    def poisson(s, t):
        return F.poisson_nll_loss(s, t, log_input=True, reduction="none")

    def poisson_of_counts(s, t):
        return F.poisson_nll_loss(s, t, log_input=False, eps=1e-8, reduction="none")

    def kl(s, t):
        return 3 * F.kl_div(F.log_softmax(s, dim=1), t, reduction="none")  # summed, not averaged

    def plain(function, **options):
        return lambda s, t: function(s, t, reduction="none", **options)

    return [
        ("squared_one", "SquaredError", {}, plain(F.mse_loss), one, normal(ROWS, 1)),
        ("squared_three", "SquaredError", {}, plain(F.mse_loss), three, normal(ROWS, 3)),
        ("absolute", "AbsoluteError", {}, plain(F.l1_loss), three, normal(ROWS, 3)),
        ("absolute_vector", "AbsoluteError", {}, plain(F.l1_loss), vector, normal(ROWS)),
        ("huber", "Huber", {}, plain(F.huber_loss), three, normal(ROWS, 3)),
        (
            "huber_delta",
            "Huber",
            {"delta": 0.4},
            plain(F.huber_loss, delta=0.4),
            one,
            normal(ROWS, 1),
        ),
        ("smooth_l1", "SmoothL1", {}, plain(F.smooth_l1_loss), three, normal(ROWS, 3)),
        (
            "smooth_l1_beta",
            "SmoothL1",
            {"beta": 2.5},
            plain(F.smooth_l1_loss, beta=2.5),
            three,
            normal(ROWS, 3),
        ),
        (
            "elastic",
            "Elastic",
            {"l1_weight": 0.1, "l2_weight": 0.9},
            elastic,
            three,
            normal(ROWS, 3),
        ),
        ("poisson", "Poisson", {}, poisson, three, counts),
        ("poisson_counts", "Poisson", {"log_input": False}, poisson_of_counts, positive, counts),
        (
            "binary_three",
            "BinaryCrossEntropy",
            {},
            plain(F.binary_cross_entropy_with_logits),
            three,
            bits,
        ),
        ("log_loss_three", "LogLoss", {}, plain(F.binary_cross_entropy), unit, bits),
        ("kl", "KlDivergence", {}, kl, three, shares),
        (
            "cosine",
            "Cosine",
            {},
            lambda s, t: 1 - F.cosine_similarity(s, t, dim=1),
            three,
            normal(ROWS, 3),
        ),
    ]


def class_losses():
    """Cases of losses of classes, one element for each row."""
    one, _ = normal(ROWS, 1), normal(ROWS, 4)
    two = torch.tensor([0, 1, 1, 0, 1, 0])
    classes = torch.tensor([0, 3, 2, 2, 1, 3])
    probabilities = torch.softmax(normal(ROWS, 4), dim=1).round(decimals=4)
    unit = torch.rand(ROWS, 1).clamp(0.02, 0.98).round(decimals=3)
    column = two.to(torch.float64)[:, None]
    return [
        (
            "binary_one",
            "BinaryCrossEntropy",
            {},
            lambda s, _: F.binary_cross_entropy_with_logits(s, column, reduction="none"),
            one,
            two,
        ),
        (
            "log_loss_one",
            "LogLoss",
            {},
            lambda s, _: F.binary_cross_entropy(s, column, reduction="none"),
            unit,
            two,
        ),
        (
            "likelihood",
            "NegativeLogLikelihood",
            {},
            lambda s, t: F.nll_loss(s.log(), t, reduction="none"),
            probabilities,
            classes,
        ),
        (
            "hinge_one",
            "OneVsRest",
            {"kind": "hinge"},
            lambda s, _: F.hinge_embedding_loss(  # max(0, 1 - y s) is its branch of targets -1
                s * (2 * column - 1), -torch.ones_like(s), reduction="none"
            ),
            one,
            two,
        ),
    ]


def one_vs_rest_losses():
    """Cases of every kind of one-vs-rest loss; a row is the sum of its columns' problems."""

    def hinge(z):
        return F.hinge_embedding_loss(z, -torch.ones_like(z), reduction="none")  # max(0, 1 - z)

    kinds = {
        "log": lambda z: F.softplus(-z),
        "hinge": hinge,
        "squared_hinge": lambda z: hinge(z) ** 2,
        "modified_huber": lambda z: torch.where(z >= -1, hinge(z) ** 2, -4 * z),
    }
    columns = {
        "one": (normal(ROWS, 1), torch.tensor([1, 0, 1, 1, 0, 0])),
        "three": (normal(ROWS, 3), torch.tensor([2, 0, 1, 1, 0, 2])),
    }
    found = []
    for kind, of_margins in kinds.items():
        for count, (scores, classes) in columns.items():
            true = classes[:, None] if count == "one" else F.one_hot(classes, 3)
            signs = 2.0 * true - 1

            def rows(s, _, of=of_margins, y=signs):
                return of(s * y).sum(dim=1)

            name = f"one_vs_rest_{kind}_{count}"
            found.append((name, "OneVsRest", {"kind": kind}, rows, scores, classes))
    return found


def elastic_of_halves():
    """Cases of the elastic loss's defaults."""

    def elements(s, t):
        return (F.l1_loss(s, t, reduction="none") + F.mse_loss(s, t, reduction="none")) / 2

    return ("elastic_halves", "Elastic", {}, elements, normal(ROWS, 3), normal(ROWS, 3))


def cross_entropy_losses():
    """(name, options, torch's options, scores, targets, counts(t)); counts: weight in a mean."""
    four, places = normal(ROWS, 4), normal(3, 4, 2)
    classes = torch.tensor([0, 3, 2, 2, 1, 3])
    some = torch.tensor([0, -100, 2, 2, -100, 3])
    at_places = torch.tensor([[0, 3], [2, 1], [1, 1]])
    soft = torch.softmax(normal(ROWS, 4), dim=1).round(decimals=3)
    soft = soft / soft.sum(dim=1, keepdim=True)
    onehot = F.one_hot(classes, 4).to(torch.float64)
    weight = torch.tensor([0.5, 2.0, 1.0, 0.25])
    listed = {"class_weights": weight.tolist()}

    def ones(t):
        return torch.ones(len(t)) if t.dim() == 1 else torch.ones(t.shape)

    def per_row(t):
        return torch.ones(len(t))

    def kept(t):
        return (t != -100).to(torch.float64)

    def by_class(t):
        return weight[t.clamp(min=0)]

    return [
        ("plain", {}, {}, four, classes, ones),
        ("places", {}, {}, places, at_places, ones),
        ("ignored", {"ignore_index": -100}, {}, four, some, kept),
        ("ignored_class", {"ignore_index": 2}, {"ignore_index": 2}, four, classes, None),
        ("weights", listed, {"weight": weight}, four, classes, by_class),
        ("weights_places", listed, {"weight": weight}, places, at_places, by_class),
        ("smoothing", {"label_smoothing": 0.2}, {"label_smoothing": 0.2}, four, classes, ones),
        (
            "everything",
            {"label_smoothing": 0.1, "ignore_index": -100, **listed},
            {"label_smoothing": 0.1, "weight": weight},
            four,
            some,
            lambda t: by_class(t) * kept(t),
        ),
        ("one_hot", {"one_hot": True}, {}, four, onehot, per_row),
        ("soft", {"one_hot": True}, {}, four, soft, per_row),
        (
            "soft_everything",
            {"one_hot": True, "label_smoothing": 0.3, **listed},
            {"label_smoothing": 0.3, "weight": weight},
            four,
            soft,
            per_row,
        ),
    ]


def language_losses():
    """(name, class, options, rows(s, t), scores, targets, counts(t)) of losses of tokens."""
    scores = normal(ROWS, 4, 5)
    tokens = torch.randint(0, 5, (ROWS, 4))
    some = torch.tensor([[0, 1, 2, -100], [3, -100, 4, 1], [2, 2, 2, 2]]).repeat(2, 1)

    def moved(t, pad=None):
        """The next tokens, as transformers pads labels."""
        after = F.pad(t, (0, 1), value=-100)[:, 1:]
        return after if pad is None else torch.where(after == pad, -100, after)

    def places(s, t):
        return F.cross_entropy(s.transpose(1, 2), t, reduction="none").mean(dim=1)

    def counts(t):
        return (t != -100).double().mean(dim=1)

    reference = normal(ROWS)
    answers = torch.where(torch.rand(ROWS, 4) < 0.3, -100, tokens)
    pairs = torch.cat([reference[:, None], answers.double()], dim=1)

    def preferences(beta, smoothing):
        def rows(s, t):
            gain = -4 * places(s, moved(t[:, 1:].long())) - t[:, 0]
            d = beta * (gain[0::2] - gain[1::2])
            loss = -F.logsigmoid(d) * (1 - smoothing) - F.logsigmoid(-d) * smoothing
            return loss.repeat_interleave(2)

        return rows

    def ones(t):
        return torch.ones(len(t))

    causal = [("", {}, tokens, None), ("_some", {}, some, None), ("_pad", {"pad": 2}, tokens, 2)]
    return [
        *(
            (
                f"causal{name}",
                "CausalLm",
                options,
                lambda s, t, pad=pad: places(s, moved(t, pad)),
                scores,
                target,
                lambda t, pad=pad: counts(moved(t, pad)),
            )
            for name, options, target, pad in causal
        ),
        ("masked", "MaskedLm", {}, places, scores, some, counts),
        ("dpo", "Dpo", {}, preferences(0.1, 0), scores, pairs, ones),
        (
            "dpo_smooth",
            "Dpo",
            {"beta": 0.7, "label_smoothing": 0.2},
            preferences(0.7, 0.2),
            scores,
            pairs,
            ones,
        ),
    ]


def case(name, loss, options, reduction, function, scores, target, weights):
    """One entry: the value of `function(scores)` and its gradient (of the sum, if it is rows)."""
    s = scores.clone().requires_grad_()
    value = function(s)
    value.sum().backward()
    return {
        "name": name,
        "loss": loss,
        "options": options,
        "reduction": reduction,
        "scores": scores.tolist(),
        "target": target.tolist(),
        "weights": None if weights is None else weights.tolist(),
        "value": value.detach().tolist(),
        "gradient": s.grad.tolist(),
    }


def reduce(rows, weights, counts, reduction):
    """Reduction of rows [N]; `counts` [N] are their weights in the mean."""
    w = torch.ones(len(rows)) if weights is None else weights[: len(rows)]
    if reduction == "none":
        return w * rows
    total = (w * rows).sum()
    return total / (w * counts).sum() if reduction == "mean" else total


def cases():
    """All entries."""
    row_losses = [*element_losses(), *class_losses()]
    cross_entropies = cross_entropy_losses()
    row_losses += [*one_vs_rest_losses(), elastic_of_halves()]
    found = []
    for name, loss, options, elements, scores, target in row_losses:
        for weights in (None, WEIGHTS):
            for reduction in ("mean", "sum", "none"):

                def function(s, e=elements, t=target, w=weights, r=reduction):
                    return reduce(row_means(e(s, t)), w, torch.ones(len(s)), r)

                found.append(
                    case(name, loss, options, reduction, function, scores, target, weights)
                )
    for name, options, torch_options, scores, target, counts in cross_entropies:
        for weights in (None, WEIGHTS[: len(scores)]):
            for reduction in ("mean", "sum", "none"):
                if counts is None and weights is not None:
                    continue  # torch's own reductions are the comparison

                def function(s, o=torch_options, t=target, c=counts, w=weights, r=reduction):
                    if w is None and r == "mean":
                        return F.cross_entropy(s, t, **o)
                    rows = row_means(F.cross_entropy(s, t, reduction="none", **o))
                    return reduce(rows, w, None if c is None else row_means(c(t)), r)

                found.append(
                    case(
                        f"cross_entropy_{name}",
                        "SoftmaxCrossEntropy",
                        options,
                        reduction,
                        function,
                        scores,
                        target,
                        weights,
                    )
                )
    for name, loss, options, rows, scores, target, counts in language_losses():
        for weights in (None, WEIGHTS):
            for reduction in ("mean", "sum", "none"):

                def function(s, f=rows, t=target, c=counts, w=weights, r=reduction):
                    return reduce(f(s, t), w, c(t), r)

                found.append(
                    case(name, loss, options, reduction, function, scores, target, weights)
                )
    return found


if __name__ == "__main__":
    path = Path(__file__).with_name("torch_values.json")
    path.write_text(json.dumps({"torch": torch.__version__.split("+")[0], "cases": cases()}) + "\n")
    print(path, path.stat().st_size, "bytes")
