"""Resize, GridSample and DFT in combinations of their attributes, beside what others compute.

Values are those of stock onnxruntime and of ONNX's evaluator. The gradient of a linear operator R
is its transpose: <R(x) - R(0), dy> = <x, R^T(dy)> for any x and dy.
"""

import warnings

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
import pytest

import onnxgrad as og
from pairwise import pairwise

ort.set_default_logger_severity(4)

# Parts of onnxruntime's messages about what it does not support.
NOT_TAKEN = ("NOT_IMPLEMENTED", "upport", "exclude_outside can be set to 1 when")

RESIZE = {
    "mode": ["nearest", "linear", "cubic"],
    "coordinate_transformation_mode": [
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
    ],
    "nearest_mode": ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
    "antialias": [0, 1],
    "exclude_outside": [0, 1],
    "cubic_coeff_a": [-0.75, -0.5],
    "keep_aspect_ratio_policy": ["stretch", "not_larger", "not_smaller"],
    "given": ["scales", "sizes", "axes and scales", "axes and sizes"],
    "shape": [(2, 3, 4, 5), (1, 2, 9, 7)],
    "factors": [(2.0, 3.0), (0.5, 0.75), (1.7, 0.6)],
}


def is_resize(row: dict) -> bool:
    if row.get("mode") == "nearest" and row.get("antialias") == 1:
        return False
    # A policy for all axes would scale the batch and the channels too.
    is_stretch = row.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    return is_stretch or row.get("given", "axes and sizes") == "axes and sizes"


def resize_model(row: dict) -> onnx.ModelProto:
    names = ["mode", "coordinate_transformation_mode", "nearest_mode", "keep_aspect_ratio_policy"]
    attributes = {name: row[name] for name in names}
    if row["mode"] != "nearest":
        attributes |= {name: row[name] for name in ("antialias", "exclude_outside")}
    if row["mode"] == "cubic":
        attributes["cubic_coeff_a"] = row["cubic_coeff_a"]
    by_axes = row["given"].startswith("axes")
    spatial = list(row["factors"])
    factors = spatial if by_axes else [1.0, 1.0, *spatial]
    shape = row["shape"][2:] if by_axes else row["shape"]
    if by_axes:
        attributes["axes"] = [2, 3]
    inputs = ["x", "", "", ""]
    initializers = []

    def add(position: int, array: np.ndarray) -> None:
        inputs[position] = f"i{position}"
        initializers.append(onnx.numpy_helper.from_array(array, inputs[position]))

    if "scales" in row["given"]:
        add(2, np.float32(factors))
    else:
        sizes = [round(size * factor) for size, factor in zip(shape, factors, strict=True)]
        add(3, np.int64(sizes))
    if row["coordinate_transformation_mode"] == "tf_crop_and_resize":
        ends = [0.9, 0.8] if by_axes else [1, 1, 0.9, 0.8]
        starts = [0.1, 0.25] if by_axes else [0, 0, 0.1, 0.25]
        add(1, np.float32(starts + ends))
    while not inputs[-1]:
        inputs.pop()
    return one_node(onnx.helper.make_node("Resize", inputs, ["y"], **attributes), initializers)


def one_node(
    node: onnx.NodeProto, initializers: list, names: tuple[str, ...] = ("x",)
) -> onnx.ModelProto:
    def typed(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)

    graph = onnx.helper.make_graph(
        [node], "g", [typed(name) for name in names], [typed("y")], initializers
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10
    )


def with_shapes(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> onnx.ModelProto:
    for value in model.graph.input:
        for size in feeds[value.name].shape:
            value.type.tensor_type.shape.dim.add().dim_value = size
    return model


def run_stock(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """Return the results of stock onnxruntime; None for a model that it does not support."""
    try:
        session = ort.InferenceSession(model.SerializeToString())
        return session.run(None, feeds)
    except Exception as error:
        if any(text in str(error) for text in NOT_TAKEN):
            return None
        raise


def run_evaluator(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return onnx.reference.ReferenceEvaluator(model).run(None, feeds)


def inner(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sum(a.astype(np.float64) * b.astype(np.float64)))


def differs_in_onnxruntime(row: dict) -> bool:
    """Where onnxruntime's Resize is not what the standard says."""
    # Filters of antialiasing leave out what lies outside, whatever exclude_outside says.
    if row["antialias"] == 1 and row["mode"] != "nearest" and row["exclude_outside"] == 0:
        return True
    # The width of the output is rounded before it is used.
    is_rounded = "scales" in row["given"] or row["keep_aspect_ratio_policy"] != "stretch"
    mode = row["coordinate_transformation_mode"]
    return is_rounded and mode in ("align_corners", "tf_crop_and_resize")


def is_close(given: np.ndarray, expected: np.ndarray) -> bool:
    return given.shape == expected.shape and np.allclose(given, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("row", pairwise(RESIZE, is_resize), ids=str)
def test_resize(row: dict) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.uniform(-1, 1, row["shape"]).astype(np.float32)}
    model = with_shapes(resize_model(row), feeds)
    (given,) = og.InferenceSession(model).run(None, feeds)
    stock = None if differs_in_onnxruntime(row) else run_stock(model, feeds)
    is_as_stock = stock is not None and is_close(given, stock[0])
    # Where the two differ, one is right: points between two pixels as far as float32 can tell,
    # filters of antialiasing at the border.
    assert is_as_stock or is_close(given, run_evaluator(model, feeds)[0])

    dy = rng.uniform(-1, 1, given.shape).astype(np.float32)
    gradient = og.gradient(model, "x", "y")
    fed = {value.name: {**feeds, "y_grad": dy}[value.name] for value in gradient.graph.input}
    (dx,) = og.InferenceSession(gradient).run(None, fed)
    (at_zero,) = og.InferenceSession(model).run(None, {"x": np.zeros_like(feeds["x"])})
    np.testing.assert_allclose(
        inner(given - at_zero, dy), inner(feeds["x"], dx), rtol=1e-4, atol=1e-4
    )
    stock = run_stock(gradient, fed)
    if is_as_stock and stock is not None:
        np.testing.assert_allclose(stock[0], dx, rtol=1e-4, atol=1e-4)


SAMPLE = {
    "mode": ["nearest", "linear", "cubic"],
    "padding_mode": ["zeros", "border", "reflection"],
    "align_corners": [0, 1],
    "shape": [(1, 2, 4, 5), (2, 1, 1, 3), (1, 2, 3, 2, 4)],
    "points": [(3, 2), (1, 7)],
    "reach": [0.9, 1.5, 4.0],
}


@pytest.mark.parametrize("row", pairwise(SAMPLE, lambda row: True), ids=str)
def test_grid_sample(row: dict) -> None:
    rng = np.random.default_rng(1)
    shape = row["shape"]
    rank = len(shape) - 2
    points = (1,) * (rank - 2) + row["points"]
    feeds = {
        "x": rng.uniform(-1, 1, shape).astype(np.float32),
        "grid": rng.uniform(-1, 1, (shape[0], *points, rank)).astype(np.float32) * row["reach"],
    }
    attributes = {name: row[name] for name in ("mode", "padding_mode", "align_corners")}
    node = onnx.helper.make_node("GridSample", ["x", "grid"], ["y"], **attributes)
    model = with_shapes(one_node(node, [], ("x", "grid")), feeds)
    (given,) = og.InferenceSession(model).run(None, feeds)
    stock = run_stock(model, feeds)
    if stock is not None:
        np.testing.assert_allclose(given, stock[0], rtol=1e-4, atol=1e-4)
    # The evaluator divides by 0 where all points are one, and moves points of cubic to the border.
    is_single = min(shape[2:]) == 1 and row["padding_mode"] == "reflection"
    is_moved = row["mode"] == "cubic" and row["padding_mode"] == "border"
    if not is_single and not is_moved:
        expected = run_evaluator(model, feeds)[0]
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)
    else:
        assert stock is not None or rank == 3

    dy = rng.uniform(-1, 1, given.shape).astype(np.float32)
    gradient = og.gradient(model, ["x", "grid"], "y")
    fed = {value.name: {**feeds, "y_grad": dy}[value.name] for value in gradient.graph.input}
    ours = og.InferenceSession(gradient).run(None, fed)
    np.testing.assert_allclose(inner(given, dy), inner(feeds["x"], ours[0]), rtol=1e-4, atol=1e-4)
    for stock_value, value in zip(run_stock(gradient, fed) or ours, ours, strict=True):
        np.testing.assert_allclose(stock_value, value, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 12, 31, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transforms_beside_numpy(n: int, dtype: type) -> None:
    rng = np.random.default_rng(2)
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tolerance = 1e-4 if dtype == np.float32 else 1e-11

    def run(x: np.ndarray, **attributes: int) -> np.ndarray:
        node = onnx.helper.make_node("DFT", ["x", "n", "axis"], ["y"], **attributes)
        constants = [
            onnx.numpy_helper.from_array(np.int64(value), name)
            for name, value in (("n", n), ("axis", 1))
        ]
        model = one_node(node, constants)
        for value in [*model.graph.input, *model.graph.output]:
            value.type.tensor_type.elem_type = element
        return og.InferenceSession(model).run(None, {"x": x.astype(dtype)})[0]

    real = rng.normal(size=(3, n))
    spectrum = np.fft.rfft(real)
    parts = np.stack([spectrum.real, spectrum.imag], axis=-1)
    np.testing.assert_allclose(run(real[..., None], onesided=1), parts, rtol=0, atol=tolerance)
    if n > 1:
        back = run(parts, onesided=1, inverse=1)[..., 0]
        np.testing.assert_allclose(back, real, rtol=0, atol=tolerance)
