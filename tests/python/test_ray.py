"""Workers placed by Ray; skipped where it is not installed (it brings 60 packages)."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import onnxgrad as og
from onnxgrad.errors import DeviceError, OptionError
from onnxgrad.ray import fit


def test_what_it_needs():
    with pytest.raises(OptionError, match="the least number and then the most"):
        fit(print, num_workers=(3, 2))
    with pytest.raises(OptionError, match="num_workers"):
        fit(print, num_workers=0)
    try:
        import ray  # noqa: F401
    except ImportError:
        with pytest.raises(DeviceError, match=r"needs .ray"):
            fit(print)


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'ray[default]')")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def train(model, folder, dies):
    """Fit in each worker; the last one is killed in the third epoch of its first start."""
    workers = og.distributed.connect()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 2)).astype(np.float32)
    y = (X @ np.array([[1.0], [-2.0]]) + 0.5).astype(np.float32)
    trainer = og.Trainer(model, "mse", og.optimizers.SGD(lr=0.1), seed=1)
    started = folder / "started"
    sizes = folder / "sizes"
    if workers.rank == 0:
        sizes.write_text(f"{sizes.read_text() if sizes.exists() else ''}{workers.size} ")

    class Dies(og.callbacks.Callback):
        def on_epoch_end(self, trainer, logs):
            if dies and workers.rank == 1 and logs["epoch"] == 3 and not started.exists():
                started.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    trainer.fit(
        X,
        y,
        epochs=6,
        batch_size=16,
        verbose=0,
        run_dir=folder / "run",
        resume=True,
        callbacks=[Dies()],
    )
    return sizes.read_text().split(), trainer.session.state(), len(trainer.history["epoch"])


def expect_alone(state, tmp_path, model):
    (tmp_path / "alone").mkdir()
    _, alone, _ = train(model, tmp_path / "alone", False)
    for name, value in alone.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dies", [False, True])
def test_two_workers_train_as_one(cluster, tmp_path, linear_model, dies):
    sizes, state, epochs = fit(train, linear_model, tmp_path, dies, num_workers=(1, 2), timeout=120)
    assert sizes == (["2", "2"] if dies else ["2"])
    assert epochs == 6
    expect_alone(state, tmp_path, linear_model)


def test_a_restart_has_as_many_workers_as_there_is_room_for(cluster, tmp_path, linear_model):
    """Another actor waits for a processor: it gets that of the worker that is killed."""

    class Occupant:
        def is_here(self):
            return True

    running = threading.Event()
    found = []

    def occupy():
        while not (tmp_path / "sizes").exists():
            time.sleep(0.05)
        occupant = cluster.remote(Occupant).options(num_cpus=1).remote()
        found.append(cluster.get(occupant.is_here.remote()))
        running.wait()
        cluster.kill(occupant)

    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        sizes, state, epochs = fit(
            train, linear_model, tmp_path, True, num_workers=(1, 2), timeout=120
        )
    finally:
        running.set()
        thread.join()
    assert found == [True]
    assert sizes == ["2", "1"]
    assert epochs == 6
    expect_alone(state, tmp_path, linear_model)


def test_errors_of_the_function_and_losses_that_go_on(cluster, tmp_path):
    def fails():
        raise ValueError("the function's own error")

    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ValueError, match="the function's own error"):
        fit(fails, num_workers=1, timeout=60)
    with pytest.raises(DeviceError, match="workers were lost 2 times"):
        fit(dies, num_workers=1, restarts=1, timeout=60)
    with pytest.raises(DeviceError, match="has room for 2 workers, 9 were asked for"):
        fit(fails, num_workers=9, timeout=1)
