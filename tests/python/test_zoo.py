"""Models as people export them (tests/data/zoo), beside what their exporters compute."""

import numpy as np
import pytest

import onnxgrad as og
import zoo
import zoo_page
from reference_values import assert_close, check_gradients, part


def cases(names: list[str]) -> list:
    """Parameters of a test; those of models that cannot run yet are expected to fail."""
    return [
        pytest.param(name, marks=pytest.mark.xfail(reason=zoo.WAITING[name], strict=True))
        if name in zoo.WAITING
        else name
        for name in names
    ]


TRAINED = [name for name, row in zoo.ROWS.items() if row["trains"]]
WITH_GRADIENTS = [name for name in TRAINED if "input_gradients" in zoo.ROWS[name]]


@pytest.mark.parametrize("name", cases([*zoo.ROWS]))
def test_outputs(name: str) -> None:
    row, data = zoo.ROWS[name], zoo.stored(name)
    session = og.InferenceSession(zoo.ZOO / f"{name}.onnx")
    feeds = {key: value for key, value in part(data, "in/").items() if key in row["inputs"]}
    if "rows" in data:  # more rows are stored than have their outputs
        feeds = {key: value[: data["rows"]] for key, value in feeds.items()}
    names = [value.name for value in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feeds), strict=True))
    for key, want in part(data, "out/").items():
        got = outputs[key]
        if isinstance(got, list):  # ZipMap's dictionaries
            got = [[line[label] for label in row["zipmap"][key]] for line in got]
        got = np.asarray(got)
        if want.dtype.kind == "f":
            assert_close(got.astype(np.float64), want, row["tolerance"], 1 + np.abs(want).max())
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.filterwarnings("ignore:the gradient of .* is zero:UserWarning")
@pytest.mark.parametrize("name", cases(WITH_GRADIENTS))
def test_gradients(name: str) -> None:
    row, data = zoo.ROWS[name], zoo.stored(name)
    values = zoo.values(name)
    session = og.InferenceSession(zoo.gradient_model(name))
    names = [value.name for value in session.get_outputs()]
    feeds = {value.name: values[value.name] for value in session.get_inputs()}
    results = dict(zip(names, session.run(None, feeds), strict=True))
    assert_close(results["loss"], data["loss"], row["tolerance"], 1 + abs(data["loss"]))
    got = {key.removesuffix("_grad"): np.asarray(v, np.float64) for key, v in results.items()}
    check_gradients(zoo.joined(row, got), part(data, "grad/"), row["tolerance"])


@pytest.mark.parametrize("name", cases([n for n in TRAINED if zoo.ROWS[n]["module"] == "sklearn"]))
def test_fit(name: str) -> None:
    """Models whose exporter knows no loss: labels and rows as they are, the loss by the head."""
    data = zoo.stored(name)
    x = {key: data[f"in/{key}"] for key in zoo.ROWS[name]["inputs"]}
    row = zoo.ROWS[name]
    trainer = og.Trainer(
        zoo.load(name),
        zoo.loss_of(row),
        og.optimizers.Adam(lr=0.003),
        trainable=row["trainable"] or None,
    )
    labels = data["in/label"]
    trainer.fit(x, labels, epochs=6, batch_size=20, shuffle=False, verbose=False, allow_nan=True)
    losses = trainer.history["train_loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", cases([n for n in TRAINED if zoo.ROWS[n]["module"] != "sklearn"]))
def test_training(name: str) -> None:
    row = zoo.ROWS[name]
    session = og.TrainingSession(
        zoo.load(name),
        zoo.loss_of(row),
        og.optimizers.Adam(lr=0.003),
        trainable=zoo.weights_to_train(name),
    )
    feeds = part(zoo.stored(name), "in/")
    is_random = row.get("random", False)  # draws inside: the mean of many losses falls
    losses = [float(session.step(feeds)) for _ in range(60 if is_random else 8)]
    assert np.isfinite(losses).all()
    few = len(losses) // 8
    assert np.mean(losses[-few:]) < np.mean(losses[:few])


@pytest.mark.parametrize("name", [name for name, row in zoo.ROWS.items() if not row["trains"]])
def test_what_runs_only_has_nothing_to_train(name: str) -> None:
    def fit() -> None:
        loss = og.losses.SquaredError(output=next(iter(zoo.ROWS[name]["outputs"])))
        trainer = og.Trainer(zoo.load(name), loss, "sgd")
        x = {key: zoo.stored(name)[f"in/{key}"] for key in zoo.ROWS[name]["inputs"]}
        trainer.fit(x, np.zeros((10, 1), np.float32), epochs=1, batch_size=5, verbose=False)

    with pytest.raises(og.Error):
        fit()


def test_page() -> None:
    """The page states of each model what the tests above find."""
    assert zoo_page.PAGE.read_text() == zoo_page.page(), "scripts/write_zoo_page.py writes it anew"
