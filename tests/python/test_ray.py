"""Workers placed by Ray; skipped where it is not installed (it brings 60 packages)."""

import os

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
        with pytest.raises(DeviceError, match="Ray is not installed"):
            fit(print)


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install onnxgrad[ray])")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def train(model, folder, dies):
    """Fit in each worker; the second one dies in its first start."""
    workers = og.distributed.connect(timeout=60)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 2)).astype(np.float32)
    y = (X @ np.array([[1.0], [-2.0]]) + 0.5).astype(np.float32)
    trainer = og.Trainer(model, "mse", og.optimizers.SGD(lr=0.1), seed=1)
    started = folder / "started"

    def die(_):
        if dies and workers.rank == 1 and not started.exists():
            started.touch()
            os._exit(9)

    class Dies(og.callbacks.Callback):
        def on_epoch_end(self, trainer, logs):
            die(logs)

    trainer.fit(
        X,
        y,
        epochs=5,
        batch_size=16,
        verbose=0,
        run_dir=folder / "run",
        resume=True,
        callbacks=[Dies()],
    )
    return workers.size, trainer.session.state()


@pytest.mark.parametrize("dies", [False, True])
def test_two_workers_train_as_one(cluster, tmp_path, linear_model, dies):
    size, state = fit(train, linear_model, tmp_path, dies, num_workers=(1, 2), timeout=120)
    assert size == 2
    (tmp_path / "alone").mkdir()
    _, alone = train(linear_model, tmp_path / "alone", False)
    for name, value in alone.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6)
