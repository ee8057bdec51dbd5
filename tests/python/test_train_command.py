"""`onnxgrad train`: its options do what those of `Trainer` do, alone and from files."""

import contextlib
import io
import logging
import re
import sys
import tomllib
import unittest.mock

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
from onnxgrad import cli, errors
from onnxgrad.cli.train_options import OPTIONS
from onnxgrad.data.labels import class_weight_from_text
from onnxgrad.losses import penalties
from support import initializers, mlp_proto


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """model.onnx with three classes and the same 90 rows as CSV, TSV, NPZ, NPY and Parquet."""
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp_proto([4, 6, 3], head="Softmax"), "model.onnx")
    X, y, w = rows()
    names = ["a", "b", "c", "d"]
    table = np.column_stack([X, y, w])
    for name, delimiter in (("rows.csv", ","), ("rows.tsv", "\t")):
        header = delimiter.join([*names, "kind", "w"])
        np.savetxt(name, table, "%.9g", delimiter, header=header, comments="")
    np.savez("rows.npz", X=X, kind=y, w=w)
    for name, array in {"X": X, "kind": y, "w": w}.items():
        np.save(f"{name}.npy", array)
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    columns = {name: X[:, i] for i, name in enumerate(names)} | {"kind": y, "w": w}
    parquet.write_table(arrow.table(columns), "rows.parquet")
    return tmp_path


def rows():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(90, 4)).astype(np.float32)
    y = np.argmax(X @ rng.normal(size=(4, 3)), axis=1)
    return X, y, rng.uniform(0.5, 2, 90).astype(np.float32)


def train(*arguments, status=0):
    """Run `onnxgrad train` in this process; return what it prints."""
    out, err = io.StringIO(), io.StringIO()
    command = ["onnxgrad", "train", *map(str, arguments)]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        unittest.mock.patch.object(sys, "argv", command),
        pytest.raises(SystemExit) as ended,
    ):
        cli.main()
    assert (ended.value.code or 0) == status, err.getvalue()
    return out.getvalue(), err.getvalue()


DATA = ("model.onnx", "--data", "rows.csv", "--target", "kind", "--ignored", "w", "-o", "o.onnx")
FEW = ("--epochs", 3, "-q")


def assert_weights_are(path, trainer):
    found = initializers(path)
    for name, value in initializers(trainer.trained_model()).items():
        np.testing.assert_array_equal(found[name], value)


CASES = {
    "penalty": (
        ["--penalty", "l2=0.1", "--penalty", "b*:l1=0.01,l2=0.02"],
        {
            "penalty": [
                og.losses.Penalty(l2=0.1),
                og.losses.Penalty(l1=0.01, l2=0.02, weights="b*"),
            ]
        },
        {},
    ),
    "optimizer": (
        ["--optimizer", "sgd:momentum=0.5,nesterov=true", "--lr", 0.1, "--weight-decay", 0.01],
        {"optimizer": og.optimizers.SGD(0.1, 0.5, nesterov=True, weight_decay=0.01)},
        {},
    ),
    "schedule": (
        ["--schedule", "step:every=2,factor=0.1"],
        {"schedule": og.schedules.Step(2, 0.1)},
        {},
    ),
    "loss": (
        ["--loss", "softmax_cross_entropy:label_smoothing=0.1"],
        {"loss": og.losses.SoftmaxCrossEntropy(label_smoothing=0.1)},
        {},
    ),
    "clip": (
        ["--clip-norm", 0.1, "--clip-value", 0.05],
        {"clip_norm": 0.1, "clip_value": 0.05},
        {},
    ),
    "accumulate": (["--accumulate", 2], {"accumulate": 2}, {}),
    "freeze": (["--freeze", "W0", "--frozen", "b*"], {"frozen": ["W0", "b*"]}, {}),
    "balanced": (["--class-weight", "balanced"], {}, {"class_weight": "balanced"}),
    "class_weight": (["--class-weight", "0=2,2=0.5"], {}, {"class_weight": {0: 2.0, 2: 0.5}}),
    "batches": (
        ["--batch-size", 20, "--drop-last", "--no-shuffle"],
        {},
        {"batch_size": 20, "drop_last": True, "shuffle": False},
    ),
    "snapshots": (["--snapshot-every", 3], {}, {"snapshot_every": 3}),
    "seed": (["--seed", 7, "--threads", 1], {"seed": 7, "threads": 1}, {}),
    "best": (
        ["--validation", 0.3, "--keep-best", "--validation-every", 2, "--lr", 0.5],
        {"lr": 0.5},
        {"validation": 0.3, "keep_best": True, "validation_every": 2},
    ),
    "stopping": (
        ["--validation", 0.3, "--patience", 1, "--min-delta", 10],
        {},
        {"validation": 0.3, "early_stopping": og.callbacks.EarlyStopping(patience=1, min_delta=10)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_options_are_those_of_the_trainer(folder, name):
    arguments, of_trainer, of_fit = CASES[name]
    train(*DATA, *FEW, *arguments)
    trainer = og.Trainer("model.onnx", **of_trainer)
    trainer.fit(*rows()[:2], epochs=3, verbose=0, **of_fit)
    assert_weights_are("o.onnx", trainer)


FORMATS = {
    "rows.csv": ("kind", "w"),
    "rows.tsv": ("kind", "w"),
    "rows.npz": ("kind", "w"),
    "rows.parquet": ("kind", "w"),
    "X.npy": ("kind.npy", "w.npy"),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_formats(folder, name, streamed):
    target, weight = FORMATS[name]
    data = ("--data", name, "--target", target, "--sample-weight", weight)
    way = "--stream" if streamed else "--no-stream"
    train("model.onnx", *data, "-o", "o.onnx", "--no-shuffle", way, *FEW)
    trainer = og.Trainer("model.onnx")
    trainer.fit(*rows(), epochs=3, shuffle=False, verbose=0)
    found = initializers("o.onnx")
    for key, value in initializers(trainer.trained_model()).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weights", ["balanced", "0=2,2=0.5"])
def test_class_weights_of_a_file_that_is_streamed(folder, weights):
    of_fit = weights if weights == "balanced" else {0: 2.0, 2: 0.5}
    train(*DATA, *FEW, "--no-shuffle", "--stream", "--class-weight", weights)
    trainer = og.Trainer("model.onnx")
    trainer.fit(*rows()[:2], epochs=3, shuffle=False, class_weight=of_fit, verbose=0)
    found = initializers("o.onnx")
    for key, value in initializers(trainer.trained_model()).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6)


TRUTHS = """
<ir_version: 10, opset_import: ["" : 21]>
m (float[N, 1] x) => (float[N, 1] p)
<float[1, 1] w = {0.25}, float[1] b = {0.1}>
{ z = Gemm(x, w, b)  p = Sigmoid(z) }
"""


@pytest.mark.parametrize("way", ["--stream", "--no-stream"])
def test_class_weights_of_truth_values(tmp_path, way):
    """One step of gradient descent on the weighted mean of the binary cross-entropy."""
    onnx.save(onnx.parser.parse_model(TRUTHS), tmp_path / "m.onnx")
    x, y = np.array([1.0, -2.0, 0.5]), np.array([1, 0, 0])
    lines = ["x,y", *(f"{a},{str(bool(b)).lower()}" for a, b in zip(x, y, strict=True))]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    train(
        *(tmp_path / "m.onnx", "--data", tmp_path / "d.csv", "--target", "y", way, "--epochs", 1),
        *("--class-weight", "true=3,false=0.5", "--optimizer", "sgd", "--lr", 0.5),
        *("-o", tmp_path / "o.onnx", "--run-dir", tmp_path / "run"),
    )
    weights = np.where(y == 1, 3.0, 0.5)
    slope = weights * (1 / (1 + np.exp(-(0.25 * x + 0.1))) - y) / weights.sum()
    found = initializers(str(tmp_path / "o.onnx"))
    assert found["w"].item() == pytest.approx(0.25 - 0.5 * float(slope @ x), rel=1e-5)
    assert found["b"].item() == pytest.approx(0.1 - 0.5 * float(slope.sum()), rel=1e-5)


def test_tensorboard(folder):
    pytest.importorskip("tensorboardX")
    train(*DATA[:-2], *FEW, "--tensorboard")
    assert len(list((folder / "runs" / "model").glob("events.*"))) == 1


@pytest.mark.parametrize("way", ["--stream", "--no-stream"])
def test_other_delimiters(folder, way):
    (folder / "rows.csv").write_text((folder / "rows.csv").read_text().replace(",", ";"))
    _, err = train(*DATA, *FEW, status=4)
    assert "--delimiter ';'" in err
    train(*DATA, *FEW, "--no-shuffle", "--delimiter", ";", way)
    trainer = og.Trainer("model.onnx").fit(*rows()[:2], epochs=3, shuffle=False, verbose=0)
    found = initializers("o.onnx")
    for key, value in initializers(trainer.trained_model()).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6)
    train(*DATA, *FEW, "--delimiter", ";;", way, status=2)


def test_large_files_are_streamed(folder, monkeypatch):
    _, err = train(*DATA, "--epochs", 1)
    assert "in chunks" not in err
    monkeypatch.setattr("onnxgrad.cli.rows.free_bytes", lambda: 4096)
    _, err = train(*DATA, "--epochs", 1, "--validation", "rows.csv", "--metrics", "f1,auc")
    assert "rows are read in chunks from rows.csv" in err
    assert "val_f1" in err


def test_metrics_and_time(folder):
    _, err = train(*DATA, "--epochs", 2, "--validation", 0.2, "--metrics", "f1, auc")
    assert "val_f1" in err
    assert "val_auc" in err
    _, err = train(*DATA, "--epochs", 10**7, "--max-time", "0.2s")
    assert "stopped: " in err


def test_learning_rate_by_a_trial(folder):
    _, err = train(*DATA, "--lr", "auto", "--run-dir", "run")
    rate = float(re.search(r"learning rate: (\S+),", err).group(1))
    expected = og.Trainer("model.onnx").lr_find(*rows()[:2]).suggestion
    assert rate == pytest.approx(expected, rel=1e-2)
    assert float(tomllib.loads((folder / "run" / "config.toml").read_text())["lr"]) == expected


def test_options_of_a_resumed_run(folder):
    train(*DATA[:-2], "--epochs", 2, "--run-dir", "run", "--lr", 0.01, "--batch-size", 16)
    _, err = train("--resume", "run", "--epochs", 3, "--lr", 0.5)
    assert "warning: the learning rate is 0.5 from the checkpoint on" in err
    lines = (folder / "run" / "metrics.csv").read_text().splitlines()
    rate = lines[0].split(",").index("lr")
    assert [float(line.split(",")[rate]) for line in lines[1:]] == [0.01, 0.01, 0.5]
    _, err = train("--resume", "run", "--epochs", 4, "-q")
    assert "learning rate" not in err
    for more, message in (
        (["--batch-size", 8], "--batch-size is 16 in the checkpoint, 8 now"),
        (["--schedule", "cosine"], "schedule is none in the checkpoint, "),
    ):
        _, err = train("--resume", "run", "--epochs", 5, *more, status=6)
        assert message in err
    for more in (["--init", "he_normal"], ["--lr", "auto"]):
        _, err = train("--resume", "run", "--epochs", 5, *more, status=2)
        assert f"{' '.join(more)} has no effect on a run that is resumed" in err


def test_a_rate_by_a_trial_is_that_of_the_resumed_run(folder):
    options = ("--epochs", 3, "--run-dir", "run", "--resume", "auto", "--lr", "auto")
    for _ in range(2):
        _, err = train(*DATA[:-2], *options)
    assert "from the checkpoint on" not in err
    assert "trial" not in err


def test_run_folder_is_the_output_if_there_is_no_other(folder):
    for expected in ("runs/model", "runs/model-2"):
        out, err = train(*DATA[:-2], "--epochs", 2)
        assert f"run folder: {expected}" in err
        assert f"wrote {expected}/last.onnx" in out
    onnx.checker.check_model("runs/model-2/best.onnx")


def test_a_run_can_be_done_again_from_its_file(folder):
    train(*DATA, *FEW, "--run-dir", "run", "--optimizer", "nesterov", "--penalty", "l2=0.01")
    out, _ = train("--config", "run/config.toml", "-o", "again.onnx", "--print-config")
    assert tomllib.loads(out)["output"] == str(folder / "again.onnx")
    assert not (folder / "again.onnx").exists()
    train("--config", "run/config.toml", "-o", "again.onnx", "-q")
    assert (folder / "again.onnx").read_bytes() == (folder / "o.onnx").read_bytes()
    train("--config", "run/config.toml", "-o", "other.onnx", "--epochs", 4, "-q")
    assert (folder / "other.onnx").read_bytes() != (folder / "o.onnx").read_bytes()


@pytest.mark.parametrize("way", ["--stream", "--no-stream"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_run_is_resumed(folder, name, way):
    target, weight = FORMATS[name]
    data = ("model.onnx", "--data", name, "--target", target, "--sample-weight", weight, way, "-q")
    train(*data, "--epochs", 5, "-o", "whole.onnx", "--seed", 4)
    train(*data, "--epochs", 2, "--run-dir", "run", "--seed", 4)
    train("--resume", "run", "--epochs", 5, "-q")
    assert (folder / "run" / "last.onnx").read_bytes() == (folder / "whole.onnx").read_bytes()
    lines = (folder / "run" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", *"12345"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "Did you mean 'epochs'"),
        ('epochs = "3"', "expected an integer"),
        ("epochs = true", "expected an integer"),
        ("shuffle = 1", "expected true or false"),
        ("optimizer = [1]", "expected a string"),
        ("resume = 'x'", "there is no option 'resume'"),
        ("epochs = ", "cannot read"),
    ],
)
def test_configuration_files_are_checked(folder, text, message):
    (folder / "c.toml").write_text(text)
    _, err = train(*DATA, "--config", "c.toml", status=2)
    assert message in err
    assert len(err.splitlines()) <= 6


def test_values_of_configuration_files(folder):
    text = 'freeze = "W0"\nlr = 0.5\nmax-time = 90\nvalidation = 0.25\nclip_norm = 1\n'
    (folder / "c.toml").write_text(text)
    out, _ = train(*DATA, "--config", "c.toml", "--print-config")
    known = tomllib.loads(out)
    assert known["frozen"] == ["W0"]
    assert (known["lr"], known["max_time"], known["validation"]) == ("0.5", "90", "0.25")
    assert known["clip_norm"] == 1.0
    train(*DATA, "--config", "c.toml", *FEW)


def test_dry_run_says_what_would_be_done_and_writes_nothing(folder):
    before = sorted(folder.iterdir())
    options = ("--validation", 0.2, "--epochs", 7, "--history", "h.csv")
    out, _ = train(*DATA, *options, "--dry-run")
    assert sorted(folder.iterdir()) == before
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    lines = {name: text.strip() for name, text in lines.items()}
    assert lines["steps"] == "3 per epoch, 21 in total"
    assert lines["data"] == "rows.csv: 90 rows, in memory"
    assert lines["trained"].startswith("51 numbers: W0 [4, 6], b0 [6]")
    assert lines["would write"] == "o.onnx, h.csv"
    assert "softmax cross-entropy" in lines["loss"]
    assert lines["dry run"].endswith("nothing was written")
    out, _ = train(*DATA, "--dry-run", "--stream")
    assert "rows.csv: read in chunks" in out
    (folder / "rows.csv").write_text("a,b,c,d,kind,w\n1,2,3,4,9,1\n")
    train(*DATA, "--dry-run", status=4)


@pytest.fixture
def logger():
    logger = logging.getLogger("onnxgrad")
    before = logger.level, logger.handlers
    yield logger
    logger.setLevel(before[0])
    logger.handlers = before[1]


def test_log_level(folder, logger):
    _, err = train(*DATA, *FEW, "--log-level", "debug")
    assert "INFO epoch 3 of 3: train_loss" in err
    assert "DEBUG trained: W0 [4, 6]" in err
    _, err = train(*DATA, *FEW, "--log-level", "loud", status=2)
    assert "Known: 'debug'" in err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--optimizer", "sgd:momentun=1"], 2, "Did you mean 'momentum'"),
        (["--optimizer", "sgd:momentum"], 2, "is not name=value"),
        (["--schedule", "warmup_cosine:x=1"], 2, "has no options"),
        (["--optimizer", "lbfgs", "--weight-decay", 1], 2, "--penalty"),
        (["--penalty", "l3=1"], 2, "'l2'"),
        (["--penalty", "nothing*:l2=1"], 3, "nothing*"),
        (["--class-weight", "x=1"], 2, "is not a number"),
        (["--class-weight", "9=1"], 4, "no row has the label 9"),
        (["--lr", "fast"], 2, "neither a number nor 'auto'"),
        (["--lr", "-1"], 2, "lr"),
        (["--max-time", "soon"], 2, "not a duration"),
        (["--training-mode", "maybe"], 2, "--training-mode: unknown 'maybe'"),
        (["--device", "cuda:99"], 7, "cuda"),
        (["--ignored", "nothing"], 4, "'nothing'"),
        (["--metrics", "f2"], 2, "f2"),
        (["--validation", "missing.csv"], 4, "missing.csv"),
        (["--history", "no/h.csv"], 6, "no/h.csv"),
        (["--config", "missing.toml"], 2, "missing.toml"),
        (["--resume", "missing", "--config", "c.toml"], 2, "both --config and --resume"),
    ],
)
def test_mistakes(folder, arguments, status, message):
    _, err = train(*DATA, *FEW, *arguments, status=status)
    assert message in err
    assert len(err.splitlines()) <= 6
    assert not (folder / "o.onnx").exists()


def test_strings_of_descriptions():
    texts = {
        og.losses: ("huber:delta=2.0", "output:my:loss", "hinge", "elastic:l1_weight=0.1"),
        og.optimizers: ("sgd", "nesterov:weight_decay=0.1", "adam:amsgrad=true", "lbfgs:history=3"),
        og.schedules: (
            "warmup_cosine",
            "step:every=3,unit=step",
            "cosine",
            "cosine:minimum_factor=0.1",
        ),
        penalties: ("l1=0.0,l2=0.5", "a:b:l1=1.0,l2=0.0"),
    }
    for family, known in texts.items():
        for text in known:
            assert family.to_text(family.from_text(text)) == text
    assert og.schedules.to_text(og.schedules.warm_up(3)) is None
    assert penalties.to_text(og.losses.Penalty(l1=1, weights=["a", "b"])) is None
    assert penalties.from_text("a:b:l1=1").weights == ("a:b",)
    assert class_weight_from_text("no=1,yes=2.5", is_text=True) == {"no": 1, "yes": 2.5}
    assert og.optimizers.from_text("adam:amsgrad=True,lr=1e-2").amsgrad is True
    with pytest.raises(errors.OptionError, match="beta1"):
        og.optimizers.from_text("adam:beta1=2")


def test_the_help_lists_the_options_under_their_topics(folder):
    out, _ = train("--help")
    places = [out.index(f"\n{topic}:\n") for topic in dict.fromkeys(o.topic for o in OPTIONS[1:])]
    assert places == sorted(places)
    words = " ".join(out.split())
    for option in OPTIONS[1:]:
        assert option.spelling.replace("/", " / ") in words
        assert " ".join(option.help.split()) in words


def test_every_option_of_fit_is_there():
    """The command line takes all that Trainer and fit take, except what needs Python."""
    import inspect

    named = {
        *inspect.signature(og.Trainer).parameters,
        *inspect.signature(og.Trainer.fit).parameters,
    }
    needs_python = {"self", "X", "y", "callbacks", "groups", "verbose"}
    second_names = {"on_nan"}
    not_seen = {"max_history"}  # the files that the command line writes have all epochs
    not_seen.add("calibration")  # the command line measures rows of --data
    not_seen.add("dist")  # a job of several workers is recognised, and has options of its own
    known = needs_python | second_names | not_seen | {option.name for option in OPTIONS}
    missing = named - known
    assert missing == set()
