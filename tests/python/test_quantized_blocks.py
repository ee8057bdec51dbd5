"""Files whose integers have scales in blocks, trained without an adapter."""

import numpy as np
import pytest

import onnxgrad as og
from test_quantization_training import F, initializers, run, with_weights


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_weights_in_blocks_are_trained(kind) -> None:
    """Symmetric blocks of 4 bits have negative scales where their largest number is positive."""
    random = np.random.default_rng(4)
    w = random.normal(size=(64, 40)).astype(F)
    text = "g (float[N, 64] x) => (float[N, 40] y) <WEIGHTS> { y = MatMul (x, w) }"
    model = og.quantize_weights(
        with_weights(text, {"w": w}), kind, operators="DequantizeLinear", targets="w"
    )
    x = random.normal(size=(16, 64)).astype(F)
    y = random.normal(size=(16, 40)).astype(F)
    trainer = og.Trainer(model, "mse", "sgd", lr=20.0)
    trainer.fit(x, y, epochs=1, batch_size=16, verbose=0)

    before, after = (initializers(one) for one in (model, trainer.trained_model()))
    (name,) = before.keys() - {key for key in before if key.endswith("_scales")}
    scales = before[f"{name[:-3]}_scales"].repeat(32, 0)
    assert (scales < 0).any() == (kind == "int4")
    numbers = before[name].astype(F) * scales
    slope = x.T @ (2 * (x @ numbers - y) / y.size)
    largest = 7 if kind == "int4" else 127
    codes = np.clip(np.rint((numbers - 20 * slope) / scales), -largest - 1, largest)
    assert (codes != before[name].astype(F)).mean() > 0.5
    assert (codes != after[name].astype(F)).mean() < 0.01  # in the middle of two codes
    np.testing.assert_allclose(run(trainer.trained_model(), x), trainer.predict(x), 1e-4, 1e-4)
