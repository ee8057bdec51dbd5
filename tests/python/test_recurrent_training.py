"""A tagger with an LSTM in both directions, trained beside JAX (tests/data/recurrent)."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

DATA = np.load(Path(__file__).resolve().parents[1] / "data/recurrent/tagger.npz")
BATCH, EPOCHS, RATE, IGNORED = 6, 5, 2.0, -100
WEIGHTS = ["embedding", "W", "R", "B", "dense", "bias"]


def tagger() -> onnx.ModelProto:
    """Scores [sentences, words, tags] of words [sentences, words] and lengths [sentences]."""
    hidden = DATA["first/R"].shape[2]
    nodes = [
        helper.make_node("Gather", ["embedding", "words"], ["embedded"]),
        helper.make_node("Transpose", ["embedded"], ["x"], perm=[1, 0, 2]),
        helper.make_node(
            "LSTM",
            ["x", "W", "R", "B", "lengths"],
            ["y"],
            hidden_size=hidden,
            direction="bidirectional",
        ),
        helper.make_node("Transpose", ["y"], ["by_sentence"], perm=[2, 0, 1, 3]),
        helper.make_node("Reshape", ["by_sentence", "shape"], ["states"]),
        helper.make_node("MatMul", ["states", "dense"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["scores"]),
    ]
    initializers = [
        numpy_helper.from_array(DATA[f"first/{name}"].astype(np.float32), name) for name in WEIGHTS
    ]
    initializers.append(numpy_helper.from_array(np.array([0, 0, 2 * hidden]), "shape"))
    graph = helper.make_graph(
        nodes,
        "tagger",
        [
            helper.make_tensor_value_info("words", TensorProto.INT64, ["n", "t"]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["n"]),
        ],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", "t", 5])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def assert_trained(arrays: dict[str, np.ndarray]) -> None:
    """All weights are JAX's, which are far from the first ones."""
    for name in WEIGHTS:
        wanted = DATA[f"last/{name}"]
        assert np.abs(DATA[f"first/{name}"] - wanted).max() > 0.1
        bound = 5e-5 * max(1, np.abs(wanted).max())
        np.testing.assert_allclose(arrays[name], wanted, rtol=0, atol=bound)


LOSS = og.losses.SoftmaxCrossEntropy(ignore_index=IGNORED)
INPUTS = {"words": DATA["words"], "lengths": DATA["lengths"]}


@pytest.mark.parametrize("threads", [1, 2])
def test_trainer_gives_jaxs_weights(threads: int) -> None:
    trainer = og.Trainer(tagger(), LOSS, "sgd", lr=RATE, threads=threads)
    trainer.fit(INPUTS, DATA["tags"], epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0)
    model = trainer.trained_model()
    assert_trained({t.name: numpy_helper.to_array(t) for t in model.graph.initializer})
    stock = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = og.InferenceSession(model).run(None, INPUTS)[0]
    np.testing.assert_allclose(ours, stock.run(None, INPUTS)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("inline", [False, True])
def test_step_in_stock_onnxruntime_gives_jaxs_weights(inline: bool) -> None:
    """The training step as standard ONNX; what it returns as the next state is fed back."""
    step = og.training_step(tagger(), LOSS, "sgd", inline=inline)
    session = ort.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [value.name for value in session.get_outputs()]
    inputs = [value.name for value in session.get_inputs()]
    state: dict[str, np.ndarray] = {}
    losses = []
    for _ in range(EPOCHS):
        for start in range(0, len(DATA["words"]), BATCH):
            rows = slice(start, start + BATCH)
            feeds = {name: array[rows] for name, array in INPUTS.items()}
            feeds |= {"label": DATA["tags"][rows], "learning_rate": np.array(RATE, np.float32)}
            feeds = {name: array for name, array in feeds.items() if name in inputs}
            results = dict(zip(outputs, session.run(None, feeds | state), strict=True))
            losses.append(results["loss"])
            state = {
                name.removeprefix("next/"): array
                for name, array in results.items()
                if name.startswith("next/")
            }
    np.testing.assert_allclose(losses, DATA["losses"], rtol=0, atol=2e-5)
    assert_trained(state)
