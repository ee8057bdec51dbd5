"""Options of fine-tuning that would have no effect, or another one than was meant."""

import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
from command_line import run
from language_rows import DECODER, GPT, quick
from support import mlp_proto

MODEL = mlp_proto([3, 5, 3])
WIDE = mlp_proto([64, 64, 3])
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
y = np.arange(40) % 3
TOKENS = np.random.default_rng(0).integers(0, 29, (8, 24))


def without_names():
    model = mlp_proto([3, 5, 3])
    for node in model.graph.node:
        node.name = ""
    return model


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: og.Trainer(MODEL, teacher="self", distill={"inputs": {"x": "X"}}),
            "no input 'x'.*Its inputs: 'X'.*Did you mean 'X'",
        ),
        (
            lambda: og.Trainer(MODEL, teacher="self", distill={"temperature": 1e-30}),
            "temperature: 1e-30.*at least 0.001",
        ),
        (lambda: og.losses.Distillation(temperature=1e30), "temperature: 1e.30.*below 10000"),
        (lambda: og.losses.InfoNCE(temperature=1e-30), "temperature: 1e-30"),
        (lambda: og.Trainer(WIDE, lora=2, base="int5"), "^base: unknown 'int5'"),
        (lambda: og.Trainer(WIDE, lora=2, base={"kind": "int5"}), "^base: unknown 'int5'"),
        (
            lambda: og.quantize(without_names(), X, exclude="nothere*"),
            "nothere.*There are 'W0', 'W1'",
        ),
        (lambda: og.adapters.add(without_names(), "lora:exclude=nothere"), "nothere.*'W0', 'W1'"),
        (lambda: og.Trainer(MODEL).load_adapter("folder"), "no adapter.*lora="),
        (
            lambda: og.cross_validate(MODEL, X, y, callbacks=og.callbacks.Checkpoint("x")),
            "Checkpoint.*each fold.*on_fold",
        ),
        (lambda: og.cross_validate(MODEL, X, y, run_dir="x"), "run_dir.*each fold"),
        (
            lambda: og.Trainer(MODEL, "info_nce").fit({"X": X, "X_2": X}, batch_size=1, verbose=0),
            "batch_size=1.*negatives",
        ),
        (
            lambda: og.Trainer(MODEL, og.losses.SoftmaxCrossEntropy(ignore_index=-1)).fit(
                X, np.full(40, -1), verbose=0
            ),
            "all labels are -1",
        ),
        (
            lambda: og.Trainer(DECODER, "causal_lm").fit(og.data.Tokens([[1], [2]], 4), verbose=0),
            "no token would be learnt",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(og.Error, match=f"(?s){message}") as caught:
        call()
    assert caught.value.hint
    assert "''" not in str(caught.value)


def test_a_loss_of_nothing_is_warned_about():
    loss = og.losses.SoftmaxCrossEntropy(ignore_index=-1)
    trainer = og.Trainer(MODEL, loss)
    batches = [(X[:8], np.full(8, -1)), (X[8:], np.full(32, -1))]
    with pytest.warns(og.data.DataWarning, match="exactly 0"):
        trainer.fit(batches, epochs=1, verbose=0)


@pytest.mark.parametrize("sampling", ["balanced", "weighted"])
def test_rows_that_max_steps_does_not_reach_are_not_drawn(sampling):
    weights = {"row_weights": np.arange(40.0)} if sampling == "weighted" else {}
    found = []
    begin = time.monotonic()
    for rows in (10**9, 10**6):
        trainer = og.Trainer(MODEL, "cross_entropy", "sgd", seed=3)
        options = {"epoch_rows": rows, "max_steps": 20, "batch_size": 10, "sampling": sampling}
        trainer.fit(X, y, epochs=2, verbose=0, **options, **weights)
        assert trainer.session.steps == 20
        found.append(trainer.get_weights())
    assert time.monotonic() - begin < 60
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("augment", ["mixup", "mixup:alpha=2"])
def test_partners_of_mixup_do_not_depend_on_the_order(augment):
    """The mean gradient over one batch of all rows does not depend on their order."""
    found = []
    for shuffle in (False, True):
        trainer = og.Trainer(MODEL, "cross_entropy", "sgd", lr=0.5, seed=5)
        options = {"batch_size": 36, "validation": 0.1, "shuffle": shuffle}
        trainer.fit(X, y, epochs=3, augment=augment, verbose=0, **options)
        found.append(trainer.get_weights())
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


# ---------------------------------------------------------------------------------------- places

PLACES = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[N, T] tokens) => (float[N, T, 29] scores)
<float[29, 4] emb, float[12, 4] places, float[4, 29] head,
 int64 zero = {0}, int64 one = {1}, int64 offset = {OFFSET}, int64[1] axis = {0}> {
  x = Gather (emb, tokens)
  shape = Shape (tokens)
  width = Gather (shape, one)
  HOW
  h = Add (x, p)
  scores = MatMul (h, head)
}"""
RANGE = """end = Add (width, offset)
  numbers = Range (offset, end, one)
  p = Gather (places, numbers)"""
SLICE = """end = Unsqueeze (width, axis)
  begin = Unsqueeze (zero, axis)
  p = Slice (places, begin, end, axis)"""


def with_places(how, offset=0):
    text = PLACES.replace("HOW", how).replace("OFFSET", str(offset))
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("emb", (29, 4)), ("places", (12, 4)), ("head", (4, 29))):
        values = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


MODELS = {
    "torch": (lambda: GPT, 16),
    "range": (lambda: with_places(RANGE), 12),
    "offset": (lambda: with_places(RANGE, 2), 10),
    "slice": (lambda: with_places(SLICE), 12),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("adapter", [{}, {"lora": 2}])
def test_rows_have_no_more_tokens_than_the_model_has_places(kind, adapter):
    make, count = MODELS[kind]
    trainer = og.Trainer(make(), "causal_lm", **adapter)
    trainer.fit(og.data.Tokens(TOKENS.ravel()), **quick())
    reader = og.data.Tokens(TOKENS.ravel())._reader_for(trainer.session)
    reader.start(0, shuffle=False, seed=0)
    name = trainer.session.get_inputs()[0].name
    assert reader.arrays(reader.chunk())[0][name].shape[1] == count
    message = f"{count + 1} tokens, but the model has {count} places"
    with pytest.raises(og.DataError, match=message):
        trainer.fit(og.data.Tokens(TOKENS.ravel(), count + 1), **quick())
    with pytest.raises(og.DataError, match=message):
        trainer.fit(TOKENS[:, : count + 1], **quick())
    feeds = {name: TOKENS[:, : count + 1]}
    calls = [
        lambda: trainer.session.step({**feeds, "label": TOKENS[:, : count + 1]}),
        lambda: trainer.session.predict(feeds),
        lambda: trainer.predict(feeds),
        lambda: trainer.evaluate(TOKENS[:, : count + 1]),
    ]
    for call in calls:
        with pytest.raises(og.DataError, match=message):
            call()
    trainer.fit(TOKENS[:, :count], **quick())
    sampling = og.callbacks.SampleText([1, 2], length=40, temperature=0, write=lambda _: None)
    trainer.fit(TOKENS[:, :count], callbacks=sampling, **quick())
    assert len(sampling.texts[0].split()) == 42


def test_a_table_that_limits_nothing():
    session = og.TrainingSession(with_places("p = Identity (x)"), "causal_lm")
    data = og.data.Tokens(np.arange(600) % 29)
    reader = data._reader_for(session)
    assert reader.num_rows == 600 // 256


@pytest.mark.parametrize("shape", [(48,), (2, 24)])
def test_tokens_beyond_int64_are_shown_as_they_are(shape, tmp_path):
    ids = TOKENS.ravel()[:48].astype(np.uint64)
    ids[30] = 2**64 - 5
    np.save(tmp_path / "tokens.npy", ids.reshape(shape))
    np.save(tmp_path / "other.npy", TOKENS.ravel())
    for data in (tmp_path / "tokens.npy", str(tmp_path / "*.npy"), ids.reshape(shape)):
        with pytest.raises(og.DataError, match=r": 18446744073709551611 is no token") as caught:
            og.Trainer(GPT, "causal_lm").fit(og.data.Tokens(data, 8), **quick())
        assert not isinstance(data, Path) or str(data) in str(caught.value)


# ---------------------------------------------------------------------------------- quantization


@pytest.mark.parametrize("layer", ["y = Gemm(x, w, b)", "h = MatMul(x, w) y = Add(h, b)"])
def test_a_quantized_layer_trains_what_the_layer_does(layer):
    """Numbers that could be those of a formula are a bias, as in the float model."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[N, 3] x) => (float[N, 4] y)'
        "<float[4] b = {1, 2, 3, 4}> { " + layer + " }"
    )
    weight = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    session = og.TrainingSession(og.quantize(model, X, "int8"), "cross_entropy")
    line = "trains 4 of 5 weights; not trained: 'b_scale' (a scale of quantized numbers)"
    assert session.weights_line == line


def test_a_line_says_what_was_quantized(capsys):
    rows = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    trainer = og.Trainer(WIDE, quantize="int8")
    assert trainer.session.quantization_line == ""
    trainer.fit(rows, y, epochs=1, verbose=1)
    line = "quantized: 2 weights ('W0', 'W1') as int8, scales by channel"
    assert line in capsys.readouterr().err
    report = og.report(trainer.trained_model())
    assert report.num_quantized == 64 * 64 + 64 * 3
    assert f"{64 * 67} quantized" in str(report)
    assert "trained as rounded numbers: 'W0', 'W1'\n" in str(report)
    assert f"{64 * 67} quantized" in report._repr_html_()
    packed = og.report(og.quantize_weights(WIDE, "int4", symmetric=False))
    assert packed.num_quantized == 64 * 64  # the zero points are none
    assert "W0_scales' (a scale of quantized numbers)" in str(packed)
    assert "not trained: 'W0_Q4' (quantized" in str(packed)  # the name in the file
    weight = next(one for one in packed.weights if one.name == "W0_Q4")
    assert (weight.dtype, weight.shape, weight.storage) == ("uint4", (64, 64), "initializer")
    assert packed.weight_readers[packed.weights.index(weight)] == 1
    line = og.Trainer(WIDE, lora=2, base="int4").session.quantization_line
    assert line == "quantized: 1 weight ('W0_Q4') as int4, frozen"
    both = og.Trainer(og.quantize_weights(WIDE, "int4"), quantize="int8")
    both.fit(rows, y, epochs=1, verbose=0)
    line = "quantized: 1 weight ('W1') as int8 (1 more as in the file), scales by channel"
    assert both.session.quantization_line.startswith(line)


def test_the_command_line_names_both_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(MODEL, "model.onnx")
    rows = [
        json.dumps({"X": row, "y": int(label)}) for row, label in zip(X.tolist(), y, strict=True)
    ]
    Path("rows.jsonl").write_text("\n".join(rows))
    options = ["--average", "ema", "--save-weights", "both", "-o", "out.onnx", "--epochs", "1"]
    out, _ = run("train", "model.onnx", "--data", "rows.jsonl", "--target", "y", *options)
    assert "wrote out.onnx" in out
    assert "out.trained.onnx" in out
    assert Path("out.trained.onnx").exists()
