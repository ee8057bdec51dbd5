"""Imports onnx, onnxruntime and onnxgrad in every order and uses all three in one process.

All of them carry ONNX's library and a protobuf of their own; this shows that they do not meet.
Run by tests/python/test_smoke.py in the development environment and by `make wheel-test` in a fresh
one: `python smoke.py [order]`, an order being names joined by commas. An order without onnxruntime
does not need it.
"""

import importlib
import itertools
import subprocess
import sys

NAMES = ("onnx", "onnxruntime", "onnxgrad")


def use_all(order: tuple[str, ...]) -> None:
    """Import in the given order; run one model with each."""
    for name in order:
        importlib.import_module(name)

    import numpy as np
    import onnx
    import onnx.parser
    import onnx.reference

    import onnxgrad

    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>'
        "main (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}>"
        "{ h = MatMul(x, w) y = Relu(h) }"
    )
    onnx.checker.check_model(model, full_check=True)
    x = np.array([[1, -1], [2, 0.5]], dtype=np.float32)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    if "onnxruntime" in order:
        import onnxruntime

        stock = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        np.testing.assert_array_equal(stock.run(None, {"x": x})[0], expected)
    ours = onnxgrad.InferenceSession(model)
    np.testing.assert_allclose(ours.run(None, {"x": x})[0], expected, rtol=1e-6)

    trainer = onnxgrad.Trainer(model, "squared_error", "sgd", lr=0.01)
    trainer.fit(x, np.ones_like(x), epochs=3, verbose=0)
    losses = trainer.history["train_loss"]
    assert losses[0] > losses[1] > losses[2]
    onnx.checker.check_model(trainer.trained_model(), full_check=True)
    assert onnxgrad.__version__


def main(arguments: list[str]) -> int:
    """Run one order in this process, or every order in a process of its own."""
    if arguments:
        use_all(tuple(arguments[0].split(",")))
        return 0
    for order in itertools.permutations(NAMES):
        subprocess.run([sys.executable, __file__, ",".join(order)], check=True)
    print(f"smoke: {', '.join(NAMES)} work together in every order of import")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
