"""Adapters: what they compute, their gradients, merging and files, against stock onnxruntime.

Gradients are compared with finite differences in float64 and, where DoRA stops them, with those of
a graph whose norm is a constant.
"""

import json
import pickle
import warnings

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxgrad as og
from adapted_models import GPT, assert_near, disturbed, run
from forking import run_module
from onnx_tool import MODELS
from pairwise import pairwise

DECODER = MODELS / "encoder_decoder_attention.onnx"
VGG = MODELS / "vgg_small_batchnorm.onnx"
# A model, an adapter, the roles of the layers that it adapts.
CASES = {
    "lora": (GPT, "lora", {"query", "key", "value", "attention_output", "mlp_up", "mlp_down"}),
    "scaled": (GPT, {"lora": {"rank": 3, "alpha": 5, "rank_stabilized": True}}, None),
    "attention": (
        GPT,
        {"lora": {"targets": "attention", "exclude": "key"}},
        {"query", "value", "attention_output"},
    ),
    "by_name": (GPT, {"lora": {"targets": ["layer.1.f*", "layer.0.q"]}}, None),
    "by_ending": (GPT, {"lora": {"targets": "f2"}}, {"mlp_down"}),
    "head": (GPT, {"lora": {"targets": "head"}}, {"head"}),
    "embedding": (GPT, {"lora": {"targets": "embedding", "rank": 2}}, {"embedding"}),
    "dora": (GPT, {"dora": {"rank": 3, "alpha": 5}}, None),
    "ia3": (GPT, "ia3", {"key", "value", "mlp_down"}),
    "two_stacks": (DECODER, "lora", None),
    "two_stacks_ia3": (DECODER, "ia3", {"key", "value", "mlp_down"}),
    "convolutions": (VGG, {"lora": {"targets": ["conv", "linear"], "rank": 2}}, None),
    "dora_kernels": (VGG, {"dora": {"targets": ["conv", "linear"], "rank": 2}}, None),
    "dora_dropout": (VGG, {"dora": {"targets": ["conv", "linear"], "dropout": 0.1}}, None),
    "dora_table": (GPT, {"dora": {"targets": "embedding", "rank": 2}}, {"embedding"}),
    "ia3_kernels": (VGG, {"ia3": {"targets": "conv"}}, {"conv"}),
    "vision": (MODELS / "patch_transformer_class_token.onnx", "dora", None),
    "gated": (MODELS / "rmsnorm_gated_mlp.onnx", "ia3", {"mlp_down"}),
    "residual": (MODELS / "squeeze_excite.onnx", "lora", {"mlp_up", "mlp_down"}),
}


def feeds_of(path):
    """The stored inputs of a model of tests/data/models."""
    with np.load(path.with_suffix(".npz")) as stored:
        inputs = ort.InferenceSession(path).get_inputs()
        return {one.name: stored[f"in/{one.name}"] for one in inputs}


@pytest.mark.parametrize("name", CASES)
def test_outputs_merging_and_files(name, tmp_path):
    path, adapter, roles = CASES[name]
    feeds = feeds_of(path)
    plain = onnx.load(path)
    expected = run(plain, feeds)
    adapted = og.adapters.add(path, adapter)
    onnx.checker.check_model(adapted)
    (info,) = og.adapters.of(adapted)
    if roles is not None:
        assert {layer.role for layer in info.layers} == roles
    # It begins as the model that it was added to.
    assert_near(run(adapted, feeds), expected)
    changed = disturbed(adapted)
    outputs = run(changed, feeds)
    assert np.abs(outputs[0] - expected[0]).max() > 1e-3
    assert_near(og.InferenceSession(changed).run(None, feeds), outputs)
    merged = og.adapters.merge(changed)
    assert_near(run(merged, feeds), outputs)
    assert [node.name for node in merged.graph.node] == [node.name for node in plain.graph.node]
    assert not og.adapters.of(merged)
    # PEFT's files.
    og.adapters.save(changed, tmp_path)
    loaded = og.adapters.load(path, tmp_path)
    assert_near(run(loaded, feeds), outputs, 1e-6)
    targets = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    modules = [layer.module for layer in info.layers]
    # A pattern where a list would name other modules too: "0" is the end of "encoder.0".
    assert targets == modules or targets == f"^({'|'.join(modules)})$"


@pytest.mark.parametrize(
    "name", ["scaled", "ia3", "embedding", "convolutions", "two_stacks_ia3", "ia3_kernels"]
)
def test_gradients_by_finite_differences(name):
    path, adapter, _ = CASES[name]
    model = disturbed(og.adapters.add(path, adapter))
    names = [tensor for layer in og.adapters.of(model)[0].layers for tensor in layer.tensors]
    checked = og.check_gradients(model, wrt=names, feeds=feeds_of(path))
    assert checked.ok, str(checked)


def test_the_norm_of_dora_is_a_constant():
    feeds = feeds_of(GPT)
    model = disturbed(og.adapters.add(GPT, "dora", targets="layer.0.f1"))
    passes = og.ForwardBackward(model)
    outputs = passes.forward(feeds)
    change = np.random.default_rng(1).normal(size=outputs[0].shape).astype(np.float32)
    gradients = passes.backward([change], outputs.context).weights
    (node,) = (node for node in model.graph.node if node.op_type == "ReduceL2")
    norm = node.output[0]
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(norm))
    value = ort.InferenceSession(model.SerializeToString()).run([norm], feeds)[0]
    model.graph.output.pop()
    model.graph.node.remove(node)
    model.graph.initializer.append(onnx.numpy_helper.from_array(value, norm))
    del model.metadata_props[:]
    reference = og.ForwardBackward(model, weights=list(gradients))
    outputs = reference.forward(feeds)
    expected = reference.backward([change], outputs.context).weights
    assert len(gradients) == 3
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], atol=1e-5)


def batch(rows=32):
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 29, (rows, 6))
    return {"tokens": tokens}, (tokens + 1) % 29


def trainer(**options):
    options = {"lr": 0.02, "lora": {"rank": 4, "alpha": 8}, **options}
    return og.Trainer(GPT, og.losses.SoftmaxCrossEntropy(axis=-1), "adam", **options)


# Every pair of choices occurs in some training.
PAIRS = pairwise(
    {
        "adapter": [
            "lora:rank=4,dropout=0.1",
            "dora:rank=2",
            "ia3",
            "bitfit",
            "norms",
        ],
        "precision": ["float32", "bf16", "fp16"],
        "accumulate": [1, 2],
        "memory_limit": [None, "1GB"],
        "clip_norm": [None, 1.0],
        "optimizer": ["sgd", "adamw", "muon"],
        "threads": [1, 2],
    },
    lambda _row: True,
)


@pytest.mark.parametrize("row", PAIRS, ids=lambda row: "-".join(str(x)[:8] for x in row.values()))
def test_training_changes_the_adapter_alone(row):
    X, y = batch()
    row = dict(row)
    one = og.Trainer(
        GPT,
        og.losses.SoftmaxCrossEntropy(axis=-1),
        row.pop("optimizer"),
        lr=0.02,
        **{key: value for key, value in row.items() if value is not None},
    )
    trained = {weight.name for weight in one.session.trained_weights}
    one.fit(X, y, epochs=6, batch_size=8, verbose=0)
    losses = one.history["train_loss"]
    assert losses[-1] < losses[0]
    before = {tensor.name: tensor for tensor in onnx.load(GPT).graph.initializer}
    after = {tensor.name: tensor for tensor in one.trained_model().graph.initializer}
    assert trained <= after.keys()
    for name, tensor in before.items():
        if name not in trained:
            assert after[name].raw_data == tensor.raw_data, name
    assert_near(run(one.merge(), X), run(one.trained_model(), X), 1e-4)


def test_a_merged_file_is_the_given_one_but_for_its_weights(tmp_path):
    one = trainer()
    one.merge(tmp_path / "before.onnx")
    assert (tmp_path / "before.onnx").read_bytes() == GPT.read_bytes()
    X, y = batch()
    one.fit(X, y, epochs=2, batch_size=8, verbose=0)
    one.save(tmp_path / "adapted.onnx")
    one.merge(tmp_path / "merged.onnx")
    assert (tmp_path / "merged.onnx").stat().st_size == GPT.stat().st_size
    from_file = og.adapters.merge(tmp_path / "adapted.onnx")
    assert_near(run(from_file, X), run(onnx.load(tmp_path / "merged.onnx"), X))


def test_a_saved_model_is_trained_on(tmp_path):
    X, y = batch()
    one = trainer()
    one.fit(X, y, epochs=2, batch_size=8, verbose=0)
    one.save(tmp_path / "adapted.onnx")
    other = og.Trainer(
        tmp_path / "adapted.onnx", og.losses.SoftmaxCrossEntropy(axis=-1), "adam", lr=0.02
    )
    names = [weight.name for weight in other.session.trained_weights]
    assert names == [weight.name for weight in one.session.trained_weights]
    other.fit(X, y, epochs=2, batch_size=8, verbose=0)
    assert other.history["train_loss"][-1] < one.history["train_loss"][-1]


def test_adapters_are_switched_in_a_trainer(tmp_path):
    X, y = batch()
    one = trainer()
    one.save_adapter(tmp_path / "blank")
    compiled = None
    outputs = {}
    for name in ("first", "second"):
        one.load_adapter(tmp_path / "blank")
        one.fit(X, y if name == "first" else 28 - y, epochs=2, batch_size=8, verbose=0)
        one.save_adapter(tmp_path / name)
        outputs[name] = one.predict(X)
        compiled = compiled or one.session._core.num_compiled
    one.load_adapter(tmp_path / "first")
    np.testing.assert_array_equal(one.predict(X), outputs["first"])
    assert one.session._core.num_compiled == compiled
    session = og.InferenceSession(
        GPT, adapters={name: tmp_path / name for name in ("first", "second")}
    )
    for name in ("second", None, "first"):
        expected = outputs[name] if name else run(onnx.load(GPT), X)[0]
        np.testing.assert_allclose(session.run(None, X, adapter=name)[0], expected, atol=1e-5)
    with pytest.raises(og.OptionError, match="first"):
        session.run(None, X, adapter="fist")


def test_adapters_of_several_ranks_share_a_session(tmp_path):
    feeds = feeds_of(GPT)
    expected = {}
    for name, options in {"a": {"rank": 4, "alpha": 8}, "b": {"rank": 2, "alpha": 3}}.items():
        model = disturbed(og.adapters.add(GPT, "lora", **options))
        og.adapters.save(model, tmp_path / name)
        expected[name] = run(model, feeds)
    session = og.InferenceSession(GPT, adapters={name: tmp_path / name for name in expected})
    assert [one.name for one in session.get_inputs()] == ["tokens"]
    for name, outputs in expected.items():
        assert_near(session.run(None, feeds, adapter=name), outputs)


def test_onnxruntime_runs_an_onnx_adapter(tmp_path):
    feeds = feeds_of(GPT)
    model = disturbed(og.adapters.add(GPT, "lora", rank=4))
    og.adapters.save(model, tmp_path, kind="onnx_adapter")
    parameters = ort.AdapterFormat.read_adapter(str(tmp_path / "default.onnx_adapter"))
    assert len(parameters.get_parameters()) == 24
    adapter = ort.LoraAdapter()
    adapter.Load(str(tmp_path / "default.onnx_adapter"))
    options = ort.RunOptions()
    options.add_active_adapter(adapter)
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 3
    # A blank adapter of the same layers: the tensors come from the file.
    blank = og.adapters.as_inputs(og.adapters.add(GPT, "lora", rank=4))
    session = ort.InferenceSession(blank.SerializeToString(), quiet)
    assert_near(session.run(None, feeds), run(onnx.load(GPT), feeds))
    assert_near(session.run(None, feeds, options), run(model, feeds), 1e-6)


def test_several_adapters_add_up():
    feeds = feeds_of(GPT)
    model = disturbed(og.adapters.add(GPT, "lora", rank=2))
    both = og.adapters.add(model, "lora", rank=3, name="second", targets="mlp")
    rng = np.random.default_rng(3)
    tensors = {
        name: rng.normal(size=value.shape, scale=0.1).astype(np.float32)
        for name, value in og.adapters.state(both, "second").items()
    }
    both = og.adapters.set_state(both, tensors, "second")
    merged = og.adapters.merge(both)
    assert_near(run(merged, feeds), run(both, feeds))
    with pytest.raises(og.ModelError, match="several adapters"):
        og.adapters.state(both)
    with pytest.raises(og.ModelError, match="already"):
        og.adapters.add(model, "lora")
    with pytest.raises(og.ModelError, match="dora"):
        og.adapters.add(model, "dora", name="second")


def test_full_weights_are_trained_and_saved(tmp_path):
    X, y = batch()
    one = trainer(lora={"rank": 2, "full": "out.*"})
    names = {weight.name for weight in one.session.trained_weights}
    assert "out.bias" in names
    one.fit(X, y, epochs=2, batch_size=8, verbose=0)
    one.save_adapter(tmp_path)
    loaded = og.adapters.load(GPT, tmp_path)
    assert_near(run(loaded, X), run(one.trained_model(), X), 1e-6)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["out"]


def test_pickles_checkpoints_and_training_steps(tmp_path):
    X, y = batch()
    one = trainer()
    one.fit(X, y, epochs=1, batch_size=8, verbose=0)
    copy = pickle.loads(pickle.dumps(one))
    one.session.save(tmp_path / "state.safetensors")
    for each in (one, copy):
        each.fit(X, y, epochs=1, batch_size=8, verbose=0)
    np.testing.assert_array_equal(one.predict(X), copy.predict(X))
    other = trainer()
    other.session.load(tmp_path / "state.safetensors")
    other.fit(X, y, epochs=1, batch_size=8, verbose=0)
    loss = og.losses.SoftmaxCrossEntropy(axis=-1)
    step = og.training_step(GPT, loss, "adam", lora=2)
    states = [one.name for one in step.graph.output if one.name.startswith("next/layer")]
    assert states
    assert all("lora_" in name for name in states)


def test_external_data_stays_in_its_file(tmp_path):
    model = onnx.load(GPT)
    onnx.save(
        model,
        tmp_path / "large.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    adapted = og.adapters.add(tmp_path / "large.onnx", "lora")
    assert_near(run(adapted, feeds_of(GPT)), run(onnx.load(GPT), feeds_of(GPT)))
    og.adapters.add(tmp_path / "large.onnx", "lora", path=tmp_path / "adapted.onnx")
    written = onnx.load(tmp_path / "adapted.onnx", load_external_data=False)
    places = {
        entry.value
        for tensor in written.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert places == {"weights.bin"}
    assert (tmp_path / "adapted.onnx").stat().st_size < 60_000


TIED = """<ir_version: 10, opset_import: ["" : 21]> tied (int64[N, T] tokens) => (float[N, T, 7] y)
{
  [n1] x = Gather (net.head.weight, tokens)
  h = Tanh (x)
  w = Transpose (net.head.weight)
  [n2] y = MatMul (h, w)
}"""


def test_a_table_that_is_the_head_is_two_layers():
    """Its one name is that of the head; the nodes say which module is which."""
    model = onnx.parser.parse_model(TIED.replace("net.head.weight", "table"))
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.eye(7, 4, dtype=np.float32), "net.head.weight")
    )
    for node in model.graph.node:
        node.input[:] = ["net.head.weight" if name == "table" else name for name in node.input]
        node.name = {"n1": "/net/embed/Gather", "n2": "/net/head/MatMul"}.get(node.name, "")
    for target, *wanted in (("head", "net.head", "head"), ("embed", "net.embed", "embedding")):
        adapted = og.adapters.add(model, "lora", rank=2, targets=[target])
        (layer,) = og.adapters.of(adapted)[0].layers
        assert [layer.module, layer.role] == wanted


def test_bitfit_and_norms_choose_by_structure():
    biases = og.TrainingSession(GPT, adapter="bitfit").trained_weights
    assert {one.name for one in biases} >= {"layer.0.f1.bias", "layer.0.a.bias", "out.bias"}
    assert all(name.name.endswith("bias") for name in biases)
    norms = og.TrainingSession(GPT, adapter="norms").trained_weights
    assert {one.name.split(".")[-2] for one in norms} == {"a", "b", "norm"}


ERRORS = {
    "target": ({"targets": "q_prok"}, og.ModelError, "q_prok"),
    "nothing left": ({"targets": "query", "exclude": "query"}, og.ModelError, "no layer"),
    "rank": ({"rank": 0}, og.OptionError, "rank"),
    "dropout": ({"dropout": 1.0}, og.OptionError, "dropout"),
    "option": ({"rnk": 4}, og.OptionError, "rank"),
    "name": ({"name": "a/b"}, og.OptionError, "name"),
    "no text": ({"name": 3}, og.OptionError, "name: 3 is no text"),
    "full": ({"full": "nothing*"}, og.ModelError, "nothing"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    options, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        og.adapters.add(GPT, "lora", **options)


def test_errors_of_sessions():
    with pytest.raises(og.OptionError, match=r"adapters: .*folder.* is no dictionary"):
        og.InferenceSession(GPT, adapters=["folder"])
    with pytest.raises(og.OptionError, match="is no text"):
        og.adapters.state(GPT, name=3)
    with pytest.raises(og.OptionError, match="trainable= names no weight of the adapter"):
        og.TrainingSession(GPT, lora=2, trainable="out.bias")
    trained = og.TrainingSession(GPT, lora=2, trainable=["*lora*", "out.bias"]).trained_weights
    assert {"out.bias"} < {weight.name for weight in trained}


def test_the_first_matrix_that_waits_is_no_fault():
    """The gradient of A is zero until B, of zeros, has changed: after one step."""
    X, y = batch(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer().fit(X, y, epochs=1, batch_size=8, verbose=0)


def test_errors_of_files(tmp_path):
    with pytest.raises(og.CheckpointError, match=r"adapter_config\.json"):
        og.adapters.load(GPT, tmp_path)
    (tmp_path / "adapter_config.json").write_text("[]")
    with pytest.raises(og.CheckpointError, match="JSON object"):
        og.adapters.load(GPT, tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "PROMPT_TUNING"}')
    with pytest.raises(og.CheckpointError, match="PROMPT_TUNING"):
        og.adapters.load(GPT, tmp_path)
    og.adapters.save(og.adapters.add(GPT, "lora"), tmp_path)
    with pytest.raises(og.ModelError, match=r"layer\.0\."):
        og.adapters.load(VGG, tmp_path)
    with pytest.raises(og.ModelError, match="nothing was added"):
        og.adapters.save(og.adapters.add(GPT, "bitfit"), tmp_path)
    with pytest.raises(og.ModelError, match="no adapters"):
        og.adapters.merge(GPT)


def test_a_damaged_record_is_refused():
    model = og.adapters.add(GPT, "lora")
    for text in ("{", '{"version": 2}', '{"version": 1, "adapters": [{}]}'):
        model.metadata_props[0].value = text
        with pytest.raises(og.ModelError, match=r"onnxgrad\.adapters|record"):
            og.TrainingSession(model)


def test_quantized_weights_take_adapters_but_are_not_merged():
    path = MODELS / "quantized_mlp.onnx"
    feeds = feeds_of(path)
    model = disturbed(og.adapters.add(path, "lora", rank=2))
    assert_near(og.InferenceSession(model).run(None, feeds), run(model, feeds), 1e-4)
    session = og.TrainingSession(og.adapters.add(path, "lora", rank=2))
    assert all("lora_" in weight.name for weight in session.trained_weights)
    with pytest.raises(og.ModelError, match="quantized"):
        og.adapters.merge(model)


def test_the_command_line_refuses_to_merge_nothing_before_it_trains(tmp_path):
    X, y = batch(8)
    np.savez(tmp_path / "rows.npz", label=y, **X)
    command = ("train", GPT, "--data", tmp_path / "rows.npz", "--target", "label", "--epochs", 1)
    for option in (("--merge",), ("--save-adapter", tmp_path / "adapter")):
        done = run_module("onnxgrad.cli", *command, "-o", tmp_path / "out.onnx", *option)
        assert done.returncode == 2, done.stderr
        assert f"{option[0]} has no effect" in done.stderr
        assert "epoch" not in done.stderr
    done = run_module(
        "onnxgrad.cli",
        *command,
        *("--lora", 2, "-o", tmp_path / "out.onnx", "--merge"),
        *("--save-adapter", tmp_path / "adapter"),
    )
    assert done.returncode == 0, done.stderr
    assert f"wrote the adapter to {tmp_path / 'adapter'}" in done.stdout
    merged = og.adapters.merge(og.adapters.load(GPT, tmp_path / "adapter"))
    assert_near(run(merged, X), run(onnx.load(tmp_path / "out.onnx"), X), 1e-6)


def test_a_record_that_names_something_twice_is_refused():
    model = og.adapters.add(GPT, "lora")
    record = json.loads(model.metadata_props[0].value)
    adapter = record["adapters"][0]
    first = adapter["layers"][0]
    twice = {**adapter, "layers": [*adapter["layers"], first]}
    itself = {**first, "sites": [{**first["sites"][0], "plain": "y", "adapted": "y"}]}
    for damaged in (
        [twice],
        [adapter, adapter],
        [{**adapter, "layers": [itself]}],
        [{**adapter, "rank": -1}],
        [{**adapter, "scale": 7.0}],
    ):
        model.metadata_props[0].value = json.dumps({**record, "adapters": damaged})
        with pytest.raises(og.ModelError, match="record"):
            og.adapters.merge(model)
    other = {**first, "weight": adapter["layers"][4]["weight"]}
    model.metadata_props[0].value = json.dumps(
        {**record, "adapters": [{**adapter, "layers": [other]}]}
    )
    with pytest.raises(og.ModelError, match=r"merged|size"):
        og.adapters.merge(model)


def test_the_type_of_an_adapted_output_survives_merging():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 3] y)'
        "<float[4, 6] w, float[6, 3] w2> { h = MatMul(x, w) y = MatMul(h, w2) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 6)), ("w2", (6, 3))):
        value = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    adapted = og.adapters.add(model, rank=2, targets="linear")
    merged = og.adapters.merge(adapted)
    onnx.checker.check_model(merged, full_check=True)
    assert merged.graph.output[0] == model.graph.output[0]
    with pytest.raises(og.ModelError, match="has adapters"):
        og.features(adapted)
    # One weight, read as it is and transposed.
    both = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y)'
        "<float[4, 6] w> { h = MatMul(x, w) t = Tanh(h) y = Gemm<transB = 1>(t, w) }"
    )
    both.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(og.ModelError, match="two ways"):
        og.adapters.add(both, targets="linear")


@pytest.mark.parametrize("change", [{"lora": 2}, {"quantize": "int8"}])
def test_estimators_with_a_changed_model_are_pickled(change, linear_proto, linear_data):
    from onnxgrad.sklearn import OnnxRegressor

    X, y = linear_data
    fitted = OnnxRegressor(linear_proto, max_iter=2, **change).fit(X, y)
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict(X), fitted.predict(X))
