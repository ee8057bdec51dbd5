"""A small student of handwritten digits with and without a teacher, beside its teacher.

    python examples/distillation/digits.py [SPLITS]

The teacher, a 64-256-256-10 perceptron, learns from the labels of 70 % of scikit-learn's digits.
The student has 12 hidden units. It learns from the labels of 100 rows alone; from these and the
teacher; or from the teacher alone, on all of the teacher's rows. Each line of the table is a mean
over splits of the data, of the accuracy on the remaining 30 %.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import onnxgrad as og
from onnxgrad.sklearn import multi_layer_perceptron

LABELLED = slice(0, 100)


def train(model, seed, X, y=None, epochs=40, **options):
    """Return a trainer after its training."""
    trainer = og.Trainer(model, "auto", og.optimizers.Adam(lr=0.003), seed=seed, **options)
    return trainer.fit(X, y, epochs=epochs, batch_size=25, verbose=0)


def accuracies(seed):
    """Return the accuracies for one split of the data, by what was learnt from."""
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(
        (X / 16).astype(np.float32), y, test_size=0.3, stratify=y, random_state=seed
    )
    rows, rest, labels, truth = parts
    teacher = train(
        multi_layer_perceptron([64, 256, 256, 10], head="softmax", seed=seed), seed, rows, labels
    )
    student = multi_layer_perceptron([64, 12, 10], head="softmax", seed=seed)
    taught = {"teacher": teacher.trained_model()}
    few, their_labels = rows[LABELLED], labels[LABELLED]
    trained = {
        "teacher": teacher,
        "student, 100 labels": train(student, seed, few, their_labels, epochs=300),
        "student, 100 labels and teacher": train(
            student, seed, few, their_labels, epochs=300, distill="temperature=4", **taught
        ),
        "student, teacher alone": train(
            student, seed, rows, distill="temperature=4,alpha=1", **taught
        ),
    }
    return {name: np.mean(one.predict(rest) == truth) for name, one in trained.items()}


def main(splits=5):
    """Print the table, and return the means."""
    found = [accuracies(seed) for seed in range(splits)]
    means = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    for name, mean in means.items():
        print(f"{name:32}{mean:7.3f}")
    return means


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
