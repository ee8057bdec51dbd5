"""Adapters on small graphs: dropouts, columns of zeros, single scores, tied tables."""

import json

import numpy as np
import onnx
import onnx.parser
import pytest

import command_line
import onnxgrad as og
from adapted_models import GPT, assert_near, disturbed, run


def parsed(text, **arrays):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


LAYER = "g (float[N, 4] x) => (float[N, 3] y) { y = Gemm(x, w, b) }"


def test_dora_drops_what_the_magnitude_changes():
    """As in PEFT: x W + b + (s - 1) d(x) W + s d(x) A B, with s = m / |W + A B|."""
    w, b, x, mask = normal(4, 3), normal(3, seed=1), normal(5, 4, seed=2), normal(5, 4, seed=3)
    model = disturbed(
        og.adapters.add(parsed(LAYER, w=w, b=b), "dora", rank=2, dropout=0.5, targets="linear")
    )
    (node,) = (node for node in model.graph.node if node.op_type == "Dropout")
    node.op_type, node.input[1] = "Mul", "mask"
    model.graph.initializer.append(onnx.numpy_helper.from_array(mask, "mask"))
    held = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    first, second, magnitude = (held[name] for name in og.adapters.of(model)[0].layers[0].tensors)
    scale = magnitude / np.linalg.norm(w + first @ second, axis=0)
    dropped = x * mask
    wanted = x @ w + b + (scale - 1) * (dropped @ w) + scale * (dropped @ first @ second)
    assert_near(run(model, {"x": x}), [wanted])


def test_dora_on_columns_of_zeros():
    w = normal(4, 3)
    w[:, 1] = 0
    x = normal(8, 4, seed=2)
    adapted = og.adapters.add(parsed(LAYER, w=w, b=normal(3, seed=1)), "dora", targets="linear")
    session = og.TrainingSession(adapted, "squared_error")
    for _ in range(3):
        session.step({"x": x, "label": normal(8, 3, seed=4)})
    trained = session.trained_model()
    (outputs,) = run(trained, {"x": x})
    assert np.isfinite(outputs).all()
    assert_near(run(og.adapters.merge(trained), {"x": x}), [outputs])


def test_files_of_factors_on_one_score(tmp_path):
    """The form [1, 1] says nothing of which side is scaled; the configuration does."""
    text = "g (float[N, 4] x) => (float[N, 1] y) { h = MatMul(x, v) t = Tanh(h) y = MatMul(t, w) }"
    model = parsed(text, v=normal(4, 3), w=normal(3, 1, seed=1))
    changed = disturbed(og.adapters.add(model, "ia3", targets=["v", "w"]))
    og.adapters.save(changed, tmp_path)
    feeds = {"x": normal(5, 4)}
    assert_near(run(og.adapters.load(model, tmp_path), feeds), run(changed, feeds), 1e-6)
    table = og.adapters.add(GPT, "ia3", targets="embedding")
    with pytest.raises(og.ModelError, match="PEFT has no file for factors on the table"):
        og.adapters.save(table, tmp_path)


def test_an_adapter_with_another_head(tmp_path):
    """A head that was trained beside it needs a model that has one of its width."""
    model = parsed("g (float[N, 4] x) => (float[N, 3] y) { h = MatMul(x, w) y = MatMul(h, v) }",
                   w=normal(4, 6), v=normal(6, 3, seed=1))  # fmt: skip
    onnx.save(model, tmp_path / "model.onnx")
    x = normal(12, 4, seed=2)
    trainer = og.Trainer(model, "cross_entropy", new_head=5, lora={"rank": 1, "targets": "w"})
    trainer.fit(x, np.arange(12) % 5, epochs=2, verbose=0)
    trainer.save_adapter(tmp_path / "adapter")
    trainer.merge(tmp_path / "merged.onnx")
    message = r"v: \[6, 5\] was given, the model has \[6, 3\](.|\n)*--new-head"
    with pytest.raises(og.ModelError, match=message):
        og.adapters.load(model, tmp_path / "adapter")
    files = ("--load-adapter", tmp_path / "adapter", "-o", tmp_path / "again.onnx")
    _, error = command_line.run("convert", tmp_path / "model.onnx", *files, "--merge", status=3)
    assert "load_state_dict" not in error
    command_line.run("convert", tmp_path / "model.onnx", *files, "--merge", "--new-head", 5)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "merged.onnx").read_bytes()


def test_a_tied_table_in_the_files(tmp_path):
    table = normal(11, 6)
    text = """g (int64[N, T] x) => (float[N, T, 11] y) {
      e = Gather(table, x) h = MatMul(e, w) t = Tanh(h) u = Transpose(table) y = MatMul(t, u)
    }"""
    model = parsed(text, table=table, w=normal(6, 6))
    feeds = {"x": np.arange(10).reshape(2, 5)}
    adapted = og.adapters.add(model, targets="w", full="table", rank=1)
    changed = og.set_weights(adapted, {"table": table + 1})
    og.adapters.save(changed, tmp_path)
    assert_near(run(og.adapters.load(model, tmp_path), feeds), run(changed, feeds), 1e-6)
    file = tmp_path / "adapter_config.json"
    config = json.loads(file.read_text())
    assert config.pop("ensure_weight_tying")
    file.write_text(json.dumps(config))
    with pytest.raises(og.ModelError, match="'table' of the adapter is a copy"):
        og.adapters.load(model, tmp_path)


@pytest.mark.parametrize("full", ["table", "head"])
def test_a_folded_copy_of_the_table_is_trained_beside_an_adapter(full, tmp_path):
    """As the file that transposes the table itself is, by either name."""
    table, w = normal(11, 6), normal(6, 6, seed=1)
    text = """g (int64[N, T] x) => (float[N, T, 11] y) {
      e = Gather(table, x) h = MatMul(e, w) t = Tanh(h) %s
    }"""
    written = parsed(text % "u = Transpose(table) y = MatMul(t, u)", table=table, w=w)
    folded = parsed(text % "y = MatMul(t, head)", table=table, w=w, head=table.T.copy())
    x = np.random.default_rng(0).integers(0, 11, (12, 5))
    trained = []
    for model, name in ((written, "table"), (folded, full)):
        lora = {"targets": "w", "rank": 2, "full": name}
        trainer = og.Trainer(model, "causal_lm", "adam", lr=0.05, seed=1, lora=lora)
        trainer.fit(x, epochs=3, verbose=0)
        trained.append({name: value.copy() for name, value in trainer.session.weights.items()})
    assert_near([trained[1]["table"]], [trained[0]["table"]], 1e-5)
    assert np.abs(trained[1]["table"] - table).max() > 0.1
    changed = trainer.trained_model()
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in changed.graph.initializer}
    np.testing.assert_array_equal(arrays["head"], arrays["table"].T)
    trainer.save_adapter(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["ensure_weight_tying"]
    assert_near(run(og.adapters.load(folded, tmp_path), {"x": x}), run(changed, {"x": x}), 1e-6)


def test_weights_that_are_inputs_take_adapters():
    model = parsed(LAYER, w=normal(4, 3), b=normal(3))
    model.ir_version = 3
    model.opset_import[0].version = 8
    for tensor in model.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(info)
    feeds = {"x": normal(5, 4)}
    adapted = disturbed(og.adapters.add(model, targets="linear", rank=1))
    outputs = run(adapted, feeds)
    assert np.abs(outputs[0] - run(model, feeds)[0]).max() > 1e-3
    assert_near(run(og.adapters.merge(adapted), feeds), outputs)
