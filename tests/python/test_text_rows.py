"""Rows of texts are moved as objects: a fit on words is the fit on their counts."""

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

WORDS = ["alpha", "beta", "gamma", "a word that is longer than what a std::string holds in itself"]
W = np.linspace(-0.5, 0.5, 8, dtype=np.float32).reshape(4, 2)


def model_of(nodes, inputs):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*nodes, helper.make_node("Gemm", ["k", "w", "c"], ["y"])],
        "g",
        [info(*one) for one in inputs],
        [info("y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.zeros(2, np.float32), "c")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def text_model(columns=2):
    node = helper.make_node(
        "TfIdfVectorizer",
        ["t"],
        ["k"],
        max_gram_length=1,
        max_skip_count=0,
        min_gram_length=1,
        mode="TF",
        ngram_counts=[0],
        ngram_indexes=[0, 1, 2, 3],
        pool_strings=WORDS,
    )
    return model_of([node], [("t", TensorProto.STRING, ["N", columns])])


def count_model():
    return model_of(
        [helper.make_node("Identity", ["t"], ["k"])], [("t", TensorProto.FLOAT, ["N", 4])]
    )


def rows(count=40, columns=2, seed=0):
    words = np.random.default_rng(seed).integers(4, size=(count, columns))
    texts = np.array(WORDS, object)[words]
    counts = (words[:, :, None] == np.arange(4)).sum(1).astype(np.float32)
    return texts, counts, (words.sum(1) > 3 * columns // 2).astype(np.int64)


def history(model, X, y, tmp_path=None, **options):
    trainer = og.Trainer(model, "cross_entropy", "adam", lr=0.05, seed=1, threads=1)
    if callable(X):
        trainer.fit(X, verbose=0, **options)
    else:
        trainer.fit({"t": X}, y, verbose=0, **options)
    names = [name for name in trainer.history if "loss" in name or "accuracy" in name]
    return np.array([trainer.history[name] for name in names]), trainer


OPTIONS = [
    {},
    {"batch_size": 7},
    {"batch_size": 1},
    {"shuffle": False},
    {"validation": 0.25},
    {"class_weight": "balanced", "batch_size": 8},
    {"sampling": "windows", "batch_size": 8},
    {"batch_size": 40},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_arrays(options):
    texts, counts, y = rows()
    options = {"epochs": 3, **options}
    given, trainer = history(text_model(), texts, y, **options)
    expected, reference = history(count_model(), counts, y, **options)
    np.testing.assert_allclose(given, expected, rtol=1e-5)
    np.testing.assert_allclose(
        trainer.predict({"t": texts}), reference.predict({"t": counts}), rtol=1e-4, atol=1e-5
    )
    assert trainer.evaluate({"t": texts}, y, batch_size=7).accuracy == pytest.approx(
        reference.evaluate({"t": counts}, y, batch_size=7).accuracy
    )


@pytest.mark.parametrize("options", [{"batch_size": 8}, {}, {"batch_size": 8, "validation": 0.3}])
def test_chunks(options):
    texts, counts, y = rows()

    def chunks(X):
        return lambda: (({"t": X[i : i + 6]}, y[i : i + 6]) for i in range(0, 40, 6))

    options = {"epochs": 3, "buffer_bytes": 2000, **options}
    given, _ = history(text_model(), chunks(texts), None, **options)
    expected, _ = history(count_model(), chunks(counts), None, **options)
    if "buffer_bytes" in options and options.get("batch_size") and "validation" not in options:
        assert np.all(np.isfinite(given))  # blocks have other sizes: another order of the rows
        assert given[0][-1] < given[0][0]
        assert expected[0][-1] < expected[0][0]
    elif "validation" not in options:
        np.testing.assert_allclose(given, expected, rtol=1e-5)


def test_separate_validation():
    texts, counts, y = rows()
    more, numbers, labels = rows(11, seed=1)
    given, _ = history(text_model(), texts, y, epochs=2, validation=({"t": more}, labels))
    expected, _ = history(count_model(), counts, y, epochs=2, validation=({"t": numbers}, labels))
    np.testing.assert_allclose(given, expected, rtol=1e-5)


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_files(tmp_path, ending):
    """In blocks and pieces, as several workers read them too; resumed with the same contents."""
    texts, _, y = rows(60, 1)
    path = tmp_path / f"rows.{ending}"
    if ending == "csv":
        lines = [f"{text},{label}" for text, label in zip(texts[:, 0], y, strict=True)]
        path.write_text("\n".join(["t,y", *lines]) + "\n")
    else:
        np.savez(path, t=texts.astype(str), y=y)

    def fit(epochs, folder, resume=False):
        trainer = og.Trainer(text_model(1), "cross_entropy", "adam", lr=0.05, seed=1, threads=1)
        checkpoints = og.callbacks.Checkpoint(folder, every="epoch")
        trainer.fit(
            str(path),
            "y",
            epochs=epochs,
            batch_size=8,
            buffer_bytes=2048,
            verbose=0,
            callbacks=[checkpoints],
            resume=resume,
        )
        return trainer

    whole = fit(4, tmp_path / "whole")
    assert whole.history["train_loss"][-1] < whole.history["train_loss"][0]
    fit(2, tmp_path / "parts")
    resumed = fit(4, tmp_path / "parts", resume=True)
    assert resumed.history["train_loss"] == whole.history["train_loss"]


def test_other_texts_are_other_data(tmp_path):
    texts, _, y = rows()
    trainer = og.Trainer(text_model(), "cross_entropy", threads=1)
    options = {"epochs": 1, "verbose": 0, "callbacks": [og.callbacks.Checkpoint(tmp_path)]}
    trainer.fit({"t": texts}, y, **options)
    changed = texts.copy()
    changed[3, 0] = "delta"
    with pytest.raises(og.CheckpointError):
        trainer.fit({"t": changed}, y, **{**options, "epochs": 2}, resume=True)
    trainer.fit({"t": texts}, y, **{**options, "epochs": 2}, resume=True)


def test_sequences():
    """Each is padded with empty texts, and none is cut to the length of the first one."""
    node = text_model("T").graph.node[0]
    model = model_of([node], [("t", TensorProto.STRING, ["N", "T"])])
    texts, counts, y = rows(24, 1)
    lists = [np.array([text[0]] * (1 + i % 3)) for i, text in enumerate(texts)]
    factors = np.array([1 + i % 3 for i in range(24)], np.float32)[:, None]
    data = og.data.Sequences(lists, y, batch_size=5)
    trainer = og.Trainer(model, "cross_entropy", "sgd", lr=0.0, threads=1)
    trainer.fit(data, epochs=1, verbose=0)
    reference = og.Trainer(count_model(), "cross_entropy", "sgd", lr=0.0, threads=1)
    expected = reference.evaluate({"t": counts * factors}, y).loss
    assert trainer.history["train_loss"][0] == pytest.approx(expected, rel=1e-5)


def test_sequences_of_several_types():
    """Integers first do not cut the numbers of later sequences."""
    data = og.data.Sequences([[1, 2], [0.5]], [0, 1], bucket_by_length=False)
    padded = data._columns[""].batch(np.array([0, 1]), 2, 0)
    np.testing.assert_array_equal(padded, [[1, 2], [0.5, 0]])


def test_no_rows_of_text_give_no_rows():
    """Normalised and split into words, as scikit-learn's vectorizers are exported."""
    rest = [
        helper.make_node("Reshape", ["t", "flat"], ["f"]),
        helper.make_node("StringNormalizer", ["f"], ["n"], case_change_action="LOWER"),
        helper.make_node(
            "Tokenizer",
            ["n"],
            ["k0"],
            domain="com.microsoft",
            mark=0,
            mincharnum=1,
            pad_value="#",
            separators=[" "],
        ),
    ]
    model = text_model(1)
    model.graph.node[0].input[0] = "k0"
    nodes = [*rest, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "flat"))
    session = og.InferenceSession(model)
    assert session.run(["y"], {"t": np.array([["alpha beta"], ["Gamma"]], object)})[0].shape == (
        2,
        2,
    )
    assert session.run(["y"], {"t": np.empty((0, 1), object)})[0].shape == (0, 2)


def test_a_constant_list_of_texts_is_an_output():
    model = onnx.parser.parse_model("""
      <ir_version: 8, opset_import: ["" : 17]>
      m (float[N, 2] x) => (float[N, 2] y, string[C] names, string one)
      <float[2, 2] w = {1, 2, 3, 4}>
      {
        y = MatMul (x, w)
        names = Constant <value_strings = ["cat", "dog", "eel"]> ()
        one = Constant <value_string = "v1"> ()
      }
    """)
    x = np.ones((1, 2), np.float32)
    session = og.InferenceSession(model)
    y, names, one = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, [[4, 6]])
    assert names.tolist() == ["cat", "dog", "eel"]
    assert one.tolist() == "v1"
