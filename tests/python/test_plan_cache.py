"""`plan_cache`: a second start does not compile; damaged and foreign files are ignored."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import onnxgrad as og
from test_memory_limit import BATCH, attention, branches, convolutions, same_state, trained


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.plan"))


def quietly(make, **options):
    """A session that trains without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return trained(make, **options)


CASES = [
    {},
    {"threads": 2, "optimizer": "adam", "clip_norm": 0.5},
    {"optimizer": og.optimizers.SGD(lr=0.05, momentum=0.9), "accumulate": 2},
    {"optimizer": "adamw", "frozen": ["w2*"], "skip_non_finite": True},
    {"precision": "bf16"},
]


@pytest.mark.parametrize("make", [convolutions, attention])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_second_start_does_not_compile(tmp_path: Path, make, options):
    free, losses = trained(make, **dict(options))
    first, once = quietly(make, plan_cache=tmp_path / "a/b", **dict(options))
    assert first.num_compiled == free.num_compiled == 1
    assert len(files(tmp_path / "a/b")) == 1
    second, again = quietly(make, plan_cache=str(tmp_path / "a/b"), **dict(options))
    assert second.num_compiled == 0
    assert losses == once == again
    assert same_state(free, first)
    assert same_state(free, second)
    assert second.plan_summary() == first.plan_summary() == free.plan_summary()
    assert second.memory() == first.memory()


def test_values_that_are_computed_again_are_in_the_cache(tmp_path: Path):
    kept = trained(attention)[0].memory()
    limit = kept.total - (kept.activations + kept.scratch) // 4
    free, losses = trained(attention, limit)
    quietly(attention, limit=limit, plan_cache=tmp_path)
    session, again = quietly(attention, limit=limit, plan_cache=tmp_path)
    assert session.num_compiled == 0
    assert again == losses
    assert same_state(session, free)
    assert session.memory().recomputed_values == free.memory().recomputed_values > 0
    assert session.memory().recomputed_flops == free.memory().recomputed_flops


def test_what_differs_is_compiled(tmp_path: Path):
    trained(attention, threads=2, plan_cache=tmp_path)
    for options in (
        {"threads": 1},
        {"optimizer": "adam"},
        {"frozen": "w2*"},
        {"precision": "bf16"},
    ):
        session, _ = quietly(attention, plan_cache=tmp_path, **{"threads": 2, **options})
        assert session.num_compiled == 1
    assert len(files(tmp_path)) == 5
    # Weights are not in a plan, unless they are constants: the seed and the rate are not either.
    fast = {"threads": 2, "optimizer": og.optimizers.SGD(lr=0.5)}
    session, losses = quietly(attention, plan_cache=tmp_path, **fast)
    assert session.num_compiled == 0
    assert losses == trained(attention, **fast)[1]
    changed = attention()
    frozen = next(w for w in changed.graph.initializer if w.name == "w4")
    frozen.raw_data = np.zeros(frozen.dims, np.float32).tobytes()
    for model, compiled in ((attention(), 1), (changed, 1), (changed, 0)):
        session = og.TrainingSession(
            model, "softmax_cross_entropy", "sgd", frozen="w4", plan_cache=tmp_path
        )
        session.step({"x": np.ones((BATCH, 24, 8), np.float32), "label": np.zeros(BATCH, int)})
        assert session.num_compiled == compiled


def test_bodies_and_values_that_determine_shapes(tmp_path: Path):
    free, losses = trained(branches, optimizer="adam")
    for _ in range(2):
        session, again = quietly(branches, optimizer="adam", plan_cache=tmp_path)
        assert again == losses
        assert same_state(session, free)
    assert session.num_compiled < free.num_compiled


DAMAGES = {
    "empty": lambda data: b"",
    "short": lambda data: data[: len(data) // 2],
    "long": lambda data: data + b"x",
    "flipped": lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    "foreign": lambda data: (
        b"something else entirely, which is as long as a key and a checksum" * 9
    ),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damaged_files_are_ignored_with_a_warning(tmp_path: Path, damage):
    _, losses = trained(convolutions, plan_cache=tmp_path)
    (file,) = files(tmp_path)
    good = file.read_bytes()
    file.write_bytes(DAMAGES[damage](good))
    with pytest.warns(RuntimeWarning, match="is not used"):
        session, again = trained(convolutions, plan_cache=tmp_path)
    assert session.num_compiled == 1
    assert again == losses
    assert file.read_bytes() == good  # it has been written again
    assert quietly(convolutions, plan_cache=tmp_path)[0].num_compiled == 0


def test_a_plan_of_another_key_is_ignored(tmp_path: Path):
    trained(convolutions, plan_cache=tmp_path)
    trained(attention, plan_cache=tmp_path)
    first, second = files(tmp_path)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    for make in (convolutions, attention):
        with pytest.warns(RuntimeWarning, match="is not used"):
            assert trained(make, plan_cache=tmp_path)[0].num_compiled == 1


def test_folders_that_cannot_be_used(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="no plans are kept"):
        session, losses = trained(convolutions, plan_cache=tmp_path / "file")
    assert session.num_compiled == 1
    assert losses == trained(convolutions)[1]
    with pytest.raises(og.OptionError, match="plan_cache"):
        trained(convolutions, plan_cache=3)
    with pytest.raises(og.OptionError, match="plan_cache"):
        og.Trainer(session, plan_cache=tmp_path)


def test_the_environment_variable_names_a_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("ONNXGRAD_PLAN_CACHE", str(tmp_path))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2 * BATCH, 24, 8)).astype(np.float32)
    results = []
    for _ in range(2):
        trainer = og.Trainer(attention(), optimizer="adam")
        trainer.fit(x, rng.integers(0, 5, len(x)) * 0, batch_size=BATCH, verbose=0)
        layer = og.ForwardBackward(attention())
        (y,) = layer.forward({"x": x})
        inference = og.InferenceSession(attention())
        gradients = layer.backward(np.ones_like(y))
        results.append(
            [
                *trainer.session.state().values(),
                *gradients.weights.values(),
                *inference.run(None, {"x": x}),
                y,
            ]
        )
        number = len(files(tmp_path))
        assert number >= 4
    assert len(files(tmp_path)) == number
    assert trainer.session.num_compiled == 0
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


def test_processes_at_the_same_time(tmp_path: Path):
    job = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_memory_limit import attention, trained
for threads in (1, 2):
    print(*trained(attention, threads=threads, plan_cache={str(tmp_path)!r})[1])
"""
    command = [sys.executable, "-W", "error", "-c", job]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(outputs) == 1
    assert len(files(tmp_path)) == 2
    assert not list(tmp_path.glob("*.tmp*"))
