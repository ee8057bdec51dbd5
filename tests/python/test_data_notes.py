"""Warnings of classes with few rows, and reports of inputs that are copied."""

import logging
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
from command_line import run
from support import mlp_proto

OPTIONS = {"epochs": 1, "verbose": 1}
NAMES = np.array(["ash", "birch", "cedar"])


def rows(*counts, seed=0):
    kind = np.repeat(np.arange(len(counts)), counts)
    X = np.random.default_rng(seed).normal(size=(len(kind), 4)).astype(np.float32)
    return X, kind


def classifier():
    return og.Trainer(mlp_proto([4, 3], head="Softmax"), optimizer="sgd")


def warnings_of(make):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make()
    return [one for one in seen if issubclass(one.category, og.data.DataWarning)]


@pytest.mark.parametrize("is_text", [False, True])
def test_classes_with_few_rows(is_text):
    X, kind = rows(30, 9, 10)
    y = NAMES[kind] if is_text else kind
    found = warnings_of(lambda: classifier().fit(X, y, **OPTIONS))
    expected = "'birch' has 9" if is_text else "1 has 9"
    assert [str(one.message) for one in found] == [f"classes with fewer than 10 rows: {expected}"]
    assert found[0].filename == __file__


def test_enough_rows_and_numbers_give_no_warning():
    X, kind = rows(30, 10, 10)
    held_out = rows(2, 1, 1)
    assert not warnings_of(lambda: classifier().fit(X, kind, validation=held_out, **OPTIONS))
    assert not warnings_of(lambda: classifier().fit(X, kind, validation=0.1, **OPTIONS))
    regressor = og.Trainer(mlp_proto([4, 1]), optimizer="sgd")
    assert not warnings_of(lambda: regressor.fit(X[:5], kind[:5], **OPTIONS))
    few = rows(3, 3, 3)
    assert not warnings_of(lambda: classifier().fit(*few, epochs=1, verbose=0))
    assert not warnings_of(lambda: classifier().lr_find(*few, steps=3))


def test_classes_without_rows_for_validation():
    X, kind = rows(30, 10, 10)
    held_out = rows(2, 0, 1)
    held_out = (held_out[0], NAMES[held_out[1]])
    found = warnings_of(lambda: classifier().fit(X, NAMES[kind], validation=held_out, **OPTIONS))
    wanted = "classes without a validation row: 'birch'"
    assert [str(one.message) for one in found] == [wanted]
    found = warnings_of(lambda: classifier().fit(X, kind, validation=0.05, **OPTIONS))
    wanted = "classes that may have no validation row, with a fraction of 0.05: 1, 2"
    assert [str(one.message) for one in found] == [wanted]


def test_several_targets_and_an_ignored_class():
    model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] X) => (float[N, 1] price, float[N, 3] kind)
<float[4, 1] a = {0.5, -0.25, 0, 1}, float[4, 3] b = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
{ price = MatMul(X, a)  kind = MatMul(X, b) }
""")
    X, kind = rows(30, 9, 4)
    y = {"price": X[:, :1], "kind": kind}
    entropy = og.losses.SoftmaxCrossEntropy(ignore_index=2)
    trainer = og.Trainer(model, {"price": "mse", "kind": entropy}, "sgd")
    found = warnings_of(lambda: trainer.fit(X, y, **OPTIONS))
    wanted = "classes of 'kind' with fewer than 10 rows: 1 has 9"
    assert [str(one.message) for one in found] == [wanted]


COPIES = {
    "in place": (lambda X: X, None),
    "by name": (lambda X: {"X": X}, None),
    "dtype": (lambda X: X.astype(np.float64), "X [60, 4]: copied, float64 to float32"),
    "order": (lambda X: np.asfortranarray(X), "X [60, 4]: copied, it is not contiguous"),
    "list": (lambda X: X.tolist(), "X [60, 4]: copied, float64 to float32"),
}


@pytest.mark.parametrize("case", COPIES)
def test_copies(case, capsys, caplog):
    make, message = COPIES[case]
    X, kind = rows(20, 20, 20)
    with caplog.at_level(logging.DEBUG, "onnxgrad"):
        classifier().fit(make(X), kind, epochs=1, verbose=2)
    printed = capsys.readouterr().err
    logged = [one.message for one in caplog.records if one.levelno == logging.DEBUG]
    if message is None:
        assert "]: copied" not in printed
        assert not any("]: copied" in one for one in logged)
    else:
        assert message in printed
        assert any(one.startswith(message) for one in logged)


def test_the_logger_gets_notes_with_verbose_0(caplog):
    with caplog.at_level(logging.DEBUG, "onnxgrad"):
        classifier().fit(rows(20, 3, 20)[0].astype(float), rows(20, 3, 20)[1], epochs=1, verbose=0)
    assert ("onnxgrad", logging.WARNING, "classes with fewer than 10 rows: 1 has 3") in (
        caplog.record_tuples
    )
    assert any("float64 to float32" in one.message for one in caplog.records)


THREE = """
<ir_version: 10, opset_import: ["" : 21]>
m (float[N, 2] x) => (float[N, 3] z) <float[2, 3] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}>
{ z = MatMul(x, w) }
"""


@pytest.mark.parametrize("kind", ["arrays", "batches", "generator", "npz"])
def test_the_loss_line_is_that_of_the_training(tmp_path, capsys, kind):
    """Integers are classes: the first loss is the mean of -log softmax(z)[y]."""
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    y = np.arange(40) % 3
    np.savez(tmp_path / "d.npz", x=x, y=y)
    data = {
        "arrays": (x, y),
        "batches": ([(x, y)],),
        "generator": (((x, y) for _ in range(1)),),
        "npz": (str(tmp_path / "d.npz"), "y"),
    }
    trainer = og.Trainer(onnx.parser.parse_model(THREE), lr=0.1)
    trainer.fit(*data[kind], epochs=1, batch_size=40, run_dir=tmp_path / "run")
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("loss: softmax cross-entropy on 'z'")
    assert (tmp_path / "run" / "train.log").read_text().startswith("loss: softmax cross-entropy")
    z = x @ np.float32([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    expected = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(40), y])
    assert trainer.history["train_loss"][0] == pytest.approx(expected, rel=1e-5)


def test_an_empty_text_label_is_no_class(tmp_path):
    x = np.ones((6, 2), np.float32)
    labels = np.array(["a", "", "b", "c", " ", "a"])
    model = onnx.parser.parse_model(THREE)
    trainer = og.Trainer(model, "softmax_cross_entropy")
    with pytest.raises(og.DataError, match="the label is empty in row 1, row 4"):
        trainer.fit(x, labels, epochs=1, verbose=0)
    trainer.fit(x[[0, 2, 3]], labels[[0, 2, 3]], epochs=1, verbose=0)
    with pytest.raises(og.DataError, match="the label is empty in row 1, row 4"):
        trainer.evaluate(x, labels)
    path = tmp_path / "d.csv"
    path.write_text("a,b,kind\n" + "".join(f"1,2,{label}\n" for label in labels))
    onnx.save(model, tmp_path / "m.onnx")
    for command in ("train", "evaluate"):
        _, err = run(
            *(command, tmp_path / "m.onnx", "--data", path, "--target", "kind", "--no-stream"),
            *("--loss", "softmax_cross_entropy"),
            *(["-o", tmp_path / "o.onnx"] if command == "train" else []),
            status=4,
        )
        assert "the label is empty in line 3, line 6" in err
