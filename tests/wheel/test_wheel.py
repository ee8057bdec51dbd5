"""The wheel in environments of its own: imports, the README's example, command line, extras.

`make wheel-test` runs them; ONNXGRAD_PYTHONS="3.11 3.13" and ONNXGRAD_VERSIONS="newest ray" choose.
"""

import re
import subprocess
import sys
import zipfile

import numpy as np
import onnxruntime
import pytest
from environments import EXTRAS, ROOT

sys.path.insert(0, str(ROOT / "tests/python"))

TOY = """
import numpy as np, onnx, onnx.parser
onnx.save(onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["" : 17]>'
    'main (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {0, 0}> { y = MatMul(x, w) }'
), "model.onnx")
X = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
rows = np.column_stack([X, X @ np.array([1, -2], np.float32)])
np.savetxt("rows.csv", rows, "%.9g", ",", header="a,b,t", comments="")
"""


def test_holds_what_it_should(wheel):
    name = re.fullmatch(r"onnxgrad-[\d.]+-cp311-abi3-manylinux_2_28_x86_64\.whl", wheel.name)
    assert name is not None, wheel.name
    assert wheel.stat().st_size < 8_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [x for x in names if ".so" in x] == ["onnxgrad/_core.abi3.so"]
    licenses = {f"onnxgrad/licenses/{name}.txt" for name in ("nanobind", "onnx", "protobuf")}
    assert {"onnxgrad/_core.pyi", "onnxgrad/py.typed", *licenses} <= set(names)


@pytest.fixture(scope="module")
def extension(wheel, tmp_path_factory):
    with zipfile.ZipFile(wheel) as archive:
        return archive.extract("onnxgrad/_core.abi3.so", tmp_path_factory.mktemp("wheel"))


def readelf(*arguments: str) -> str:
    command = ["readelf", "--wide", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_extension_needs_the_compilers_libraries_alone(extension):
    dynamic = readelf("--dynamic", extension)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\.so", dynamic))
    assert needed <= {
        *("libc", "libm", "libpthread", "libdl", "ld-linux-x86-64"),
        *("libgcc_s", "libstdc++"),
    }
    assert not re.search(r"\((RPATH|RUNPATH|TEXTREL|INIT|FINI)\)", dynamic)


def test_extension_runs_with_old_system_libraries(extension):
    versions = readelf("--version-info", extension)
    newest = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
    found = re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)", versions)
    assert {family for family, _ in found} == set(newest)
    for family, number in found:
        assert tuple(map(int, number.split("."))) <= newest[family], f"{family}_{number}"


def test_extension_is_hardened(extension):
    assert "BIND_NOW" in readelf("--dynamic", extension)
    segments = readelf("--segments", extension)
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK .* RW +0x", segments)
    marks = re.search(r"x86 feature: (.*)", readelf("--notes", extension))
    assert marks is not None
    assert {"IBT", "SHSTK"} <= set(re.findall(r"\w+", marks[1]))
    symbols = readelf("--dyn-syms", extension)
    assert {"__stack_chk_fail", "__memcpy_chk"} <= set(re.findall(r" UND (\w+)", symbols))
    defined = re.findall(r"GLOBAL +DEFAULT +\d+ (\w+)", symbols)
    assert defined == ["PyInit__core"]


def test_starts_without_any_extra(bare_environment, tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    bare_environment.run("python", "toy.py", cwd=tmp_path)
    bare_environment.run(
        "onnxgrad", "train", "model.onnx", "--data", "rows.csv", "--target", "t", cwd=tmp_path
    )
    program = (
        "import onnxgrad as og\n"
        "try: og.Trainer('model.onnx').fit('x.parquet', 't')\n"
        "except og.errors.DataError as error: print(error)"
    )
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    assert "pip install pyarrow" in bare_environment.run("python", "-c", program, cwd=tmp_path)


def test_meets_other_copies_of_its_libraries(environment, tmp_path):
    environment.run("python", str(ROOT / "tests/python/smoke.py"), cwd=tmp_path)


def test_example_of_the_readme(environment, tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "example.py").write_text("\n".join(blocks), encoding="utf-8")
    printed = environment.run("python", "example.py", cwd=tmp_path)
    losses = [float(x) for x in re.findall(r"^ +\d+ +([\d.e-]+)", printed, re.M)]
    assert losses[-1] < 0.2 * losses[0], printed
    model = onnxruntime.InferenceSession(
        tmp_path / "digits.onnx", providers=["CPUExecutionProvider"]
    )
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    labels = model.run(None, {model.get_inputs()[0].name: (X / 16).astype(np.float32)})[0]
    assert np.mean(labels == y) > 0.95


def test_command_line(environment, tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    environment.run("python", "toy.py", cwd=tmp_path)
    assert version() in environment.run("onnxgrad", "versions", cwd=tmp_path)
    environment.run(
        *(
            "onnxgrad",
            "train",
            "model.onnx",
            "--data",
            "rows.csv",
            "--target",
            "t",
            "--epochs",
            "40",
            "--lr",
            "0.05",
            "-o",
            "out.onnx",
        ),
        cwd=tmp_path,
    )
    environment.run("onnxgrad", "gradient", "out.onnx", "-o", "gradient.onnx", cwd=tmp_path)
    model = onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    x = np.eye(2, dtype=np.float32)
    np.testing.assert_allclose(model.run(None, {"x": x})[0], [[1], [-2]], atol=0.2)


def version() -> str:
    text = (ROOT / "include/onnxgrad/version.h").read_text(encoding="utf-8")
    found = re.search(r'kVersion = "(.+)"', text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("extra", EXTRAS)
def test_extra(environment, extra, tmp_path):
    environment.run("python", str(ROOT / "tests/wheel/extras.py"), extra, cwd=tmp_path)


def test_ray(ray_environment, tmp_path):
    ray_environment.run("python", str(ROOT / "tests/wheel/extras.py"), "ray", cwd=tmp_path)
