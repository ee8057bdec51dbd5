"""Training of language models: samples, preferences, every kind of file, the example."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxgrad as og
from command_line import run
from language_rows import (
    CACHED,
    DECODER,
    ENCODER,
    EXAMPLE,
    GPT,
    SONNETS,
    TRANSLATION,
    chunks,
    pairs_file,
    quick,
)
from pairwise import pairwise

# ----------------------------------------------------------------------------------------- sampling


def test_sampling_a_continuation():
    ids = np.tile(np.arange(4), (16, 3))
    trainer = og.Trainer(GPT, "causal_lm", "adam", lr=0.02)
    greedy = og.callbacks.SampleText([0, 1], length=6, temperature=0, write=lambda text: None)
    drawn = [
        og.callbacks.SampleText([0], length=6, top_k=2, seed=seed, write=lambda text: None)
        for seed in (0, 0, 1)
    ]
    trainer.fit(ids, epochs=8, batch_size=4, verbose=0, callbacks=[greedy, *drawn])
    assert greedy.texts[-1] == "0 1 2 3 0 1 2 3"
    assert len(greedy.texts) == 8
    assert drawn[0].texts == drawn[1].texts
    cached = og.Trainer(CACHED, "causal_lm")  # without its cache
    sampling = og.callbacks.SampleText([1], length=3, write=lambda text: None)
    cached.fit(ids, callbacks=[sampling], **quick())
    assert len(sampling.texts[0].split()) == 4


# -------------------------------------------------------------------------------------- preferences


@pytest.mark.parametrize("lora", [None, 4])
def test_preferences_are_learnt(lora, tmp_path):
    data = og.data.Preferences(pairs_file(tmp_path / "pairs.jsonl"), batch_size=4)
    trainer = og.Trainer(GPT, "dpo:beta=0.5", "adam", lr=0.01, lora=lora)
    first = trainer.evaluate(data).loss
    assert first == pytest.approx(math.log(2), rel=1e-5)  # policy and reference are the same
    trainer.fit(data, epochs=10, verbose=0)
    assert trainer.evaluate(data).loss < 0.3
    assert trainer.history["train_loss"][-1] < 0.5
    for options in ({"batch_size": 3}, {"validation": 0.5}):
        with pytest.raises(og.errors.OptionError, match="batches of its own"):
            trainer.fit(data, epochs=1, verbose=0, **options)


SCRIPT = """
import sys
import numpy as np
import onnxgrad as og
folder, model = sys.argv[1:]
trainer = og.Trainer(model, "dpo:beta=0.5", "sgd", lr=0.5, threads=1, dist="auto")
data = og.data.Preferences(folder + "/pairs.jsonl", batch_size=5)
trainer.fit(data, epochs=3, validation=data, verbose=0)
workers = trainer.session._data_parallel
rank = workers.workers.rank if workers else "alone"
losses = [trainer.evaluate(data).loss, *trainer.history["train_loss"], *trainer.history["val_loss"]]
np.savez(f"{folder}/{rank}.npz", losses, **trainer.session.weights)
"""


def test_workers_divide_pairs_as_one_trains_them(tmp_path):
    """Batches of 5, 5 and 1 pairs: no pair is separated, and a worker may have none."""
    pairs_file(tmp_path / "pairs.jsonl", 11)
    (tmp_path / "script.py").write_text(SCRIPT)
    for launch in ((), ("-m", "onnxgrad", "launch", "-n", "2", "--transport", "tcp")):
        command = [sys.executable, *launch, tmp_path / "script.py", tmp_path, GPT]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    alone, first, second = (np.load(tmp_path / f"{rank}.npz") for rank in ("alone", 0, 1))
    for name in alone.files:
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], alone[name], rtol=1e-4, atol=1e-4, err_msg=name)


# ------------------------------------------------------------------------------------- combinations

PARAMETERS = {
    "loss": ["causal_lm", "auto", "masked_lm", "seq2seq_lm", "dpo"],
    "file": ["bin", "bin32", "npy", "npy_rows", "parquet", "jsonl", "txt", "array"],
    "precision": ["float32", "bfloat16", "float16"],
    "accumulate": [1, 2],
    "lora": [None, 4],
    "entry": ["trainer", "session", "command"],
}


def is_valid(row):
    entry, file, loss = row.get("entry"), row.get("file"), row.get("loss")
    if entry == "command" and (file == "array" or loss == "masked_lm"):  # which needs a tokenizer
        return False
    if loss in ("dpo", "seq2seq_lm") and file not in (None, "jsonl", "parquet"):
        return False
    if loss == "dpo" and entry == "session":  # whose reference the data computes
        return False
    return not (loss == "masked_lm" and row.get("lora"))  # ALBERT: one layer, read several times


def token_file(folder, row):
    rng = np.random.default_rng(0)
    ids = (np.arange(240) * 3 + rng.integers(0, 2, 240)) % 24
    documents = [ids[i : i + 5].tolist() for i in range(0, 200, 5)]
    kind = row["file"]
    path = folder / f"rows.{kind.replace('bin32', 'bin').replace('npy_rows', 'npy')}"
    if kind == "array":
        return ids
    if kind in ("bin", "bin32"):
        ids.astype(np.uint32 if kind == "bin32" else np.uint16).tofile(path)
    elif kind == "npy":
        np.save(path, ids)
    elif kind == "npy_rows":
        np.save(path, ids.reshape(40, 6))
    elif kind == "txt":
        path.write_text("".join(chr(1 + one) for one in ids))
    else:
        records = [{"input_ids": one} for one in documents]
        if row["loss"] == "seq2seq_lm":
            records = [{"source": one, "target": one[:3]} for one in documents]
        if row["loss"] == "dpo":
            lines = pairs_file(folder / "pairs.jsonl", 8).read_text().splitlines()
            records = [json.loads(line) for line in lines]
        if kind == "jsonl":
            path.write_text("\n".join(map(json.dumps, records)))
        else:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return path


ROWS = pairwise(PARAMETERS, is_valid)


MODEL_OF = {"masked_lm": (ENCODER, 6, 20), "seq2seq_lm": (TRANSLATION, 6, 10)}
NAME_OF = {"auto": "causal_lm", "seq2seq_lm": "masked_lm"}


@pytest.mark.parametrize("row", ROWS, ids=["-".join(map(str, row.values())) for row in ROWS])
def test_combinations(row, tmp_path):
    """Every loss falls on every kind of file, by every entry point."""
    data = token_file(tmp_path, row)
    loss = row["loss"]
    model, length, epochs = MODEL_OF.get(loss, (GPT, 8, 4))
    tokenizer = "bytes" if row["file"] == "txt" else None
    options = {name: row[name] for name in ("precision", "accumulate", "lora")}
    if row["entry"] == "command":
        arguments = ["--loss", loss, "--sequence-length", length, "--lr", 0.01, "-q"]
        arguments += ["--precision", row["precision"], "--accumulate", row["accumulate"]]
        arguments += ["--lora", row["lora"]] if row["lora"] else []
        arguments += ["--tokenizer", tokenizer] if tokenizer else []
        out, history = tmp_path / "trained.onnx", tmp_path / "history.csv"
        arguments += ["--epochs", epochs, "-o", out, "--history", history]
        run("train", model, "--data", data, *arguments)
        losses = np.genfromtxt(history, delimiter=",", names=True)["train_loss"]
        onnx.checker.check_model(onnx.load(out))
        assert losses[-1] < losses[0]
        return
    rows = (
        og.data.Tokens(data, length, tokenizer=tokenizer, mask_token=24) if loss != "dpo" else None
    )
    if row["entry"] == "session":
        session = og.TrainingSession(model, loss, og.optimizers.Adam(lr=0.01), **options)
        inputs, labels = chunks(rows, session)
        feeds = {**inputs, session.target_name: labels}
        losses = [session.step(feeds) for _ in range(20)]
    else:
        trainer = og.Trainer(model, loss, lr=0.01, **options)
        session = trainer.session
        if loss == "dpo":
            trainer.fit(og.data.Preferences(data, batch_size=2), epochs=epochs, verbose=0)
        else:
            trainer.fit(rows, epochs=epochs, batch_size=8, verbose=0)
        losses = trainer.history["train_loss"]
    assert losses[-1] < losses[0]
    assert session.loss_name == NAME_OF.get(loss, loss)


# ------------------------------------------------------------------------------- files, the example


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda p: p.write_bytes(b"123"), {}, "no whole number of tokens"),
        (lambda p: np.full(40, 29, np.uint16).tofile(p), {}, "token 29, but the model has 29"),
        (lambda p: np.zeros(4, np.uint16).tofile(p), {}, "fewer than one row of 8"),
        (lambda p: p.write_bytes(b"1234"), {"dtype": "uint8"}, "dtype: unknown 'uint8'"),
    ],
)
def test_files_that_are_refused(make, options, message, tmp_path):
    path = tmp_path / "tokens.bin"
    make(path)
    with pytest.raises(og.errors.Error, match=message):
        og.Trainer(GPT, "causal_lm").fit(og.data.Tokens(path, 8, **options), **quick())


def test_a_sequence_longer_than_the_table_of_positions():
    session = og.TrainingSession(GPT, "causal_lm")
    ids = np.zeros((2, 20), np.int64)
    message = r"'tokens' \[2, 20\] has length 20 .* 16 places"
    with pytest.raises(og.DataError, match="rows have 20 tokens, but the model has 16 places"):
        session.step({"tokens": ids, "label": ids})
    with pytest.raises(og.errors.ShapeError, match=message):
        og.InferenceSession(GPT).run(None, {"tokens": ids})


def test_tied_embeddings_stay_tied():
    """The table is one weight, read by the first layer and the last one."""
    trainer = og.Trainer(DECODER, "causal_lm", lr=0.01)
    tables = [
        one.name
        for one in trainer.session.trained_weights
        if any("wte" in name or "lm_head" in name for name in (one.name, *one.aliases))
    ]
    assert len(tables) == 1
    trainer.fit(np.zeros((4, 8), np.int64), **quick())
    names = {one.name for one in trainer.trained_model().graph.initializer}
    assert tables[0] in names


def test_the_example_learns_its_text(tmp_path):
    out = tmp_path / "trained.onnx"
    done = run(
        "train", DECODER, "--loss", "causal_lm", "--data", SONNETS, "--sequence-length", 64,
        "--tokenizer", "bytes", "--batch-size", 8, "--epochs", 6, "--lr", 0.001,
        "--sample", "Shall I ", "-o", out, "--history", tmp_path / "history.csv",
    )  # fmt: skip
    losses = np.genfromtxt(tmp_path / "history.csv", delimiter=",", names=True)["train_loss"]
    assert losses[0] > 4
    assert losses[-1] < 3.4
    assert "sample: Shall I " in done[1]
    arguments = ["--loss", "causal_lm", "--sequence-length", 64, "--tokenizer", "bytes"]
    text = run("evaluate", out, "--data", SONNETS, *arguments, "--metrics", "perplexity", "--json")[
        0
    ]
    found = json.loads(text)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-5)
    assert found["perplexity"] < 30
    assert ort.InferenceSession(out).run(None, {"input_ids": np.zeros((1, 5), np.int64)})


@pytest.mark.skipif("ONNXGRAD_INTEROP" not in os.environ, reason="make interop has transformers")
def test_the_decoder_of_the_example_is_exported_again(tmp_path):
    path = tmp_path / "decoder.onnx"
    subprocess.run([sys.executable, EXAMPLE / "make_model.py", path], check=True, timeout=600)
    ids = np.arange(20).reshape(2, 10)
    losses = [og.Trainer(file, "causal_lm").evaluate(ids).loss for file in (path, DECODER)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_resumed_run_has_its_batches_of_pairs(tmp_path):
    data, whole, part = pairs_file(tmp_path / "pairs.jsonl"), tmp_path / "whole", tmp_path / "part"
    command = ["train", GPT, "--loss", "dpo", "--data", data, "--batch-size", 5]
    run(*command, "--epochs", 3, "--run-dir", whole)
    run(*command, "--epochs", 1, "--run-dir", part)
    assert "batch_size = 5" in (part / "config.toml").read_text()
    run("train", "--resume", part, "--epochs", 3)
    assert (part / "last.onnx").read_bytes() == (whole / "last.onnx").read_bytes()
