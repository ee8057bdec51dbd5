"""The documents stay true: their Python blocks and shell lines run, their names and defaults exist.

Blocks of a document run in order, in one namespace and one folder, after a preparation that makes
what the text takes for granted (a model, rows). A document with blocks must be listed here.
"""

import inspect
import json
import linecache
import re
import shlex
import shutil
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad as og
from forking import run_module
from onnxgrad import callbacks, data, losses, metrics, optimizers, schedules
from support import mlp_proto

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_layers  # noqa: E402

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SHELL_LINE = re.compile(r"^ *(onnxgrad (?:train|gradient|report|versions)\b.*)$")


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(name, language):
    return [code for found, code in BLOCK.findall(text_of(name)) if found == language]


def shell_lines_of(name):
    """Commands without placeholders, which are in capitals; what follows a # is a remark."""
    without_code = BLOCK.sub(lambda block: "" if block[1] == "python" else block[2], text_of(name))
    found = [SHELL_LINE.match(line) for line in without_code.splitlines()]
    lines = [re.split(r"   +", match[1])[0] for match in found if match]
    return [line for line in lines if not re.search(r"\b[A-Z]{4,}\b|\[", line)]


# --------------------------------------------------------------------------------- preparations


def rows(number=120, features=4):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(number, features)).astype(np.float32)
    return X, (X @ rng.normal(size=(features, 1))).astype(np.float32)


def write_csv(path, X, y, target):
    header = ",".join([*(f"x{i}" for i in range(X.shape[1])), target])
    np.savetxt(path, np.column_stack([X, y]), "%.9g", ",", header=header, comments="")


def regression(names):
    X, y = rows()
    onnx.save(mlp_proto([4, 8, 1]), "model.onnx")
    names |= {"X": X, "y": y, "og": og, "trainer": og.Trainer("model.onnx", lr=1e-2)}


def first_steps(names):
    """The files of the shell lines; the Python blocks make theirs themselves."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    onnx.save(mlp_proto([64, 16, 10], head="Softmax"), "model.onnx")
    write_csv("train.csv", X[:1500] / 16, y[:1500], "digit")
    write_csv("held_out.csv", X[1500:] / 16, y[1500:], "digit")


def checkpoints(names):
    X, y = rows(96)  # three steps an epoch
    onnx.save(mlp_proto([4, 1]), "model.onnx")
    trainer = og.Trainer("model.onnx")
    names |= {"X": X, "y": y, "og": og, "trainer": trainer, "session": trainer.session}
    write_csv("d.csv", X, y, "y")


def data_files(names):
    regression(names)
    X, y = names["X"], names["y"]
    write_csv("train.csv", X, y, "price")
    write_csv("held_out.csv", X[:30], y[:30], "price")
    two_heads(names)
    encoder = """<ir_version: 8, opset_import: ["" : 17]>
    encoder (int64[N,T] ids) => (float[N,2] y) <float[8,2] table> {
      words = Gather (table, ids)
      y = ReduceMean <axes = [1], keepdims = 0> (words)
    }"""
    model = onnx.parser.parse_model(
        encoder.replace(
            " <float[8,2] table>", "<float[8,2] table = {" + ", ".join(["0.1"] * 16) + "}>"
        )
    )
    onnx.save(model, "encoder.onnx")
    lengths = np.random.default_rng(2).integers(3, 40, 60)
    names["ids"] = [np.arange(length) % 8 for length in lengths]
    names["labels"] = lengths % 2


def two_heads(names):
    """Write the files that "Several targets" takes for granted."""
    pa = pytest.importorskip("pyarrow")
    text = TWO_HEADS.replace("X) =>", "X4) =>").replace("N, 2] X4", "N, 4] X4")
    text = text.replace("MatMul(X, norm_weight)", "Slice(X4, first, last, axis)").replace(
        "float[2, 2] norm_weight = {1, 0, 0, 1}",
        "int64[1] first = {0}, int64[1] last = {2}, int64[1] axis = {1}",
    )
    onnx.save(onnx.parser.parse_model(text), "two_heads.onnx")
    X, prices = names["X"], names["y"][:, 0]
    kinds = (X[:, 0] > 0).astype(np.int64)
    columns = {f"x{i}": X[:, i] for i in range(4)} | {"p": prices, "k": kinds}
    write_csv("rows.csv", X, np.column_stack([prices, kinds]), "p,k")
    np.save("X.npy", X)
    np.save("p.npy", prices)
    np.save("k.npy", kinds)
    table = pa.table(columns)
    names |= {"prices": prices, "kinds": kinds, "table": table}
    names["record_batches"] = table.to_batches(max_chunksize=40)


def command_line(names):
    regression(names)
    write_csv("train.csv", names["X"], names["y"], "y")
    model = onnx.load("model.onnx")
    for tensor in model.graph.initializer:
        tensor.name = {"W0": "coef"}.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = ["coef" if name == "W0" else name for name in node.input]
    onnx.save(model, "model.onnx")


DENSE = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 4] X) => (float[N, 2] Y)
<float[4, 2] dense.weight = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}, float[2] dense.bias = {0, 0}>
{ product = MatMul(X, dense.weight)  Y = Add(product, dense.bias) }
"""


def sessions(names):
    model = onnx.parser.parse_model(DENSE.replace("dense.", "dense_"))
    for value in [*model.graph.initializer, *model.graph.node]:
        value.name = value.name.replace("dense_", "dense.")
    for node in model.graph.node:
        node.input[:] = [name.replace("dense_", "dense.") for name in node.input]
    onnx.save(model, "model.onnx")
    for value in (model.graph.input[0], model.graph.output[0]):  # as exporters write it
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, "cnn.onnx")
    X, y = rows()[0], rows()[0][:, :2].copy()
    trainer = og.Trainer("model.onnx", loss="squared_error")
    names |= {"X": X, "y": y, "dY": y, "og": og, "trainer": trainer, "session": trainer.session}


TWO_HEADS = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 2] X) => (float[N, 1] price, float[N, 2] kind)
<float[2, 2] norm_weight = {1, 0, 0, 1}, float[2, 1] coef = {0.5, -0.25}, float[1] bias = {0.1},
 float[2, 2] mix = {0.1, 0.2, -0.3, 0.4}>
{
  h = MatMul(X, norm_weight)  product = MatMul(h, coef)  price = Add(product, bias)
  kind = MatMul(h, mix)
}
"""


def training(names):
    onnx.save(onnx.parser.parse_model(TWO_HEADS), "model.onnx")
    X, y = rows(features=2)
    kinds = (X[:, 0] > 0).astype(np.int64)
    names |= {"og": og, "X": X, "prices": y, "kinds": kinds}
    names["after"] = {0: lambda: onnx.save(one_head(), "model.onnx")}


def one_head():
    """The rest of the page is about any model; this one has a bias and a normalisation."""
    model = onnx.parser.parse_model(TWO_HEADS)
    del model.graph.node[-1], model.graph.output[-1]
    return model


def precision(names):
    names["og"] = og
    onnx.save(one_head(), "model.onnx")


def pytorch(names):
    """Write a network with the names of modules, and make rows of three classes."""
    model = mlp_proto([4, 8, 3])
    new = {"W0": "encoder.weight", "b0": "encoder.bias", "W1": "head.weight", "b1": "head.bias"}
    for tensor in model.graph.initializer:
        tensor.name = new[tensor.name]
    for node in model.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
    onnx.save(model, "net.onnx")
    X, y = rows()
    names |= {"X": X, "y": np.digitize(y[:, 0], [-1, 1])}


def fine_tuning(names):
    """Copy a language model, and make rows of tokens whose labels are the next ones."""
    path = ROOT / "tests/data/models/gpt_learned_places_opset18.onnx"
    shutil.copy(path, "model.onnx")
    tokens = np.random.default_rng(0).integers(0, 29, (16, 6))
    names |= {"tokens": tokens, "labels": (tokens + 1) % 29}
    np.savez("rows.npz", tokens=tokens, label=names["labels"])
    shutil.copy(path, "big.onnx")
    encoder = mlp_proto([4, 3, 2])
    encoder.graph.input[0].name = encoder.graph.node[0].input[0] = "x"
    onnx.save(encoder, "encoder.onnx")
    names |= {"questions": rows(8)[0], "answers": rows(8)[0]}
    lines = [json.dumps({"x": row, "x_2": row}) for row in names["questions"].tolist()]
    Path("pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")


def language_models(names):
    """A decoder and a text."""
    for name in ("decoder.onnx", "sonnets.txt"):
        shutil.copy(ROOT / "examples" / "language" / name, name)


DOCUMENTS = {
    "README.md": lambda names: None,
    "docs/checkpoints.md": checkpoints,
    "docs/command-line.md": command_line,
    "docs/data.md": data_files,
    "docs/derivatives.md": lambda names: None,
    "docs/distributed.md": regression,
    "docs/fine-tuning.md": fine_tuning,
    "docs/language-models.md": language_models,
    "docs/first-steps.md": first_steps,
    "docs/precision.md": precision,
    "docs/python.md": regression,
    "docs/pytorch.md": pytorch,
    "docs/scikit-learn.md": lambda names: None,
    "docs/separate-passes.md": sessions,
    "docs/sessions.md": sessions,
    "docs/training.md": training,
}


@pytest.fixture
def prepared(request, tmp_path, monkeypatch):
    """(document, its names), in a folder with what it takes for granted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = {}
    DOCUMENTS[request.param](names)
    return request.param, names


def test_every_document_with_code_is_tested():
    documents = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    have_code = [name for name in documents if blocks_of(name, "python") or shell_lines_of(name)]
    assert sorted(have_code) == sorted(DOCUMENTS)


class Document:
    """A module whose names are those of a document's blocks."""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "prepared", [name for name in DOCUMENTS if blocks_of(name, "python")], indirect=True
)
def test_python_blocks_run(prepared, monkeypatch):
    name, names = prepared
    after = names.pop("after", {})
    module = Document()
    module.__dict__ = names
    names["__name__"] = "document"
    monkeypatch.setitem(sys.modules, "document", module)
    for number, code in enumerate(blocks_of(name, "python")):
        packages = {"traced(": "ndonnx", "onnxscript": "onnxscript"}
        if all(find_spec(package) for text, package in packages.items() if text in code):
            file = f"<{name}, block {number}>"  # onnxscript reads sources, and names of the module
            linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
            exec(compile(code, file, "exec"), names)
        after.get(number, lambda: None)()


def run(command):
    words = shlex.split(command)
    assert words[0] == "onnxgrad"
    done = run_module("onnxgrad.cli", *words[1:], timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "prepared", [name for name in DOCUMENTS if shell_lines_of(name)], indirect=True
)
def test_shell_lines_run(prepared):
    for line in shell_lines_of(prepared[0]):
        run(line)


@pytest.mark.parametrize("prepared", ["docs/command-line.md"], indirect=True)
def test_options_in_the_text_of_the_command_line(prepared):
    spans = re.findall(r"`(--[a-z-]+ [^`]+)`", text_of(prepared[0]))
    spans = [span for span in spans if not re.search(r"\b[A-Z]{3,}\b| [NX]$", span)]
    assert len(spans) >= 4
    for span in spans:
        span = span.split("\\|")[0]  # the first of the choices in a table
        run(f"onnxgrad train model.onnx --data train.csv --target y -o o.onnx -q --epochs 1 {span}")
    Path("run.toml").write_text(*blocks_of(prepared[0], "toml"), encoding="utf-8")
    run("onnxgrad train --config run.toml -o trained.onnx")
    assert Path("trained.onnx").exists()


def test_commands_of_the_synopsis_are_those_of_the_help():
    synopsis = set(re.findall(r"^onnxgrad ([\w-]+)", text_of("docs/command-line.md"), re.M))
    listed = run("onnxgrad --help")[0].split("Commands:")[1].split("\n\n")[0]
    assert synopsis == {line.split()[0] for line in listed.splitlines() if line.strip()}


@pytest.mark.parametrize("prepared", ["README.md"], indirect=True)
def test_what_the_readme_prints(prepared, capsys):
    """The loss that was found and the head of the table, as they stand below the first block."""
    exec(blocks_of("README.md", "python")[0], prepared[1])
    printed = capsys.readouterr().err.splitlines()
    shown = [line[4:] for line in text_of("README.md").splitlines() if line.startswith("    ")]
    start = next(i for i, line in enumerate(shown) if line.startswith("loss: "))
    assert printed[:3] == shown[start : start + 3]
    accuracy = re.search(r"^ +20 +\S+ +\S+ +(\S+)", "\n".join(printed), re.M)[1]
    assert float(accuracy) > 0.95


SPEED = {  # rows of the README and workloads of benchmarks/peers
    "784-512-512-10, batch 128, Adam": "w3_mlp784",
    "ResNet-18, 32 x 32, batch 32": "w5_resnet18",
    "BERT-base layer, batch 8": "w6_bert_base_layer",
    "causal language model, batch 4": "w7_causal_lm",
}
PEERS = {"onnxgrad": "onnxgrad", "PyTorch": "torch", "ONNX Runtime Training": "ort", "JAX": "jax"}


def test_speed_in_the_readme_is_that_of_the_results():
    """Each system has its fastest variant, with one thread, in the results of the processor."""
    results = json.loads(text_of("benchmarks/results/amd-zen5.json"))
    assert "AMD EPYC (Zen 5)" in results["processor"]
    entries = [one for run in results["runs"] for one in run["entries"]]
    table = section("README.md", "Speed")
    assert "AMD EPYC (Zen 5)" in table
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if "|" in line]
    assert head == list(PEERS)
    assert [name for name, *_ in rows] == list(SPEED)
    for name, *cells in rows:
        for cell, peer in zip(cells, PEERS.values(), strict=True):
            times = [
                (one["value"], one["unit"])
                for one in entries
                if one["benchmark"] == "training step"
                and (one["workload"], one["threads"]) == (SPEED[name], 1)
                and re.fullmatch(rf"{peer}(-(eager|cl|api|agent|jit|scan))*", one["system"])
            ]
            assert cell == ("{:g} {}".format(*min(times)) if times else "-"), (name, peer)


def test_pages_stay_short():
    words = {"README.md": 450, "docs/architecture.md": 2500, "docs/kernels.md": 1800}
    for name, most in words.items():
        assert len(text_of(name).split()) <= most, name
    assert len(text_of("docs/roadmap.md").splitlines()) <= 15
    assert len(blocks_of("README.md", "python")[0].splitlines()) <= 12


# ------------------------------------------------------------------------------ names and defaults


def test_links_lead_somewhere():
    for path in PAGES:
        text = BLOCK.sub("", path.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def anchors(path):
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_to_headings_lead_somewhere():
    for path in PAGES:
        text = BLOCK.sub("", path.read_text(encoding="utf-8"))
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
            other = path.parent / target if target else path
            assert anchor in anchors(other), f"{path.name}: {target}#{anchor}"


def section(name, title):
    text = text_of(name).split(f"\n## {title}\n")[1]
    return text.split("\n## ")[0]


def names_in(table):
    """The short names in quotes, in the first cells of the rows of a table."""
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    return {name for cell in cells for name in re.findall(r'`"(\w+)"`', cell)}


def test_tables_have_all_names():
    known = {"Losses": losses, "Optimizers": optimizers, "Schedules": schedules}
    for title, module in known.items():
        found = names_in(section("docs/training.md", title))
        assert set(module.names()) <= found
        for name in found:
            module.from_name(name)
    table = section("docs/data.md", "Validation and metrics")
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", "".join(cells))) == set(metrics.names())


DEFAULT = re.compile(r"(\w+)(?: [^\s,;\[]+)? \[([^\];]+)")


@pytest.mark.parametrize(
    ("title", "module", "least"),
    [("Losses", losses, 8), ("Optimizers", optimizers, 30), ("Schedules", schedules, 25)],
)
def test_defaults_in_brackets(title, module, least):
    """`lr [0.001]` in the row of a class is the default of its parameter `lr`."""
    checked, described = 0, None
    for line in section("docs/training.md", title).splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        named = re.search(r"`(\w+)[`(]", cells[1]) if len(cells) > 4 else None
        described = getattr(module, named[1], described) if named else described
        if len(cells) <= 4 or not callable(described):
            continue
        parameters = inspect.signature(described).parameters
        for name, shown in DEFAULT.findall(cells[3]):
            if name not in parameters or " " in shown:  # words such as "all 1"
                continue
            checked += 1
            expected = parameters[name].default
            is_number = isinstance(expected, (int, float)) and not isinstance(expected, bool)
            value = float(shown) if is_number else shown.strip('"')
            assert value == (expected if is_number else str(expected)), (described, name)
    assert checked >= least


def test_names_in_the_tables_of_the_python_page():
    """Every `name` in the first column of the table of the package is there."""
    text = text_of("docs/python.md")
    hooks = re.findall(r"^\| `(on_\w+)\((.*?)\)`", text, re.M)
    assert {name for name, _ in hooks} == {
        name for name in vars(callbacks.Callback) if name.startswith("on_")
    }
    for name, arguments in hooks:
        found = list(inspect.signature(getattr(callbacks.Callback, name)).parameters)[1:]
        assert found == arguments.split(", ")
    for call in re.findall(r"^\| `([A-Z]\w+)\((.*?)\)`", text.split("## Callbacks")[1], re.M):
        known = inspect.signature(getattr(callbacks, call[0])).parameters
        assert {part.split("=")[0] for part in call[1].split(", ") if part} <= set(known)
    for row in re.findall(r"^\| `(\w+)\(.*?\)`.*?\| (.*) \|$", text.split("## Training")[0], re.M):
        owner = getattr(og, row[0])
        if isinstance(owner, type):
            methods = re.findall(r"`(\w+)`", row[1])
            for method in methods:
                assert hasattr(owner, method) or method in (owner.__doc__ or ""), (row[0], method)


def test_classes_of_data_are_documented():
    text = text_of("docs/data.md")
    for name in data.__all__:
        if name not in ("Source", "open_file"):
            assert name in text


def test_exit_statuses_of_the_page():
    from onnxgrad.cli import EXIT_STATUS

    table = section("docs/command-line.md", "Exit status")
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1].isdigit():
            for name in re.findall(r"`(\w+Error)`", cells[3]):
                assert EXIT_STATUS[getattr(og.errors, name)] == int(cells[1])


def test_imports_of_the_migration_page():
    """Every entry in the column of new lines can be imported."""
    table = text_of("docs/migration.md").split("| old line | new line |")[1].split("\n\n")[0]
    lines = re.findall(r"`(from onnxgrad\.[^`]+)`", table)
    assert len(lines) >= 5
    for line in lines:
        exec(line, {})


def test_files_that_documents_name_are_there():
    """Every file of the project that the documents name exists."""
    folders = "benchmarks|cmake|docs|examples|include|python|requirements|scripts|src|tests"
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
            assert (ROOT / name).exists(), (path, name)


EXCERPT = re.compile(r"^ *<!-- excerpt: (\S+) -->\n *```\w*\n(.*?)^ *```$", re.M | re.S)
EXCERPTS = [
    pytest.param(file, code, id=f"{path.name}-{number}")
    for path in PAGES
    for number, (file, code) in enumerate(EXCERPT.findall(path.read_text(encoding="utf-8")))
]


def test_excerpts_are_found():
    assert len(EXCERPTS) >= 15
    marked = sum(page.read_text(encoding="utf-8").count("<!-- excerpt: ") for page in PAGES)
    assert len(EXCERPTS) == marked


@pytest.mark.parametrize(("file", "code"), EXCERPTS)
def test_excerpts_are_what_the_files_have(file, code):
    """The lines of an excerpt follow one another in its file, whatever their indentation."""
    wanted = textwrap.dedent(code).splitlines()
    lines = text_of(file).splitlines()
    windows = (lines[i : i + len(wanted)] for i in range(len(lines)))
    assert any(textwrap.dedent("\n".join(one)).splitlines() == wanted for one in windows), (
        f"{file} does not have these lines:\n{code}"
    )


@pytest.mark.parametrize(
    ("mark", "table"),
    [
        ("layers of src", check_layers.ALLOWED),
        ("layers of train", check_layers.TRAIN),
        ("layers of Python", check_layers.SUBPACKAGES),
    ],
)
def test_layers_are_those_of_the_script(mark, table):
    text = text_of("docs/architecture.md").split(f"<!-- {mark} -->")[1].split("<!-- end -->")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    shown = {row[1].strip(" `"): set(re.findall(r"\w+", row[3])) for row in rows}
    assert shown == table


def test_program_in_cpp_has_the_lines_that_the_page_says():
    lines = (ROOT / "examples/cpp/train.cpp").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 30
    assert "a whole program of 30 lines is in [examples/cpp]" in text_of("docs/first-steps.md")
