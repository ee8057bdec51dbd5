"""The checks in scripts/: layers, file lengths, comments, titles of commits, on made-up files."""

import json
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_comments  # noqa: E402
import check_commits  # noqa: E402
import check_file_length  # noqa: E402
import check_layers  # noqa: E402
import check_optionals  # noqa: E402
import develop  # noqa: E402
import source_files  # noqa: E402
import transcripts  # noqa: E402

FOLDERS = set(check_layers.ALLOWED)


def includes(path: str, *lines: str) -> list[str]:
    text = "\n".join(f"#include {line}" for line in lines)
    return check_layers.check_includes(Path(path), text, FOLDERS)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("src/base/check.cpp", '"onnxgrad/error.h"'),
        ("src/base/log.cpp", "<spdlog/spdlog.h>"),
        ("src/ir/graph.cpp", '"base/check.h"'),
        ("src/opdef/registry.cpp", '"base/check.h"'),
        ("src/onnx/import.cpp", "<onnx/onnx_pb.h>"),
        ("src/onnx/import.cpp", "<google/protobuf/arena.h>"),
        ("src/onnx/import.cpp", '"onnx/upgrade.h"'),
        ("src/device/cpu/gemm_tile_float_simd.cpp", "<hwy/highway.h>"),
        ("src/ops/nn/softmax.cpp", '"ops/common/shape.h"'),
        ("src/ops/nn/softmax_cpu.cpp", '"device/cpu/threads.h"'),
        ("src/ops/nn/softmax_cpu.cpp", "<hwy/highway.h>"),
        ("src/ops/nn/softmax_test.cpp", '"runtime/executor.h"'),
        ("src/runtime/plan.cpp", '"device/device.h"'),
        ("src/train/session/session.cpp", '"autodiff/gradient.h"'),
        ("src/train/session/session.cpp", '"train/data/dataset.h"'),
        ("src/train/fit/fit_loop.cpp", '"train/session/session.h"'),
        ("src/train/heads/heads.cpp", '"train/losses/losses.h"'),
        ("src/train/losses/user.cpp", '"train/tools/user_graph.h"'),
        ("src/api/model.cpp", '"train/session/session.h"'),
        ("include/onnxgrad/tensor.h", '"onnxgrad/dtype.h"'),
        ("include/onnxgrad/tensor.h", "<vector>"),
        ("python/bindings/module.cpp", '"onnxgrad/version.h"'),
        ("python/bindings/module.cpp", "<nanobind/nanobind.h>"),
    ],
)
def test_allowed_include(path, line):
    assert includes(path, line) == []


@pytest.mark.parametrize(
    ("path", "line", "words"),
    [
        ("src/base/check.cpp", '"ir/graph.h"', "base may include"),
        ("src/ir/graph.cpp", '"opdef/registry.h"', "ir may include base"),
        ("src/ir/graph.cpp", "<spdlog/spdlog.h>", "spdlog belongs in base"),
        (
            "src/train/data/dataset.cpp",
            '"train/session/session.h"',
            "of session; data may include losses",
        ),
        ("src/train/data/npy.cpp", '"train/fit/sampler.h"', "of fit; data may include losses"),
        (
            "src/train/losses/losses.cpp",
            '"train/heads/heads.h"',
            "of heads; losses may include tools",
        ),
        (
            "src/train/losses/user.cpp",
            '"train/weights/weights.h"',
            "of weights; losses may include tools",
        ),
        ("src/train/helpers/casts.cpp", "<vector>", "helpers is no folder in TRAIN"),
        ("src/autodiff/reverse.cpp", '"ops/builtin.h"', "autodiff may include"),
        ("src/runtime/plan.cpp", '"ops/builtin.h"', "runtime may include"),
        ("src/runtime/plan.cpp", "<hwy/highway.h>", "Highway belongs in"),
        ("src/runtime/plan.cpp", '"device/cpu/threads.h"', "uses devices through device/*.h"),
        (
            "src/train/tools/engine.cpp",
            '"device/testing/simulated_device.h"',
            "uses devices through device/*.h",
        ),
        ("src/ops/nn/softmax.cpp", '"device/cpu/threads.h"', "ops may include"),
        ("src/ops/nn/softmax.cpp", "<hwy/highway.h>", "Highway belongs in"),
        ("src/train/session/session.cpp", "<onnx/onnx_pb.h>", "belongs in src/onnx"),
        ("src/train/session/session.cpp", "<google/protobuf/arena.h>", "protobuf belongs in onnx"),
        ("src/train/session/session.cpp", '"api/model_impl.h"', "train may include"),
        ("src/extra/thing.cpp", '"ir/graph.h"', "not in the table"),
        ("src/ir/graph.cpp", '"../opdef/registry.h"', "relative to src/"),
        ("include/onnxgrad/tensor.h", '"ir/graph.h"', "src/ir is private"),
        ("include/onnxgrad/tensor.h", "<fmt/core.h>", "only the standard library"),
        ("python/bindings/module.cpp", '"train/session/session.h"', "include/onnxgrad only"),
    ],
)
def test_forbidden_include(path, line, words):
    problems = includes(path, line)
    assert len(problems) == 1
    assert problems[0].startswith(path)
    assert words in problems[0]


@pytest.mark.parametrize(
    ("path", "source", "words"),
    [
        ("python/onnxgrad/trainer.py", "def f():\n    import torch.nn\n", "must not need torch"),
        ("python/onnxgrad/compat/ort.py", "from onnxgrad import _core", "only public names"),
        ("python/onnxgrad/compat/ort.py", "from onnxgrad.data.rows import x", "only public names"),
        ("python/onnxgrad/compat/ort.py", "import onnxgrad._core", "only public names"),
        ("python/onnxgrad/trainer.py", "from onnxgrad.compat import ort", "trainer may import"),
        ("python/onnxgrad/trainer.py", "import sklearn.base", "belongs in onnxgrad.sklearn"),
        ("python/onnxgrad/cli/program.py", "from onnxgrad.sklearn import base", "cli may import"),
        ("python/onnxgrad/data/rows.py", "import onnxgrad.trainer", "data may import base, errors"),
        ("python/onnxgrad/data/rows.py", "from onnxgrad import Trainer", "name the sub-package"),
        ("python/onnxgrad/data/rows.py", "if 1:\n    from onnxgrad.losses import x", "data may"),
        ("python/onnxgrad/attic/x.py", "import os", "not in the table"),
        ("python/onnxgrad/sklearn/base.py", "from onnxgrad import _core", "only public names"),
        (
            "python/onnxgrad/sklearn/base.py",
            "from onnxgrad.data.rows import x",
            "only public names",
        ),
        ("python/onnxgrad/sklearn/base.py", "import scipy.sparse", "may import onnxgrad, numpy"),
        ("python/onnxgrad/compat/ort.py", "import requests", "may not need requests"),
    ],
)
def test_forbidden_import(path, source, words):
    problems = check_layers.check_imports(Path(path), source)
    assert len(problems) == 1
    assert words in problems[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("python/onnxgrad/trainer.py", "from onnxgrad import _core\nimport numpy as np"),
        ("python/onnxgrad/data/rows.py", "from onnxgrad.base import checks"),
        ("python/onnxgrad/cli/program.py", "from onnxgrad.data.rows import as_source"),
        ("python/onnxgrad/compat/graphs/x.py", "from onnxgrad.base.checks import nearest_or"),
        ("python/onnxgrad/compat/ort.py", "from onnxgrad import Trainer"),
        ("python/onnxgrad/compat/ort.py", "from sklearn.base import BaseEstimator"),
        ("python/onnxgrad/sklearn/base.py", "import os, onnx, onnxgrad\nimport sklearn.base"),
        ("python/onnxgrad/sklearn/base.py", "from onnxgrad.sklearn.training import Training"),
        ("python/onnxgrad/compat/a/b.py", "import json, onnx\nfrom onnxgrad.compat.a._c import d"),
        ("tests/python/test_torch.py", "import torch"),
    ],
)
def test_allowed_import(path, source):
    assert check_layers.check_imports(Path(path), source) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import onnx\nn = onnx.helper.make_node('Add', ['a', 'b'], ['c'])", "uses make_node"),
        ("from onnx.helper import make_graph", "uses make_graph"),
        ("import numpy as np\nrows = np.random.permutation(10)", "uses permutation"),
        ("import onnx\ndef walk(graph: onnx.GraphProto): ...", "uses GraphProto"),
    ],
)
def test_compat_holds_no_algorithms(source, words):
    (problem,) = check_layers.check_imports(Path("python/onnxgrad/compat/a.py"), source)
    assert words in problem
    assert check_layers.check_imports(Path("python/onnxgrad/graphs.py"), source) == []


@pytest.mark.parametrize(
    "table",
    [check_layers.ALLOWED, check_layers.TRAIN, check_layers.SUBPACKAGES],
    ids=["src", "train", "python"],
)
def test_layers_form_no_cycle(table):
    for layer, direct in table.items():
        for other in direct:
            assert layer not in check_layers.closure(other, table), f"{layer} and {other}"


def test_circles_of_imports_are_found():
    sources = {
        "onnxgrad.a": "import onnxgrad.b.c",
        "onnxgrad.b": "",
        "onnxgrad.b.c": "if TYPE_CHECKING:\n    from onnxgrad.d import x",
        "onnxgrad.d": "def f():\n    from onnxgrad import a, b",
        "onnxgrad.e": "from onnxgrad.b import c",
    }
    assert check_layers.import_circles(sources) == [["onnxgrad.a", "onnxgrad.b.c", "onnxgrad.d"]]


def test_headers_that_hide_those_of_onnx(tmp_path):
    for name in ("src/onnx/checker.h", "src/onnx/import.h", "src/onnx/common/ir.h"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    problems = check_layers.shadowing_headers(tmp_path)
    assert [p.split(":")[0] for p in problems] == ["src/onnx/checker.h", "src/onnx/common/ir.h"]


def test_check_layers_exit_status(tmp_path):
    file = tmp_path / "src/ir/graph.cpp"
    file.parent.mkdir(parents=True)
    file.write_text('#include "train/session/session.h"\n')
    command = [sys.executable, str(ROOT / "scripts/check_layers.py"), str(tmp_path)]
    bad = subprocess.run(command, capture_output=True, text=True)
    assert bad.returncode == 1
    assert "src/ir/graph.cpp" in bad.stderr
    file.write_text("#include <vector>\n")
    assert subprocess.run(command).returncode == 0


def test_this_tree_keeps_the_layers():
    assert check_layers.check_tree(ROOT) == []


def test_too_long(tmp_path):
    (tmp_path / "short.cpp").write_text("x\n" * check_file_length.LIMIT)
    (tmp_path / "long.cpp").write_text("x\n" * (check_file_length.LIMIT + 1))
    (tmp_path / "data.csv").write_text("x\n" * 5000)
    generated = "// Generated by a script. Do not edit.\n" + "x\n" * 5000
    (tmp_path / "generated.cpp").write_text(generated)
    problems = check_file_length.too_long(tmp_path)
    assert len(problems) == 1
    assert problems[0].startswith("long.cpp: 601 lines")


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("const Dims dims = *step.weight->type.static_dims();", 1),
        ("const Dims dims = *node.inputs[0]->type.static_dims();", 1),
        ("return body->inputs.at(i)->type.static_dims()->rank();", 1),
        ("f(*known_dim(x, 0), *opdef::fixed_trip_count(node));", 2),
        ("use(ops::constant_ints(g.ints({1}))->front());", 1),
        ("use(known_ints(at).value());", 1),
        ("const auto dims = x->type.static_dims(); if (dims) use(*dims);", 0),
        ("const std::int64_t n = 2 * planned_ints(request, 1);", 0),
        ("Dims fixed = x->type.fixed_dims();", 0),
    ],
)
def test_optionals_that_are_taken_unchecked(tmp_path, line, count):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.cpp").write_text(f"void f() {{\n  {line}\n}}\n")
    problems = check_optionals.unchecked(tmp_path)
    assert len(problems) == count
    assert all(problem.startswith("src/a.cpp:2: ") for problem in problems)


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("a.h", "/// What a step reads.\nint inputs();", "What"),
        ("a.h", "int rows = 0;  ///< Of one block.", "Of"),
        ("a.cpp", "/* The same, with zeros. */", "The same"),
        ("a.cpp", "int a;\n// Those of the graph itself.\nint b;", "Those"),
        ("a.cpp", "/// Whether they are: false without AMX.", "Whether they are"),
        ("a.cpp", "// Whether it is.", "Whether it is"),
        ("a.cpp", "// As above.", "As above"),
        ("a.cpp", "// Likewise.", "Likewise"),
        ("a.cpp", "#include <map>  // What is needed.", "What"),
        ("a.cpp", 'auto s = R"(// fine)"; // Of it.', "Of"),
        ("a.cu", "// Ditto, for columns.", "Ditto"),
        ("a.py", "# What is left.\nx = 1", "What"),
        ("a.py", "x = 1  # Of a row.", "Of"),
        ("a.py", '"""What a module has."""', "What"),
        ("a.py", 'def f():\n    """The same for columns."""', "The same"),
        ("a.pyi", "class A:\n    'Those of a row.'", "Those"),
    ],
)
def test_comments_that_cannot_be_read_alone(name, source, words):
    (problem,) = check_comments.check_text(Path(name), source)
    line = source[: source.index(words)].count("\n") + 1
    assert problem.startswith(f'{name}:{line}: comment starts with "{words}"; start with a verb')


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.h", "/// Inputs that a step reads.\nint inputs();"),
        ("a.h", "/// Bytes of one row, and\n/// Of a second line that continues.\nint bytes();"),
        ("a.h", "int rows = 0;  ///< rows of one block\n               ///< Of the same comment"),
        ("a.cpp", "// Whether it is open depends on the file.\n// Whatever follows.\n"),
        ("a.cpp", "// Often empty. Same-sized blocks.\n// Offsets in bytes."),
        ("a.cpp", 'f("// What is in a string");'),
        ("a.cpp", 'f(R"x(\n// Of a raw string\n)x");'),
        ("a.cpp", "const int n = 1'000'000;  // as in NumPy"),
        ("a.cpp", "/* Rows.\n   What follows inside of a block. */"),
        ("a.cpp", "// As in NumPy, indices wrap."),
        ("a.py", '#!/usr/bin/env python3\n"""Return rows.\n\nWhat follows is no first line.\n"""'),
        ("a.py", "text = '# What is in a string'"),
        ("a.py", 'def f():\n    x = """Of a string that documents nothing."""'),
        ("a.txt", "// What a text has"),
    ],
)
def test_comments_that_can_be_read_alone(name, source):
    assert check_comments.check_text(Path(name), source) == []


def test_check_comments_exit_status(tmp_path):
    (tmp_path / "a.h").write_text("// Generated by a script. Do not edit.\n\n// What is skipped.\n")
    command = [sys.executable, str(ROOT / "scripts/check_comments.py"), str(tmp_path)]
    assert subprocess.run(command).returncode == 0
    (tmp_path / "b.h").write_text("#pragma once\n\n/// Of a block.\nint rows();\n")
    bad = subprocess.run(command, capture_output=True, text=True)
    assert bad.returncode == 1
    assert bad.stderr.startswith('b.h:3: comment starts with "Of"')


@pytest.mark.parametrize(
    "title",
    [
        "ops: softmax: reuse primal output in gradient rule",
        "docs: the transcript of the README",
        "device, passes: one ceil_div",
        "gradient checks: doubts that add up",
        "cli: evaluate refuses text labels",
        "lint: formats of what was merged",
        'Revert "docs: the transcript of the README"',
        "train: " + "x" * 65,
    ],
)
def test_titles_of_commits(title):
    assert check_commits.check_title(title, check_commits.areas(ROOT)) is None


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("A shorter line", "write `folder: what`"),
        ("What tiles may fetch", "write `folder: what`"),
        ("ops:reuse", "write `folder: what`"),
        ("Review: one size of column sums", "no folder is called 'Review'"),
        ("ops, attic: move", "no folder is called 'attic'"),
        ("train: " + "x" * 66, "73 characters, the limit is 72"),
    ],
)
def test_wrong_titles_of_commits(title, words):
    assert words in check_commits.check_title(title, check_commits.areas(ROOT))


def git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_titles_since_the_base(tmp_path):
    (tmp_path / "docs").mkdir()
    git(tmp_path, "init", "-q", "-b", "main")
    for title in ("Anything before the base", "docs: first", "Wrong", "docs: last"):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", title)
    git(tmp_path, "checkout", "-q", "-b", "side", "HEAD~1")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "docs: aside")
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "Merge branch 'main'", "main")
    base = git(tmp_path, "rev-parse", ":/Anything").strip()
    (problem,) = check_commits.check_history(base, tmp_path)
    assert "'Wrong': write `folder: what`" in problem
    script = str(ROOT / "scripts/check_commits.py")
    run = [sys.executable, script, base, str(tmp_path)]
    assert subprocess.run(run, capture_output=True).returncode == 1


def test_titles_without_history(tmp_path):
    assert check_commits.check_history("", ROOT) == []
    assert check_commits.check_history("HEAD~1", tmp_path) == []


def test_list_files_without_git_skips_build_products(tmp_path):
    for name in ("src/a.cpp", "build/b.cpp", ".venv/c.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.touch()
    assert source_files.list_files(tmp_path) == [tmp_path / "src/a.cpp"]


def test_develop_install(tmp_path):
    site, scripts = tmp_path / "site", tmp_path / "bin"
    scripts.mkdir()
    old = site / "onnxgrad-0.0.1.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").touch()
    develop.install(site, scripts, "/usr/bin/python3")
    version = develop.read_version()
    assert not old.exists()
    assert (site / "_onnxgrad_develop.pth").read_text() == f"{ROOT / 'python'}\n"
    metadata = (site / f"onnxgrad-{version}.dist-info/METADATA").read_text()
    assert f"\nVersion: {version}\n" in metadata
    script = scripts / "onnxgrad"
    assert script.read_text().startswith("#!/usr/bin/python3\n")
    assert script.stat().st_mode & 0o111


def test_one_version_everywhere():
    import importlib.metadata

    import onnxgrad

    assert onnxgrad.__version__ == develop.read_version()
    assert importlib.metadata.version("onnxgrad") == develop.read_version()


def test_requirements_agree_with_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = {}
    for name in ("build", "runtime", "test", "lint"):
        for line in (ROOT / f"requirements/{name}.txt").read_text().splitlines():
            if "==" in line:
                package, version = line.split("==")
                pins[package] = version
    runtime = {d.split(">=")[0] for d in project["project"]["dependencies"]}
    assert runtime <= set(pins)
    for requirement in project["build-system"]["requires"]:
        package, version = requirement.split("==")
        assert pins[package] == version


LISTS = [
    path.stem
    for path in (ROOT / "requirements").glob("*.txt")
    if path.stem != "constraints"
    and not path.stem.endswith("-without")  # packages that a list leaves out
]


def pins_of(path):
    """Return the pinned versions in a file by package, whose name is spelled as in locks."""
    lines = [line.split(" ")[0] for line in path.read_text().splitlines() if "==" in line]
    pairs = [line.split("==") for line in lines]
    return {name.lower().replace("_", "-"): version for name, version in pairs}


@pytest.mark.parametrize("name", LISTS)
def test_every_requirement_is_locked_with_the_hashes_of_its_files(name):
    locked = ROOT / "requirements/locked" / f"{name}.txt"
    text = locked.read_text()
    pins = pins_of(locked)
    assert pins_of(ROOT / f"requirements/{name}.txt").items() <= pins.items(), "run make locked"
    if not name.startswith("old-"):
        known = pins_of(ROOT / "requirements/constraints.txt")
        assert {name: known.get(name, version) for name, version in pins.items()} == pins
    entries = re.split(r"\n(?=\S)", text.split("\n", 1)[1].strip())
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "://" not in text


def test_nothing_is_installed_without_hashes():
    files = [*(ROOT / "scripts").glob("*.sh"), ROOT / "Makefile", ROOT / "tests/distributed/run.sh"]
    found = 0
    for file in files:
        text = file.read_text().replace("\\\n", " ")
        for command in re.findall(r"(?:-m pip|bin/pip\"?) (?:install|download)\b.*", text):
            found += 1
            is_first = "-r lock.txt" in command  # before there is a lock
            assert "--require-hashes" in command or is_first, f"{file.name}: {command}"
    assert found >= 6


def test_python_headers_are_those_of_the_interpreter():
    # The set-up refuses an interpreter without headers; the extension is built against them.
    assert (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()


def test_sources_of_unity_builds_have_commands(tmp_path):
    unity = tmp_path / "Unity" / "unity_0_cxx.cxx"
    unity.parent.mkdir()
    unity.write_text('/* generated */\n#include "/src/a.cpp"\n\n#include "/src/b.cpp"\n')
    entries = [
        {"directory": "/build", "file": str(unity), "command": f"c++ -O1 -c {unity}"},
        {"directory": "/build", "file": "/src/c.cpp", "command": "c++ -O3 -c /src/c.cpp"},
    ]
    (tmp_path / "compile_commands.json").write_text(json.dumps(entries))
    script = ROOT / "scripts" / "source_commands.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    found = json.loads((tmp_path / "sources" / "compile_commands.json").read_text())
    assert {entry["file"]: entry["command"] for entry in found} == {
        "/src/a.cpp": "c++ -O1 -c /src/a.cpp",
        "/src/b.cpp": "c++ -O1 -c /src/b.cpp",
        "/src/c.cpp": "c++ -O3 -c /src/c.cpp",
    }


def test_transcripts_keep_their_lines_with_new_numbers():
    printed = ["loss: a", " 1  0.9 1us *", " 2  0.8 2us", "sample: x", "sample: y", "wrote a"]
    shown = ["...", " 2  0.5 9us *", "...", "sample: z", "wrote a"]
    found = transcripts.refreshed(shown, printed, "train")
    assert found == ["...", " 2  0.8 2us", "...", "sample: y", "wrote a"]
    with pytest.raises(SystemExit, match="no longer prints: wrote b"):
        transcripts.refreshed(["wrote b"], printed, "train")
