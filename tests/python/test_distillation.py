"""Students and teachers: values of torch, files, combinations of options, errors."""

import pathlib
import pickle

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import command_line
import onnxgrad as og
from pairwise import pairwise
from support import mlp_proto

STORED = pathlib.Path(__file__).parents[1] / "data" / "distillation" / "values.npz"

# One layer of attention with one head, as in make_torch_values.py.
NETWORK = """
<ir_version: 8, opset_import: ["" : {opset}]>
net ({type}[{rows}, L, 4] {input}) => ({type}[{rows}, 3] probability)
{{
  hidden = MatMul({input}, We)
  query = MatMul(hidden, Wq)
  key = MatMul(hidden, Wk)
  value = MatMul(hidden, Wv)
  turned = Transpose <perm = [0, 2, 1]> (key)
  products = MatMul(query, turned)
  scaled = Div(products, root)
  attention = Softmax <axis = 2> (scaled)
  kept = Dropout(attention, ratio)
  mixed = MatMul(kept, value)
  {mean}
  pooled = Squeeze(averaged, axis)
  scores = Gemm(pooled, Wo, bo)
  probability = Softmax(scores)
}}
"""


@pytest.fixture(scope="module")
def stored():
    with np.load(STORED) as values:
        return dict(values)


def network(stored, name, dtype=np.float64, opset=18, rows="N", argument="x"):
    weights = {key.split("/")[1]: v for key, v in stored.items() if key.startswith(name + "/")}
    mean = (
        "averaged = ReduceMean(mixed, axis)"
        if opset >= 18
        else "averaged = ReduceMean <axes = [1]> (mixed)"
    )
    kind = {np.float64: "double", np.float32: "float"}[dtype]
    text = NETWORK.format(opset=opset, type=kind, rows=rows, input=argument, mean=mean)
    model = onnx.parser.parse_model(text)
    arrays = {key: value.astype(dtype) for key, value in weights.items()}
    arrays |= {"root": dtype(np.sqrt(weights["We"].shape[1])), "axis": np.array([1])}
    arrays |= {"ratio": np.float32(0.5)}
    for key, value in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), key))
    return model


CASES = {
    "kl": {"alpha": 1},
    "mse": {"alpha": 1, "outputs": "mse"},
    "mixed": {"alpha": 0.4},
    "values": {"alpha": 1, "outputs": "none", "values": {"hidden": "hidden"}},
    "cosine": {"alpha": 1, "outputs": "none", "values": "hidden|hidden|cosine"},
    "attention": {"alpha": 1, "outputs": "none", "attention": True},
    "all": {"values": [("hidden", "hidden", "cosine", 0.25)], "attention": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_torch(stored, case):
    names = [key.split("/")[1] for key in stored if key.startswith(case + "/")]
    names.remove("loss")
    distill = dict(CASES[case])
    if distill.get("outputs", "auto") in ("auto", "kl"):
        distill["temperature"] = 2.5
    session = og.TrainingSession(
        network(stored, "student"),
        teacher=network(stored, "teacher", opset=13, argument="y", rows=2),
        distill=distill,
        training_mode=False,
        outputs=[f"{name}_grad" for name in names],
    )
    state = session.state()
    if "distillation.projection_1" in state:
        session.load_state(
            {**state, "distillation.projection_1": stored["projection"].astype(np.float64)}
        )
    feeds = {"x": stored["x"]}
    if distill.get("alpha", 0.5) < 1:
        feeds["label"] = stored["labels"]
    assert session.evaluate(feeds).loss == pytest.approx(float(stored[f"{case}/loss"]), rel=1e-12)
    loss, gradients = session.step(feeds)
    assert loss == pytest.approx(float(stored[f"{case}/loss"]), rel=1e-12)
    for name, gradient in zip(names, gradients, strict=True):
        np.testing.assert_allclose(gradient, stored[f"{case}/{name}"], rtol=1e-9, atol=1e-13)


def float_pair(stored):
    return network(stored, "student", np.float32), network(stored, "teacher", np.float32, 13)


def rows(count=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 3, 4)).astype(np.float32), rng.integers(0, 3, count)


def log_softmax(scores):
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


@pytest.mark.parametrize("adapter", [{}, {"lora": {"rank": 2, "targets": "linear"}}])
def test_first_labels_say_what_plain_columns_are(adapter, tmp_path):
    """Columns are compared with the teacher's as the task compares them with its labels."""
    student, teacher = mlp_proto([4, 5, 3], seed=1), mlp_proto([4, 8, 3], seed=2)
    x, y = rows()
    x = x[:, 0]
    numbers = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
    s, t = (
        ort.InferenceSession(model.SerializeToString()).run(None, {"X": x})[0].astype(np.float64)
        for model in (student, teacher)
    )
    kl = (np.exp(log_softmax(t / 2)) * (log_softmax(t / 2) - log_softmax(s / 2))).sum(1).mean()
    wanted = {
        "classes": (y, -log_softmax(s)[np.arange(12), y].mean(), 4 * kl),
        "numbers": (numbers, ((s - numbers) ** 2).mean(), ((s - t) ** 2).mean()),
    }
    for name, (targets, own, taught) in wanted.items():
        options = {"teacher": teacher, "distill": {"alpha": 0.25}, "seed": 3, **adapter}
        fit = {"batch_size": 12, "verbose": 0}
        whole = og.Trainer(student, optimizer="adam", lr=0.1, **options)
        whole.fit(x, targets, epochs=4, **fit)
        loss = 0.75 * own + 0.25 * taught
        assert whole.history["train_loss"][0] == pytest.approx(loss, rel=1e-5), name
        states = tmp_path / name
        checkpoints = og.callbacks.Checkpoint(states)
        parts = [og.Trainer(student, optimizer="adam", lr=0.1, **options) for _ in range(2)]
        parts[0].fit(x, targets, epochs=2, callbacks=checkpoints, **fit)
        parts[1].fit(x, targets, epochs=4, resume=states, **fit)
        for a, b in zip(whole.get_weights(), parts[1].get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


# Names of what is compared -> its options.
MATCHED = {
    "outputs": {},
    "numbers": {"outputs": "mse"},
    "values": {"outputs": "none", "values": {"hidden": "hidden"}},
    "attention": {"attention": 1},
}
ENTRIES = ("session", "trainer", "step", "command line")
PARAMETERS = {
    "matched": tuple(MATCHED),
    "labels": (True, False),
    "optimizer": ("sgd", "adamw", "lbfgs"),
    "precision": ("float32", "bf16"),
    "accumulate": (1, 2),
    "lora": (None, 2),
    "teacher": ("file", "self"),
    "entry": ENTRIES,
}


def is_valid(row):
    of_lbfgs = row.get("optimizer") == "lbfgs"
    if of_lbfgs and (row.get("precision") == "bf16" or row.get("entry") == "step"):
        return False
    if of_lbfgs and row.get("accumulate") == 2:
        return False
    # It begins as its own teacher: there is nothing to learn from it alone but with an adapter.
    if row.get("teacher") == "self" and row.get("lora", 2) is None:
        return False
    return not (row.get("entry") == "command line" and row.get("labels", True) is False)


def short(row):
    return "-".join(str(value).replace(" ", "_") for value in row.values())


@pytest.mark.parametrize("row", pairwise(PARAMETERS, is_valid), ids=short)
def test_options_go_together(stored, row, tmp_path):
    student, teacher = float_pair(stored)
    student_path, teacher_path = tmp_path / "student.onnx", tmp_path / "teacher.onnx"
    onnx.save(student, student_path)
    onnx.save(teacher, teacher_path)
    X, y = rows()
    distill = {**MATCHED[row["matched"]], "alpha": 0.5 if row["labels"] else 1}
    if row["teacher"] == "self" and row["matched"] == "values":
        distill["values"] = {"query": "query"}
    options = {
        "teacher": str(teacher_path) if row["teacher"] == "file" else "self",
        "precision": row["precision"],
        "lora": row["lora"],
        "accumulate": row["accumulate"],
    }
    feeds = {"x": X} | ({"label": y} if row["labels"] else {})
    trained = None
    if row["entry"] == "session":
        session = og.TrainingSession(
            str(student_path), "auto", row["optimizer"], distill=distill, **options
        )
        losses = [session.step(feeds) for _ in range(4)]
        trained = session.trained_model()
    elif row["entry"] == "trainer":
        trainer = og.Trainer(
            str(student_path), "auto", row["optimizer"], distill=distill, **options
        )
        size = None if row["optimizer"] == "lbfgs" else 4
        trainer.fit(X, y if row["labels"] else None, epochs=3, batch_size=size, verbose=False)
        losses = trainer.history["train_loss"]
        trained = trainer.trained_model()
        again = pickle.loads(pickle.dumps(trainer))
        assert again.session.evaluate(feeds) == trainer.session.evaluate(feeds)
    elif row["entry"] == "step":
        step = og.training_step(
            str(student_path),
            "auto",
            row["optimizer"],
            distill=distill,
            target_opset=21,
            training_mode=False,
            **options,
        )
        session = og.TrainingSession(
            str(student_path),
            "auto",
            row["optimizer"],
            distill=distill,
            training_mode=False,
            **options,
        )
        stock = ort.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
        given = {**feeds, "learning_rate": np.array(0.1, np.float32)}
        losses = [stock.run(None, given)[0]]
        tolerance = 1e-5 if row["precision"] == "float32" else 2e-2
        assert losses[0] == pytest.approx(session.step(feeds), rel=tolerance, abs=1e-6)
    else:
        data = tmp_path / "rows.npz"
        np.savez(data, x=X, label=y)
        texts = [f"{name}={value}" for name, value in distill.items() if name != "values"]
        if "values" in distill:
            texts.append("values=" + "|".join(next(iter(distill["values"].items()))))
        arguments = ["train", student_path, "--data", data, "--target", "label"]
        arguments += ["-o", tmp_path / "trained.onnx"]
        arguments += ["--optimizer", row["optimizer"], "--distill", ",".join(texts)]
        for name, value in options.items():
            if value is not None:
                arguments += [f"--{name}", value]
        command_line.run(*map(str, arguments))
        losses = [0.0]
        trained = onnx.load(tmp_path / "trained.onnx")
    assert np.all(np.isfinite(losses))
    if trained is not None:
        weights = {one.name for one in trained.graph.initializer}
        assert not any("distillation" in name or "teacher" in name for name in weights)
        if row["lora"] is None:
            check_only_weights_differ(student, trained)


def check_only_weights_differ(before, after):
    before, after = (onnx.ModelProto.FromString(m.SerializeToString()) for m in (before, after))
    for model in (before, after):
        for weight in model.graph.initializer:
            weight.raw_data = bytes(len(weight.raw_data))
    assert before.SerializeToString() == after.SerializeToString()


def test_a_student_becomes_its_teacher(stored):
    student, teacher = float_pair(stored)
    X, _ = rows(200)
    adam = og.optimizers.Adam(lr=0.02)
    trainer = og.Trainer(
        student, "auto", adam, teacher=teacher, distill="alpha=1", training_mode=False
    )
    trainer.fit(X, epochs=60, batch_size=50, verbose=False)
    losses = trainer.history["train_loss"]
    assert losses[-1] < 0.1 * losses[0]
    probabilities = ort.InferenceSession(teacher.SerializeToString()).run(None, {"x": X})[0]
    found = trainer.predict(X)
    assert np.mean(found.argmax(axis=1) == probabilities.argmax(axis=1)) > 0.95


def test_checkpoints_have_the_projection_and_not_the_teacher(stored, tmp_path):
    student, teacher = float_pair(stored)
    X, y = rows()
    feeds = {"x": X, "label": y}

    def make(teacher=teacher):
        distill = {"values": {"hidden": "hidden"}}
        return og.TrainingSession(student, "auto", "adam", teacher=teacher, distill=distill)

    session = make()
    session.step(feeds)
    session.save(tmp_path / "state.safetensors")
    assert not [name for name in session.state() if "teacher" in name]
    assert "distillation.projection_1" not in session.weights
    again = make()
    again.load(tmp_path / "state.safetensors")
    assert [again.step(feeds) for _ in range(2)] == [session.step(feeds) for _ in range(2)]
    other = network(stored, "teacher", np.float32)
    other.graph.initializer[0].raw_data = other.graph.initializer[1].raw_data[:96]
    with pytest.raises(og.CheckpointError):
        make(other).load(tmp_path / "state.safetensors")


def test_a_teacher_stays_in_inference_mode(stored):
    student, teacher = float_pair(stored)
    X, _ = rows()
    distill = {"alpha": 1, "outputs": "none", "values": {"hidden": "mixed"}}
    sgd = og.optimizers.SGD(lr=0.0)
    session = og.TrainingSession(
        student, "auto", sgd, teacher=teacher, distill=distill, training_mode=True
    )
    # The student has no Dropout before these values, and that of the teacher drops nothing.
    want = session.evaluate({"x": X}).loss
    assert session.step({"x": X}) == session.step({"x": X}) == pytest.approx(want, rel=1e-5)


def test_a_forest_teaches_a_network():
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier

    X, y = load_iris(return_X_y=True)
    X = X.astype(np.float32)
    forest = to_onnx(
        RandomForestClassifier(20, random_state=0).fit(X, y), X[:1], options={"zipmap": False}
    )
    mlp = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        mlp (float[N, 4] x) => (float[N, 3] p)
        { h = Gemm(x, A, a)  r = Relu(h)  s = Gemm(r, B, b)  p = Softmax(s) }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in {"A": (4, 16), "a": (16,), "B": (16, 3), "b": (3,)}.items():
        array = (rng.normal(size=shape) * 0.4).astype(np.float32)
        mlp.graph.initializer.append(numpy_helper.from_array(array, name))
    adam = og.optimizers.Adam(lr=0.02)
    trainer = og.Trainer(mlp, "auto", adam, teacher=forest, distill="alpha=1")
    trainer.fit(X, epochs=100, verbose=False)
    assert np.mean(trainer.predict(X).argmax(axis=1) == y) > 0.93


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distill": "alpha=1"}, "^distill= is given without a teacher"),
        ({"distill": {"temprature": 1}, "teacher": "self"}, "temperature"),
        ({"distill": {"alpha": 1.5}, "teacher": "self"}, "alpha is 1.5"),
        ({"distill": {"temperature": 0}, "teacher": "self"}, "temperature"),
        ({"distill": {"outputs": "kl2"}, "teacher": "self"}, "outputs: unknown .kl2"),
        ({"distill": {"outputs": "none"}, "teacher": "self"}, "there is nothing that the student"),
        ({"distill": {"values": {"hiden": "hidden"}}, "teacher": "self"}, "Did you mean 'hidden'"),
        ({"distill": {"values": "a|b|c|d|e"}, "teacher": "self"}, "expected names of two values"),
        ({"distill": {"values": {"scores": "hidden"}}, "teacher": "self"}, "cannot be compared"),
        ({"distill": {"values": "query|key|huber"}, "teacher": "self"}, "squared error or the cos"),
        ({"distill": {"inputs": {"x": "y"}}, "teacher": "self"}, "no input for input 'x'"),
    ],
)
def test_errors_name_the_place(stored, options, message):
    with pytest.raises(og.Error, match=message):
        og.TrainingSession(network(stored, "student"), **options)


def test_a_teacher_of_other_inputs_is_refused(stored, linear_model):
    with pytest.raises(og.ModelError, match=r"the teacher reads float32\[N, 2\] as input 'X'"):
        og.TrainingSession(network(stored, "student"), teacher=linear_model)


def test_a_training_with_a_projection_is_no_training_info(stored):
    student, teacher = float_pair(stored)
    distill = {"values": {"hidden": "hidden"}}
    with pytest.raises(og.ModelError, match="the loss has a weight of its own"):
        og.add_training_info(student, teacher=teacher, distill=distill)
    model = og.add_training_info(student, "auto", "sgd", teacher=teacher)
    X, y = rows()
    assert np.isfinite(og.TrainingSession(model).step({"x": X, "label": y}))


def test_a_loss_with_a_teacher_runs_in_stock_onnxruntime(stored):
    student, teacher = float_pair(stored)
    X, y = rows()
    model = og.add_loss(student, teacher=teacher, distill={"attention": 1})
    found = ort.InferenceSession(model.SerializeToString()).run(["loss"], {"x": X, "label": y})[0]
    session = og.TrainingSession(student, teacher=teacher, distill={"attention": 1})
    assert found == pytest.approx(session.evaluate({"x": X, "label": y}).loss, rel=1e-5)


def test_scores_of_a_teacher_can_be_data():
    rng = np.random.default_rng(1)
    s, t = rng.normal(size=(2, 4, 3)).astype(np.float32)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N, 3] x) => (float[N, 3] y) { y = Mul(x, w) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    session = og.TrainingSession(model, og.losses.Distillation(temperature=3.0), trainable="w")

    def softmax(z):
        e = np.exp(z / 3 - (z / 3).max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    p, q = softmax(t), softmax(s)
    want = 9 * np.sum(p * (np.log(p) - np.log(q)), axis=1).mean()
    assert session.evaluate({"x": s, "label": t}).loss == pytest.approx(want, rel=1e-5)


def test_an_estimator_takes_a_teacher(stored):
    from onnxgrad.sklearn import OnnxClassifier, multi_layer_perceptron

    X, y = rows(60)
    X = X[:, 0]
    teacher = multi_layer_perceptron([4, 8, 3], head="softmax", seed=5)
    found = OnnxClassifier(hidden_layer_sizes=4, max_iter=3, teacher=teacher).fit(X, y)
    assert found.predict(X).shape == (60,)
    copied = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(copied.predict_proba(X), found.predict_proba(X))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_rows_count_for_the_teacher_too(stored, reduction):
    X, y = rows(6)
    weight = np.arange(6, dtype=np.float32)

    def losses(loss, X, y, weight, **options):
        session = og.TrainingSession(*float_pair(stored)[:1], loss, "sgd", **options)
        return session.step({"x": X, "label": y, "weight": weight})

    options = {
        "teacher": float_pair(stored)[1],
        "distill": {"attention": 1},
        "training_mode": False,
        "sample_weight": "weight",
    }
    loss = og.losses.SoftmaxCrossEntropy(reduction=reduction)
    one = np.ones(1, np.float32)
    alone = [losses(loss, X[i : i + 1], y[i : i + 1], one, **options) for i in range(6)]
    each = np.ravel(alone) * weight
    want = {"mean": each.sum() / weight.sum(), "sum": each.sum(), "none": each}[reduction]
    np.testing.assert_allclose(losses(loss, X, y, weight, **options), want, rtol=1e-5)


def test_each_of_several_outputs_has_a_teacher(stored):
    def heads(factor):
        model = onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            net (float[N, 3] x) => (float[N, 1] a, float[N, 2] b)
            { a = MatMul(x, A) b = MatMul(x, B) }"""
        )
        rng = np.random.default_rng(0)
        for name, columns in (("A", 1), ("B", 2)):
            array = (factor * rng.normal(size=(3, columns))).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        return model

    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    loss = {"a": "squared_error", "b": "squared_error"}
    session = og.TrainingSession(heads(1.0), loss, "sgd", teacher=heads(3.0), distill="alpha=0.25")
    a, b = og.InferenceSession(heads(1.0)).run(None, {"x": x})
    feeds = {"x": x, session.target_names["a"]: a, session.target_names["b"]: b}
    want = 0.25 * 4 * (np.mean(a**2) + np.mean(b**2))  # the targets are the scores themselves
    assert session.step(feeds) == pytest.approx(want, rel=1e-5)


HEADS = sorted((STORED.parents[1] / "heads").glob("*.onnx"))
MODELS = sorted((STORED.parents[1] / "models").glob("*[!s].onnx"))


@pytest.mark.parametrize("path", [*HEADS[::3], *MODELS[::4]], ids=lambda path: path.stem)
def test_a_model_is_its_own_teacher(path):
    model = onnx.load(path)
    weights = {one.name for one in model.graph.initializer}
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        if value.name not in weights:
            shape = [one.dim_value or 4 for one in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            numbers = rng.integers(0, 4, shape) if dtype.kind in "iu" else rng.normal(size=shape)
            feeds[value.name] = numbers.astype(dtype)
    try:
        session = og.TrainingSession(
            path, "auto", "sgd", teacher="self", distill="alpha=1,outputs=mse", training_mode=False
        )
    except og.ModelError as error:  # there is nothing to train, or no one place for a loss
        if not any(text in str(error) for text in ("no weight to train", "several outputs")):
            raise
        return
    assert session.step(feeds) == pytest.approx(0, abs=1e-6)


def test_a_temperature_asks_for_the_divergence():
    model = mlp_proto([3, 5, 4])
    losses = []
    for temperature in (1, 8):
        session = og.TrainingSession(
            model, "cross_entropy", teacher=mlp_proto([3, 6, 4], seed=2),
            distill={"temperature": temperature},
        )  # fmt: skip
        x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
        losses.append(session.step({"X": x, session.target_name: np.arange(6) % 4}))
    assert losses[0] != losses[1]
    with pytest.raises(og.OptionError, match="temperature= has no effect with outputs='mse'"):
        og.TrainingSession(model, teacher="self", distill="temperature=3,outputs=mse")
    with pytest.raises(og.OptionError, match="distill: 3 is no dictionary"):
        og.TrainingSession(model, teacher="self", distill=3)
