"""Whatever is wrong with an argument, a file or an installation, the error is onnxgrad's."""

import contextlib
import inspect
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad as og
from command_line import run
from support import mlp_proto

MODEL = mlp_proto([3, 1])
CLASSIFIER = mlp_proto([3, 3], head="Softmax")
X = np.arange(24, dtype=np.float32).reshape(8, 3) / 24
y = X.sum(axis=1, keepdims=True)
labels = np.arange(8) % 3

# ------------------------------------------------------------------------------- arguments

WRONG = [2**63, 2**70, 0.1, float("nan"), "x", [1], {}, object()]


def raises_nothing_foreign(function, **arguments):
    with contextlib.suppress(og.Error):
        function(**arguments)


def names_of(function, *without):
    return [name for name in inspect.signature(function).parameters if name not in without]


@pytest.mark.parametrize("name", names_of(og.Trainer.__init__, "self", "model", "threads", "dist"))
def test_arguments_of_a_trainer(name):
    for value in WRONG:
        raises_nothing_foreign(og.Trainer, model=MODEL, threads=1, **{name: value})


OTHERS = (
    "self",
    "X",
    "y",
    "callbacks",
    "verbose",
    "run_dir",
    "resume",
    "max_time",
    "epochs",
    "max_steps",
)


@pytest.mark.parametrize("name", names_of(og.Trainer.fit, *OTHERS))
def test_arguments_of_a_fit(name):
    trainer = og.Trainer(MODEL, threads=1)
    for value in WRONG:
        given = {"epochs": 1, "verbose": 0, name: value}
        raises_nothing_foreign(trainer.fit, X=X, y=y, **given)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda **given: og.Trainer(MODEL, **given), "threads"),
        (lambda **given: og.InferenceSession(MODEL, **given), "threads"),
        (lambda **given: og.InferenceSession(MODEL, **given), "memory_limit"),
        (lambda **given: og.TrainingSession(MODEL, **given), "threads"),
        (lambda **given: og.TrainingSession(MODEL, **given), "seed"),
        (lambda **given: og.TrainingSession(MODEL, **given), "accumulate"),
        (lambda **given: og.ForwardBackward(MODEL, **given), "threads"),
        (lambda **given: og.initialize(MODEL, **given), "seed"),
        (lambda **given: og.Trainer(MODEL).fit(X, y, verbose=0, epochs=1, **given), "batch_size"),
        (lambda **given: og.Trainer(MODEL).fit(X, y, verbose=0, **given), "epochs"),
        (lambda **given: og.data.CsvFile("x.csv", **given), "chunk_bytes"),
        (lambda **given: og.gradient(MODEL, "squared_error", **given), "target_opset"),
        (lambda **given: og.losses.SoftmaxCrossEntropy(**given), "class_axis"),
        (lambda **given: og.schedules.Step(**given), "every"),
        (lambda **given: og.callbacks.Checkpoint("x", **given), "every"),
        (lambda **given: og.callbacks.Checkpoint("x", **given), "keep"),
    ],
)
def test_integers_beyond_those_of_the_extension(function, name):
    for value in (2**70, -(2**70)):
        with pytest.raises(og.Error) as caught:
            function(**{name: value})
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_weight": {0: 1.0}, "y": labels[:-1]}, "7"),
        ({"class_weight": {0: 1.0}, "sample_weight": np.ones(7)}, "sample_weight"),
        ({"class_weight": "balanced", "sample_weight": np.ones((8, 2))}, "sample_weight"),
        ({"class_weight": "balanced", "sample_weight": ["a"] * 8}, "sample_weight"),
        ({"class_weight": "balanced", "sample_weight": 1.0}, "sample_weight"),
        ({"class_weight": {0: 1.0}, "y": np.array([0, "a"] * 4, object)}, "y"),
        ({"sample_weight": np.ones(7)}, "7 sample weights"),
        ({"y": labels[:-1]}, "7"),
    ],
)
def test_rows_and_weights_that_do_not_match(arguments, message):
    given = {"X": X, "y": labels, "epochs": 1, "verbose": 0, **arguments}
    with pytest.raises(og.Error, match=message):
        og.Trainer(CLASSIFIER, threads=1).fit(**given)


# ---------------------------------------------------------------------------------- packages


@pytest.fixture
def without(monkeypatch):
    """Let imports of a package fail, as if it were not installed."""

    def hide(package):
        for name in [*sys.modules]:
            if name == package or name.startswith(f"{package}."):
                monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


HISTORY = og.Trainer(MODEL, threads=1).fit(X, y, epochs=1, verbose=0).history
NEEDS = {
    "pandas": lambda: HISTORY.to_pandas(),
    "matplotlib": lambda: HISTORY.plot(),
    "pyarrow": lambda: og.Trainer(MODEL).fit("rows.parquet", "y"),
    "tensorboardX": lambda: og.Trainer(MODEL, threads=1).fit(
        X, y, epochs=1, verbose=0, callbacks=[og.callbacks.TensorBoard("log")]
    ),
    "pygraphviz": lambda: og.graph_pictures.graph_svg(MODEL),
    "ray": lambda: __import__("onnxgrad.ray").ray.fit(print, num_workers=1),
}
INSTALLED_AS = {"ray": r"'ray\[default\]'"}


@pytest.mark.parametrize("package", NEEDS)
def test_missing_packages(without, package):
    without(package)
    with pytest.raises(og.Error, match="is not installed") as caught:
        NEEDS[package]()
    assert (
        f"pip install {INSTALLED_AS.get(package, package)}".replace("\\", "") in caught.value.hint
    )


def test_estimators_without_scikit_learn():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "try:\n import onnxgrad.sklearn\n"
        "except ImportError as error:\n print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "onnxgrad.sklearn needs scikit-learn" in done.stdout
    assert "pip install scikit-learn" in done.stdout


def test_no_hint_names_an_extra():
    """The package is on no index: whoever takes its name there would be installed."""
    root = Path(__file__).resolve().parents[2]
    wrong = "pip install " + "onnxgrad"
    files = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("examples/**/*.*")]
    files += [*root.glob("python/**/*.py"), *root.glob("src/**/*.cpp")]
    for file in files:
        if file.name == "CHANGELOG.md" or file.suffix not in (".md", ".py", ".cpp", ".yaml"):
            continue
        text = file.read_text(encoding="utf-8").replace("'", "").replace('"', "")
        assert wrong + "[" not in text, file
        assert wrong + " " not in text, file


# ----------------------------------------------------------------------------------- readers


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(MODEL, "model.onnx")
    return tmp_path


@pytest.mark.parametrize("streamed", [True, False])
def test_damaged_parquet_pages(folder, streamed):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({name: np.random.default_rng(0).normal(size=5000) for name in "abcy"})
    pq.write_table(table, "rows.parquet", row_group_size=1000)
    whole = Path("rows.parquet").read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(12):
        damaged = bytearray(whole)
        start = int(rng.integers(4, len(whole) - 8))
        damaged[start : start + 60] = rng.bytes(min(60, len(whole) - start))
        Path("bad.parquet").write_bytes(damaged)
        way = ("--stream",) if streamed else ("--no-stream",)
        arguments = ("model.onnx", "--data", "bad.parquet", "--target", "y", *way)
        try:
            run("evaluate", *arguments, "--allow-nan")
        except AssertionError:
            run("evaluate", *arguments, "--allow-nan", status=4)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_images():
    image_module = pytest.importorskip("PIL.Image")
    import io

    rng = np.random.default_rng(0)
    pixels = image_module.fromarray(rng.integers(0, 255, (8, 9, 3), np.uint8))
    node = onnx.helper.make_node("ImageDecoder", ["file"], ["image"])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "g", [info("file", 2, ["n"])], [info("image", 2, ["h", "w", 3])]
    )
    opset = [onnx.helper.make_opsetid("", 20)]
    session = og.InferenceSession(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10))
    headers = [b"P6 8 9 99999 ", b"P6 x 9 255 ", b"P3 2 2 255 1 a 2", b"P2 8", b"P5 -1 4 255 \x00"]
    files = [*headers, b"Pf 2 2 0 \x00"]
    for kind in ("PNG", "BMP", "PPM", "GIF", "TIFF", "JPEG", "WEBP", "TGA"):
        binary = io.BytesIO()
        pixels.save(binary, kind)
        whole = binary.getvalue()
        for _ in range(30):
            damaged = bytearray(whole)
            for place in rng.integers(0, min(len(whole), 60), 3):
                damaged[place] = rng.integers(0, 255)
            files.append(bytes(damaged[: rng.integers(1, len(whole))]))
    for file in files:
        raises_nothing_foreign(
            session.run, output_names=None, feeds={"file": np.frombuffer(file, np.uint8)}
        )


def npy(shape, data=b"", descr="<f4", order="False"):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * ((64 - (len(text) + 11) % 64) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def npz(entries, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile("made.npz", "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return bytearray(Path("made.npz").read_bytes())


GOOD = npy((4, 3), np.ones((4, 3), np.float32).tobytes())


def edited(content, record, offset, replacement):
    place = content.find(record) + offset
    content[place : place + len(replacement)] = replacement
    return content


HOSTILE = {
    "claims.npz": lambda: npz({"X.npy": npy((1 << 40, 3))}),
    "claims_less.npz": lambda: npz({"X.npy": npy((1 << 30, 3))}),
    "cut.npz": lambda: npz({"X.npy": GOOD[:-8]}),
    "no_header.npz": lambda: npz({"X.npy": b"hello"}),
    "no_arrays.npz": lambda: npz({"X": GOOD}),
    "negative.npz": lambda: npz({"X.npy": npy((-1, 3), b"\0" * 48)}),
    "dtype.npz": lambda: npz({"X.npy": npy((4, 3), b"\0" * 48, "<q9")}),
    "pickle.npz": lambda: npz({"X.npy": npy((4, 3), b"\0" * 48, "|O")}),
    "nested.npz": lambda: npz({"X.npy": npy("(" * 3000 + ")" * 3000)}),
    "deflate.npz": lambda: edited(npz({"X.npy": GOOD}), b"PK\3\4", 60, b"\xff" * 10),
    "method.npz": lambda: edited(npz({"X.npy": GOOD}), b"PK\1\2", 10, b"\x63\0"),
    "encrypted.npz": lambda: edited(npz({"X.npy": GOOD}), b"PK\1\2", 8, b"\1\0"),
    "size.npz": lambda: edited(npz({"X.npy": GOOD}), b"PK\1\2", 24, b"\0\0\0\x70"),
    "checksum.npz": lambda: edited(npz({"X.npy": GOOD}, 0), b"\0\0\x80\x3f", 0, b"\1"),
    "not_a_zip.npz": lambda: b"hello",
    "empty.npz": lambda: b"",
    "empty.npy": lambda: b"",
    "claims.npy": lambda: npy((1 << 40, 3)),
    "scalar.npy": lambda: npy("()", b"\0" * 4),
    "records.npy": lambda: GOOD.replace(b"'<f4'", b"[('a', '<f4')]"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_arrays_in_files_that_are_no_such_files(folder, name):
    Path(name).write_bytes(HOSTILE[name]())
    target = name if name.endswith("npy") else "y"
    run("predict", "model.onnx", "--data", name, "-o", "out.csv", status=4)
    for way in ("--stream", "--no-stream"):
        run("evaluate", "model.onnx", "--data", name, "--target", target, way, status=4)
        arguments = ("model.onnx", "--data", name, "--target", target, "-o", "o.onnx", way)
        run("train", *arguments, status=4)
    assert not Path("o.onnx").exists()


def test_arrays_of_all_types_and_orders_are_read(folder):
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(6, 4)) * 3
    kinds = ["<f4", "<f8", ">f4", "<f2", "<i8", ">i2", "|u1", "|b1", "<U5", "|S3"]
    arrays = {kind: np.abs(whole).astype(np.int64).astype(kind) for kind in kinds}
    arrays |= {f"{kind} F": np.asfortranarray(array) for kind, array in arrays.items()}
    arrays["3d"] = np.asfortranarray(rng.normal(size=(3, 4, 5)))
    from onnxgrad.data.tables import read_npy, read_table

    for save in (np.savez, np.savez_compressed):
        save("all.npz", **arrays)
        table = read_table("all.npz")
        assert [*table.columns] == [*arrays]
        for name, array in arrays.items():
            np.save("one.npy", array)
            expected = array.astype(np.str_) if array.dtype.kind == "S" else array
            for found in (table.columns[name], read_npy("one.npy")):
                np.testing.assert_array_equal(found, expected)
                assert found.dtype.kind == expected.dtype.kind


def test_json_lines_beyond_the_types(folder):
    for line in (
        '{"a": 1' + "0" * 400 + "}",
        '{"a": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"a": [1, [2]]}',
    ):
        Path("rows.jsonl").write_text(line + "\n")
        run("predict", "model.onnx", "--data", "rows.jsonl", "-o", "out.csv", status=4)


def test_exceptions_that_nobody_expected_are_reported_as_a_bug(monkeypatch, folder):
    from onnxgrad.cli import evaluation

    for error in (RuntimeError("x"), EOFError(), NotImplementedError(), BufferError()):

        def fail(*_arguments, error=error, **_options):
            raise error

        monkeypatch.setattr(evaluation, "read_inputs", fail)
        _, err = run("predict", "model.onnx", "--data", "x.csv", status=1)
        assert "This is a bug in onnxgrad" in err

    def exhaust(*_arguments, **_options):
        raise MemoryError

    monkeypatch.setattr(evaluation, "read_inputs", exhaust)
    _, err = run("predict", "model.onnx", "--data", "x.csv", status=7)
    assert "no more memory" in err
