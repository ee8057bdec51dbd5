"""Losses of embeddings: values of torch, towers and views, large batches in parts, files, ranks."""

import json
import pathlib
import runpy

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import command_line
import onnxgrad as og
from pairwise import pairwise
from support import mlp_proto

STORED = pathlib.Path(__file__).parents[1] / "data" / "distillation" / "values.npz"
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "sentences" / "train.py"
LOSSES = og.losses


@pytest.fixture(scope="module")
def stored():
    with np.load(STORED) as values:
        return dict(values)


def encoder(stored, dtype=np.float64, rows="N"):
    kind = {np.float64: "double", np.float32: "float"}[dtype]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net ({kind}[{rows}, 4] x) => ({kind}[{rows}, 6] e) {{ z = Gemm(x, W, b)  e = Tanh(z) }}"""
    )
    for name in ("W", "b"):
        model.graph.initializer.append(numpy_helper.from_array(stored[name].astype(dtype), name))
    return model


def towers(stored, dtype=np.float64, count=2):
    """The encoder once for each input, with the same weights: their gradients add up."""
    kind = {np.float64: "double", np.float32: "float"}[dtype]
    inputs = ", ".join(f"{kind}[N, 4] x{i}" for i in range(count))
    outputs = ", ".join(f"{kind}[N, 6] e{i}" for i in range(count))
    nodes = " ".join(f"z{i} = Gemm(x{i}, W, b) e{i} = Tanh(z{i})" for i in range(count))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> net ({inputs}) => ({outputs}) {{ {nodes} }}'
    )
    for name in ("W", "b"):
        model.graph.initializer.append(numpy_helper.from_array(stored[name].astype(dtype), name))
    return model


CASES = {
    "info_nce": (LOSSES.InfoNCE(temperature=0.3), 2),
    "info_nce_symmetric": (LOSSES.InfoNCE(temperature=0.3, symmetric=True), 2),
    "info_nce_negatives": (LOSSES.InfoNCE(temperature=0.3), 3),
    "info_nce_learnt": (LOSSES.InfoNCE(temperature=0.3, learn_temperature=True), 2),
    "info_nce_prefixes": (LOSSES.InfoNCE(temperature=0.3, prefixes=[2, 6]), 2),
    "triplet": (LOSSES.Triplet(margin=2.0), 3),
    "triplet_hardest": (LOSSES.Triplet(margin=2.0, hardest=True), 2),
    "cosine_embedding": (LOSSES.CosineEmbedding(margin=0.1), 2),
}


@pytest.mark.parametrize("one_encoder", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_torch(stored, case, one_encoder):
    loss, count = CASES[case]
    names = [key.split("/")[1] for key in stored if key.startswith(case + "/")]
    names.remove("loss")
    if one_encoder:
        model, loss, keys = encoder(stored), loss.replace(views=count), ["x", "x_2", "x_3"]
    else:
        partners = [f"e{i}" for i in range(1, count)]
        model = towers(stored, count=count)
        loss, keys = loss.replace(output="e0", partners=partners), ["x0", "x1", "x2"]
    session = og.TrainingSession(model, loss, "sgd", outputs=[f"{name}_grad" for name in names])
    feeds = {key: stored[f"view_{i + 1}"] for i, key in enumerate(keys[:count])}
    if case == "cosine_embedding":
        feeds["label"] = stored["signs"]
    # The logarithm of a temperature that is learnt is float32.
    tolerance = 1e-6 if case == "info_nce_learnt" else 1e-11
    assert session.evaluate(feeds).loss == pytest.approx(float(stored[f"{case}/loss"]), tolerance)
    value, gradients = session.step(feeds)
    assert value == pytest.approx(float(stored[f"{case}/loss"]), tolerance)
    for name, gradient in zip(names, gradients, strict=True):
        want = stored[f"{case}/{name}"]
        np.testing.assert_allclose(gradient, want, rtol=tolerance, atol=tolerance)


PARTS = pairwise(
    {
        "case": ["info_nce_symmetric", "triplet_hardest", "cosine_embedding"],
        "one_encoder": [True, False],
        "average": [None, "ema:decay=0.5", "swa:evaluates=false"],
        "penalty": [None, LOSSES.Penalty(l1=0.01, l2=0.1)],
    },
    lambda row: True,
)


@pytest.mark.parametrize("row", PARTS, ids=lambda row: "-".join(str(x)[:9] for x in row.values()))
def test_parts_make_the_step_of_the_whole_batch(stored, row, tmp_path):
    case, one_encoder = row["case"], row["one_encoder"]
    rng = np.random.default_rng(0)
    loss, _ = CASES[case]
    arrays = rng.normal(size=(2, 12, 4))
    if one_encoder:
        model, loss, keys = encoder(stored), loss.replace(views=2), ["x", "x_2"]
    else:
        model, keys = towers(stored), ["x0", "x1"]
        loss = loss.replace(output="e0", partners=["e1"])
    feeds = dict(zip(keys, arrays, strict=True))
    if case == "cosine_embedding":
        feeds["label"] = np.where(rng.random(12) < 0.5, 1.0, -1.0)
    options = {"average": row["average"], "penalty": row["penalty"]}
    whole = og.TrainingSession(model, loss, "adam", training_mode=False, **options)
    cache = og.embeddings.GradCache(model, loss, "adam", parts=4, **options)
    for _ in range(3):
        found, wanted = cache.step(feeds), whole.step(feeds)
        assert row["penalty"] or found == pytest.approx(wanted, rel=1e-12)
    cache.save(tmp_path / "trained.onnx")
    saved = og.state_dict(tmp_path / "trained.onnx")
    for name, value in og.state_dict(whole.trained_model()).items():
        np.testing.assert_allclose(saved[name], value, rtol=1e-9, atol=1e-12)
    for name, weight in whole.weights.items():
        np.testing.assert_allclose(cache.session.weights[name], weight, rtol=1e-9, atol=1e-12)


def test_parts_refuse_what_they_cannot_do(stored):
    make = og.embeddings.GradCache
    with pytest.raises(og.OptionError, match="no loss of embeddings"):
        make(encoder(stored), "mse")
    for refused in ({"sam": 0.05}, {"training_mode": True}, {"accumulate": 2}):
        with pytest.raises(og.OptionError, match="GradCache"):
            make(encoder(stored), **refused)
    with pytest.raises(og.OptionError, match="cannot be learnt"):
        make(encoder(stored), LOSSES.InfoNCE(views=2, learn_temperature=True))
    cache = make(encoder(stored), parts=3)
    rows = np.zeros((4, 4))
    with pytest.raises(og.DataError, match="4 rows are not a multiple of parts=3"):
        cache.step({"x": rows, "x_2": rows})
    with pytest.raises(og.DataError, match="input 'x_2' is missing"):
        cache.step({"x": rows[:3]})


def float_rows(count=24, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 4)).astype(np.float32)
    return {"x": X, "x_2": X + 0.1 * rng.normal(size=X.shape).astype(np.float32)}


PARAMETERS = {
    "loss": ("info_nce", "clip", "triplet:hardest=true"),
    "optimizer": ("sgd", "adam"),
    "precision": ("float32", "bf16"),
    "accumulate": (1, 2),
    "rows": ("N", 1),
    "lora": (None, 2),
    "entry": ("arrays", "jsonl", "parquet", "command line", "step"),
}


@pytest.mark.parametrize(
    "row",
    pairwise(PARAMETERS, lambda row: True),
    ids=lambda row: "-".join(str(value).replace(" ", "_") for value in row.values()),
)
def test_options_and_files_go_together(stored, row, tmp_path):
    path = tmp_path / "encoder.onnx"
    onnx.save(encoder(stored, np.float32, row["rows"]), path)
    rows = float_rows()
    columns = {name: array.tolist() for name, array in rows.items()}
    loss = LOSSES.from_text(row["loss"]).replace(views=2)
    options = {name: row[name] for name in ("precision", "accumulate", "lora")}
    data = tmp_path / "pairs.jsonl"
    lines = [
        json.dumps(dict(zip(columns, pair, strict=True)))
        for pair in zip(*columns.values(), strict=True)
    ]
    data.write_text("\n".join(lines))
    if row["entry"] == "step":
        step = og.training_step(path, loss, row["optimizer"], **options)
        assert [one.name for one in step.graph.input][:2] == ["x", "x_2"]
        return
    if row["entry"] == "command line":
        arguments = [
            "train",
            path,
            "--data",
            data,
            "--loss",
            row["loss"],
            "-o",
            tmp_path / "out.onnx",
        ]
        arguments += ["--optimizer", row["optimizer"], "--epochs", 2]
        for name, value in options.items():
            arguments += [] if value is None else [f"--{name}", value]
        command_line.run(*arguments)
        assert onnx.load(tmp_path / "out.onnx").graph.input[0].name == "x"
        return
    trainer = og.Trainer(path, loss, row["optimizer"], **options)
    if row["entry"] == "arrays":
        trainer.fit(rows, epochs=2, batch_size=8, verbose=0, validation=0.25)
    elif row["entry"] == "jsonl":
        trainer.fit(data, epochs=2, batch_size=8, verbose=0)
    else:
        pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table(columns), tmp_path / "pairs.parquet")
        trainer.fit(tmp_path / "pairs.parquet", epochs=2, batch_size=8, verbose=0)
    assert np.all(np.isfinite(trainer.history["train_loss"]))
    assert trainer.predict(rows["x"]).shape == (24, 6)
    assert trainer.evaluate(rows).rows == 24


def test_embeddings_of_pairs_come_together(stored):
    rows = float_rows(200)
    rng = np.random.default_rng(5)
    for array in rows.values():  # two columns that the members of a pair have not in common
        array[:, 2:] = 3 * rng.normal(size=(200, 2))
    adam = og.optimizers.Adam(lr=0.02)
    trainer = og.Trainer(encoder(stored, np.float32), LOSSES.InfoNCE(views=2), adam)

    def recall():
        first, second = (trainer.predict(rows[name]) for name in ("x", "x_2"))
        return og.embeddings.retrieval(first, second)["recall@1"]

    before = recall()
    trainer.fit(rows, epochs=60, batch_size=50, verbose=0)
    assert recall() > 2 * before + 0.1


def test_the_temperature_is_learnt_and_is_not_in_the_file(stored, tmp_path):
    model = encoder(stored, np.float32)
    loss = LOSSES.InfoNCE(views=2, learn_temperature=True, temperature=0.5)
    session = og.TrainingSession(model, loss, "adam")
    name = "info_nce.log_temperature"
    first = session.state()[name]
    assert first == pytest.approx(np.log(0.5))
    session.step(float_rows())
    session.save(tmp_path / "state.safetensors")
    assert session.state()[name] != first
    again = og.TrainingSession(model, loss, "adam")
    again.load(tmp_path / "state.safetensors")
    assert again.state()[name] == session.state()[name]
    names = [one.name for one in session.trained_model().graph.initializer]
    assert names == ["W", "b"]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (LOSSES.InfoNCE(), "0 embeddings to compare"),
        (LOSSES.Triplet(views=2), "expected 2, or 1 with hardest=True"),
        (LOSSES.CosineEmbedding(views=3), "expected 1"),
        (LOSSES.InfoNCE(partners=["f"]), "no output or value 'f'"),
        (LOSSES.InfoNCE(views=2, prefixes=[9]), "a prefix of 9 columns"),
    ],
)
def test_errors_name_the_place(stored, loss, message):
    with pytest.raises(og.Error, match=message):
        og.TrainingSession(encoder(stored), loss)


def test_views_are_no_loss_alone(stored):
    with pytest.raises(og.ModelError, match="it cannot only be added"):
        og.add_loss(encoder(stored), LOSSES.InfoNCE(views=2))
    with pytest.raises(og.ModelError, match="takes no teacher"):
        og.TrainingSession(encoder(stored), LOSSES.InfoNCE(views=2), teacher=encoder(stored))


def test_ranks_are_counted():
    queries = np.array([[1.0, 0], [0, 1], [1, 1]])
    documents = np.array([[1.0, 0.1], [0.1, 1], [-1, 0], [0.9, 1]])
    found = og.embeddings.retrieval(queries, documents, [[0], [2], [0, 3]], k=[1, 2])
    # Ranks: 1; 4; 1 and 2 or 3 (documents 0 and 1 are equally near to the last query).
    assert found["recall@1"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert found["recall@2"] == pytest.approx((1 + 0 + 1) / 3)
    assert found["mrr"] == pytest.approx((1 + 1 / 4 + 1) / 3)
    best = 1 + 1 / np.log2(3)
    assert found["ndcg@10"] == pytest.approx((1 + 1 / np.log2(5) + best / best) / 3)
    with pytest.raises(og.DataError, match="query 1 has"):
        og.embeddings.retrieval(queries, documents, [0, 4, 1])
    with pytest.raises(og.DataError, match="columns"):
        og.embeddings.retrieval(queries, documents[:, :1])


def test_columns_with_endings_are_pairs(stored, tmp_path):
    rows = float_rows(8)
    names = [f"{letter}{ending}" for ending in ("", "_2") for letter in "abcd"]
    table = np.hstack([rows["x"], rows["x_2"]])
    path = tmp_path / "pairs.csv"
    np.savetxt(path, table, delimiter=",", header=",".join(names), comments="")
    losses = []
    for X in (rows, path):
        trainer = og.Trainer(encoder(stored, np.float32), LOSSES.InfoNCE(views=2))
        losses.append(trainer.fit(X, epochs=1, verbose=0).history["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    arguments = ["train", tmp_path / "e.onnx", "--data", path, "--loss", "info_nce"]
    onnx.save(encoder(stored, np.float32), tmp_path / "e.onnx")
    command_line.run(*arguments, "-o", tmp_path / "out.onnx", "--epochs", 1)


def test_a_tower_is_named_in_text(stored):
    loss = "info_nce:temperature=0.3,output=e0,partners=e1;e2"
    session = og.TrainingSession(towers(stored, count=3), loss)
    feeds = {f"x{i}": stored[f"view_{i + 1}"] for i in range(3)}
    assert session.evaluate(feeds).loss == pytest.approx(float(stored["info_nce_negatives/loss"]))
    assert session.loss_line == "loss: InfoNCE on 'e0' with 'e1', 'e2'"


def test_towers_of_an_exported_model_are_inner_values():
    path = STORED.parents[1] / "models" / "contrastive_pair"
    model = onnx.load(path.with_suffix(".onnx"))
    (scale,) = (one for one in model.graph.initializer if one.name == "log_scale")
    temperature = float(np.exp(-numpy_helper.to_array(scale)))
    rng = np.random.default_rng(0)
    feeds = {
        "image_features": rng.normal(size=(6, 12)).astype(np.float32),
        "text_features": rng.normal(size=(6, 7)).astype(np.float32),
    }
    loss = LOSSES.InfoNCE(output="linear_2", partners=["linear_5"], temperature=temperature)
    cross_entropy = og.TrainingSession(model, "softmax_cross_entropy", "sgd")
    want = cross_entropy.evaluate({**feeds, "label": np.arange(6)}).loss
    session = og.TrainingSession(model, loss, "sgd")
    assert session.evaluate(feeds).loss == pytest.approx(want, rel=1e-5)
    assert session.step(feeds) == pytest.approx(want, rel=1e-5)


def test_the_example_finds_answers(capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    before, after = main(epochs=30)
    assert after > before + 0.4
    assert "recall@1" in capsys.readouterr().out


def test_columns_of_texts_are_pairs(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 2]>
        net (string[N] word) => (float[N, 4] e)
        {
          number = ai.onnx.ml.LabelEncoder
           <keys_strings = ["big", "large", "small", "tiny"], values_int64s = [0, 1, 2, 3]> (word)
          e = Gather(table, number)
        }"""
    )
    table = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    path = tmp_path / "words.csv"
    path.write_text("word,word_2\nbig,large\nsmall,tiny\n", encoding="utf-8")
    adam = og.optimizers.Adam(lr=0.05)
    trainer = og.Trainer(model, "info_nce:temperature=0.5", adam, trainable="table")
    trainer.fit(path, epochs=100, verbose=0)
    big, large, small, tiny = trainer.predict(np.array(["big", "large", "small", "tiny"]))
    assert og.embeddings.retrieval([big, small], [large, tiny])["recall@1"] == 1
    assert trainer.history["train_loss"][-1] < 0.2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bit_steps_keep_the_loss_in_float32(precision):
    """Probabilities and the one of the right pair cancel in its gradient."""
    random = np.random.default_rng(0)
    model = mlp_proto([8, 16])
    x, other = (random.normal(size=(32, 8)).astype(np.float32) for _ in range(2))
    changes = {}
    for numbers in ("float32", precision):
        loss = og.losses.InfoNCE(views=2, temperature=0.5)
        session = og.TrainingSession(model, loss, "sgd:lr=1", precision=numbers)
        before = session.get_weights()
        session.step({"X": x, "X_2": other})
        changes[numbers] = [a - b for a, b in zip(session.get_weights(), before, strict=True)]
    for given, wanted in zip(changes[precision], changes["float32"], strict=True):
        assert np.abs(given - wanted).max() < 0.05 * np.abs(wanted).max()
