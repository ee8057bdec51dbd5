"""Functions of the user that handle signals are called while `fit` runs, and it continues."""

import os
import signal
import threading
import time

import numpy as np
import onnx
import pytest

import onnxgrad as og
from support import LINEAR

X = np.random.default_rng(3).normal(size=(64, 2)).astype(np.float32)
Y = X[:, :1] - X[:, 1:]


@pytest.fixture
def handlers():
    """Put all handlers back that a test installs."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def trainer():
    return og.Trainer(onnx.parser.parse_model(LINEAR), threads=1)


def send(number, seconds=0.2):
    """Send the signal to this process a little later; return the thread that does."""
    thread = threading.Thread(
        target=lambda: (time.sleep(seconds), os.kill(os.getpid(), number)), daemon=True
    )
    thread.start()
    return thread


@pytest.mark.parametrize("callbacks", [[], [lambda trainer, logs: None]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM])
def test_fit_continues_after_a_handler_returns(handlers, number, callbacks):
    called = []

    def handle(number, frame):
        called.append((number, fitted.session.steps))
        fitted.stop("the handler said so")

    fitted = trainer()
    signal.signal(number, handle)
    send(number)
    fitted.fit(X, Y, epochs=10**9, max_time=30, callbacks=callbacks, verbose=0)
    assert [n for n, _ in called] == [number]
    assert fitted.stop_reason == "the handler said so"
    assert 0 < called[0][1] <= fitted.session.steps
    assert signal.getsignal(number) is handle


def test_handlers_do_not_end_a_fit(handlers):
    called = []
    signal.signal(signal.SIGALRM, lambda number, frame: called.append(number))
    signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    fitted = trainer()
    send(signal.SIGINT)
    fitted.fit(X, Y, epochs=10**9, max_time=0.8, verbose=0)
    assert fitted.stop_reason == "the time limit of 0.8 s was reached"
    assert called.count(signal.SIGINT) == 1
    assert called.count(signal.SIGALRM) > 3  # in time, not after the fit


class EnoughError(Exception):
    pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_what_a_handler_raises_comes_out_of_fit(handlers, number, tmp_path):
    def handle(number, frame):
        raise EnoughError(number)

    signal.signal(number, handle)
    fitted = trainer()
    send(number)
    keeper = og.callbacks.Checkpoint(tmp_path / "run", every=10**9)
    with pytest.raises(EnoughError) as raised:
        fitted.fit(X, Y, epochs=10**9, max_time=30, callbacks=[keeper], verbose=0)
    assert raised.value.args == (number,)
    assert raised.traceback[-1].name == "handle"
    # A whole step, written down; it continues from there.
    name = f"ck-{fitted.session.steps:012d}.safetensors"
    assert (tmp_path / "run" / name).is_file()
    before = fitted.session.steps
    fitted.fit(X, Y, epochs=2, verbose=0)
    assert fitted.session.steps == before + 4


def test_a_signal_while_rows_are_awaited(handlers):
    called = []
    waits = threading.Event()
    signal.signal(signal.SIGUSR1, lambda number, frame: (called.append(number), waits.set()))

    def batches():
        yield X, Y
        waits.wait(30)  # in the thread that reads
        yield X, Y

    send(signal.SIGUSR1)
    fitted = trainer().fit(og.data.Batches(batches), epochs=1, verbose=0)
    assert called == [signal.SIGUSR1]
    assert fitted.history["epoch"] == [1]
    assert fitted.session.steps == 2


def test_a_handler_that_a_callback_installs_stays(handlers):
    def handle(number, frame):
        pass

    def install(trainer, logs):
        signal.signal(signal.SIGINT, handle)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    signal.signal(signal.SIGTERM, handle)
    trainer().fit(X, Y, epochs=2, callbacks=[install], verbose=0)
    assert signal.getsignal(signal.SIGINT) is handle
    os.kill(os.getpid(), signal.SIGTERM)  # is ignored by the system too
    time.sleep(0.05)


def test_a_fit_inside_of_a_fit_is_the_one_that_ends(handlers):
    inner = trainer()

    def fit(outer, logs):
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            inner.fit(X, Y, epochs=10**9, max_time=30, verbose=0)

    outer = trainer().fit(X, Y, epochs=2, callbacks=[fit], verbose=0)
    assert inner.stop_reason == "interrupted"
    assert outer.history["epoch"] == [1, 2]
    assert outer.stop_reason == ""


def test_ctrl_c_leaves_history_and_reason(handlers):
    fitted = trainer()
    send(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(X, Y, epochs=10**9, max_time=30, verbose=0)
    assert fitted.stop_reason == "interrupted"
    assert fitted.history["epoch"][-1] > 1


def test_signals_in_another_thread_are_left_alone(handlers):
    called = []
    signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    fitted = trainer()
    thread = threading.Thread(
        target=fitted.fit, args=(X, Y), kwargs={"epochs": 10**9, "max_time": 0.5, "verbose": 0}
    )
    thread.start()
    send(signal.SIGUSR1).join()
    time.sleep(0.05)
    assert called == [signal.SIGUSR1]
    thread.join()
    assert fitted.stop_reason == "the time limit of 0.5 s was reached"
