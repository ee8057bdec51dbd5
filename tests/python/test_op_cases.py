"""Every operator's sample cases, computed by others: stock onnxruntime and ONNX's evaluator.

The test binary of the operators writes its cases as models (forward, gradient, gradient with
symbolic dimensions, one of these in an older opset) with inputs and our results; here others run
the same models, onnxruntime with and without its optimizer. A case passes if every implementation
that takes it agrees, and at least one takes it; in float32 onnxruntime does.
"""

import json
import os
import subprocess
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
import pytest

import opset_gradients
import second_gradients

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ONNXGRAD_BUILD_DIR", ROOT / "build/release"))

# Messages of onnxruntime for an operator or a type without a kernel, as opposed to a model that it
# finds wrong.
NOT_TAKEN = (
    "Single dimension value must be greater than 0",  # StringNormalizer
    "Invalid value for attribute k",  # 0 in TopK of opset 1
    "NOT_IMPLEMENTED",
    "Could not find an implementation",
    "is not supported",
    "not support",
    "Unsupported",
    "is only used for",  # Cast's attributes about 8-bit types
    # Its optimizer quantizes the bias of a Conv between quantizations with a newer Round.
    "No Op registered for Round with domain_version of 10",
)

# Cases, by the beginnings of their names, of element types that onnxruntime has no kernel for
# though the floating type is float32.
NOT_IN_ONNXRUNTIME = (
    "batch_normalization.mixed_",
    "col2im.bytes",
    "col2im.signed_words",
    "unary.relu_int64",
    "select.where_bool",
    "shape.eye_bool",
    "cast.flags",  # 8-bit floating-point types
    "cast.like_flags",
    *(f"one_hot.{kind}" for kind in ("int32", "int16", "int8", "uint")),  # labels
    "one_hot.float_indices",
    *(
        f"arg_extremum.{op}_{kind}"
        for op in ("ArgMax", "ArgMin")
        for kind in ("int16", "uint16", "uint32", "uint64")
    ),
    "cumsum.uint",
    *(f"reduce.Reduce{kind}" for kind in ("Sum_u", "Mean_u", "Prod_u", "Max_u", "Min_u")),
    *(f"reduce.Reduce{kind}" for kind in ("SumSquare_u", "L1_u", "L2_u")),
    "topk.empty_axis",
    "topk.uint16",
    "topk.uint32",
    "topk.uint64",
    "unique.int32",
    "unique.uint8",
    "bitwise.shift_LEFT_uint16",
    "bitwise.shift_RIGHT_uint16",
    "strings.normalizer_empty",
    "resize.nearest_int16",
    "resize.nearest_int64",
    "resize.linear_int32",  # through float64
    "resize.cubic_int32",
    "depth_to_space.depth_int16",
    "col2im.integers",
    "grid_sample.grid_of_floats",  # through float64
    "encoder.int32_to_double",
    "encoder.int64_to_int16",
)

# Operators that ONNX's evaluator computes in float32 whatever the type, or wrong.
NOT_FOR_EVALUATOR = {
    "AffineGrid": "float32, and counts its points with a step that rounds",
    "Erf": "float32",
    "Gelu": "float32",
    "GRU": "knows one direction and no lengths, and computes activations of its own",
    "GlobalMaxPool": "wrong shape for other than two spatial axes",
    "GridSample": "coordinates in float32",
    "HardSwish": "float32",
    "LSTM": "as GRU",
    "RNN": "as GRU",
    "Resize": "weights in float32",
}

# Operators that onnxruntime expands, or scales, with constants of float32, whatever the type.
FLOAT32_IN_ONNXRUNTIME = {"DFT", "Gelu"}

# Operators whose definition, for opsets without them, has constants of float32.
FLOAT32_DEFINITIONS = ("unary.gelu", "unary.hardswish")

# Operators for which stock onnxruntime draws other numbers; it must run them all the same.
RANDOM = ("draw", "dropout")

# Empty batches that the others cannot do; finite differences and shapes check them all the same.
NOBODY_ELSE = {
    "softmax.attention_no_queries": "onnxruntime leaves sums of no products as the memory was",
    "attention.no_rows": "onnxruntime's fusion into Gemm reshapes no rows",
    "affine_grid.no_pictures": "onnxruntime's FusedMatMul refuses an empty batch",
    "deform_conv.no_images": "onnxruntime's MatMul refuses an empty batch",
    "dft.onesided_7_1": "onnxruntime takes the half of a spectrum for that of an even length",
    "resize.no_images": "onnxruntime's MatMul refuses an empty batch",
    "conv.no_images": "onnxruntime 1.31 never ends on a ConvTranspose of an empty batch",
    "conv_transpose.no_images": "onnxruntime 1.31 never ends on it",
    "scan.no_steps": "onnxruntime 1.31 refuses to scan a tensor without rows",
    "cross_entropy.SoftmaxCrossEntropyLoss_no_rows": "its definition reshapes no rows to -1",
}

# In an older opset, the same.
NOBODY_ELSE_OLDER = {
    "nonzero.compress_empty": "onnxruntime's OneHot refuses a depth of 0",
    "unique.empty_0": "onnxruntime's OneHot refuses a depth of 0",
    "unique.empty_1": "onnxruntime's OneHot refuses a depth of 0",
    "lp_pool.ceil_padded_1": "onnxruntime's optimizer drops a node that others read",
    "pool.max_indices_three_axes_order_1": "ONNX's evaluator numbers columns as rows",
}

ort.set_default_logger_severity(4)


@dataclass
class Case:
    """One sample case in one floating type."""

    folder: Path
    entry: dict
    data: bytes = field(repr=False)

    def tensors(self, what: str) -> list[np.ndarray]:
        """Return the arrays of 'inputs', 'seeds', 'outputs' or 'gradients'."""
        arrays = []
        for one in self.entry[what]:
            count = int(np.prod(one["dims"], dtype=np.int64))
            flat = np.frombuffer(self.data, one["dtype"], count, one["offset"])
            arrays.append(flat.reshape(one["dims"]))
        return arrays

    def model(self, what: str) -> onnx.ModelProto:
        return onnx.load(self.folder / f"{self.entry['name']}.{self.entry['dtype']}.{what}.onnx")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Case]]:
    """All cases by operator file, written by the test binary."""
    folder = tmp_path_factory.mktemp("op_cases")
    subprocess.run(
        [BUILD / "src/ops/onnxgrad_ops_test", "--gtest_filter=DumpCases.*", "--gtest_brief=1"],
        env={**os.environ, "ONNXGRAD_DUMP_CASES": str(folder)},
        check=False,  # cases that fail in our own engine fail the C++ tests
        timeout=600,
    )
    data = (folder / "data.bin").read_bytes()
    found: dict[str, list[Case]] = {}
    for entry in json.loads((folder / "manifest.json").read_text()):
        stem = entry["name"].split(".")[0]
        found.setdefault(stem, []).append(Case(folder, entry, data))
    return found


def run_onnxruntime(model: onnx.ModelProto, arrays: list[np.ndarray], level: str) -> list | None:
    """Outputs, or None if this build of onnxruntime has no kernel for an operator or type."""
    is_double = any(array.dtype == np.float64 for array in arrays)
    if is_double and any(node.op_type in FLOAT32_IN_ONNXRUNTIME for node in model.graph.node):
        return None
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    feeds = {value.name: array for value, array in zip(model.graph.input, arrays, strict=True)}
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds)
    except Exception as error:
        if any(text in str(error) for text in NOT_TAKEN):
            return None
        raise


def run_evaluator(model: onnx.ModelProto, arrays: list[np.ndarray]) -> list | None:
    """Outputs of ONNX's reference evaluator, or None if it has no implementation."""
    is_floating = any(np.issubdtype(array.dtype, np.floating) for array in arrays)
    if is_floating and any(node.op_type in NOT_FOR_EVALUATOR for node in model.graph.node):
        return None
    feeds = {value.name: array for value, array in zip(model.graph.input, arrays, strict=True)}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return onnx.reference.ReferenceEvaluator(model).run(None, feeds)
        except Exception:  # it has no errors of its own for what it does not know
            return None


def difference(given: np.ndarray, expected: np.ndarray, tolerance: float | None) -> str:
    """'' if the arrays agree to tolerance times the largest magnitude (at least 1).

    Without a tolerance only shape and dtype are compared.
    """
    given, expected = np.asarray(given), np.asarray(expected)
    if given.shape != expected.shape or given.dtype != expected.dtype:
        return f"{given.dtype}{given.shape} instead of {expected.dtype}{expected.shape}"
    if tolerance is None:
        return ""
    if not np.issubdtype(given.dtype, np.floating):
        return "" if np.array_equal(given, expected) else f"{given} instead of {expected}"
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max(initial=0)))
    if np.allclose(given, expected, rtol=0, atol=tolerance * scale, equal_nan=True):
        return ""
    return f"{given} instead of {expected}"


def rounds_to_float32(model: onnx.ModelProto, arrays: list[np.ndarray]) -> bool:
    """Whether values pass float32 on their way, as those of ai.onnx.ml's operators do."""
    return any(array.dtype == np.float32 for array in arrays) or any(
        node.op_type == "Cast" and node.attribute[0].i == onnx.TensorProto.FLOAT
        for node in model.graph.node
    )


def compare(others: list, ours: list[np.ndarray], tolerance: float | None) -> list[str]:
    texts = [difference(a, b, tolerance) for a, b in zip(others, ours, strict=True)]
    return [f"output {i}: {text}" for i, text in enumerate(texts) if text]


def check_model(case: Case, what: str) -> tuple[bool, list[str]]:
    """Run one model everywhere: (did anyone take it, what differs)."""
    model = case.model(what)
    has_gradient = what != "model" and case.entry["gradient"]
    arrays = case.tensors("inputs") + (case.tensors("seeds") if has_gradient else [])
    ours = case.tensors("outputs") + (case.tensors("gradients") if has_gradient else [])
    levels = ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"]
    runs = {level: run_onnxruntime(model, arrays, level) for level in levels}
    is_rounded = rounds_to_float32(model, arrays + ours) or (
        what == "older" and case.entry["name"].startswith(FLOAT32_DEFINITIONS)
    )
    tolerance = case.entry["tolerance_float32"] if is_rounded else 1e-9
    name = f"{case.entry['name']} {case.entry['dtype']} {what}"
    taken = any(outputs is not None for outputs in runs.values())
    is_expected = not case.entry["name"].startswith(NOT_IN_ONNXRUNTIME)
    if not taken and case.entry["dtype"] == "float32" and is_expected:
        return True, [f"{name}: onnxruntime does not take it"]
    if case.entry["no_oracle"]:
        return True, [
            f"{name} {level}: {text}"
            for level, outputs in runs.items()
            if outputs is not None
            for text in compare(outputs, ours, None)
        ]
    if not taken:
        runs["evaluator"] = run_evaluator(model, arrays)
        taken = runs["evaluator"] is not None
    problems = [
        f"{name} {other}: {text}"
        for other, outputs in runs.items()
        if outputs is not None
        for text in compare(outputs, ours, tolerance)
    ]
    return taken or what == "older", problems


def stems() -> list[str]:
    """The operator files, from the one list of them."""
    lines = (ROOT / "src/ops/CMakeLists.txt").read_text().splitlines()
    added = [line for line in lines if line.startswith("onnxgrad_add_op(")]
    return [line.split("(")[1].split(")")[0].split()[0].split("/")[1] for line in added]


@pytest.mark.parametrize("stem", stems())
def test_others_compute_the_same(cases: dict[str, list[Case]], stem: str) -> None:
    problems: list[str] = []
    taken: dict[tuple[str, str], bool] = {}
    for case in cases.get(stem, []):
        if case.entry["name"] in NOBODY_ELSE or (case.entry["no_oracle"] and stem not in RANDOM):
            continue
        whats = ["model"] + ["gradient"] * case.entry["gradient"]
        whats += ["symbolic"] * (case.entry["symbolic"] and case.entry["dtype"] == "float32")
        in_older = case.entry["older"] > 0 and case.entry["name"] not in NOBODY_ELSE_OLDER
        whats += ["older"] * in_older
        for what in whats:
            try:
                is_taken, found = check_model(case, what)
            except Exception as error:
                is_taken, found = True, [f"{case.entry['name']} {what}: {error}"]
            key = (case.entry["name"], what)
            taken[key] = taken.get(key, False) or is_taken
            problems += found
    problems += [
        f"{name} {what}: nobody takes it"
        for (name, what), is_taken in taken.items()
        if not is_taken
    ]
    assert not problems, f"{len(problems)} differences\n" + "\n".join(problems[:20])


def test_gradients_of_gradients(cases: dict[str, list[Case]]) -> None:
    """Check every operator that has a gradient: none is left out."""
    operators = second_gradients.by_operator(cases)
    assert len(operators) > 110
    found = {name: list(second_gradients.problems(some)) for name, some in operators.items()}
    wrong = {name: texts for name, texts in found.items() if texts}
    assert not wrong, "\n".join(f"{name}: {texts}" for name, texts in wrong.items())


def test_gradients_in_every_opset(cases: dict[str, list[Case]]) -> None:
    """Written for an older opset, they have our values in onnxruntime, or name what it lacks."""
    found: dict[str, int] = {}
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gradients that are zero
        for case, opset in opset_gradients.chosen(cases, NOT_IN_ONNXRUNTIME):
            try:
                result = opset_gradients.compared(case, opset, run_onnxruntime)
            except Exception as error:
                wrong.append(f"{case.entry['name']} in opset {opset}: {str(error)[:300]}")
                continue
            found[result] = found.get(result, 0) + 1
    assert not wrong, f"{len(wrong)} differences\n" + "\n".join(wrong[:20])
    assert found["same"] > 0.75 * sum(found.values()), found


def test_no_gradient_is_nan(cases: dict[str, list[Case]]) -> None:
    """Where inputs and results are finite: masked rows, no rows, ties, repeated indices."""
    wrong = []
    for case in (case for some in cases.values() for case in some):
        arrays = case.tensors("inputs") + case.tensors("outputs")
        floats = [array for array in arrays if np.issubdtype(array.dtype, np.floating)]
        if case.entry["gradient"] and all(np.isfinite(array).all() for array in floats):
            gradients = case.tensors("gradients")
            wrong += [case.entry["name"]] * any(np.isnan(array).any() for array in gradients)
    assert not wrong
