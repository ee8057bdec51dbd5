"""Packed weights: products, adapters on them (QLoRA), files, against numpy and stock onnxruntime.

References unpack the integers with numpy in float64; matrices are large enough to stay packed.
"""

import itertools
import os
import pickle
import subprocess
import sys

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from onnx import TensorProto

import onnxgrad as og
from forking import run_module
from onnx_tool import run_ort as run  # optimized, it would round the inputs of int8 products
from pairwise import pairwise

F = np.float32
SIZES = (200, 256, 192, 6)
NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ]
)  # fmt: skip
FORMATS = {
    "int4": {"kind": "int4"},
    "int8": {"kind": "int8", "block_size": 64},
    "int4_zeros": {"kind": "int4", "symmetric": False},
    "int8_zeros": {"kind": "int8", "symmetric": False},
    "int4_dq": {"kind": "int4", "operators": "DequantizeLinear"},
    "int8_dq": {"kind": "int8", "operators": "DequantizeLinear", "block_size": 16},
    "int4_dq_zeros": {"kind": "int4", "operators": "DequantizeLinear", "symmetric": False},
    "nf4": {"kind": "nf4", "block_size": 64},
}


ON_CARD = os.environ.get("ONNXGRAD_DEVICE") == "cuda"


def check_plan(session, counts=range(1, 99)):
    """Check the number of kernels that read packed weights; a card unpacks them before."""
    lines = session.plan_summary().splitlines()
    if ON_CARD:
        assert not any("on the CPU" in line for line in lines)
    else:
        assert sum("quantized" in line for line in lines) in counts


def network(rows=None, opset=21):
    """MatMul with a bias, Gemm of a transposed weight, Gemm, and a head of few classes."""
    rng = np.random.default_rng(0)
    weights = {}
    for i, (k, n) in enumerate(itertools.pairwise(SIZES)):
        shape = (n, k) if i == 1 else (k, n)
        weights[f"layer{i}.weight"] = rng.normal(0, k**-0.5, shape).astype(F)
        weights[f"layer{i}.bias"] = rng.normal(0, 0.1, n).astype(F)
    nodes = [
        oh.make_node("MatMul", ["x", "layer0.weight"], ["p0"], name="first"),
        oh.make_node("Add", ["p0", "layer0.bias"], ["h0"]),
        oh.make_node("Tanh", ["h0"], ["a0"]),
        oh.make_node("Gemm", ["a0", "layer1.weight", "layer1.bias"], ["h1"], transB=1),
        oh.make_node("Relu", ["h1"], ["a1"]),
        oh.make_node("Gemm", ["a1", "layer2.weight", "layer2.bias"], ["y"]),
    ]
    graph = oh.make_graph(
        nodes,
        "network",
        [oh.make_tensor_value_info("x", TensorProto.FLOAT, [rows or "N", SIZES[0]])],
        [oh.make_tensor_value_info("y", TensorProto.FLOAT, [rows or "N", SIZES[-1]])],
        [onh.from_array(array, name) for name, array in weights.items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=10)


def batch(rows=24):
    rng = np.random.default_rng(1)
    return rng.normal(size=(rows, SIZES[0])).astype(F), rng.integers(0, SIZES[-1], rows)


def tensors_of(model):
    return {one.name: one for one in model.graph.initializer}


def nibbles(bytes_):
    return np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(*bytes_.shape[:-1], -1)


def unpacked(model, index):
    """The matrix [inputs, outputs] of a layer in float64, by numpy."""
    arrays = tensors_of(model)
    name, k = f"layer{index}.weight", SIZES[index]
    n = SIZES[index + 1]
    scales = onh.to_array(arrays[next(x for x in arrays if x.startswith(name + "_scales"))])
    codes = arrays[next(x for x in arrays if x.startswith((name + "_Q", name + "_NF4")))]
    zeros = next((x for x in arrays if x.startswith(name + "_zero_points")), None)
    if name + "_NF4" in arrays:
        blocks = NF4[nibbles(onh.to_array(codes))].reshape(n, scales.shape[1], -1)
        return (blocks * scales.astype(np.float64)).reshape(n, -1)[:, :k].T
    if codes.data_type == TensorProto.UINT8 and onh.to_array(codes).ndim == 3:  # MatMulNBits
        has_8 = name + "_Q8" in arrays
        raw = onh.to_array(codes)
        numbers = (raw if has_8 else nibbles(raw)).astype(np.float64)
        middle = np.full(scales.shape, 128 if has_8 else 8)
        if zeros is not None:
            raw = onh.to_array(arrays[zeros]).reshape(n, -1)
            middle = (raw if has_8 else nibbles(raw))[:, : scales.shape[1]]
        blocks = (numbers - middle[..., None]) * scales.astype(np.float64)[..., None]
        return blocks.reshape(n, -1)[:, :k].T
    numbers = onh.to_array(codes).astype(np.float64)
    axis = 1 if numbers.shape == (n, k) else 0
    block = -(-numbers.shape[axis] // scales.shape[axis])
    block = 1 << (block - 1).bit_length()
    spread = scales.astype(np.float64).repeat(block, axis)
    middle = 0.0
    if zeros is not None:
        middle = onh.to_array(arrays[zeros]).astype(np.float64).repeat(block, axis)
        middle = middle.take(range(numbers.shape[axis]), axis)
    matrix = (numbers - middle) * spread.take(range(numbers.shape[axis]), axis)
    return matrix.T if axis == 1 else matrix


def forward(model, x, changes=(None, None)):
    """Scores in float64, with changes of the first two matrices, and what the layers read."""
    arrays = tensors_of(model)
    value, read = x.astype(np.float64), []
    for i in range(3):
        if i < 2:
            matrix = unpacked(model, i)
            if changes[i] is not None:
                matrix = matrix + changes[i]
        else:
            matrix = onh.to_array(arrays["layer2.weight"]).astype(np.float64)
        read.append((value, matrix))
        value = value @ matrix + onh.to_array(arrays[f"layer{i}.bias"]).astype(np.float64)
        if i == 0:
            value = np.tanh(value)
        elif i == 1:
            value = np.maximum(value, 0)
    return value, read


@pytest.mark.parametrize("name", FORMATS)
def test_products_are_those_of_unpacked_weights(name):
    x, _ = batch()
    model = og.quantize_weights(network(), **FORMATS[name])
    onnx.checker.check_model(model)
    expected, _ = forward(model, x)
    np.testing.assert_allclose(run(model, {"x": x})[0], expected, atol=1e-4)
    for rows in (1, 7, 24):
        session = og.InferenceSession(model)
        (scores,) = session.run(None, {"x": x[:rows]})
        np.testing.assert_allclose(scores, expected[:rows], atol=3e-5)
        check_plan(session, {2})
    # The head is not quantized, and the error is that of a few bits.
    (plain,) = run(network(), {"x": x})
    error = np.abs(expected - plain).max()
    assert 0 < error < (0.05 if "int8" in name else 0.5)
    back = og.dequantize_weights(model)
    np.testing.assert_allclose(run(back, {"x": x})[0], expected, atol=2e-5)
    assert {node.op_type for node in back.graph.node} == {"MatMul", "Add", "Tanh", "Gemm", "Relu"}


@pytest.mark.parametrize("name", FORMATS)
def test_gradients_of_adapters_are_numpys(name):
    """dA and dB of both layers, which the gradient reaches through the packed weights."""
    x, _ = batch()
    rng = np.random.default_rng(2)
    packed = og.quantize_weights(network(), **FORMATS[name])
    model = og.adapters.add(packed, "lora", rank=3, alpha=6)
    state = {
        key: rng.normal(0, 0.05, value.shape).astype(F)
        for key, value in og.adapters.state(model).items()
    }
    model = og.adapters.set_state(model, state)
    layers = og.adapters.of(model)[0].layers
    assert [layer.module for layer in layers] == ["layer0", "layer1"]
    low = [
        [state[f"base_model.model.layer{i}.lora_{x}.weight"].astype(np.float64).T for x in "AB"]
        for i in range(2)
    ]
    changes = [2 * a @ b for a, b in low]
    expected, read = forward(packed, x, changes)
    change = rng.normal(size=expected.shape)
    passes = og.ForwardBackward(model)
    outputs = passes.forward({"x": x})
    np.testing.assert_allclose(outputs[0], expected, atol=5e-5)
    gradients = passes.backward([change.astype(F)], outputs.context).weights
    assert len(gradients) == 4
    cotangent = change @ read[2][1].T * (read[2][0] > 0)
    for i in (1, 0):
        value, matrix = read[i]
        a, b = low[i]
        by_a, by_b = (gradients[tensor] for tensor in layers[i].tensors)
        np.testing.assert_allclose(by_a, 2 * value.T @ (cotangent @ b.T), atol=2e-4)
        np.testing.assert_allclose(by_b, 2 * (value @ a).T @ cotangent, atol=2e-4)
        if i == 1:
            cotangent = cotangent @ matrix.T * (1 - read[1][0] ** 2)


ROWS = pairwise(
    {
        "adapter": ["lora:rank=4,dropout=0.1", "dora:rank=2", "ia3", "bitfit"],
        "base": ["int4", "int8:block_size=64", "nf4", "int4:operators=DequantizeLinear"],
        "precision": ["float32", "bf16", "fp16"],
        "accumulate": [1, 2],
        "threads": [1, 2],
        "entry": ["trainer", "resumed", "pickled", "saved"],
    },
    lambda _row: True,
)


def trainer(model, row, **options):
    return og.Trainer(
        model,
        "cross_entropy",
        "adamw",
        lr=0.01,
        seed=3,
        precision=row["precision"],
        accumulate=row["accumulate"],
        threads=row["threads"],
        **options,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(x)[:6] for x in row.values()))
def test_training_is_that_on_unpacked_weights(row, tmp_path):
    x, y = batch()
    adapter = {"ia3": og.adapters.IA3(["layer0", "layer1"])}.get(row["adapter"], row["adapter"])
    one = trainer(network(), row, base=row["base"], adapter=adapter)
    name, _, text = row["base"].partition(":")
    options = dict(part.split("=") for part in text.split(",") if part)
    options = {key: int(value) if value.isdigit() else value for key, value in options.items()}
    packed = og.quantize_weights(network(), name, **options)
    other = trainer(og.dequantize_weights(packed), row, adapter=adapter)
    fit = {"batch_size": 8, "verbose": 0, "shuffle": False}
    for each in (one, other):
        each.fit(x, y, epochs=2, **fit)
    if row["entry"] == "resumed":
        one.session.save(tmp_path / "state.safetensors")
        one = trainer(network(), row, base=row["base"], adapter=adapter)
        one.session.load(tmp_path / "state.safetensors")
    elif row["entry"] == "pickled":
        one = pickle.loads(pickle.dumps(one))
    elif row["entry"] == "saved":
        pair = []
        for i, each in enumerate((one, other)):
            each.save(tmp_path / f"{i}.onnx")
            pair.append(trainer(tmp_path / f"{i}.onnx", row))
        one, other = pair
    one.fit(x, y, epochs=1, **fit)
    other.fit(x, y, epochs=1, **fit)
    got, wanted = one.predict(x), other.predict(x)
    # AdamW moves a weight whose gradient is near zero by its rounding.
    tolerance = 1e-3 if row["precision"] == "float32" else 0.1
    np.testing.assert_allclose(got, wanted, atol=tolerance)
    check_plan(one.session, range(3, 99))  # forwards twice, backwards at least once
    np.testing.assert_allclose(run(one.trained_model(), {"x": x})[0], got, atol=1e-3)


SCRIPT = """
import sys
import numpy as np
import onnxgrad as og
rows = np.load(sys.argv[1] + "/rows.npz")
trainer = og.Trainer(sys.argv[1] + "/model.onnx", "cross_entropy", "adam", lr=0.01, seed=3,
                     threads=1, lora=4, base="nf4", accumulate=2, dist="auto")
trainer.fit(rows["x"], rows["y"], epochs=3, batch_size=8, verbose=0)
workers = trainer.session._data_parallel
rank = workers.workers.rank if workers else "alone"
np.save(f"{sys.argv[1]}/{rank}.npy", trainer.predict(rows["x"]))
"""


def test_workers_train_a_packed_model_as_one_does(tmp_path):
    x, y = batch()
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    (tmp_path / "model.onnx").write_bytes(network().SerializeToString())
    (tmp_path / "script.py").write_text(SCRIPT)
    for launch in ((), ("-m", "onnxgrad", "launch", "-n", "2", "--transport", "tcp")):
        command = [sys.executable, *launch, tmp_path / "script.py", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    alone, first, second = (np.load(tmp_path / f"{rank}.npy") for rank in ("alone", 0, 1))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, alone, atol=2e-4)


@pytest.mark.parametrize("base", ["int4", "nf4", "int4:operators=DequantizeLinear"])
def test_stock_onnxruntime_runs_a_written_step(base):
    x, y = batch(8)
    given = {"lora": 2, "base": base}
    step = og.training_step(network(), "cross_entropy", "sgd", **given)
    feeds = {"x": x, "label": y, "learning_rate": np.array(0.5, F)}
    states = [one for one in tensors_of(step).values() if "lora_" in one.name]
    feeds |= {one.name: onh.to_array(one) for one in states}
    session = og.TrainingSession(network(), "cross_entropy", "sgd", seed=0, **given)
    session.lr = 0.5
    names = [one.name for one in step.graph.output]
    for _ in range(3):
        results = dict(zip(names, run(step, feeds), strict=True))
        loss = session.step({"x": x, session.target_name: y})
        np.testing.assert_allclose(results["loss"], loss, rtol=1e-5)
        feeds |= {one.name: results[f"next/{one.name}"] for one in states}
    trained = tensors_of(session.trained_model())
    for one in states:
        np.testing.assert_allclose(feeds[one.name], onh.to_array(trained[one.name]), atol=1e-5)


@pytest.mark.parametrize(("axis", "block"), [(None, 0), (0, 0), (1, 0), (0, 32), (1, 50)])
@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT4])
def test_constants_of_dequantize_linear_stay_packed(axis, block, kind):
    """One scale, one for each row or column, or in blocks along either; forwards and backwards."""
    rng = np.random.default_rng(8)
    k, n = 200, 192
    x = rng.normal(size=(5, k)).astype(F)
    low, high = (-128, 128) if kind == TensorProto.INT8 else (0, 16)
    codes = rng.integers(low, high, (k, n))
    shape = () if axis is None else (codes.shape[axis],)
    if block:
        shape = tuple(-(-size // block) if i == axis else size for i, size in enumerate((k, n)))
    scales = rng.uniform(0.001, 0.002, shape).astype(F)
    zeros = rng.integers(0, 8, shape)

    def spread(array):
        if axis is None:
            return array
        if not block:
            return array[:, None] if axis == 0 else array[None]
        return array.repeat(block, axis).take(range(codes.shape[axis]), axis)

    matrix = (codes - spread(zeros)) * spread(scales.astype(np.float64))
    attributes = {} if axis is None else {"axis": axis}
    if block:
        attributes["block_size"] = block
    nodes = [
        oh.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], **attributes),
        oh.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    tensors = [
        oh.make_tensor("q", kind, codes.shape, codes.ravel()),
        onh.from_array(scales, "s"),
        oh.make_tensor("z", kind, shape, zeros.ravel()),
    ]
    graph = oh.make_graph(
        nodes,
        "packed",
        [oh.make_tensor_value_info("x", TensorProto.FLOAT, ["N", k])],
        [oh.make_tensor_value_info("y", TensorProto.FLOAT, ["N", n])],
        tensors,
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    session = og.InferenceSession(model)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ matrix, atol=1e-4)
    check_plan(session)
    gradient = og.InferenceSession(og.gradient(model, ["x"], ["y"]))
    seed = rng.normal(size=(5, n)).astype(F)
    (found,) = gradient.run(["x_grad"], {"x": x, "y_grad": seed})
    np.testing.assert_allclose(found, seed @ matrix.T, atol=1e-4)
    check_plan(gradient)


@pytest.mark.skipif(ON_CARD, reason="a card unpacks weights before products")
def test_a_session_holds_no_float_matrix():
    x, y = batch(8)
    sizes = {}
    for base in (None, "int4"):
        session = og.TrainingSession(network(), "cross_entropy", "adamw", lora=2, base=base)
        session.step({"x": x, session.target_name: y})
        memory = session.memory()
        sizes[base] = memory.total - memory.scratch  # which depends on the processor
    weights = 4 * (SIZES[0] * SIZES[1] + SIZES[1] * SIZES[2])
    assert sizes["int4"] < sizes[None] - weights // 2
    assert sizes["int4"] < weights  # with the file, the adapter, its optimizer and all values


def test_dora_has_the_norms_of_the_packed_weights():
    x, _ = batch()
    for name in ("int4_zeros", "nf4"):
        packed = og.quantize_weights(network(), **FORMATS[name])
        model = og.adapters.add(packed, "dora", rank=2, alpha=3)
        rng = np.random.default_rng(5)
        state = {
            key: (value + rng.normal(0, 0.05, value.shape)).astype(F)
            for key, value in og.adapters.state(model).items()
        }
        model = og.adapters.set_state(model, state)
        changes = []
        for i in range(2):
            a, b, m = (
                state[f"base_model.model.layer{i}.lora_{part}"].astype(np.float64)
                for part in ("A.weight", "B.weight", "magnitude_vector")
            )
            matrix = unpacked(packed, i)
            moved = matrix + 1.5 * a.T @ b.T
            changes.append(m * moved / np.linalg.norm(moved, axis=0) - matrix)
        expected, _ = forward(packed, x, changes)
        np.testing.assert_allclose(
            og.InferenceSession(model).run(None, {"x": x})[0], expected, atol=1e-4
        )
        np.testing.assert_allclose(run(model, {"x": x})[0], expected, atol=2e-4)


def test_merging_dequantizes_if_it_is_told_to(tmp_path):
    x, y = batch()
    one = og.Trainer(network(), "cross_entropy", "adam", lr=0.01, lora=4, base="int4")
    one.fit(x, y, epochs=2, verbose=0)
    with pytest.raises(og.ModelError, match=r"quantized(.|\n)*dequantize=True"):
        one.merge()
    merged = one.merge(tmp_path / "merged.onnx", dequantize=True)
    assert not og.adapters.of(merged)
    trained = one.trained_model()
    np.testing.assert_allclose(run(merged, {"x": x})[0], run(trained, {"x": x})[0], atol=1e-4)
    again = og.adapters.merge(trained, dequantize=True)
    np.testing.assert_allclose(run(again, {"x": x})[0], run(merged, {"x": x})[0], atol=1e-6)
    # The adapter is PEFT's for the float network, too.
    one.save_adapter(tmp_path)
    loaded = og.adapters.load(network(), tmp_path)
    assert [layer.module for layer in og.adapters.of(loaded)[0].layers] == ["layer0", "layer1"]


def test_blocks_of_columns_in_any_order():
    """g_idx, float zero points, 2 bits: MatMulNBits that other quantizers write."""
    rng = np.random.default_rng(6)
    k, n, block = 192, 200, 32
    blocks = k // block
    x = rng.normal(size=(5, k)).astype(F)
    scales = rng.uniform(0.01, 0.02, (n, blocks)).astype(F)
    for bits, has_order, zeros in ((4, True, None), (4, False, F), (2, True, np.uint8)):
        codes = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
        shifts = np.arange(0, 8, bits)
        numbers = (codes[..., None] >> shifts & (1 << bits) - 1).reshape(n, k).astype(float)
        group = rng.permutation(np.arange(k) // block) if has_order else np.arange(k) // block
        middle = np.full((n, blocks), 1 << (bits - 1), float)
        arrays = {"B": codes, "s": scales}
        inputs = ["x", "B", "s", "", ""]
        if zeros is F:
            middle = rng.uniform(0, 15, (n, blocks))
            arrays["z"], inputs[3] = middle.astype(F), "z"
        elif zeros is not None:
            raw = rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
            middle = (raw[..., None] >> shifts & 3).reshape(n, -1)[:, :blocks]
            arrays["z"], inputs[3] = raw, "z"
        if has_order:
            arrays["g"], inputs[4] = group.astype(np.int32), "g"
        node = oh.make_node(
            "MatMulNBits", inputs, ["y"], domain="com.microsoft",
            K=k, N=n, bits=bits, block_size=block,
        )  # fmt: skip
        graph = oh.make_graph(
            [node],
            "few_bits",
            [oh.make_tensor_value_info("x", TensorProto.FLOAT, ["N", k])],
            [oh.make_tensor_value_info("y", TensorProto.FLOAT, ["N", n])],
            [onh.from_array(array, name) for name, array in arrays.items()],
        )
        domains = [oh.make_opsetid("", 18), oh.make_opsetid("com.microsoft", 1)]
        model = oh.make_model(graph, opset_imports=domains, ir_version=9)
        matrix = ((numbers - middle[:, group]) * scales[:, group]).T
        session = og.InferenceSession(model)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ matrix, atol=1e-4)
        check_plan(session)
        adapted = og.adapters.add(model, "lora", rank=2)
        assert og.adapters.of(adapted)[0].layers[0].weight == "B"
        back = og.dequantize_weights(model)
        np.testing.assert_allclose(run(back, {"x": x})[0], x @ matrix, atol=1e-4)


def test_the_command_line_trains_on_a_packed_base(tmp_path):
    x, y = batch()
    model = tmp_path / "model.onnx"
    model.write_bytes(network().SerializeToString())
    np.savez(tmp_path / "rows.npz", x=x, label=y)

    def call(*command):
        done = run_module("onnxgrad", *command)
        assert done.returncode == 0, done.stderr

    options = ("--data", tmp_path / "rows.npz", "--target", "label", "--epochs", 1)
    call(
        "train", model, *options, "--lora", 2, "--base", "nf4:block_size=64",
        "-o", tmp_path / "trained.onnx", "--save-adapter", tmp_path / "adapter",
    )  # fmt: skip
    names = {one.name for one in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    assert {"layer0.weight_NF4", "layer0.lora_A.default.weight", "layer2.weight"} <= names
    packed = tmp_path / "packed.onnx"
    call("convert", model, "--quantize-weights", "int4:block_size=16", "-o", packed)
    assert packed.stat().st_size < 0.35 * model.stat().st_size
    merged = tmp_path / "merged.onnx"
    adapter = ("--load-adapter", tmp_path / "adapter", "--merge")
    call("convert", packed, *adapter, "--dequantize-weights", "-o", merged)
    assert {node.op_type for node in onnx.load(merged).graph.node} >= {"MatMul", "Tanh"}


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_packed_head_is_replaced(kind):
    x, y = batch()
    packed = og.quantize_weights(network(), kind, targets=["linear", "head"], block_size=16)
    model = og.replace_head(packed, 4)
    onnx.checker.check_model(model)
    assert run(model, {"x": x})[0].shape == (24, 4)
    one = og.Trainer(network(), "cross_entropy", lora=2, base=kind, new_head=9)
    assert {"layer2.weight", "layer2.bias"} <= {one.name for one in one.session.trained_weights}
    one.fit(x, y, epochs=1, verbose=0)
    assert one.predict(x).shape == (24, 9)


@pytest.mark.parametrize("kind", ["int4", "nf4"])
def test_quantizing_leaves_packed_weights_alone(kind):
    """`quantize` takes the layers that are float; without any it says what to do."""
    x, y = batch()
    packed = og.quantize_weights(network(), kind, block_size=64)
    trainer = og.Trainer(packed, "cross_entropy", "adam", lr=0.01, quantize="int8")
    trainer.fit(x, y, epochs=3, verbose=0)
    trained = trainer.trained_model()
    before, after = tensors_of(packed), tensors_of(trained)
    assert after["layer2.weight"].data_type == TensorProto.INT8
    codes = [name for name in before if "_Q4" in name or "_NF4" in name]
    assert len(codes) >= 2
    assert all(before[name] == after[name] for name in codes)
    np.testing.assert_allclose(run(trained, {"x": x})[0], trainer.predict(x), atol=2e-3)
    if kind == "int4":
        whole = og.quantize_weights(network(), kind, targets=["linear", "head"], block_size=16)
        with pytest.raises(og.ModelError, match=r"MatMulNBits(.|\n)*lora="):
            og.Trainer(whole, "cross_entropy", quantize="int8").fit(x, y, epochs=1, verbose=0)


def test_models_are_written_quantized_or_not_at_all(tmp_path):
    """Before the first fit: an error that says how, unless nothing has to be measured."""
    x, y = batch()
    waiting = og.Trainer(network(), quantize="int8")
    for write in (
        lambda: waiting.save(tmp_path / "model.onnx"),
        waiting.trained_model,
        lambda: waiting.session.trained_model(),
    ):
        with pytest.raises(og.OptionError, match=r"quantize=(.|\n)*calibration="):
            write()
    assert not (tmp_path / "model.onnx").exists()
    waiting.fit(x, y, epochs=1, verbose=0)
    ready = og.Trainer(network(), quantize="int8", calibration=x)
    weights = og.Trainer(network(), quantize={"weights": "int4", "activations": False})
    for trainer in (waiting, ready, weights):
        trainer.save(tmp_path / "model.onnx")
        saved = onnx.load(tmp_path / "model.onnx")
        assert "DequantizeLinear" in {node.op_type for node in saved.graph.node}
        np.testing.assert_allclose(run(saved, {"x": x})[0], trainer.predict(x), atol=2e-3)


@pytest.mark.parametrize("name", [name for name in FORMATS if "dq" not in name])
def test_constants_of_packed_weights_are_frozen(name):
    packed = og.quantize_weights(network(), **FORMATS[name])
    trained = [one.name for one in og.TrainingSession(packed, "cross_entropy").trained_weights]
    assert sorted(trained) == ["layer0.bias", "layer1.bias", "layer2.bias", "layer2.weight"]
    with pytest.raises(og.ModelError, match=r"quantized already(.|\n)*base="):
        og.Trainer(packed, "cross_entropy", lora=2, base="int4")


def test_errors_name_the_option():
    plain = network()
    for options, text in (
        ({"kind": "int3"}, "int4"),
        ({"block_size": 24}, "power of two"),
        ({"kind": "nf4", "symmetric": False}, "zero points"),
        ({"operators": "MatMul"}, "MatMulNBits"),
        ({"targets": "layer9"}, "layer9"),
    ):
        with pytest.raises((og.OptionError, og.ModelError), match=text):
            og.quantize_weights(plain, **options)
    with pytest.raises(og.ModelError, match="opset 21"):
        og.quantize_weights(network(opset=18), operators="DequantizeLinear")
    with pytest.raises(og.ModelError, match="Quantize the model first"):
        og.quantize_weights(og.adapters.add(plain, "lora"))
    with pytest.raises(og.ModelError, match="packed weights"):
        og.dequantize_weights(plain)
    with pytest.raises(og.OptionError, match="lora=8"):
        og.Trainer(plain, "cross_entropy", base="int4")
