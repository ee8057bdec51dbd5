"""One-hot targets of an automatic loss on plain columns: softmax cross-entropy of classes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

LINE = "softmax cross-entropy on 'y', 3 classes, of one-hot targets"
rng = np.random.default_rng(0)
X = rng.normal(size=(24, 4)).astype(np.float32)
CLASSES = rng.integers(0, 3, 24)
ONE_HOT = np.eye(3)[CLASSES]
W = rng.normal(size=(4, 3)).astype(np.float32)


def model(columns=3):
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", columns])],
        [numpy_helper.from_array(W[:, :columns], "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def softmax_step(rows, lr=0.1):
    scores = X[rows].astype(np.float64) @ W
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return W - lr * X[rows].T @ (p - ONE_HOT[rows]) / len(rows)


def weight(trainer):
    return numpy_helper.to_array(trainer.trained_model().graph.initializer[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32, np.uint8, bool])
def test_one_hot_rows_of_any_type_train_as_classes(dtype):
    trainer = og.Trainer(model(), optimizer=og.optimizers.SGD(lr=0.1))
    trainer.fit(X, ONE_HOT.astype(dtype), epochs=1, batch_size=24, verbose=0)
    assert LINE in trainer.session.loss_line
    np.testing.assert_allclose(weight(trainer), softmax_step(np.arange(24)), atol=1e-6)
    assert trainer.evaluate(X, ONE_HOT.astype(dtype)).accuracy is not None
    assert trainer.evaluate(X, ONE_HOT.astype(dtype)) == trainer.evaluate(X, CLASSES)


def test_one_hot_batches_of_steps():
    session = og.TrainingSession(model(), optimizer=og.optimizers.SGD(lr=0.1))
    session.step({"x": X[:5], "label": ONE_HOT[:5].astype(np.float32)})
    assert LINE in session.loss_line
    np.testing.assert_allclose(weight(session), softmax_step(np.arange(5)), atol=1e-6)
    with pytest.raises(og.DataError, match=r"row 1.*single 1 among zeros"):
        session.step({"x": X[:2], "label": np.array([[0, 1, 0], [0, 1, 1]], np.float32)})


@pytest.mark.parametrize("kind", ["npz", "batches", "chunks"])
def test_streamed_rows(kind, tmp_path):
    trainer = og.Trainer(model(), optimizer=og.optimizers.SGD(lr=0.1))
    options = {"epochs": 1, "verbose": 0, "shuffle": False}
    if kind == "npz":
        np.savez(tmp_path / "d.npz", x=X, t=ONE_HOT.astype(np.float32))
        trainer.fit(tmp_path / "d.npz", "t", batch_size=24, **options)
    elif kind == "batches":
        trainer.fit([(X, ONE_HOT)], epochs=1, verbose=0)
    else:
        chunks = og.data.Batches(lambda: iter([(X[:12], ONE_HOT[:12]), (X[12:], ONE_HOT[12:])]))
        trainer.fit(chunks, epochs=1, verbose=0)
        assert LINE in trainer.session.loss_line
        return
    assert LINE in trainer.session.loss_line
    np.testing.assert_allclose(weight(trainer), softmax_step(np.arange(24)), atol=1e-6)


def test_later_rows_of_another_kind_are_refused():
    mixed = ONE_HOT.copy()
    mixed[20] = [0.2, 0.5, 0.3]
    trainer = og.Trainer(model())
    trainer.fit(X, mixed, epochs=1, verbose=0)  # all rows are looked at
    assert "squared error" in trainer.session.loss_line
    with pytest.raises(og.DataError, match="single 1 among zeros"):
        og.Trainer(model()).fit([(X[:8], mixed[:8]), (X[8:], mixed[8:])], epochs=1, verbose=0)


@pytest.mark.parametrize(
    "targets",
    [
        rng.normal(size=(24, 3)),
        np.ones((24, 3)),
        np.zeros((24, 3)),
        2.0 * ONE_HOT,
        np.eye(3)[CLASSES] + np.eye(3)[(CLASSES + 1) % 3],
    ],
    ids=["numbers", "ones", "zeros", "twos", "two_labels"],
)
def test_other_numbers_are_quantities(targets):
    trainer = og.Trainer(model())
    trainer.fit(X, targets, epochs=1, verbose=0)
    assert "squared error on 'y'" in trainer.session.loss_line


def test_what_is_asked_for_is_kept():
    trainer = og.Trainer(model(), "squared_error")
    trainer.fit(X, ONE_HOT, epochs=1, verbose=0)
    assert "squared error" in trainer.session.loss_line
    one = og.Trainer(model(1))
    one.fit(X, ONE_HOT[:, :1], epochs=1, verbose=0)
    assert "squared error" in one.session.loss_line


def test_positions_along_the_class_axis():
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3, 5])],
        [numpy_helper.from_array(rng.normal(size=(3, 1, 1)).astype(np.float32), "w")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    rows, classes = rng.normal(size=(6, 1, 5)).astype(np.float32), rng.integers(0, 3, (6, 5))
    lines, weights = [], []
    for target in (np.moveaxis(np.eye(3)[classes], -1, 1), classes):
        trainer = og.Trainer(proto, "auto" if target.ndim == 3 else "cross_entropy", "sgd")
        trainer.fit(rows, target, epochs=2, verbose=0, shuffle=False)
        lines.append(trainer.session.loss_line)
        weights.append(weight(trainer))
    assert "one-hot" in lines[0]
    assert "along axis 1" in lines[0]
    np.testing.assert_array_equal(*weights)


def test_a_checkpoint_keeps_the_choice(tmp_path):
    session = og.TrainingSession(model())
    session.step({"x": X, "label": ONE_HOT.astype(np.float32)})
    session.save(tmp_path / "c.safetensors")
    other = og.TrainingSession(model())
    other.load(tmp_path / "c.safetensors")
    feeds = {"x": X, "label": ONE_HOT}
    assert session.step(feeds) == other.step(feeds)


def test_report_and_training_agree():
    found = og.report(model())
    assert found.loss_line.endswith(
        "squared error on 'y', or softmax cross-entropy for class labels"
    )
    assert found.is_trainable
    assert found.verdict == "trainable: trains 1 of 1 weight"
    graph = model().graph
    graph.node[0].output[0] = "z"
    graph.node.append(helper.make_node("Round", ["z"], ["y"]))
    rounded = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    found = og.report(rounded)
    with pytest.raises(og.GradientError) as error:
        og.Trainer(rounded)
    assert not found.is_trainable
    what = "the gradient of all weights is zero everywhere"
    assert what in str(error.value)
    assert found.verdict.startswith(f"not trainable: {what}")
    assert "Round" in found.verdict
    assert "before these nodes" in found.verdict
    assert str(found).endswith(found.verdict + "\n")


def test_report_of_a_forest():
    forest = onnx.load("tests/data/zoo/sk_random_forest.onnx")
    found = og.report(forest)
    assert not found.is_trainable
    assert "splits of trees are not trained" in found.verdict
