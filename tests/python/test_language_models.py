"""Language models: losses, token files, sampling, preferences.

Losses and gradients are compared with transformers' own and TRL's formula, stored by
tests/data/language/make_values.py, and with NumPy; the written loss with stock onnxruntime.
"""

import json
import math
from importlib.util import find_spec

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxgrad as og
from language_rows import CACHED, DATA, DECODER, ENCODER, GPT, IGNORED, TRANSLATION, chunks, quick


@pytest.fixture(scope="module")
def stored():
    with np.load(DATA / "values.npz") as values:
        return dict(values)


def gradients_of(session, feeds, **options):
    """The gradient of each trained weight by its aliases: what a step of SGD of rate 1 takes."""
    before = {name: value.copy() for name, value in session.weights.items()}
    loss = session.step(feeds)
    names = {info.name: (info.name, *info.aliases) for info in session.trained_weights}
    return loss, {
        alias: before[name] - session.weights[name] for name in names for alias in names[name]
    }


def assert_gradients(found, stored, prefix, tolerance=2e-5):
    expected = {
        name[len(prefix) :]: value for name, value in stored.items() if name.startswith(prefix)
    }
    assert expected
    for name, value in expected.items():
        got = next(one for key, one in found.items() if key == name or key.endswith("." + name))
        got = got if got.shape == value.shape else got.T
        np.testing.assert_allclose(got, value, rtol=0, atol=tolerance * max(1, abs(value).max()))


def sgd(path, loss, **options):
    return og.TrainingSession(path, loss, og.optimizers.SGD(lr=1.0), **options)


@pytest.mark.parametrize("case", ["causal", "ignored"])
def test_causal_loss_is_that_of_transformers(case, stored):
    """Keys and values, the mask and the positions are filled in."""
    session = sgd(CACHED, "causal_lm")
    ids, labels = stored[f"{case}/ids"], stored[f"{case}/labels"]
    loss, found = gradients_of(session, {"input_ids": ids, session.target_name: labels})
    assert loss == pytest.approx(float(stored[f"{case}/loss"]), rel=1e-6)
    assert_gradients(found, stored, f"{case}/grad/")


def test_translation_loss_is_that_of_transformers(stored):
    session = sgd(TRANSLATION, "seq2seq_lm")
    source, labels = stored["translation/source"], stored["translation/labels"]
    before = np.concatenate([np.zeros((3, 1), int), np.maximum(labels[:, :-1], 0)], axis=1)
    feeds = {"input_ids": source, "decoder_input_ids": before, session.target_name: labels}
    loss, found = gradients_of(session, feeds)
    assert loss == pytest.approx(float(stored["translation/loss"]), rel=1e-6)
    assert_gradients(found, stored, "translation/grad/")


@pytest.mark.parametrize(("case", "beta", "smoothing"), [("plain", 0.1, 0.0), ("smooth", 0.5, 0.1)])
def test_preference_loss_is_that_of_trl(case, beta, smoothing, stored):
    session = sgd(CACHED, og.losses.Dpo(beta=beta, label_smoothing=smoothing))
    ids, labels = stored["dpo/ids"], stored["dpo/labels"]
    target = np.concatenate([stored["dpo/reference"][:, None], labels], axis=1)
    loss, found = gradients_of(session, {"input_ids": ids, session.target_name: target})
    assert loss == pytest.approx(float(stored[f"dpo/{case}"]), rel=1e-5)
    assert_gradients(found, stored, f"dpo/{case}/grad/", 5e-5)


def reference_loss(scores, labels, ignored=IGNORED, pad=None):
    target = labels[:, 1:]
    scores = scores[:, :-1].astype(np.float64)
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    counts = target != ignored
    if pad is not None:
        counts &= target != pad
    taken = np.take_along_axis(log_p, np.where(counts, target, 0)[..., None], -1)[..., 0]
    return -(taken * counts).sum() / counts.sum()


@pytest.mark.parametrize(
    "loss",
    [
        og.losses.CausalLm(),
        og.losses.CausalLm(ignore_index=-1),
        og.losses.CausalLm(pad=3),
        og.losses.CausalLm(reduction="none"),
    ],
    ids=str,
)
def test_written_causal_loss_in_stock_onnxruntime(loss):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 29, (4, 7))
    labels = ids.copy()
    ignored = loss.ignore_index
    labels[1, 2:5] = ignored
    with_loss = og.add_loss(GPT, loss)
    onnx.checker.check_model(with_loss)
    feeds = {"tokens": ids, "label": labels}
    found = ort.InferenceSession(with_loss.SerializeToString()).run(None, feeds)
    (scores,) = ort.InferenceSession(GPT).run(None, {"tokens": ids})
    expected = reference_loss(scores, labels, ignored, loss.pad)
    if loss.reduction == "none":
        rows = [reference_loss(scores[i : i + 1], labels[i : i + 1]) for i in range(4)]
        counts = (labels[:, 1:] != ignored).sum(1)
        np.testing.assert_allclose(found[0], rows * counts / 7, rtol=2e-5)
    else:
        np.testing.assert_allclose(found[0], expected, rtol=2e-6)
        session = og.TrainingSession(GPT, loss)
        assert session.step(feeds) == pytest.approx(expected, rel=2e-6)


def test_causal_gradient_by_finite_differences():
    model = og.add_loss(GPT, "causal_lm")
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 29, (2, 5))
    checked = og.check_gradients(model, outputs="loss", feeds={"tokens": ids, "label": ids})
    assert checked.ok, str(checked)


# --------------------------------------------------------------------------------- what "auto" does


def test_automatic_loss_of_a_decoder():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 29, (8, 6))
    for fit in (lambda trainer: trainer.fit(ids, **quick()), lambda t: t.fit(ids, ids, **quick())):
        trainer = og.Trainer(GPT)
        fit(trainer)
        assert trainer.session.loss_name == "causal_lm"
    other = og.Trainer(GPT)  # other labels: classes of the tokens
    other.fit(ids, rng.integers(0, 29, (8, 6)), **quick())
    assert other.session.loss_name == "softmax_cross_entropy"
    for feeds in ({"tokens": ids, "label": ids}, {"tokens": ids}):
        session = og.TrainingSession(GPT)
        session.step(feeds)
        assert session.loss_name == "causal_lm"
    with pytest.raises(og.errors.DataError, match="label"):
        og.TrainingSession(GPT, "squared_error").step({"tokens": ids})
    encoder = og.Trainer(ENCODER)
    with pytest.raises(og.errors.DataError, match="y is missing"):
        encoder.fit(ids[:, :6] % 25, **quick())
    with pytest.raises(og.errors.OptionError, match="depends on a later token"):
        og.Trainer(ENCODER).fit(og.data.Tokens([row % 25 for row in ids], 6), **quick())


def test_accuracy_and_perplexity():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 29, (6, 9))
    trainer = og.Trainer(GPT, "causal_lm", "sgd", lr=0.0)
    trainer.fit(ids, validation=(ids, ids), metrics=["perplexity", "accuracy"], **quick())
    (scores,) = ort.InferenceSession(GPT).run(None, {"tokens": ids})
    loss = reference_loss(scores, ids)
    history = trainer.history
    assert history["val_loss"][0] == pytest.approx(loss, rel=1e-6)
    assert history["val_perplexity"][0] == pytest.approx(math.exp(loss), rel=1e-5)
    right = (scores[:, :-1].argmax(-1) == ids[:, 1:]).mean()
    assert history["val_accuracy"][0] == pytest.approx(right)
    assert trainer.evaluate(ids, metrics="perplexity").metrics["perplexity"] == pytest.approx(
        math.exp(loss), rel=1e-5
    )
    p = np.array([[0.5, 0.5], [0.25, 0.75]])
    assert og.metrics.compute("perplexity", np.array([0, 1]), p) == pytest.approx(
        math.exp(-(math.log(0.5) + math.log(0.75)) / 2)
    )
    assert not og.metrics.is_larger_better("perplexity")


# --------------------------------------------------------------------------------------------- rows


def with_masks(rank, dtype):
    """The cached decoder's inputs with another mask: rows and documents that see each other."""
    model = onnx.load(GPT)
    shape = {2: ["batch", "time"], 3: ["batch", "time", "time"], 4: ["batch", 1, "time", "time"]}
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    mask = onnx.helper.make_tensor_value_info("attention_mask", kind, shape[rank])
    places = onnx.helper.make_tensor_value_info("position_ids", 7, ["batch", "time"])
    for extra in (mask, places):
        model.graph.input.append(extra)
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(
                "seen_" + extra.name, extra.type.tensor_type.elem_type, None
            )
        )
        model.graph.node.append(
            onnx.helper.make_node("Identity", [extra.name], ["seen_" + extra.name])
        )
    return model


def test_packed_documents_do_not_see_each_other():
    documents = [np.arange(1, 6), np.arange(6, 9), np.arange(9, 13), np.arange(13, 16)]
    for rank, dtype in ((2, "int64"), (3, "bool"), (4, "float32")):
        session = og.TrainingSession(with_masks(rank, dtype), "causal_lm:output=logits")
        inputs, labels = chunks(og.data.Tokens(documents, 8), session)
        assert len(labels) == 2  # of 15 tokens, no document divided
        assert sorted(set(inputs["tokens"].ravel()) - {0}) == list(range(1, 16))
        first = inputs["tokens"][0]
        np.testing.assert_array_equal(first, [1, 2, 3, 4, 5, 6, 7, 8])
        np.testing.assert_array_equal(inputs["position_ids"][0], [0, 1, 2, 3, 4, 0, 1, 2])
        np.testing.assert_array_equal(labels[0], [IGNORED, 2, 3, 4, 5, IGNORED, 7, 8])
        mask = inputs["attention_mask"]
        if rank == 2:
            np.testing.assert_array_equal(mask[1], [1] * 7 + [0])
            continue
        sees = mask[0] if rank == 3 else mask[0, 0] == 0
        expected = np.zeros((8, 8), bool)
        expected[:5, :5] = np.tril(np.ones((5, 5)))
        expected[5:, 5:] = np.tril(np.ones((3, 3)))
        np.testing.assert_array_equal(sees, expected)
    alone = og.data.Tokens(documents, 8, packing=False)
    inputs, labels = chunks(alone, session)
    assert len(labels) == 4


def test_several_files_are_one_stream(tmp_path):
    for number, ids in enumerate((np.arange(0, 7), np.arange(7, 9), np.arange(9, 20))):
        ids.astype(np.uint16).tofile(tmp_path / f"part-{number}.bin")
    session = og.TrainingSession(GPT, "causal_lm")
    inputs, labels = chunks(og.data.Tokens(tmp_path / "part-*.bin", 5, separator=11), session)
    np.testing.assert_array_equal(inputs["tokens"], np.arange(20).reshape(4, 5))
    np.testing.assert_array_equal(labels[2], [IGNORED, 11, IGNORED, 13, 14])  # 12 begins another


def test_masked_tokens_follow_from_seed_epoch_and_row():
    rng = np.random.default_rng(0)
    stream = rng.integers(5, 25, 6 * 2000)
    session = og.TrainingSession(ENCODER, "masked_lm")
    data = og.data.Tokens(stream, 6, mask_token=4)
    ids, labels = chunks(data, session)
    ids = ids["input_ids"]
    chosen = labels != IGNORED
    np.testing.assert_array_equal(labels[chosen], stream.reshape(-1, 6)[chosen])
    np.testing.assert_array_equal(ids[~chosen], stream.reshape(-1, 6)[~chosen])
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (ids[chosen] == 4).mean() == pytest.approx(0.8 + 0.1 / 25, abs=0.03)
    assert (ids[chosen] == labels[chosen]).mean() == pytest.approx(0.1 + 0.1 / 25, abs=0.03)
    again, _ = chunks(data, session)
    np.testing.assert_array_equal(again["input_ids"], ids)
    reader = data._reader_for(session)
    reader.take_rows(7, 9)  # of one of several workers
    reader.start(0, shuffle=False, seed=0)
    part, _ = reader.arrays([int(number) for number in reader.order])
    np.testing.assert_array_equal(part["input_ids"], ids[7:9])
    other, _ = chunks(data, session, epoch=1)
    assert (other["input_ids"] != ids).any()
    with pytest.raises(og.errors.OptionError, match="needs a token that masks"):
        chunks(og.data.Tokens(stream, 6), session)


def test_shuffled_chunks_are_rows_that_follow_one_another():
    """A validation fraction is drawn by the numbers of rows."""
    stream = np.arange(6 * 100) % 25
    reader = og.data.Tokens(stream, 6)._reader_for(og.TrainingSession(GPT, "causal_lm"))
    orders = []
    for epoch, limits in ((0, (0, 100)), (1, (0, 100)), (1, (10, 61))):
        reader.take_rows(*limits)
        reader.start(epoch, shuffle=True, seed=0)
        chunks = list(iter(reader.chunk, []))
        assert all(chunk == list(range(chunk[0], chunk[0] + len(chunk))) for chunk in chunks)
        orders.append([number for chunk in chunks for number in chunk])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(100))
    assert orders[0] != orders[1]
    assert orders[2] == orders[1][10:61]


def test_a_resumed_training_is_the_same(tmp_path):
    rng = np.random.default_rng(0)
    data = og.data.Tokens(rng.integers(5, 25, 6 * 24), 6, mask_token=4)

    def fit(epochs, folder, **options):
        trainer = og.Trainer(ENCODER, "masked_lm", seed=3)
        checkpoints = og.callbacks.Checkpoint(folder)
        trainer.fit(data, epochs=epochs, batch_size=4, verbose=0, callbacks=checkpoints, **options)
        return trainer.session.state()

    whole = fit(3, tmp_path / "whole")
    fit(2, tmp_path / "part")
    resumed = fit(3, tmp_path / "part", resume=True)
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


def test_sources_and_targets(tmp_path, stored):
    lines = [{"source": [5, 6, 7], "target": [8, 9]}, {"source": [5], "target": [9, 8, 7, 6]}]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    session = og.TrainingSession(TRANSLATION, "seq2seq_lm")
    inputs, labels = chunks(og.data.Tokens(path, 4, target_length=3), session)
    np.testing.assert_array_equal(inputs["input_ids"], [[5, 6, 7, 0], [5, 0, 0, 0]])
    np.testing.assert_array_equal(inputs["attention_mask"], [[1, 1, 1, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(inputs["decoder_input_ids"], [[0, 8, 9], [0, 9, 8]])
    np.testing.assert_array_equal(labels, [[8, 9, IGNORED], [9, 8, 7]])
    _, labels = chunks(og.data.Tokens(path, 3), session)
    assert len(labels) == 2  # a longer target is cut


# ------------------------------------------------------------------------------------- texts, chats

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = [
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "uno"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "dué"},
]


def chat_folder(folder, template=TEMPLATE):
    """A folder of a tokenizer of bytes with a template."""
    folder.mkdir(exist_ok=True)
    config = {"tokenizer_class": "bytes", "chat_template": template, "pad_token": "~"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


LOOP = "{{% for _ in range(99999) %}}{}{{% endfor %}}"
IN_LIST = "requirements/test.txt has it"
needs_jinja = pytest.mark.skipif(find_spec("jinja2") is None, reason=IN_LIST)
needs_tokenizers = pytest.mark.skipif(find_spec("tokenizers") is None, reason=IN_LIST)


@needs_jinja
def test_only_answers_of_a_chat_are_learnt(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": CHAT}))
    session = og.TrainingSession(DECODER, "causal_lm")
    data = og.data.Tokens(path, 64, tokenizer=chat_folder(tmp_path / "chat"))
    inputs, labels = chunks(data, session)
    learnt = bytes(labels[0][labels[0] >= 0].tolist()).decode()
    assert learnt == "uno\ndué\n"
    text = bytes(inputs["input_ids"][0].tolist()).decode().rstrip("~")
    assert text == "<user>one?\n<assistant>uno\n<user>two?\n<assistant>dué\n"
    question = {"prompt": "one?", "chosen": CHAT[1:2], "rejected": [CHAT[3]]}
    pairs = og.data.Preferences([question], tokenizer=chat_folder(tmp_path / "chat"))
    texts = [bytes(one.ids.tolist()).decode() for one in pairs._found[0]]
    assert texts == ["<user>one?\n<assistant>uno\n", "<user>one?\n<assistant>dué\n"]
    whole = og.data.Tokens(path, 64, tokenizer=chat_folder(tmp_path / "chat"), answers_only=False)
    _, labels = chunks(whole, session)
    assert (labels[0] >= 0).sum() == len(text.encode()) - 1


@needs_jinja
@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "chat template fails"),
        ("{{ messages.append(1) }}", "chat template fails"),
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", "otherwise"),
        (LOOP.format(LOOP.format("")), "turns of loops"),
        ("{{ 'a' * 99999999 }}", "a number above"),
        ("{{ ('a' * 99999) * 99999 }}", "characters"),
        ("{{ 9 ** 9 ** 9 ** 9 }}", "a number above"),
        ("{{ '%99999999d' % 1 }}", "a width"),
        ("{{ '{:>99999999}'.format(1) }}", "characters"),
        ("{{ 'a'.ljust(10 ** 8) }}", "a number above"),
        ("{{ 'a' | center(99999999) }}", "a number above"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        (None, "need a template"),
    ],
)
def test_templates_that_are_refused(template, message, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": CHAT}))
    data = og.data.Tokens(path, 64, tokenizer=chat_folder(tmp_path / "chat", template))
    with pytest.raises(og.errors.DataError, match=message):
        data.native(og.TrainingSession(DECODER, "causal_lm"))


def bpe(path):
    """A tokenizer.json of words."""
    import tokenizers

    words = {"[PAD]": 0, "[MASK]": 1, "</s>": 2, "a": 3, "rose": 4, "is": 5}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(path))
    (path.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return path


@needs_tokenizers
def test_a_tokenizer_file(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a rose is a rose"}\n{"prompt": "a rose", "completion": "is"}\n')
    data = og.data.Tokens(path, 6, tokenizer=bpe(tmp_path / "tokenizer.json"), packing=False)
    inputs, labels = chunks(data, og.TrainingSession(GPT, "causal_lm"))
    np.testing.assert_array_equal(inputs["tokens"], [[3, 4, 5, 3, 4, 2], [3, 4, 5, 2, 0, 0]])
    np.testing.assert_array_equal(labels[1], [IGNORED, IGNORED, 5, 2, IGNORED, IGNORED])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_many_scores_of_16_bits_have_the_gradients_of_float32(precision):
    """From 16,384 scores on, the loss keeps its sums for the gradient."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[N, T] tokens) => (float[N, T, 64] y) <float[64, 32] emb, float[32, 64] w> {
          h = Gather (emb, tokens)
          y = MatMul (h, w)
        }"""
    )
    for name, shape in (("emb", (64, 32)), ("w", (32, 64))):
        values = random.normal(size=shape).astype(np.float32) / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    tokens = random.integers(0, 64, (16, 32))
    changes = {}
    for numbers in ("float32", precision):
        session = og.TrainingSession(model, "causal_lm", "sgd:lr=1", precision=numbers)
        before = session.get_weights()
        session.step({"tokens": tokens, "label": tokens})
        changes[numbers] = [a - b for a, b in zip(session.get_weights(), before, strict=True)]
    for given, wanted in zip(changes[precision], changes["float32"], strict=True):
        np.testing.assert_allclose(given, wanted, rtol=0, atol=0.03 * np.abs(wanted).max())
