"""Uses one extra of the wheel: `python extras.py NAME`, in an empty folder."""

import sys
from pathlib import Path

import numpy as np
import onnx.parser

import onnxgrad as og


def regression():
    """A model y = x W, and rows that it can learn."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]>'
        "main (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {0, 0}> { y = MatMul(x, w) }"
    )
    X = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    return model, X, X @ np.array([[1], [-2]], np.float32)


def learned(trainer):
    losses = trainer.history["train_loss"]
    assert losses[-1] < 0.5 * losses[0], losses


def data():
    import pyarrow as pa
    import pyarrow.parquet

    model, X, y = regression()
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "t": y[:, 0]})
    pyarrow.parquet.write_table(table, "rows.parquet")
    for rows in (table, "rows.parquet"):
        trainer = og.Trainer(model, "squared_error", "sgd", lr=0.1)
        trainer.fit(rows, "t", epochs=3, batch_size=8, verbose=0)
        learned(trainer)


def image():
    import io

    from PIL import Image

    pixels = np.zeros((4, 5, 3), np.uint8)
    pixels[1] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> main (uint8[n] x) => (uint8[h, w, 3] y)'
        '{ y = ImageDecoder<pixel_format: string = "RGB">(x) }'
    )
    encoded = np.frombuffer(file.getvalue(), np.uint8)
    np.testing.assert_array_equal(og.InferenceSession(model).run(None, {"x": encoded})[0], pixels)


def plot():
    import matplotlib

    matplotlib.use("agg")
    from onnxgrad.graph_pictures import draw_graph

    model, X, y = regression()
    trainer = og.Trainer(model, "squared_error", "sgd", lr=0.1)
    trainer.fit(X, y, epochs=3, verbose=0)
    trainer.history.plot().figure.savefig("losses.png")
    draw_graph(model).figure.savefig("graph.png")
    assert all(Path(name).stat().st_size > 1000 for name in ("losses.png", "graph.png"))


def sklearn():
    from onnxgrad.sklearn import OnnxRegressor

    model, X, y = regression()
    assert OnnxRegressor(model, lr=0.1, max_iter=50).fit(X, y).score(X, y) > 0.9


def tensorboard():
    model, X, y = regression()
    trainer = og.Trainer(model, "squared_error", "sgd", lr=0.1)
    trainer.fit(X, y, epochs=2, verbose=0, callbacks=[og.callbacks.TensorBoard("logs")])
    assert any(Path("logs").iterdir())


def compat():
    from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer

    assert OrtGradientOptimizer
    from onnxgrad.compat.mlprodict.numpy import onnxnumpy_default  # traces with ndonnx

    assert onnxnumpy_default


def ray():
    import ray as cluster

    from onnxgrad.ray import fit

    def train(model, X, y):
        trainer = og.Trainer(model, "squared_error", "sgd", lr=0.1)
        trainer.fit(X, y, epochs=3, batch_size=8, verbose=0)
        return trainer.history["train_loss"], og.distributed.connect().size

    model, X, y = regression()
    cluster.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    losses, size = fit(train, model.SerializeToString(), X, y, num_workers=2)
    assert size == 2
    assert losses[-1] < 0.5 * losses[0], losses
    cluster.shutdown()


if __name__ == "__main__":
    {f.__name__: f for f in (data, image, plot, sklearn, tensorboard, compat, ray)}[sys.argv[1]]()
