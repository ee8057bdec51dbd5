"""New heads, features, layers by depth, BatchNormalization put back; beside stock onnxruntime."""

import functools
import pathlib

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from sklearn.datasets import load_breast_cancer, load_digits, load_iris

import command_line
import onnxgrad as og
from support import TWO_HEADS, mlp_proto

DATA = pathlib.Path(__file__).parents[1] / "data"
SKLEARN = sorted((DATA / "heads").glob("*.onnx"))
# One classifier, or one output, for each class.
WITHOUT_HEAD = {
    "logistic_regression_3_integers_columns_float32",
    "mlp_2_integers_columns_float64",
}

CNN = """
<ir_version: 8, opset_import: ["" : 17]>
cnn (float[N, 1, 8, 8] image) => (float[N, 5] probability, int64[N] digit)
{
  one = Conv <pads = [1, 1, 1, 1]> (image, conv1_weight, conv1_bias)
  first = Relu(one)
  two = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (first, conv2_weight, conv2_bias)
  second = Relu(two)
  mean = GlobalAveragePool(second)
  pooled = Flatten(mean)
  scores = Gemm <transB = 1> (pooled, fc_weight, fc_bias)
  probability = Softmax(scores)
  digit = ArgMax <axis = 1, keepdims = 0> (probability)
}
"""


def run(model, feeds, names=None):
    proto = model if isinstance(model, bytes) else model.SerializeToString()
    session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
    return session.run(names, feeds)


def random_feeds(model, rows=3, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {}
    names = {weight.name for weight in model.graph.initializer}
    for value in model.graph.input:
        if value.name in names:
            continue
        shape = [d.dim_value or rows for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        integer = np.issubdtype(dtype, np.integer)
        values = rng.integers(0, 4, shape) if integer else rng.normal(size=shape)
        feeds[value.name] = np.asarray(values, dtype)
    return feeds


def rows_of_scikit_learn(model, count):
    """Rows that the files were fitted to, as they are scaled."""
    (value,) = model.graph.input
    columns = value.type.tensor_type.shape.dim[1].dim_value
    X = (load_iris() if columns <= 4 else load_breast_cancer()).data[:, :columns]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return {value.name: X[np.random.default_rng(0).permutation(len(X))[:count]].astype(dtype)}


def parsed(text, **weights):
    model = onnx.parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def weights_of(model):
    return {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}


@functools.cache
def cnn():
    rng = np.random.default_rng(0)

    def draw(*shape):
        return (rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    return parsed(
        CNN,
        conv1_weight=draw(16, 1, 3, 3),
        conv1_bias=np.zeros(16, np.float32),
        conv2_weight=draw(32, 16, 3, 3),
        conv2_bias=np.zeros(32, np.float32),
        fc_weight=draw(5, 32),
        fc_bias=np.zeros(5, np.float32),
    )


@pytest.mark.parametrize("classes", [2, 6])
@pytest.mark.parametrize("path", SKLEARN, ids=lambda path: path.stem)
def test_heads_of_scikit_learn(path, classes):
    old = onnx.load(path)
    if path.stem in WITHOUT_HEAD:
        if classes == 6:
            with pytest.raises(og.ModelError, match="no head"):
                og.replace_head(str(path), classes)
        return
    new = og.replace_head(str(path), classes, seed=1)
    onnx.checker.check_model(new, full_check=True)
    feeds = rows_of_scikit_learn(old, 40)
    results = dict(zip([o.name for o in new.graph.output], run(new, feeds), strict=True))
    if len(results) == 1:  # a regression
        (values,) = results.values()
        assert values.shape == (40, classes)
        return
    label, probabilities = results.values()
    assert set(np.unique(label)) <= set(range(classes)) | {str(i) for i in range(classes)}
    if isinstance(probabilities, list):
        assert len(probabilities[0]) == classes
        probabilities = np.array([list(row.values()) for row in probabilities])
    ours = og.InferenceSession(new).run(None, feeds)
    assert np.array_equal(np.asarray(ours[0]).ravel(), np.asarray(label).ravel())
    if probabilities.ndim == 2 and probabilities.shape[1] == classes and classes > 2:
        assert np.array_equal(probabilities.argmax(1), np.asarray(label).astype(np.int64))
    # It can be trained on the new classes.
    y = np.arange(40) % classes
    y = y.astype(str) if label.dtype.kind in "OU" else y
    (X,) = feeds.values()
    trainer = og.Trainer(new, optimizer="adam", lr=0.05)
    trainer.fit(X, y, epochs=30, verbose=0)
    losses = trainer.history["train_loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("labels", [["w", "x", "y", "z"], [3, 5, 7, 11]])
@pytest.mark.parametrize("path", SKLEARN, ids=lambda path: path.stem)
def test_labels(path, labels):
    if path.stem in WITHOUT_HEAD:
        pytest.skip("it has no head that could be replaced")
    if len(onnx.load(path).graph.output) == 1:
        with pytest.raises(og.ModelError, match="returns no labels"):
            og.replace_head(str(path), 4, labels=labels)
        return
    new = og.replace_head(str(path), 4, labels=labels, seed=1)
    onnx.checker.check_model(new, full_check=True)
    feeds = rows_of_scikit_learn(new, 60)
    label, *rest = run(new, feeds)
    assert set(label.tolist()) <= set(labels)
    if rest and isinstance(rest[0], list):
        assert list(rest[0][0]) == labels


# Path of a model -> the weights of its head; none: it has no head.
HEADS = {
    "cond_router": (),
    "contrastive_pair": (),
    "dense_autoencoder_elu": ("6.weight", "6.bias"),
    "dense_mixture_of_experts": (),
    "densenet_block": ("head.weight", "head.bias"),
    "encoder_decoder_attention": ("val_113", "out.bias"),
    "gpt_learned_places_opset18": ("onnx::MatMul_313", "out.bias"),
    "gpt_learned_places_opset23": ("val_128", "out.bias"),
    "gru_bidirectional_classifier": ("out.weight", "out.bias"),
    "loop_euler": (),
    "lstm_language_model": ("val_140", "out.bias"),
    "patch_transformer_class_token": ("out.weight", "out.bias"),
    "quantized_mlp": ("4.weight", "4.bias"),
    "rmsnorm_gated_mlp": ("out.weight", "out.bias"),
    "scan_leaky_neurons": ("out.weight", "out.bias"),
    "spline_oscillator": (),
    "squeeze_excite": (),
    "unet_nearest": ("o.weight", "o.bias"),
    "vgg_small_batchnorm": ("17.weight", "17.bias"),
    "wavenet_stack": ("out.weight", "out.bias"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_exported_modules(name):
    path = DATA / "models" / f"{name}.onnx"
    if not HEADS[name]:
        with pytest.raises(og.ModelError, match="no head"):
            og.replace_head(str(path), 11)
        return
    old = onnx.load(path)
    new = og.replace_head(str(path), 11)
    onnx.checker.check_model(new, full_check=True)
    before, after = weights_of(old), weights_of(new)
    kept = [key for key in after if key in before and np.array_equal(before[key], after[key])]
    changed = sorted(set(after) - set(kept))
    if name != "quantized_mlp":
        assert changed == sorted(HEADS[name])
        assert sorted(set(before) - set(kept)) == changed
    stored = np.load(DATA / "models" / f"{name}.npz")
    inputs = {value.name for value in old.graph.input}
    feeds = {key: stored[key] for key in stored.files if key in inputs}
    feeds = feeds or random_feeds(old)
    expected, values = run(old, feeds), run(new, feeds)
    shapes = [value.shape for value in expected]
    widths = {v for shape in shapes for v in shape}
    assert any(11 in value.shape for value in values), widths
    assert any(np.abs(value).max() > 0 for value in values)
    for one, two in zip(expected, values, strict=True):
        assert one.ndim == two.ndim
        if one.shape == two.shape:
            np.testing.assert_array_equal(one, two)


def test_new_head_computes_features_times_weight():
    model = cnn()
    new = og.replace_head(model, 3, seed=4)
    feeds = random_feeds(model, 6)
    at = og.features(model)
    assert [value.name for value in at.graph.output] == ["pooled"]
    assert "fc_weight" not in weights_of(at)
    (features,) = run(at, feeds)
    weights = weights_of(new)
    assert weights["fc_weight"].shape == (3, 32)
    (scores,) = run(og.features(new, "scores"), feeds)
    np.testing.assert_allclose(
        scores, features @ weights["fc_weight"].T + weights["fc_bias"], rtol=1e-5, atol=1e-6
    )
    probability, digit = run(new, feeds)
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-6)
    assert np.array_equal(digit, scores.argmax(1))
    # All other weights are as they were, and the seed decides the new ones.
    for name, array in weights_of(model).items():
        assert name.startswith("fc_") or np.array_equal(array, weights[name])
    assert og.replace_head(model, 3, seed=4) == new
    assert og.replace_head(model, 3, seed=5) != new
    zeros = weights_of(og.replace_head(model, 3, init="zeros"))
    assert not zeros["fc_weight"].any()


def test_forms_of_heads():
    """Convolutions, reshapes with the number of classes, sums of heads, shared tables."""
    rng = np.random.default_rng(0)

    def array(*shape):
        return rng.normal(size=shape).astype(np.float32)

    pixels = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] map, int64[N, 8, 8] label)
        <int64[4] sizes = {0, 4, 8, 8}>
        { f = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, a)  r = Relu(f)
          s = Conv(r, w, b)
          up = Resize <mode = "linear"> (s, , scales)
          map = Reshape(up, sizes)
          label = ArgMax <axis = 1, keepdims = 0> (map) }""",
        a=array(5, 3, 3, 3),
        w=array(4, 5, 1, 1),
        b=array(4),
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    new = og.replace_head(pixels, 9)
    onnx.checker.check_model(new, full_check=True)
    feeds = random_feeds(pixels, 2)
    result = run(new, feeds)
    assert result[0].shape == (2, 9, 8, 8)
    assert np.array_equal(result[0].argmax(1), result[1])

    squeeze_net = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3, 8, 8] x) => (float[N, 4] y) <int64[2] sizes = {-1, 4}>
        { f = Conv(x, a)  r = Relu(f)  s = Conv(r, w, b)  t = Relu(s)
          p = GlobalAveragePool(t)  q = Reshape(p, sizes)  y = Softmax(q) }""",
        a=array(5, 3, 3, 3),
        w=array(4, 5, 1, 1),
        b=array(4),
    )
    assert run(og.replace_head(squeeze_net, 6), feeds)[0].shape == (2, 6)

    summed = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3] x) => (float[N, 4] y)
        { d = MatMul(x, deep)  h = Relu(d)  m = MatMul(h, w)  n = MatMul(x, wide)
          s = Add(m, n)  t = Add(s, b)  y = LogSoftmax(t) }""",
        deep=array(3, 5),
        w=array(5, 4),
        wide=array(3, 4),
        b=array(4),
    )
    new = og.replace_head(summed, 6)
    shapes = {name: value.shape for name, value in weights_of(new).items()}
    assert shapes == {"deep": (3, 5), "w": (5, 6), "wide": (3, 6), "b": (6,)}

    tied = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[N, T] x) => (float[N, T, 20] y)
        { e = Gather(table, x)  h = Tanh(e)  t = Transpose(table)  y = MatMul(h, t) }""",
        table=array(20, 6),
    )
    new = og.replace_head(tied, 5)
    assert sorted(value.shape for value in weights_of(new).values()) == [(6, 5), (20, 6)]
    assert run(new, random_feeds(tied))[0].shape == (3, 3, 5)

    one_score = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3] x) => (float[N, 1] p)
        { s = MatMul(x, w)  t = Add(s, b)  p = Sigmoid(t) }""",
        w=array(3, 1),
        b=array(1),
    )
    (p,) = run(og.replace_head(one_score, 4), {"x": array(5, 3)})
    np.testing.assert_allclose(p.sum(1), np.ones(5), rtol=1e-6)
    stacked = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, T, 3] x) => (float[N, T, 4] y)
        { s = MatMul(x, w)  t = Add(s, b)  y = Softmax(t) }""",
        w=array(1, 3, 4),
        b=array(4),
    )
    new = og.replace_head(stacked, 6)
    assert {name: value.shape for name, value in weights_of(new).items()} == {
        "w": (1, 3, 6),
        "b": (6,),
    }
    assert run(new, {"x": array(2, 5, 3)})[0].shape == (2, 5, 6)
    rows = parsed(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3] x) => (float[N] y) <int64[1] flat = {-1}>
        { s = MatMul(x, w)  t = Add(s, b)  y = Reshape(t, flat) }""",
        w=array(3, 1),
        b=array(1),
    )
    assert run(og.replace_head(rows, 4), {"x": array(5, 3)})[0].shape == (5, 4)


def test_several_heads():
    model = onnx.parser.parse_model(TWO_HEADS)
    with pytest.raises(og.ModelError, match="2 heads") as caught:
        og.replace_head(model, 4)
    assert "'a', 'b'" in str(caught.value)
    one = {name: x.shape for name, x in weights_of(og.replace_head(model, 4, at="kind")).items()}
    assert one == {"a": (2, 1), "b": (2, 4)}
    both = og.replace_head(model, 4, at="all")
    assert {x.shape for x in weights_of(both).values()} == {(2, 4)}
    with pytest.raises(og.ModelError, match="no head 'kinds'"):
        og.replace_head(model, 4, at="kinds")
    deep = mlp_proto([3, 5, 4], head="Softmax")
    with pytest.raises(og.ModelError, match=r"'W0' is no head: MatMul node 'matmul_1'"):
        og.replace_head(deep, 4, at="W0")
    with pytest.raises(og.OptionError, match="labels"):
        og.replace_head(deep, 4, labels=["a"])
    with pytest.raises(og.OptionError, match="'a' twice"):
        og.replace_head(deep, 3, labels=["a", "a", "c"])


def test_other_classes_name_replace_head():
    path = DATA / "heads" / "mlp_3_strings_zipmap_float32.onnx"
    trainer = og.Trainer(str(path))
    feeds = rows_of_scikit_learn(onnx.load(path), 4)
    (X,) = feeds.values()
    with pytest.raises(og.DataError, match="replace_head"):
        trainer.fit(X, ["cat", "dog", "cow", "bee"], verbose=0)
    new = og.Trainer(str(path), new_head={"classes": 4, "labels": ["bee", "cat", "cow", "dog"]})
    new.fit(X, ["cat", "dog", "cow", "bee"], epochs=2, verbose=0)
    assert set(run(new.trained_model(), feeds)[0]) <= {
        "bee",
        "cat",
        "cow",
        "dog",
    }


@functools.cache
def digits():
    X, y = load_digits(return_X_y=True)
    return X.reshape(-1, 1, 8, 8).astype(np.float32) / 16, y


@functools.cache
def pretrained():
    """A network for the digits 0 to 4."""
    X, y = digits()
    trainer = og.Trainer(cnn(), optimizer="adam", lr=3e-3)
    trainer.fit(X[y < 5], y[y < 5], epochs=15, batch_size=32, verbose=0)
    assert trainer.evaluate(X[y < 5], y[y < 5]).accuracy > 0.95
    return trainer.trained_model()


def test_other_digits():
    X, y = digits()
    X, y = X[y >= 5], y[y >= 5] - 5
    trainer = og.Trainer(pretrained(), new_head=5, trainable="head", optimizer="adam", lr=1e-2)
    assert sorted(w.name for w in trainer.session.trained_weights) == ["fc_bias", "fc_weight"]
    trainer.fit(X, y, epochs=15, batch_size=32, verbose=0)
    with_head = trainer.evaluate(X, y).accuracy
    assert with_head > 0.8
    trained = weights_of(trainer.trained_model())
    for name, array in weights_of(pretrained()).items():
        assert name.startswith("fc_") or np.array_equal(array, trained[name])
    tuned = og.Trainer(trainer.trained_model(), optimizer="adam", lr=3e-3)
    tuned.fit(X, y, epochs=12, batch_size=32, verbose=0)
    assert tuned.evaluate(X, y).accuracy > max(with_head, 0.92)


def test_layers_by_depth():
    model = mlp_proto([3, 6, 5, 4], head="Softmax")

    def trained(**options):
        session = og.TrainingSession(model, **options)
        return [weight.name for weight in session.trained_weights]

    assert trained(trainable="head") == ["W2", "b2"]
    assert trained(trainable="last:1") == ["W1", "b1", "W2", "b2"]
    with pytest.raises(og.ModelError, match="'last:0' selects no layer"):
        trained(trainable="last:0")
    assert trained(trainable=["head", "W0"]) == ["W0", "W2", "b2"]
    assert trained(frozen="head") == ["W0", "b0", "W1", "b1"]
    assert og.ForwardBackward(model, weights="head").weight_names == ["W2", "b2"]
    levels = {weight.name: weight.level for weight in og.report(model).weights}
    assert levels == {"W0": 2, "b0": 2, "W1": 1, "b1": 1, "W2": 0, "b2": 0}
    assert "head: 'W2', 'b2'" in str(og.report(model))
    session = og.TrainingSession(model, trainable="head")
    session.unfreeze("last:1")
    assert [w.name for w in session.trained_weights] == ["W1", "b1", "W2", "b2"]
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for weight in named.graph.initializer:
        weight.name = "head" if weight.name == "W0" else weight.name
    for node in named.graph.node:
        node.input[:] = ["head" if name == "W0" else name for name in node.input]
    session = og.TrainingSession(named, trainable="head")
    assert [weight.name for weight in session.trained_weights] == ["head"]


@pytest.mark.parametrize("name", [name for name in HEADS if HEADS[name]])
def test_head_of_exported_modules_is_selected(name):
    if name in ("quantized_mlp", "scan_leaky_neurons"):
        pytest.skip("its head is quantized, or one output of two")
    path = DATA / "models" / f"{name}.onnx"
    session = og.TrainingSession(str(path), trainable="head")
    assert sorted(w.name for w in session.trained_weights) == sorted(HEADS[name])


def test_new_head_beside_an_adapter():
    model = mlp_proto([3, 6, 5, 4], head="Softmax")
    session = og.TrainingSession(model, new_head=7, lora=2)
    names = {weight.name for weight in session.trained_weights}
    assert {"W2", "b2"} <= names
    assert "W1" not in names
    assert len(names) > 2
    weights = og.ForwardBackward(model, new_head=7).weight_names
    assert weights == ["W0", "b0", "W1", "b1", "W2", "b2"]
    step = og.training_step(model, new_head=7)
    assert any(value.name == "W2" for value in step.graph.input)


def test_unfolded_batch_norm():
    model = pretrained()
    X, y = digits()
    new = og.unfold_batch_norm(model)
    onnx.checker.check_model(new, full_check=True)
    kinds = [node.op_type for node in new.graph.node]
    assert kinds.count("BatchNormalization") == 2
    feeds = {"image": X[:50]}
    for one, two in zip(run(model, feeds), run(new, feeds), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-6)
    by_rows = og.unfold_batch_norm(model, {"image": X[:200]})
    for one, two in zip(run(model, feeds), run(by_rows, feeds), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    means = next(
        v for k, v in weights_of(by_rows).items() if k.endswith("conv1_weight.norm.running_mean")
    )
    (results,) = run(og.features(by_rows, "one_conv"), {"image": X[:200]})
    np.testing.assert_allclose(means, results.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    # Frozen, it keeps the running statistics; trained, it learns them.
    frozen = og.Trainer(by_rows, new_head=5, trainable="head")
    frozen.fit(X[y >= 5], y[y >= 5] - 5, epochs=1, verbose=0)
    trained = og.Trainer(by_rows, new_head=5)
    trained.fit(X[y >= 5], y[y >= 5] - 5, epochs=1, verbose=0)
    for name, array in weights_of(by_rows).items():
        if "running" not in name:
            continue
        assert np.array_equal(array, weights_of(frozen.trained_model())[name])
        assert not np.array_equal(array, weights_of(trained.trained_model())[name])
    with pytest.raises(og.OptionError, match="no finite statistics"):
        og.unfold_batch_norm(model, {"image": np.full_like(X[:4], np.nan)})
    with pytest.raises(og.ModelError, match="no convolution"):
        og.unfold_batch_norm(mlp_proto([3, 4]))


def test_features():
    model = cnn()
    feeds = random_feeds(model, 3)
    cut = og.features(model, ["second", "first"])
    assert [value.name for value in cut.graph.output] == ["second", "first"]
    onnx.checker.check_model(cut, full_check=True)
    assert run(cut, feeds)[0].shape == (3, 32, 4, 4)
    two = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 2] x, float[N, 2] z) => (float[N, 2] y)
        { a = Relu(x)  b = Tanh(z)  y = Add(a, b) }"""
    )
    assert [value.name for value in og.features(two, "b").graph.input] == ["z"]
    with pytest.raises(og.ModelError, match="second"):
        og.features(model, "secnd")


def test_command_line(tmp_path):
    onnx.save(mlp_proto([2, 4, 3], head="Softmax"), tmp_path / "model.onnx")
    rows = "\n".join(f"{i % 7},{i % 3},{i % 4}" for i in range(40))
    (tmp_path / "rows.csv").write_text("a,b,kind\n" + rows + "\n")
    command_line.run(
        "train", tmp_path / "model.onnx", "--data", tmp_path / "rows.csv", "--target", "kind",
        "--new-head", "4", "--trainable", "head", "--epochs", "2",
        "--output", tmp_path / "out.onnx",
    )  # fmt: skip
    trained = weights_of(onnx.load(tmp_path / "out.onnx"))
    assert trained["W1"].shape == (4, 4)


def test_gradual_unfreezing():
    model = mlp_proto([3, 6, 5, 4], head="Softmax")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 4, 40)
    before = weights_of(model)
    changed = []

    class Watch(og.callbacks.Callback):
        def on_epoch_end(self, trainer, logs):
            now = weights_of(trainer.trained_model())
            names = [name for name in now if not np.array_equal(now[name], before[name])]
            changed.append((logs["epoch"], sorted(names)))

    trainer = og.Trainer(model, optimizer="adam", lr=0.01)
    callbacks = [og.callbacks.GradualUnfreezing(every=2), Watch()]
    trainer.fit(X, y, epochs=6, batch_size=8, verbose=0, callbacks=callbacks)
    head, two = ["W2", "b2"], ["W1", "W2", "b1", "b2"]
    assert changed == [
        (1, head),
        (2, head),
        (3, two),
        (4, two),
        (5, sorted(before)),
        (6, sorted(before)),
    ]
    assert trainer.history["epoch"] == [1, 2, 3, 4, 5, 6]
    losses = trainer.history["train_loss"]
    assert losses[-1] < losses[0]
    trainer.fit(X, y, epochs=1, verbose=0, callbacks=[og.callbacks.GradualUnfreezing(every=2)])
    assert len(trainer.session.trained_weights) == 6
    # Groups may be of layers that are frozen at first alone.
    grouped = og.Trainer(model, groups=[og.optimizers.ParameterGroup("W0", lr_factor=0.1)])
    grouped.fit(X, y, epochs=3, verbose=0, callbacks=[og.callbacks.GradualUnfreezing()])
    with pytest.raises(og.OptionError, match="early stopping"):
        trainer.fit(X, y, epochs=2, verbose=0, callbacks=callbacks, early_stopping=True)


def test_layerwise_decay():
    model = mlp_proto([3, 6, 5, 4], head="Softmax")
    groups = og.optimizers.layerwise_decay(model, 0.5)
    assert [(g.patterns, g.lr_factor) for g in groups] == [
        (("W2", "b2"), 1.0),
        (("W1", "b1"), 0.5),
        (("W0", "b0"), 0.25),
    ]
    rng = np.random.default_rng(0)
    feeds = {"X": rng.normal(size=(8, 3)).astype(np.float32), "label": rng.integers(0, 4, 8)}
    steps = {}
    for options in ({}, {"groups": groups}):
        session = og.TrainingSession(model, optimizer=og.optimizers.SGD(lr=0.1), **options)
        session.step(feeds)
        after = weights_of(session.trained_model())
        steps[bool(options)] = {k: after[k] - v for k, v in weights_of(model).items()}
    for name, factor in (("W0", 0.25), ("W1", 0.5), ("b2", 1.0)):
        np.testing.assert_allclose(steps[True][name], factor * steps[False][name], atol=1e-7)
    path = DATA / "models" / "gpt_learned_places_opset18.onnx"
    blocks = og.optimizers.layerwise_decay(str(path), 0.9)
    assert any(all("layer.1." in name or "MatMul" in name for name in g.patterns) for g in blocks)
    assert len(blocks) < 8
