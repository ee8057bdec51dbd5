"""Models as exporters return them, wherever a model is taken; results of the kind given."""

import io
import os
import pathlib
import pickle
import sys
import tempfile

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from sklearn.base import clone

import onnxgrad as og
from exported_models import KINDS, ROWS, TARGETS, Program, proto, saved
from onnxgrad.base import exporters
from onnxgrad.compat.mlprodict.onnxrt import OnnxInference
from onnxgrad.compat.onnxcustom.training.ortgradient import OrtGradientForwardBackward
from onnxgrad.compat.onnxcustom.utils.onnx_helper import get_onnx_opset
from onnxgrad.compat.onnxruntime import GradientGraphBuilder
from onnxgrad.compat.onnxruntime.training.artifacts import generate_artifacts
from onnxgrad.graph_pictures import _graph_of
from onnxgrad.sklearn import OnnxRegressor

EXPECTED = og.InferenceSession(proto()).run(None, {"X": ROWS})[0]


def values(model):
    session = og.InferenceSession(model)
    return session.run(None, {session.get_inputs()[0].name: ROWS})[0]


def gradients(model):
    made = og.gradient(model, session_inputs(model), fill_grad=True)
    session = og.InferenceSession(made)
    feeds = {value.name: ROWS for value in session.get_inputs()}
    return session.run(None, feeds)[0] is not None


def session_inputs(model):
    return og.InferenceSession(model).get_inputs()[0].name


def as_loss(model):
    """Return whether it is taken for a loss, though it has one input and a loss has two."""
    with pytest.raises(og.Error, match="input"):
        og.TrainingSession(proto(), og.losses.User(model))
    return isinstance(model, str) or isinstance(og.losses.as_loss(model), og.losses.User)


def trained(model):
    return values(og.Trainer(model, "mse").trained_model())


def estimator(model):
    return OnnxRegressor(model, max_iter=1)


def copied_by_pickle(model):
    return pickle.loads(pickle.dumps(estimator(model)))


def built_by_onnxruntime(model):
    output = og.InferenceSession(model).get_outputs()[0].name
    builder = GradientGraphBuilder(model, set(), {session_inputs(model)}, output)
    builder.build()
    return builder.get_model()


def inferred_by_mlprodict(model):
    return next(iter(OnnxInference(model).run({session_inputs(model): ROWS}).values()))


ENTRIES = {
    "InferenceSession": lambda m: np.allclose(values(m), EXPECTED),
    "TrainingSession": lambda m: og.TrainingSession(m, "mse").loss_name is not None,
    "Trainer": lambda m: og.Trainer(m, "mse").fit(ROWS, TARGETS, epochs=1, verbose=0).history != {},
    "Trainer.trained_model": lambda m: np.allclose(trained(m), EXPECTED),
    "ForwardBackward": lambda m: np.allclose(og.ForwardBackward(m).forward([ROWS])[0], EXPECTED),
    "gradient": gradients,
    "vjp": lambda m: og.vjp(m, session_inputs(m)).graph.node,
    "add_loss": lambda m: og.add_loss(m, "mse").graph.output[0].name == "loss",
    "training_step": lambda m: og.training_step(m, "mse").graph.output[0].name == "loss",
    "add_training_info": lambda m: og.add_training_info(m, "mse").training_info,
    "initialize": lambda m: og.initialize(m, seed=1).graph.node,
    "set_weights": lambda m: np.allclose(values(og.set_weights(m, {})), EXPECTED),
    "state_dict": lambda m: len(og.state_dict(m)) >= 1,
    "load_state_dict": lambda m: og.load_state_dict(m, og.state_dict(m)).graph.node,
    "open_batch": lambda m: og.open_batch(m).graph.node,
    "to_inference": lambda m: og.to_inference(m).graph.node,
    "report": lambda m: og.report(m).num_parameters == 8,
    "weight_change": lambda m: og.weight_change(m, m) is not None,
    "check_gradients": lambda m: og.check_gradients(m, {session_inputs(m): ROWS}) is not None,
    "losses.User": as_loss,
    "estimator": lambda m: estimator(m).fit(ROWS, TARGETS).predict(ROWS).shape == (4, 2),
    "cloned estimator": lambda m: clone(estimator(m)).fit(ROWS, TARGETS).n_iter_ == 1,
    "pickled estimator": lambda m: copied_by_pickle(m).fit(ROWS, TARGETS).n_iter_ == 1,
    "drawing": lambda m: _graph_of(m).node,
    "register_operator": lambda m: registered(m),
    "onnxruntime's builder": built_by_onnxruntime,
    "mlprodict's inference": lambda m: np.allclose(inferred_by_mlprodict(m), EXPECTED),
    "onnxcustom's helper": lambda m: get_onnx_opset(m) > 0,
}  # fmt: skip


def registered(model):
    if isinstance(model, str):
        return True  # the text of a function
    with og.register_operator(model, name="test.exported::Linear"):
        return True


# ndonnx takes most of a second to build a pair.
SLOW = {"ndonnx_pair": {"Trainer", "gradient", "losses.User", "estimator"}}
PAIRS = [(kind, entry) for kind in KINDS for entry in ENTRIES if entry in SLOW.get(kind, ENTRIES)]


@pytest.mark.parametrize(("kind", "entry"), PAIRS)
def test_every_kind_is_taken(kind, entry, tmp_path):
    model = KINDS[kind](tmp_path)
    result = ENTRIES[entry](model)
    assert result is not None
    assert result is not False


def test_onnxcustom_and_artifacts(tmp_path):
    for kind in ("path", "ir", "program", "file"):
        model = KINDS[kind](tmp_path)
        assert OrtGradientForwardBackward(model, input_names=["X"]).weights_to_train == ["W", "b"]
        generate_artifacts(
            model,
            requires_grad=["W"],
            loss=og.losses.SquaredError(),
            artifact_directory=tmp_path,
        )
        assert (tmp_path / "training_model.onnx").exists()


def loss_model():
    text = """<ir_version: 10, opset_import: ["": 18]>
    loss (float[N, K] scores, float[N, K] target) => (float[N, 1] rows) {
      axes = Constant<value_ints = [1]>()
      d = Sub(scores, target)
      s = Mul(d, d)
      rows = ReduceMean(s, axes)
    }"""
    return onnx.parser.parse_model(text)


LOSSES = {
    "proto": lambda _: loss_model(),
    "ir": lambda _: ir.from_proto(loss_model()),
    "program": lambda _: Program(ir.from_proto(loss_model()), None),
    "bytes": lambda _: loss_model().SerializeToString(),
    "file": lambda folder: stored(folder).open("rb"),
    "path": lambda folder: stored(folder),
}


def stored(folder):
    onnx.save(loss_model(), folder / "loss.onnx")
    return folder / "loss.onnx"


@pytest.mark.parametrize("by_output", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_in_every_kind(kind, by_output, tmp_path):
    loss = LOSSES[kind](tmp_path)
    session = og.TrainingSession(proto(), {"Y": loss} if by_output else loss)
    label = next(iter(session.target_names.values()))
    found = session.evaluate({"X": ROWS, label: TARGETS}).loss
    assert found == pytest.approx(float(np.mean((EXPECTED - TARGETS) ** 2)), rel=1e-5)


# Results of the kind given.

RESULTS = {
    "gradient": lambda m, **o: og.gradient(m, **o),
    "vjp": lambda m, **o: og.vjp(m, **o),
    "add_loss": lambda m, **o: og.add_loss(m, "mse", **o),
    "training_step": lambda m, **o: og.training_step(m, "mse", **o),
    "add_training_info": lambda m, **o: og.add_training_info(m, "mse", **o),
    "initialize": lambda m, **o: og.initialize(m, **o),
    "set_weights": lambda m, **o: og.set_weights(m, {}, **o),
}


def unpickled(trainer):
    return pickle.loads(pickle.dumps(trainer))


METHODS = {
    "load_state_dict": lambda m, **o: og.load_state_dict(m, og.state_dict(m), **o),
    "open_batch": lambda m, **o: og.open_batch(m, **o),
    "to_inference": lambda m, **o: og.to_inference(m, **o),
    "TrainingSession": lambda m, **o: og.TrainingSession(m, "mse").trained_model(**o),
    "Trainer": lambda m, **o: og.Trainer(m, "mse").trained_model(**o),
    "unpickled Trainer": lambda m, **o: unpickled(og.Trainer(m, "mse")).trained_model(**o),
    "with_training_info": lambda m, **o: og.Trainer(m, "mse").with_training_info(**o),
    "ForwardBackward": lambda m, **o: og.ForwardBackward(m).trained_model(**o),
    "graphs": lambda m, **o: og.ForwardBackward(m).graphs(**o)["forward"],
    "to_onnx": lambda m, **o: estimator(m).fit(ROWS, TARGETS).to_onnx(**o),
}  # fmt: skip
LIKE = {
    "bytes": bytes,
    "memoryview": bytes,
    "proto": onnx.ModelProto,
    "ir": ir.Model,
    "program": Program,
}


AMBIGUOUS = sorted({*KINDS} - {*LIKE, "spox", "ndonnx", "ir_with_data_beside"})


@pytest.mark.parametrize("function", [*RESULTS, *METHODS])
@pytest.mark.parametrize("kind", LIKE)
def test_like(kind, function, tmp_path):
    call = {**RESULTS, **METHODS}[function]
    model = KINDS[kind](tmp_path)
    result = call(model, like=True)
    assert type(result) is LIKE[kind]
    assert isinstance(call(model), onnx.ModelProto)
    assert og.report(result).num_parameters >= 0


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_like_is_refused_where_it_is_ambiguous(kind, tmp_path):
    model = KINDS[kind](tmp_path)
    for call in (*RESULTS.values(), *METHODS.values()):
        with pytest.raises(og.OptionError, match=r"onnx\.save\(result, path\)"):
            call(model, like=True)


@pytest.mark.parametrize("function", RESULTS)
def test_like_a_path_is_the_path_written(function, tmp_path):
    target = tmp_path / "result.onnx"
    assert RESULTS[function](saved(tmp_path), like=True, path=target) == target
    assert onnx.load(target).graph.node


# Objects that are no model, or no readable one.


def closed(folder):
    file = saved(folder).open("rb")
    file.close()
    return file


def at_its_end(_):
    file = io.BytesIO()
    onnx.save(proto(), file)
    return file


REFUSED = {
    "text file": (lambda folder: saved(folder).open(encoding="latin-1"), "open(path, 'rb')"),
    "StringIO": (lambda _: io.StringIO("model"), "open(path, 'rb')"),
    "closed file": (closed, "Open it again"),
    "file at its end": (at_its_end, "file.seek(0)"),
    "file for writing": (lambda folder: (folder / "new").open("wb"), "mode 'rb'"),
    "GraphProto": (lambda _: proto().graph, "onnx.helper.make_model(graph)"),
    "TensorProto": (lambda _: proto().graph.initializer[0], "onnx.ModelProto"),
    "onnx_ir.Graph": (lambda _: ir.from_proto(proto()).graph, "onnx_ir.Model(graph, "),
    "Var": (lambda folder: KINDS["spox_pair"](folder)[1]["Y"], "spox.build({'x': x}, {'y': y})"),
    "Vars": (lambda folder: KINDS["spox_pair"](folder)[1], "spox.build({'x': x}, {'y': y})"),
    "ndonnx array": (lambda folder: KINDS["ndonnx_pair"](folder)[1]["Y"], "ndonnx.build("),
    "pair of tf2onnx": (lambda _: (proto(), None), "first element"),
    "class": (lambda _: onnx.ModelProto, "onnx.ModelProto"),
    "data elsewhere": (
        lambda folder: onnx.load(saved(folder, beside=True), load_external_data=False),
        "onnx.load_external_data_for_model(model, folder)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_line_that_converts(name, tmp_path):
    make, line = REFUSED[name]
    with pytest.raises(og.Error) as caught:
        og.report(make(tmp_path))
    assert line in caught.value.hint
    assert len(str(caught.value).splitlines()) <= 6


def test_a_file_stays_at_its_position(tmp_path):
    for kind in ("file", "file_after_header", "zipped_file_with_data_beside"):
        file = KINDS[kind](tmp_path)
        before = file.tell()
        for _ in range(2):
            assert np.allclose(values(file), EXPECTED)
        assert file.tell() == before


def test_a_file_whose_name_leads_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    with open("model.onnx", "rb") as file:  # noqa: PTH123 (a relative name)
        (tmp_path / "other").mkdir()
        os.chdir("other")
        assert np.allclose(values(file), EXPECTED)
        pathlib.Path("model.onnx").write_bytes(b"another")
        assert np.allclose(values(file), EXPECTED)


def test_weights_are_as_in_the_exporters_model(tmp_path):
    beside = ir.load(saved(tmp_path, beside=True))
    assert (
        og.set_weights(beside, {}).graph.initializer[0].raw_data
        == proto().graph.initializer[0].raw_data
    )
    assert isinstance(beside.graph.initializers["W"].const_value, ir.ExternalTensor)  # unchanged
    (tmp_path / "weights").unlink()
    with pytest.raises(og.ModelError, match="files beside it"):
        og.report(ir.load(tmp_path / "model.onnx"))


@pytest.mark.parametrize("kind", ["ir", "program", "ir_with_data_beside"])
def test_models_too_large_for_a_message(kind, tmp_path, monkeypatch):
    model = KINDS[kind](tmp_path)
    monkeypatch.setattr(exporters, "_MOST_BYTES", 16)
    monkeypatch.setattr(exporters, "_folders", [])
    trainer = og.Trainer(model, "mse").fit(ROWS, TARGETS, epochs=1, verbose=0)
    trainer.save(tmp_path / "trained.onnx")
    assert not np.array_equal(values(tmp_path / "trained.onnx"), EXPECTED)
    assert np.allclose(values(model), EXPECTED)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(og.Error, match=r"TMPDIR|missing"):
        og.report(model)


def test_a_program_without_weights_says_so():
    class Fake(ir.Tensor):
        def numpy(self):
            raise TypeError("a FakeTensor has no elements")

        tobytes = __array__ = numpy

    model = ir.from_proto(proto())
    array = np.zeros((3, 2), np.float32)
    model.graph.initializers["W"].const_value = Fake(array, name="W")
    with pytest.raises(og.ModelError, match="apply_weights"):
        og.report(Program(model, None))


def test_torch():
    torch = pytest.importorskip("torch", reason="`make interop` runs it")
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    ).eval()
    rows = torch.from_numpy(ROWS)
    program = torch.onnx.export(
        module, (rows[:2],), dynamo=True, dynamic_shapes=({0: "batch"},), verbose=False
    )
    expected = module(rows).detach().numpy()
    assert np.allclose(values(program), expected, atol=1e-5)
    for name, entry in ENTRIES.items():
        if (
            name.startswith(("Trainer", "estimator", "cloned", "gradient", "report"))
            and "trained" not in name
            and name != "report"
        ):
            assert entry(program) is not False
    trainer = og.Trainer(program, "mse").fit(rows, torch.from_numpy(TARGETS), epochs=2, verbose=0)
    trained = trainer.trained_model(like=True)
    assert type(trained) is torch.onnx.ONNXProgram
    assert np.allclose(trained(rows)[0].numpy(), trainer.predict(ROWS), atol=1e-5)
    with pytest.raises(og.OptionError, match=r"torch\.onnx\.export"):
        og.report(module)
    with pytest.raises(og.OptionError, match=r"torch\.onnx\.export"):
        og.report(torch.export.export(module, (rows,)))


@pytest.mark.skipif("ONNXGRAD_INTEROP" not in os.environ, reason="`make interop` runs it")
def test_interop_has_all_libraries():
    import datasets  # noqa: F401
    import jax  # noqa: F401
    import peft  # noqa: F401
    import polars  # noqa: F401
    import torch
    import transformers  # noqa: F401

    assert not torch.cuda.is_available() or sys.platform == "linux"
