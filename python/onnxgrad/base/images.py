"""Image decoding for the operator ImageDecoder."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


def decode_image(encoded: np.ndarray[Any, Any], pixel_format: str) -> np.ndarray[Any, Any]:
    """Return the pixels, uint8 [H, W, C], of an image file, uint8 [n], decoded by Pillow."""
    # The extension has this function from its import on, and keeps what a module imports alive.
    import io

    import numpy as np

    from onnxgrad.base.optional import import_optional
    from onnxgrad.errors import DataError, UnsupportedOperatorError

    image_module = import_optional(
        "PIL.Image", "ImageDecoder", UnsupportedOperatorError, op_type="ImageDecoder"
    )
    try:
        with image_module.open(fp=io.BytesIO(encoded.tobytes())) as image:
            pixels = np.asarray(image.convert(_MODES[pixel_format]))
    except MemoryError:
        raise
    except Exception as error:  # each of Pillow's formats has errors of its own
        raise DataError(
            what=f"ImageDecoder was fed {encoded.size} bytes that are not an image",
            op_type="ImageDecoder",
            detail=str(error),
            hint="Feed the bytes of an image file: np.fromfile(path, np.uint8).",
        ) from error
    if pixel_format == "BGR":
        pixels = pixels[:, :, ::-1]
    return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1))
