"""Adapters that PEFT wrote: tensors, outputs and gradients beside PEFT's, which are stored.

The files, the values and the script that stored them are in tests/data/peft.
"""

import numpy as np
import pytest

import onnxgrad as og
from onnx_tool import ROOT
from peft_networks import adapter_gradients, run, tensors_of

FOLDER = ROOT / "tests/data/peft"
FILES = sorted(FOLDER.glob("*.onnx"))
CASES = {
    f"{file.stem}-{kind.name}": (file, kind)
    for file in FILES
    for kind in sorted((FOLDER / file.stem.split("_")[0]).iterdir())
}


@pytest.fixture(scope="module")
def stored():
    with np.load(FOLDER / "values.npz") as data:
        return dict(data)


def assert_near(got, wanted, tolerance):
    assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("case", CASES)
def test_values(case, stored, tmp_path):
    file, folder = CASES[case]
    name = file.stem.split("_")[0]
    rows, seed = stored[f"{name}/rows"], stored[f"{name}/seed"]
    wanted = stored[f"{name}/{folder.name}/outputs"]
    model = og.adapters.load(file, folder)
    assert_near(run(model, rows), wanted, 5e-6)
    assert_near(run(og.adapters.merge(model), rows), wanted, 2e-5)
    theirs, state = tensors_of(folder), og.adapters.state(model)
    assert state.keys() == theirs.keys()
    assert all(np.array_equal(state[key], value) for key, value in theirs.items())
    prefix = f"{name}/{folder.name}/grad/"
    gradients = adapter_gradients(model, rows, seed)
    assert gradients
    assert {prefix + key for key in gradients} == {key for key in stored if key.startswith(prefix)}
    for key, gradient in gradients.items():
        assert_near(gradient, stored[prefix + key], 1e-5)
    # Written and read again, into the file and into the adapted model.
    og.adapters.save(model, tmp_path)
    for given in (file, model):
        again = og.adapters.load(given, tmp_path)
        assert np.array_equal(run(again, rows), run(model, rows))


def test_another_scale_and_rank(stored):
    """An adapter of a larger rank and another scale takes over what a folder does."""
    rows, wanted = stored["bag/rows"], stored["bag/lora/outputs"]
    targets = [layer.module for layer in og.adapters.of(loaded("bag_script", "bag/lora"))[0].layers]
    model = og.adapters.add(
        FOLDER / "bag_script.onnx", rank=7, alpha=3, targets=targets, name="mine"
    )
    assert_near(run(og.adapters.load(model, FOLDER / "bag/lora", name="mine"), rows), wanted, 5e-6)
    small = og.adapters.add(FOLDER / "bag_script.onnx", rank=2, targets=targets, name="mine")
    with pytest.raises(og.ModelError, match="was expected"):
        og.adapters.load(small, FOLDER / "bag/lora", name="mine")


def loaded(file, folder):
    return og.adapters.load(FOLDER / f"{file}.onnx", FOLDER / folder)


def test_patterns_are_kept():
    """Ranks and scales of single layers are those that PEFT gave them."""
    ranks = {
        key: value.shape[0]
        for key, value in og.adapters.state(loaded("block_script", "block/patterns")).items()
        if "lora_A" in key
    }
    assert set(ranks.values()) == {2, 4, 6}


def test_switched_adapters_of_several_ranks(stored):
    rows, feeds = stored["block/rows"], {}
    session = og.InferenceSession(
        FOLDER / "block_script.onnx",
        adapters={"one": FOLDER / "block/rslora", "two": FOLDER / "block/rslora"},
    )
    feeds[session.get_inputs()[0].name] = rows
    got = session.run(None, feeds, adapter="two")[0]
    assert_near(got, stored["block/rslora/outputs"], 5e-6)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("alpha_pattern", {"(": 3}, "regular expression"),
        ("lora_bias", True, "lora_bias"),
        ("trainable_token_indices", [1], "trainable_token_indices"),
        ("peft_type", "LOHA", "LOHA"),
    ],
)
def test_refused_configurations(key, value, match, tmp_path):
    import json
    import shutil

    shutil.copytree(FOLDER / "bag/lora", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(og.CheckpointError, match=match):
        og.adapters.load(FOLDER / "bag_script.onnx", tmp_path)
