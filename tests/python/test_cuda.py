"""Cards of NVIDIA, on stand-ins of the driver and the compiler that are stricter than a card."""

import pytest

from card_scripts import DRIVER

pytestmark = pytest.mark.skipif(
    not DRIVER.exists(), reason="the stand-ins are built with the C++ tests, which this build lacks"
)


@pytest.mark.parametrize(
    ("optimizer", "loss"),
    [("sgd", "mse"), ("adam", "softmax_cross_entropy"), ("nesterov", "mse")],
)
def test_trains_as_the_cpu(run_on_card, optimizer, loss):
    run_on_card(f"""
if {loss!r} != "mse":
    T = labels
card, host = (fit(trainer(x, {optimizer!r}, loss={loss!r})) for x in ("cuda", "cpu"))
np.testing.assert_allclose(card.history["train_loss"], host.history["train_loss"], rtol=1e-5)
for name, value in host.session.weights.items():
    np.testing.assert_allclose(card.session.weights[name], value, rtol=1e-4, atol=1e-6)
np.testing.assert_allclose(card.predict(X), host.predict(X), rtol=1e-4, atol=1e-5)
""")


def test_a_series_of_a_small_network_is_one_kernel(run_on_card):
    run_on_card("""
one = fit(trainer(), epochs=2)  # compiled and recorded
names = ("cuLaunchKernel", "cuGraphLaunch", "cuStreamSynchronize")
counts = []
for epochs in (4, 12):
    before = [calls(name) for name in names]
    fit(one, epochs=epochs)
    counts.append([calls(name) - start for name, start in zip(names, before)])
kernels, graphs, waits = np.subtract(counts[1], counts[0])  # of eight epochs, 128 steps
assert kernels <= 64 and graphs == 0, counts  # a slow machine looks more often
# A wait for the losses of each series, and in an epoch one look at all states and one copy.
assert waits <= kernels + 2 * 8, counts
""")


def test_large_plans_are_graphs(run_on_card):
    out = run_on_card("""
one = fit(trainer(sizes=(6, 700, 300, 3)), epochs=2)
before = calls("cuGraphLaunch"), calls("cuLaunchKernel")
fit(one, epochs=3)
print(calls("cuGraphLaunch") - before[0], calls("cuLaunchKernel") - before[1])
""")
    graphs, kernels = map(int, out.split())
    assert graphs > 0
    assert kernels < 48  # steps


def test_orders_of_streams_do_not_matter(run_on_card):
    script = """
one = fit(trainer(sizes=(6, 40, 3)), epochs=2)
print(*one.history["train_loss"], *one.session.weights.values())
"""
    assert len({run_on_card(script, ONNXGRAD_STANDIN_SEED=str(seed)) for seed in (1, 2, 3)}) == 1


def test_out_of_memory_leaves_the_session_usable(run_on_card):
    run_on_card("""
one, other = fit(trainer(), epochs=1), fit(trainer(), epochs=1)
fail("cuMemAllocAsync", 2)
message = raised(lambda: one.evaluate(X, T, batch_size=200))
assert "no memory left" in message and "smaller batch" in message, message
fail("", 0)
fit(one, epochs=1)
fit(other, epochs=1)
assert one.history["train_loss"] == other.history["train_loss"]
""")


def test_an_illegal_address_names_the_steps(run_on_card):
    message = run_on_card("""
one = fit(trainer(), epochs=1)
fail("work", 700, 40)
print(raised(lambda: fit(one, epochs=3)))
""")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in message
    assert "computing steps" in message
    assert "Restart" in message


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("cuModuleLoadData", 200),
        ("cuStreamBeginCapture", 900),
        ("cuGraphInstantiate", 2),
        ("cuLaunchKernel", 1),
        ("cuStreamCreate", 2),
        ("cuMemHostAlloc", 2),
    ],
)
def test_errors_of_the_driver_are_device_errors(run_on_card, function, error):
    run_on_card(f"""
fail({function!r}, {error})
print(raised(lambda: fit(trainer(sizes=(6, 700, 300, 3)))))
fail("", 0)
fit(trainer(sizes=(6, 700, 300, 3)), epochs=1)  # the process goes on
""")


def test_results_stay_on_the_card(run_on_card):
    run_on_card("""
session = og.InferenceSession(mlp_proto((6, 16, 3)), device="cuda")
there = session.run(None, {session.get_inputs()[0].name: X}, to_host=False)[0]
assert there.__dlpack_device__() == (2, 0)
before = calls("cuMemcpyDtoHAsync")
again = og.InferenceSession(mlp_proto((3, 5, 2)), device="cuda")
result = again.run(None, {again.get_inputs()[0].name: there})[0]
assert calls("cuMemcpyDtoHAsync") == before + 1
host = og.InferenceSession(mlp_proto((3, 5, 2)))
expected = host.run(None, {host.get_inputs()[0].name: there.numpy()})[0]
np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
""")


def test_fit_reads_rows_of_the_card(run_on_card):
    run_on_card("""
placed = [og.devices.to_device(array, "cuda") for array in (X, labels, X[:64] + 1, labels[:64])]
def fitted(X, y, held_X, held_y, device="cuda", epochs=2):
    one = trainer(device, loss="softmax_cross_entropy")
    one.fit(X, y, epochs=epochs, batch_size=16, verbose=0, validation=(held_X, held_y))
    return one
host_rows = [array.numpy() for array in placed]
found = fitted(*placed)
copied = []
for rows in (host_rows, placed):
    before = calls("cuMemcpyHtoDAsync")
    found.evaluate(*rows[:2], batch_size=32)
    copied.append(calls("cuMemcpyHtoDAsync") - before)
# Both arrays, in each of eight batches; a plan that is new has a constant.
assert copied[0] - 2 * 8 in (0, 1) and copied[1] == 0, copied
host = fitted(*host_rows, device="cpu")
np.testing.assert_allclose(found.history["val_loss"], host.history["val_loss"], rtol=1e-4)
np.testing.assert_allclose(found.history["train_loss"], host.history["train_loss"], rtol=1e-4)
""")


def test_without_a_card(run_on_card):
    message = run_on_card(
        """
import onnxgrad as og
from support import mlp_proto

try:
    og.InferenceSession(mlp_proto((3, 2)), device="cuda")
except og.DeviceError as error:
    print(error)
""",
        prepared="",  # no stand-in is loaded
        ONNXGRAD_CUDA_PATH="/nowhere",
    )
    assert "there is no device 'cuda'" in message
    assert "libcuda" in message or "driver" in message
