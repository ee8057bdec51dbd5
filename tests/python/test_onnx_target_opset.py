"""Models written for older opsets compute the same in stock onnxruntime, old and new."""

import os
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import onnxgrad as og
from node_suite import all_cases
from onnx_tool import MODELS, ROOT, assert_same, convert, npz_feeds, run_ort, run_tool
from stock_products import saturates

NAMES = sorted(path.stem for path in MODELS.glob("*.onnx"))


def feeds_of(name: str) -> dict[str, np.ndarray]:
    is_loss = name.endswith("_loss")
    return npz_feeds(name.removesuffix("_loss"), with_label=is_loss)


@pytest.mark.parametrize("opset", [15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26])
def test_exported_models_in_every_opset(opset: int, tmp_path: Path) -> None:
    jobs = [
        (f"target:{opset}", MODELS / f"{name}.onnx", tmp_path / f"{name}.onnx") for name in NAMES
    ]
    results = dict(zip(NAMES, run_tool(jobs), strict=True))
    for name, result in results.items():
        assert result == "ok", f"{name}: {result}"
        target = tmp_path / f"{name}.onnx"
        proto = onnx.load(target)
        assert [i.version for i in proto.opset_import if i.domain == ""] == [opset]
        assert proto.ir_version == (10 if opset > 20 else 9 if opset > 18 else 8)
        assert not proto.functions
        feeds = feeds_of(name)
        assert_same(run_ort(target, feeds), run_ort(MODELS / f"{name}.onnx", feeds), 1e-5)


def changed_operators(opset: int) -> set[str]:
    """Operators whose schema at `opset` is not the one of the internal opset."""
    changed = set()
    for name in {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}:
        try:
            now = onnx.defs.get_schema(name, 26, "").since_version
        except onnx.defs.SchemaError:
            now = 99
        if now > opset:
            changed.add(name)
    return changed


# Random, or rounded differently by the body and by onnxruntime's kernel of half precision.
def is_comparable(name: str) -> bool:
    return not any(part in name for part in ("bernoulli", "fp16", "float16", "softmax_precision"))


# onnxruntime's Attention gives this optional output before the causal mask, ONNX's body after it.
KNOWN_DIFFERENCES = {
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
}


def arrays(values: list) -> list[np.ndarray] | None:
    if any(not (isinstance(v, np.ndarray) or np.isscalar(v)) for v in values):
        return None  # sequences and optionals
    return [np.asarray(v) for v in values]


@pytest.mark.parametrize("opset", [17, 20, 23])
def test_onnx_node_tests_whose_operators_changed(opset: int, tmp_path: Path) -> None:
    changed = changed_operators(opset)
    cases = [
        case
        for case in all_cases()
        if {node.op_type for node in case.model.graph.node} & changed and is_comparable(case.name)
    ]
    jobs = []
    for case in cases:
        source = tmp_path / f"{case.name}.onnx"
        source.write_bytes(case.model.SerializeToString())
        jobs.append((f"target:{opset}", source, tmp_path / f"{case.name}.target.onnx"))
    counts = Counter()
    for case, (_, source, target), result in zip(cases, jobs, run_tool(jobs), strict=True):
        kind = result.split(":")[0]
        counts[kind] += 1
        assert kind in ("ok", "ModelError", "ShapeError"), f"{case.name}: {result}"
        inputs, outputs = arrays(case.inputs), arrays(case.outputs)
        if kind != "ok" or inputs is None or outputs is None:
            continue
        feeds = {i.name: v for i, v in zip(case.model.graph.input, inputs, strict=False)}
        try:
            want = run_ort(source, feeds)
        except Exception:
            continue
        if case.name in KNOWN_DIFFERENCES:
            continue
        got = run_ort(target, feeds)
        try:
            assert_same(got, want, 2e-5)
        except AssertionError as error:
            raise AssertionError(f"{case.name}: {error}") from error
        counts["same"] += 1
    assert counts["same"] > 150, counts


def single_node(op_type: str, inputs: dict[str, object], outputs: int = 1, **attributes):
    values, initializers = [], []
    for name, value in inputs.items():
        if isinstance(value, np.ndarray | np.float32):
            initializers.append(numpy_helper.from_array(np.asarray(value), name))
        elif value is not None:
            values.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value))
    names = [name if value is not None else "" for name, value in inputs.items()]
    ys = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ys, name="node", **attributes)],
        "g",
        values,
        [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None) for y in ys],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=10)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# Cases that the node tests leave out: constant operands, dynamic sizes, opsets below 17.
CASES = {
    "reduce axes": (9, single_node("ReduceMean", {"x": [2, 3], "a": ints(-1)}, keepdims=0)),
    "reduce no-op": (13, single_node("ReduceMax", {"x": [2, 3]}, noop_with_empty_axes=1)),
    "reduce sum": (12, single_node("ReduceSum", {"x": [2, 3], "a": ints(0)})),
    "split evenly": (17, single_node("Split", {"x": [4, 3]}, outputs=2, num_outputs=2)),
    "split unevenly": (17, single_node("Split", {"x": ["N", 3]}, outputs=3, num_outputs=3)),
    "split last axis": (
        13,
        single_node("Split", {"x": ["N", "M"]}, outputs=2, num_outputs=2, axis=-1),
    ),
    "split sizes": (11, single_node("Split", {"x": [4, 3], "s": ints(1, 3)}, outputs=2)),
    "pad axes": (17, single_node("Pad", {"x": [2, 3], "p": ints(1, 2), "v": None, "a": ints(-1)})),
    "pad attributes": (
        10,
        single_node("Pad", {"x": [2, 3], "p": ints(1, 0, 0, 2), "v": np.float32(7)}),
    ),
    "resize axes": (
        17,
        single_node(
            "Resize",
            {"x": [1, 1, 2, 3], "r": None, "s": np.float32([2, 3])},
            axes=[2, 3],
            mode="linear",
        ),
    ),
    "resize sizes": (
        12,
        single_node("Resize", {"x": [1, 1, 2, 3], "r": None, "s": None, "z": ints(1, 1, 5, 4)}),
    ),
    "softmax axis": (11, single_node("Softmax", {"x": [2, 3, 4]}, axis=1)),
    "softmax last": (9, single_node("LogSoftmax", {"x": [2, 3, 4]}, axis=-1)),
    "squeeze": (11, single_node("Squeeze", {"x": [1, 3], "a": ints(0)})),
    "unsqueeze": (9, single_node("Unsqueeze", {"x": [2, 3], "a": ints(1)})),
    "clip": (9, single_node("Clip", {"x": [2, 3], "l": np.float32(-0.5), "h": np.float32(0.5)})),
    "slice": (9, single_node("Slice", {"x": [4, 3], "s": ints(1), "e": ints(3), "a": ints(0)})),
    "gelu": (17, single_node("Gelu", {"x": [2, 3]}, approximate="tanh")),
    "gelu older": (13, single_node("Gelu", {"x": [2, 3]})),
    "mish": (13, single_node("Mish", {"x": [2, 3]})),
    "layer normalization": (
        13,
        single_node("LayerNormalization", {"x": [2, 3], "w": np.float32([1, 2, 3])}),
    ),
    "group normalization": (
        18,
        single_node(
            "GroupNormalization",
            {"x": [1, 4, 3], "w": np.float32([1, 2, 3, 4]), "b": np.float32([0, 1, 0, 1])},
            num_groups=2,
        ),
    ),
    "dropout": (11, single_node("Dropout", {"x": [2, 3], "r": np.float32(0.3)})),
    "reshape allowzero": (13, single_node("Reshape", {"x": [2, 3], "s": ints(3, 2)}, allowzero=1)),
    "grid sample": (
        16,
        single_node("GridSample", {"x": [1, 1, 3, 3], "g": [1, 2, 2, 2]}, mode="cubic"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_changed_forms(name: str, tmp_path: Path) -> None:
    opset, model = CASES[name]
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.uniform(-1, 1, [d.dim_value or 5 for d in i.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for i in model.graph.input
    }
    written = convert(f"target:{opset}", model, tmp_path)
    assert written.opset_import[0].version == opset
    onnx.checker.check_model(written)
    assert_same(run_ort(written, feeds), run_ort(model, feeds), 1e-5)


IMPOSSIBLE = {
    "CumProd": (17, single_node("CumProd", {"x": [2, 3], "a": ints(0)})),
    "dilations": (
        18,
        single_node("AveragePool", {"x": [1, 1, 5, 5]}, kernel_shape=[2, 2], dilations=[2, 2]),
    ),
    "axes that are not constant": (
        17,
        helper.make_model(
            helper.make_graph(
                [helper.make_node("ReduceMean", ["x", "a"], ["y"], name="node")],
                "g",
                [
                    helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3]),
                    helper.make_tensor_value_info("a", onnx.TensorProto.INT64, [1]),
                ],
                [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            ),
            opset_imports=[helper.make_opsetid("", 26)],
            ir_version=10,
        ),
    ),
    "target opset 27": (27, single_node("Relu", {"x": [2]})),
    "target opset 8": (8, single_node("Relu", {"x": [2]})),
}


@pytest.mark.parametrize("reason", IMPOSSIBLE)
def test_what_an_opset_cannot_express_is_refused(reason: str, tmp_path: Path) -> None:
    opset, model = IMPOSSIBLE[reason]
    with pytest.raises(ValueError, match=f"ModelError.*{reason}"):
        convert(f"target:{opset}", model, tmp_path)


RUNNER = """
import sys
import numpy as np
import onnxruntime as ort
ort.set_default_logger_severity(4)
print(ort.__version__)
for folder in sys.argv[1:]:
    session = ort.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
    data = dict(np.load(folder + "/feeds.npz"))
    names = [o.name for o in session.get_outputs() if o.type.startswith("tensor(float")]
    outputs = session.run(names, data)
    np.savez(folder + "/outputs.npz", **dict(zip(names, outputs)))
"""


@pytest.fixture(scope="module")
def old_python() -> Path:
    script = ROOT / "scripts/old_onnxruntime.sh"
    done = subprocess.run([script, "--path"], capture_output=True, text=True, check=True)
    python = Path(done.stdout.strip())
    if not (python.parents[1] / "finished").exists():
        if os.environ.get("ONNXGRAD_OFFLINE"):
            pytest.skip("ONNXGRAD_OFFLINE is set, and there is no old onnxruntime here")
        pytest.fail("no old onnxruntime here: run scripts/old_onnxruntime.sh, or `make pytest`")
    return python


def run_in_the_old(python: Path, folders: list[Path]) -> list[dict[str, np.ndarray]]:
    """Floating outputs of each folder's model.onnx for its feeds.npz."""
    runner = folders[0].parent / "runner.py"
    runner.write_text(RUNNER)
    done = subprocess.run(
        [python, runner, *folders], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1.17")
    found = []
    for folder in folders:
        with np.load(folder / "outputs.npz") as outputs:
            found.append(dict(outputs))
    return found


def test_in_an_onnxruntime_of_2024(old_python: Path, tmp_path: Path) -> None:
    jobs, names = [], []
    for name in NAMES:
        for opset in (17, 20):
            folder = tmp_path / f"{name}-{opset}"
            folder.mkdir()
            np.savez(folder / "feeds.npz", **feeds_of(name))
            jobs.append((f"target:{opset}", MODELS / f"{name}.onnx", folder / "model.onnx"))
            names.append(name)
    assert run_tool(jobs) == ["ok"] * len(jobs)
    found = run_in_the_old(old_python, [target.parent for _, _, target in jobs])
    for name, outputs in zip(names, found, strict=True):
        if "quant" in name and saturates():  # that onnxruntime's sums are not exact
            continue
        with np.load(MODELS / f"{name}.npz".replace("_loss", "")) as reference:
            for key, output in outputs.items():
                stored = "loss" if key == "loss" else f"out/{key}"
                if stored in reference.files:
                    want = reference[stored]
                    np.testing.assert_allclose(
                        output, want, rtol=2e-4, atol=2e-4 * (1 + np.abs(want).max())
                    )


# model -> its loss
TRAINED_IN_THE_OLD = {
    "squeeze_excite": "squared_error",
    "patch_transformer_class_token": "cross_entropy",
    "vgg_small_batchnorm": "cross_entropy",
}


@pytest.mark.parametrize("name", TRAINED_IN_THE_OLD)
def test_training_files_in_an_onnxruntime_of_2024(
    name: str, old_python: Path, tmp_path: Path
) -> None:
    model = onnx.load(MODELS / f"{name}.onnx")
    assert model.opset_import[0].version == 18
    model.ir_version = 8  # add_loss keeps it; that onnxruntime refuses 10
    loss, rate = TRAINED_IN_THE_OLD[name], 0.25
    with_loss = og.add_loss(model, loss)
    feeds = npz_feeds(name, with_label=True)
    weights = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    with np.load(MODELS / f"{name}.npz") as stored:
        reference = dict(stored)
    gradients = {key: reference[f"grad/{key}"] for key in weights if f"grad/{key}" in reference}
    trained = list(gradients)
    files = {"loss": (with_loss, feeds)}
    for opset in (17, 20):
        gradient = og.gradient(with_loss, trained, fill_grad=True, target_opset=opset, inline=True)
        inputs = {i.name for i in gradient.graph.input}
        files[f"gradient-{opset}"] = (
            gradient,
            {key: value for key, value in (weights | feeds).items() if key in inputs},
        )
        step = og.training_step(
            model,
            loss,
            og.optimizers.SGD(rate),
            trainable=trained,
            training_mode=False,
            target_opset=opset,
            inline=True,
        )
        files[f"step-{opset}"] = (step, feeds | {"learning_rate": np.float32(rate)})
    for file, (proto, values) in files.items():
        (tmp_path / file).mkdir()
        (tmp_path / file / "model.onnx").write_bytes(proto.SerializeToString())
        np.savez(tmp_path / file / "feeds.npz", **values)

    found = run_in_the_old(old_python, [tmp_path / file for file in files])

    bound = 2e-4 * max(np.abs(value).max() for value in gradients.values())
    for (file, (proto, _)), outputs in zip(files.items(), found, strict=True):
        assert not proto.functions
        if file.startswith("gradient"):
            assert set(outputs) == {f"{key}_grad" for key in gradients}
            for key, value in gradients.items():
                np.testing.assert_allclose(outputs[f"{key}_grad"], value, rtol=0, atol=bound)
            continue
        np.testing.assert_allclose(outputs["loss"], reference["loss"], rtol=2e-4)
        if file.startswith("step"):
            assert {key for key in outputs if key.startswith("next/")} == {
                f"next/{key}" for key in gradients
            }
            for key, value in gradients.items():
                moved = weights[key] - outputs[f"next/{key}"]
                rounding = 2e-7 * np.abs(weights[key]).max()
                np.testing.assert_allclose(
                    moved, rate * value, rtol=0, atol=rate * bound + rounding
                )


@pytest.mark.parametrize("batch", ["named", "unknown"])
@pytest.mark.parametrize("opset", [9, 10])
def test_gradient_of_the_automatic_loss_without_gather_elements(opset, batch):
    """Loss and gradient of a softmax are mean -log p[y] and x^T (p - onehot) / N."""
    model = onnx.parser.parse_model(f"""
      <ir_version: 4, opset_import: ["" : {opset}]>
      m (float[N, 3] x) => (float[N, 4] p)
      <float[3, 4] w = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.1, 0.2, 0.3}}>
      {{ z = MatMul (x, w)  p = Softmax <axis = 1> (z) }}
    """)
    if batch == "unknown":
        model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
        model.graph.output[0].type.tensor_type.shape.dim[0].Clear()
    with_loss = og.add_loss(model, "auto")
    gradient = og.gradient(with_loss, outputs=["loss"], fill_grad=True, target_opset=opset)
    assert [one.version for one in gradient.opset_import if one.domain == ""] == [opset]
    gradient = og.gradient(
        with_loss, outputs=["loss"], fill_grad=True, target_opset=opset, inline=True
    )
    assert {"GatherElements", "ScatterElements"}.isdisjoint(n.op_type for n in gradient.graph.node)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 3)).astype(np.float32), np.array([0, 3, 1, 1, 2])
    w = np.float32([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 0.1, 0.2, 0.3]])
    p = np.exp(x @ w) / np.exp(x @ w).sum(1, keepdims=True)
    feeds = {"x": x, "label": y, "w": w}
    session = ort.InferenceSession(gradient.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}
    (found,) = session.run(["w_grad"], {key: v for key, v in feeds.items() if key in names})
    np.testing.assert_allclose(found, x.T @ (p - np.eye(4)[y]) / 5, rtol=1e-4, atol=1e-6)
    session = ort.InferenceSession(
        with_loss.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (loss,) = session.run(["loss"], {"x": x, "label": y})
    assert loss.item() == pytest.approx(-np.log(p[np.arange(5), y]).mean(), rel=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_fewer_indices_than_data_in_an_old_opset(axis):
    """GatherElements of the first rows or columns, and the sums of its gradient."""
    model = onnx.parser.parse_model(f"""
      <ir_version: 8, opset_import: ["" : 13]>
      m (float[A, B] x, int64[C, D] i) => (float[C, D] y)
      {{ y = GatherElements <axis = {axis}> (x, i) }}
    """)
    gradient = og.gradient(model, wrt="x", target_opset=9)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 5)).astype(np.float32)
    i = rng.integers(0, 4, (2, 3))
    dy = rng.normal(size=(2, 3)).astype(np.float32)
    expected = np.zeros((4, 5))
    for row, column in np.ndindex(2, 3):
        place = (i[row, column], column) if axis == 0 else (row, i[row, column])
        expected[place] += dy[row, column]
    session = ort.InferenceSession(gradient.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}
    feeds = {"x": x, "i": i, "y_grad": dy}
    (found,) = session.run(["x_grad"], {key: v for key, v in feeds.items() if key in names})
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    old = og.InferenceSession(model)
    (y,) = old.run(["y"], {"x": x, "i": i})
    np.testing.assert_array_equal(y, np.take_along_axis(x[:2] if axis else x[:, :3], i, axis))
