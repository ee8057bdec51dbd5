"""Models in float16 and bfloat16: refused when a session is made, with what to do."""

import numpy as np
import onnx
import pytest

import onnxgrad as og


def model(dtype):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main ({dtype}[N, 2] X) => ({dtype}[N, 1] Y) <{dtype}[2, 1] w = {{1, 2}}>
        {{ s = MatMul (X, w)  Y = Tanh (s) }}"""
    )


MAKERS = {
    "InferenceSession": og.InferenceSession,
    "TrainingSession": lambda proto: og.TrainingSession(proto, "mse"),
    "Trainer": lambda proto: og.Trainer(proto, "mse"),
    "ForwardBackward": og.ForwardBackward,
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("maker", MAKERS)
def test_refused_when_a_session_is_made(dtype, maker):
    with pytest.raises(og.UnsupportedOperatorError, match=rf"computes in {dtype}\b.*") as info:
        MAKERS[maker](model(dtype))
    assert "MatMul" in str(info.value)
    assert "float32" in str(info.value)


def test_weights_stored_in_half_precision():
    """They are converted by the model itself, which is computing too."""
    stored = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 2] X) => (float[N, 1] Y) <float16[2, 1] w = {1, 2}>
        { v = Cast <to = 1> (w)  Y = MatMul (X, v) }"""
    )
    with pytest.raises(og.UnsupportedOperatorError, match="computes in float16"):
        og.TrainingSession(stored, "mse")


def test_files_are_written_all_the_same():
    with_loss = og.add_loss(model("float16"), "mse")
    onnx.checker.check_model(with_loss, full_check=True)


def test_moving_elements_is_not_computing():
    moved = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float16[N, 2] X) => (float16[2, N] Y) { Y = Transpose <perm = [1, 0]> (X) }"""
    )
    x = np.arange(6, dtype=np.float16).reshape(3, 2)
    try:
        found = og.InferenceSession(moved).run(None, {"X": x})[0]
    except og.UnsupportedOperatorError as error:
        pytest.skip(f"no kernel moves it: {error}")
    np.testing.assert_array_equal(found, x.T)
