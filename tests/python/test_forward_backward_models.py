"""ForwardBackward on exported models: gradients against PyTorch's, graphs in stock onnxruntime."""

import numpy as np
import onnxruntime as ort
import pytest

import onnxgrad as og
from onnx_tool import MODELS
from test_reference_models import (
    ROWS,
    WITH_LOSS,
    assert_close,
    batches,
    check_gradients,
    part,
)

NAMES = WITH_LOSS


def layer_of(name: str) -> og.ForwardBackward:
    row = ROWS[name]
    return og.ForwardBackward(
        MODELS / f"{name}_loss.onnx",
        weights=row["trainable"],
        inputs=row["input_gradients"] or None,
        input_gradients=bool(row["input_gradients"]),
        training_mode=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    row, layer = ROWS[name], layer_of(name)
    names = [value.name for value in layer.get_outputs()]
    passes = []
    for batch in batches(name):
        values = part(batch, "in/")
        outputs = layer.forward({i.name: values[i.name] for i in layer.get_inputs()})
        loss = outputs[names.index("loss")]
        assert_close(loss, batch["loss"], row["tolerance"], 1 + abs(batch["loss"]))
        passes.append((batch, outputs.context))
    for batch, context in reversed(passes):
        found = layer.backward({"loss": np.ones((), np.float32)}, context=context)
        check_gradients({**found.weights, **found.inputs}, part(batch, "grad/"), row["tolerance"])


@pytest.mark.parametrize("name", NAMES)
def test_graphs_run_in_onnxruntime(name: str, tmp_path) -> None:
    row, layer = ROWS[name], layer_of(name)
    batch = batches(name)[0]
    sessions = {
        graph: ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        for graph, path in layer.save(tmp_path).items()
    }

    def run(graph, values):
        session = sessions[graph]
        feeds = {value.name: values[value.name] for value in session.get_inputs()}
        outputs = [value.name for value in session.get_outputs()]
        return dict(zip(outputs, session.run(None, feeds), strict=True))

    values = {**part(batch, "in/"), **layer.weights}
    forward = run("forward", values)
    for key, value in run("inference", values).items():
        np.testing.assert_allclose(forward[key], value, rtol=1e-5, atol=1e-6)
    seeds = {f"{key}_grad": np.zeros_like(value) for key, value in forward.items()}
    seeds["loss_grad"] = np.ones((), np.float32)
    results = run("backward", {**values, **forward, **seeds})
    got = {key.removesuffix("_grad"): value for key, value in results.items()}
    check_gradients(got, part(batch, "grad/"), row["tolerance"])
