"""Images that a model decodes itself."""

import io
import sys

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
from PIL import Image

import onnxgrad as og
from onnxgrad import _core
from onnxgrad.base.images import decode_image

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (uint8[N] file) => (float[C] mean) <int64[2] pixels = {0, 1}> {
  image = ImageDecoder <pixel_format = "@"> (file)
  numbers = Cast <to = 1> (image)
  mean = ReduceMean <keepdims = 0> (numbers, pixels)
}"""


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (7, 5), **options) -> np.ndarray:
    channels = len(mode) if mode != "P" else 1
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], channels))
    pixels = pixels.astype(np.uint8)
    image = Image.fromarray(pixels if channels > 1 else pixels[:, :, 0])
    if mode == "P":
        image = image.convert("P")
    file = io.BytesIO()
    image.save(file, kind, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def model(pixel_format: str = "RGB") -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL.replace("@", pixel_format))


@pytest.mark.parametrize("kind", ["BMP", "PNG", "JPEG", "TIFF", "WEBP", "PPM", "JPEG2000"])
@pytest.mark.parametrize("pixel_format", ["RGB", "BGR", "Grayscale"])
def test_formats(kind: str, pixel_format: str) -> None:
    file = encoded(kind)
    proto = model(pixel_format)
    given = og.InferenceSession(proto).run(None, {"file": file})[0]
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, {"file": file})[0]
    np.testing.assert_allclose(given, expected, rtol=1e-5)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_other_modes_are_converted(mode: str) -> None:
    assert decode_image(encoded("PNG", mode), "RGB").shape == (5, 7, 3)
    assert decode_image(encoded("PNG", mode), "Grayscale").shape == (5, 7, 1)


def test_each_image_has_its_own_size() -> None:
    session = og.InferenceSession(model())
    for size in [(1, 1), (9, 2), (1, 1), (30, 40)]:
        file = encoded("PNG", size=size)
        expected = decode_image(file, "RGB").mean(axis=(0, 1))
        np.testing.assert_allclose(session.run(None, {"file": file})[0], expected, rtol=1e-5)


@pytest.mark.parametrize("cut", [0, 3, 40])
def test_what_is_not_an_image_is_refused(cut: int) -> None:
    with pytest.raises(og.DataError, match="not an image") as caught:
        og.InferenceSession(model()).run(None, {"file": encoded("PNG")[:cut]})
    assert caught.value.hint


def test_pillow_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    file = encoded("BMP")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(og.UnsupportedOperatorError, match="needs pillow, which is not") as caught:
        og.InferenceSession(model()).run(None, {"file": file})
    assert "pip install pillow" in caught.value.hint


def test_decoders_can_be_replaced() -> None:
    session = og.InferenceSession(model())
    feeds = {"file": encoded("PNG")}
    try:
        _core.set_image_decoder(lambda file, pixel_format: np.ones((2, 2, 3), np.uint8))
        np.testing.assert_array_equal(session.run(None, feeds)[0], [1, 1, 1])
        _core.set_image_decoder(lambda file, pixel_format: np.ones((2, 2), np.uint8))
        with pytest.raises(og.DataError, match="expected uint8"):
            session.run(None, feeds)
        _core.set_image_decoder(None)
        with pytest.raises(og.UnsupportedOperatorError, match="no image decoder"):
            session.run(None, feeds)
    finally:
        _core.set_image_decoder(decode_image)
