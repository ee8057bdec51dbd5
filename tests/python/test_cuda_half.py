"""Steps of 16 bits on a card: attention and convolutions are cuDNN's, and close to the CPU's."""

import shutil

import pytest

from card_scripts import DRIVER, run_script

pytestmark = pytest.mark.skipif(
    not DRIVER.exists(), reason="the stand-ins are built with the C++ tests, which this build lacks"
)

COMPARED = """
import onnx.parser
import onnx.numpy_helper

def filled(text, **shapes):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for name, shape in shapes.items():
        weight = (0.2 * random.normal(size=shape)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model

def trained(model, x, y, device, precision):
    one = og.Trainer(
        model, loss="mse", optimizer="sgd", seed=5, lr=0.05, device=device, precision=precision
    )
    one.fit(x, y, epochs=2, batch_size=8, verbose=0)
    return one

def compare(model, x, y, precision):
    card, host = (trained(model, x, y, one, precision) for one in ("cuda", "cpu"))
    exact = trained(model, x, y, "cpu", "float32").session.state()
    others = host.session.state()
    for name, wanted in exact.items():
        value = card.session.state()[name]
        difference = np.abs(np.asarray(value) - np.asarray(others[name])).max()
        rounding = np.abs(np.asarray(wanted) - np.asarray(others[name])).max()
        assert difference <= 3 * rounding + 1e-6, (name, difference, rounding)
    return card.session.plan_summary()
"""


ATTENTION = """
model = filled('''main (float[N, 16, 32] X) => (float[N, 16, 32] Y) {
  shape = Constant <value = int64[4] {0, 0, 2, 16}> ()
  flat = Constant <value = int64[3] {0, 0, 32}> ()
  scale = Constant <value = float {0.25}> ()
  q = MatMul (X, wq)  k = MatMul (X, wk)  v = MatMul (X, wv)
  q4 = Reshape (q, shape)  k4 = Reshape (k, shape)  v4 = Reshape (v, shape)
  qh = Transpose <perm = [0, 2, 1, 3]> (q4)
  kt = Transpose <perm = [0, 2, 3, 1]> (k4)
  vh = Transpose <perm = [0, 2, 1, 3]> (v4)
  s = MatMul (qh, kt)  scaled = Mul (s, scale)  p = Softmax (scaled)
  o = MatMul (p, vh)
  ot = Transpose <perm = [0, 2, 1, 3]> (o)  of = Reshape (ot, flat)
  Y = MatMul (of, wo)
}''', **{name: (32, 32) for name in ("wq", "wk", "wv", "wo")})
x, y = (random.normal(size=(32, 16, 32)).astype(np.float32) for _ in range(2))
"""


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_attention_is_one_kernel_each_way(run_on_card, precision):
    run_on_card(
        COMPARED
        + ATTENTION
        + f"""
plan = compare(model, x, y, {precision!r})
assert " Attention [cuDNN, 16 of 16x16x16]" in plan, plan
assert " AttentionGradient [cuDNN, 16 of 16x16x16]" in plan, plan
"""
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gradients_of_weights_come_from_cudnn(run_on_card, precision):
    run_on_card(
        COMPARED
        + f"""
model = filled('''main (float[N, 8, 12, 12] X) => (float[N, 8, 12, 12] Y) {{
  z = Conv <pads = [1, 1, 1, 1]> (X, w1)
  a = Relu (z)
  Y = Conv <pads = [1, 1, 1, 1]> (a, w2)
}}''', w1=(16, 8, 3, 3), w2=(8, 16, 3, 3))
x = random.normal(size=(32, 8, 12, 12)).astype(np.float32)
y = random.normal(size=(32, 8, 12, 12)).astype(np.float32)
plan = compare(model, x, y, {precision!r})
assert "cuDNN, channels last, widened" in plan, plan
"""
    )


def test_plans_are_kept(card_images, tmp_path):
    """Later processes make them from JSON; a damaged or refused one is made anew."""
    script = (
        COMPARED
        + ATTENTION
        + """
state = trained(model, x, y, "cuda", "bf16").session.state()
print(calls("plan_from_json"), *(np.asarray(value).tobytes().hex() for value in state.values()))
"""
    )

    def run(prelude=""):
        count, *state = run_script(prelude + script, images).split()
        return int(count), state

    images = card_images
    _, wanted = run()
    images = shutil.copytree(card_images, tmp_path / "images")
    count, found = run()
    assert count >= 2  # forward and gradient
    assert found == wanted
    assert run('fail("plan_from_json", 3000)\n') == (count, wanted)
    plans = [file for file in images.iterdir() if b"\nplan " in file.read_bytes()]
    assert len(plans) >= count
    for file in plans:
        file.write_bytes(file.read_bytes()[:-20])
    assert run() == (0, wanted)
    assert run() == (count, wanted)
