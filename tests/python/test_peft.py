"""Adapters beside PEFT: the same tensors, outputs and gradients, exchanged both ways.

The networks are exported before PEFT adapts them, by both exporters of torch.
"""

import copy
import warnings

import numpy as np
import pytest

import onnxgrad as og
import peft_networks as networks
from onnxgrad.gradient_checks.double import model_in_double
from peft_networks import (
    NETWORKS,
    adapted_network,
    adapter_gradients,
    configurations,
    gradients_of,
    run,
    tensors_of,
    values,
)

torch = pytest.importorskip("torch", reason="`make interop` runs it")
peft = pytest.importorskip("peft", reason="`make interop` runs it")
pytest.importorskip("transformers", reason="`make interop` runs it")

# transformers' decoders use operators that the older exporter lacks.
EXPORTED = [
    (name, dynamo)
    for name in NETWORKS
    for dynamo in (True, False)
    if dynamo or name not in ("llama", "qwen2", "gpt2")
]
TOLERANCE = 5e-6  # of float32 sums in another order, relative to the largest output
# Sums in float64 agree to 1e-6, but torch computes the angles of rotary embeddings in float32.
DOUBLE = {"llama": TOLERANCE, "qwen2": TOLERANCE}


def assert_near(got, wanted, tolerance=TOLERANCE):
    assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()


def as_double(rows):
    return rows.astype(float) if rows.dtype == np.float32 else rows


def double(network):
    return copy.deepcopy(network).double()


def run_double(model, rows):
    session = og.InferenceSession(model_in_double(model))
    return session.run(None, {session.get_inputs()[0].name: as_double(rows)})[0]


def from_pretrained(base, folder):
    """Return PEFT's model of a folder; every tensor of the folder must have its place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()
        stored = peft.get_peft_model_state_dict(made)
    for key, value in tensors_of(folder).items():
        assert np.array_equal(stored[key].numpy(), value), key
    return made


@pytest.fixture(scope="module")
def exported():
    """Networks and their files, each made once."""
    made = {}

    def get(name, dynamo):
        if (name, dynamo) not in made:
            base, rows = networks.network(name), networks.rows_of(name)
            made[name, dynamo] = base, rows, networks.export(base, rows, dynamo=dynamo)
        return made[name, dynamo]

    return get


@pytest.mark.parametrize(("name", "dynamo"), EXPORTED)
def test_exchange(name, dynamo, exported, tmp_path):
    base, rows, file = exported(name, dynamo)
    assert_near(run(file, rows), values(base, rows))
    for kind, configuration in configurations(name).items():
        theirs, ours = tmp_path / kind, tmp_path / f"{kind}_back"
        adapted = adapted_network(base, configuration)
        wanted = values(adapted, rows)
        adapted.save_pretrained(theirs)
        model = og.adapters.load(file, theirs)
        assert_near(run(model, rows), wanted)
        stored, state = tensors_of(theirs), og.adapters.state(model)
        assert state.keys() == stored.keys(), kind
        for key, value in stored.items():
            assert np.array_equal(state[key], value), (kind, key)
        precise = DOUBLE.get(name, 1e-6)
        assert_near(run_double(model, rows), values(double(adapted), as_double(rows)), precise)
        # Merged by both.
        merged = values(adapted.merge_and_unload(), rows)
        assert_near(run(og.adapters.merge(model), rows), merged, 2e-5)
        # Back into PEFT.
        og.adapters.save(model, ours)
        back = from_pretrained(base, ours)
        assert_near(values(back, rows), wanted)
        assert_near(values(double(back), as_double(rows)), run_double(model, rows), precise)
        # Into the adapter that the model has.
        again = og.adapters.load(model, ours)
        assert np.array_equal(run(again, rows), run(model, rows))


def test_a_trained_head_that_is_the_table(exported, tmp_path):
    """PEFT keeps GPT-2's head and table one weight if it is told to, else trains a copy."""
    base, rows, file = exported("gpt2", True)
    for keeps in (True, False):
        configuration = peft.LoraConfig(
            r=2,
            target_modules=NETWORKS["gpt2"].targets,
            modules_to_save=[NETWORKS["gpt2"].head],
            ensure_weight_tying=keeps,
        )
        adapted = adapted_network(base, configuration)
        adapted.save_pretrained(tmp_path)
        if keeps:
            assert_near(run(og.adapters.load(file, tmp_path), rows), values(adapted, rows))
        else:
            names = r"'lm_head\.weight' of the adapter is a copy .* 'transformer\.wte\.weight'"
            with pytest.raises(og.ModelError, match=names):
                og.adapters.load(file, tmp_path)


@pytest.mark.parametrize("targets", [["lm_head"], ["wte"], ["wte", "lm_head"]])
def test_adapters_on_a_tied_table(targets, exported, tmp_path):
    """PEFT saves the table beside its adapters, once for each module that has it."""
    base, rows, file = exported("gpt2", True)
    configuration = peft.LoraConfig(r=2, target_modules=["c_attn", *targets])
    adapted = adapted_network(base, configuration)
    adapted.save_pretrained(tmp_path, save_embedding_layers=True)
    assert any("base_layer" in key for key in tensors_of(tmp_path))
    model = og.adapters.load(file, tmp_path)
    assert_near(run(model, rows), values(adapted, rows))


ADAPTERS = {
    "lora": {"lora": {"rank": 3, "alpha": 5}},
    "rslora": {"lora": {"rank": 4, "alpha": 2, "rank_stabilized": True, "targets": "linear"}},
    "dora": {"dora": {"rank": 2, "alpha": 4}},
    "ia3": "ia3",
}


@pytest.mark.parametrize(("name", "dynamo"), EXPORTED)
def test_trained_here_and_used_there(name, dynamo, exported, tmp_path):
    base, rows, file = exported(name, dynamo)
    targets = np.random.default_rng(0).integers(0, networks.CLASSES, run(file, rows).shape[:-1])
    for kind, adapter in ADAPTERS.items():
        if kind != "lora" and name in ("cnn", "bag"):
            continue
        loss = og.losses.SoftmaxCrossEntropy(axis=-1)
        if name == "gpt2" and isinstance(adapter, dict):  # see configurations()
            ((adapted, options),) = adapter.items()
            adapter = {adapted: {**options, "exclude": "head"}}
        trainer = og.Trainer(file, loss, "adam", adapter=adapter, lr=0.05)
        trainer.fit(rows, targets, epochs=5, batch_size=len(rows), verbose=0)
        folder = tmp_path / kind
        trainer.save_adapter(folder)
        wanted = run(trainer.trained_model(), rows)
        assert np.abs(wanted - values(base, rows)).max() > 0.01
        adapted = from_pretrained(base, folder)
        assert_near(values(adapted, rows), wanted)
        assert_near(values(adapted.merge_and_unload(), rows), run(trainer.merge(), rows), 2e-5)


@pytest.mark.parametrize(("name", "dynamo"), EXPORTED)
def test_gradients(name, dynamo, exported, tmp_path):
    base, rows, file = exported(name, dynamo)
    seed = np.random.default_rng(3).normal(size=run(file, rows).shape).astype(np.float32)
    for kind, configuration in configurations(name).items():
        if kind in ("one", "head", "biases", "own_biases"):
            continue
        adapted = adapted_network(base, configuration)
        adapted.save_pretrained(tmp_path / kind)
        wanted = gradients_of(adapted, rows, seed)
        found = adapter_gradients(og.adapters.load(file, tmp_path / kind), rows, seed)
        assert found.keys() == wanted.keys()
        for key, gradient in found.items():
            assert np.abs(wanted[key]).max() > 0
            assert_near(gradient, wanted[key], 5e-5 if name == "bert" else 1e-5)


@pytest.mark.parametrize("full", ["classifier.weight", "*bias", "classifier.*", "norm.*"])
def test_weights_trained_beside_an_adapter(full, exported, tmp_path):
    """PEFT saves whole modules, or biases alone."""
    base, rows, file = exported("block", False)
    targets = np.random.default_rng(0).integers(0, networks.CLASSES, len(rows))
    trainer = og.Trainer(file, lora={"rank": 2, "full": full}, lr=0.05)
    trainer.fit(rows, targets, epochs=3, batch_size=len(rows), verbose=0)
    trainer.save_adapter(tmp_path)
    wanted = run(trainer.trained_model(), rows)
    assert_near(values(from_pretrained(base, tmp_path), rows), wanted)
    assert_near(run(og.adapters.load(file, tmp_path), rows), wanted)
    trainer.load_adapter(tmp_path)
    assert_near(run(trainer.trained_model(), rows), wanted)
