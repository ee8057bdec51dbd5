"""`precision=` crossed with kinds of models, optimizers, threads and entry points, in pairs."""

import itertools

import numpy as np
import pytest

import onnxgrad as og
from precision_kinds import SHALLOW

LOSS = "softmax_cross_entropy"
# The relative error of a training loss after a few steps.
TOLERANCE = {"bf16": 0.03, "fp16": 0.01}


def by_session(model, x, labels, optimizer, options):
    session = og.TrainingSession(model, LOSS, optimizer, **options)
    return [session.step({"X": x, "label": labels}) for _ in range(4)]


def by_trainer(model, x, labels, optimizer, options):
    trainer = og.Trainer(model, LOSS, optimizer, **options)
    rows = {"epochs": 3, "batch_size": len(x), "shuffle": False, "verbose": 0}
    return trainer.fit(x, labels, **rows).history["train_loss"]


def by_checkpoint(model, x, labels, optimizer, options):
    """Two sessions, the second of which goes on where the first stopped."""
    feeds = {"X": x, "label": labels}
    first = og.TrainingSession(model, LOSS, optimizer, **options)
    losses = [first.step(feeds) for _ in range(2)]
    second = og.TrainingSession(model, LOSS, optimizer, **options)
    second.load_state(first.state())
    return [*losses, *(second.step(feeds) for _ in range(2))]


def by_accumulation(model, x, labels, optimizer, options):
    trainer = og.Trainer(model, LOSS, optimizer, accumulate=2, clip_norm=1.0, **options)
    rows = {"epochs": 3, "batch_size": len(x) // 2, "shuffle": False, "verbose": 0}
    return trainer.fit(x, labels, **rows).history["train_loss"]


def by_passes(model, x, labels, _optimizer, options):
    """The norms of the gradients of separate passes, of the sum of squares of the scores."""
    layer = og.ForwardBackward(model, **options)
    (y,) = layer.forward({"X": x})
    return [float(np.linalg.norm(one)) for one in layer.backward(2 * y).weights.values()]


FACTORS = {
    "model": list(SHALLOW),
    "precision": list(TOLERANCE),
    "optimizer": ["sgd", "adamw", "lamb", "adagrad"],
    "threads": [1, 2],
    "entry": [by_session, by_trainer, by_checkpoint, by_accumulation, by_passes],
}


def pairwise(factors):
    """Few combinations in which each two values of two factors meet: greedily, in a fixed order."""
    names = list(factors)

    def pairs_of(case):
        return {((a, case[a]), (b, case[b])) for a, b in itertools.combinations(names, 2)}

    everything = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*factors.values())
    ]
    missing = set().union(*(pairs_of(case) for case in everything))
    cases = []
    while missing:
        case = max(everything, key=lambda one: len(pairs_of(one) & missing))
        missing -= pairs_of(case)
        cases.append(case)
    return cases


CASES = pairwise(FACTORS)


def name_of(case):
    return "-".join(str(getattr(value, "__name__", value)) for value in case.values())


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_trains_as_float32_does(case):
    model, shapes, classes = SHALLOW[case["model"]]()
    rng = np.random.default_rng(5)
    x = rng.normal(size=shapes["X"].shape).astype(np.float32)
    labels = rng.integers(0, classes, len(x))
    options = {"threads": case["threads"]}
    wanted = case["entry"](model, x, labels, case["optimizer"], options)
    options["precision"] = case["precision"]
    found = case["entry"](model, x, labels, case["optimizer"], options)
    assert np.all(np.isfinite(found))
    tolerance = TOLERANCE[case["precision"]]
    assert found == pytest.approx(wanted, rel=tolerance, abs=1e-3 * max(map(abs, wanted)))


def test_each_two_values_meet():
    for (a, left), (b, right) in itertools.combinations(FACTORS.items(), 2):
        met = {(case[a], case[b]) for case in CASES}
        assert met == set(itertools.product(left, right))
