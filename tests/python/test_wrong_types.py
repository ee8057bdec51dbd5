"""Arguments of wrong types, to every public function, class, method and option: own errors.

An error is onnxgrad's own if it is an `onnxgrad.Error`, or if a ``raise`` statement of the package
raised it: the last instruction of the last frame of its traceback. Errors of the interpreter, of
NumPy and of the extension's argument conversion end in another instruction, or another file.
"""

import dis
import importlib
import inspect
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

import onnxgrad as og
from onnxgrad.session_options.table import SESSION_OPTIONS, TAKERS
from support import mlp_proto

PACKAGE = str(Path(og.__file__).parent)
MODEL = mlp_proto([3, 4, 1]).SerializeToString()
X = np.arange(24, dtype=np.float32).reshape(8, 3) / 24
y = X.sum(axis=1, keepdims=True)

WRONG = {
    "3": 3,
    "-1": -1,
    "None": None,
    "text": "x",
    "surrogate": "\ud800x",
    "bytes": b"x",
    "list": [],
    "list of 3": [3],
    "list of None": [None],
    "dict": {},
    "dict of 3": {"x": 3},
    "dict by 3": {3: "x"},
    "set": {"x"},
    "scalar": np.array(3),
    "array": np.ones((8, 2, 2)),
    "texts": np.array(["a"] * 8, object),
    "NaN": float("nan"),
    "2**70": 2**70,
    "type": int,
    "object": object(),
}

# Valid values of arguments without a default, by name.
GIVEN = {
    "model": MODEL,
    "before": MODEL,
    "after": MODEL,
    "models": [MODEL],
    "X": X,
    "y": y,
    "feeds": {"X": X},
    "inputs": {"X": X},
    "labels": y,
    "weights": {"W0": np.ones((3, 4), np.float32)},
    "state": {"W0": np.ones((3, 4), np.float32)},
    "tensors": {},
    "adapter": "lora",
    "batches": [(X, y)],
    "classes": 3,
    "context": None,
    "data": [np.arange(9)],
    "folder": "folder",
    "history": {"train_loss": [1.0]},
    "layer_sizes": [2, 3],
    "length": 3,
    "log_dir": "log",
    "metric": "accuracy",
    "name": "adam",
    "operator": "Relu",
    "output": "Y",
    "output_names": None,
    "parts": ["cosine", "step"],
    "path": "out.bin",
    "patterns": "W*",
    "precision": "bf16",
    "prompt": [1, 2],
    "quantize": "int8",
    "text": "bf16",
    "trial": None,
    "value": 1.0,
    "y_pred": [0, 1],
    "y_true": [0, 1],
}
PRIVATE = ("errors", "files", "ray", "session_options")  # modules that this does not call
HELPERS = ("onnxgrad.history.cell_text",)  # of numbers of the history alone
CALLS_WHAT_IS_GIVEN = {("onnxgrad.cross_validate", "on_fold")}


def is_own(error):
    if isinstance(error, og.Error):
        return True
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    is_raised = dis.opname[code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"
    return code.co_filename.startswith(PACKAGE) and is_raised and bool(str(error))


def test_errors_of_the_interpreter_are_not_own():
    """The criterion itself."""
    foreign = [lambda: og.history.cell_text(None), lambda: int("x"), lambda: og._core.jvp(3)]
    for function in foreign:
        with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
            function()
        assert not is_own(caught.value)
    with pytest.raises(ValueError, match="one model") as caught:
        og.graph_pictures.draw_graphs([])
    assert is_own(caught.value)


def parameters_of(function):
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(function).parameters.values()
    return [one for one in found if one.kind in kinds and one.name != "self"]


def foreign_errors(name, function, parameters=None, **further):
    """Errors of others for wrong values of each parameter."""
    parameters = parameters_of(function) if parameters is None else parameters
    needed = [one.name for one in parameters if one.default is inspect.Parameter.empty]
    if not set(needed) <= set(GIVEN):
        return []
    given = {one: GIVEN[one] for one in needed} | further
    found = []
    for parameter in parameters:
        if (name, parameter.name) in CALLS_WHAT_IS_GIVEN:
            continue
        for kind, value in WRONG.items():
            try:
                function(**{**given, parameter.name: value})
            except Exception as error:
                if not is_own(error):
                    found.append(f"{name}({parameter.name}={kind}): {error!r:.90}")
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


MODULES = ["", *(name for name in sorted(og._SUBPACKAGES) if name not in PRIVATE)]


@pytest.mark.parametrize("module", MODULES)
def test_functions_and_constructors(module):
    full = "onnxgrad" + "." * bool(module) + module
    found = []
    for name in getattr(importlib.import_module(full), "__all__", ()):
        public = getattr(importlib.import_module(full), name)
        is_record = isinstance(public, type) and issubclass(public, (BaseException, tuple, dict))
        is_called = callable(public) and not is_record and f"{full}.{name}" not in HELPERS
        if not is_called or isinstance(public, types.GenericAlias):
            continue
        found += foreign_errors(f"{full}.{name}", public)
    assert found == []


def option_names():
    return [(taker, option.name) for option in SESSION_OPTIONS for taker in option.takers]


@pytest.mark.parametrize(("taker", "option"), option_names())
def test_session_options_in_dictionaries(taker, option):
    """A dictionary of a wrong type inside: ``adapter={"dora": 3}``."""
    if option == "path" or taker == "derivative":
        return
    function = getattr(og, TAKERS[taker][1][0])
    found = []
    names = ["dora", "lora", "rank", "classes", "weights", "inputs", "values", "coef", "ema"]
    others = {"teacher": MODEL} if option == "distill" else {}
    for name in names:
        for kind, value in WRONG.items():
            try:
                function(MODEL, **{**others, option: {name: value}})
            except Exception as error:
                if not is_own(error):
                    found.append(f"{option}={{{name!r}: {kind}}}: {error!r:.90}")
    assert found == []


def trained():
    trainer = og.Trainer(MODEL, threads=1)
    trainer.fit(X, y, epochs=1, verbose=0)
    return trainer


OBJECTS = {
    "Trainer": trained,
    "TrainingSession": lambda: og.TrainingSession(MODEL, threads=1),
    "InferenceSession": lambda: og.InferenceSession(MODEL),
    "ForwardBackward": lambda: og.ForwardBackward(MODEL),
    "History": lambda: trained().history,
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_methods(kind):
    made = OBJECTS[kind]()
    quick = {"fit": {"epochs": 1, "verbose": 0}}
    found = []
    for name in dir(type(made)):
        method = getattr(type(made), name)
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        parameters = parameters_of(method)
        found += foreign_errors(
            f"{kind}.{name}", getattr(made, name), parameters, **quick.get(name, {})
        )
    assert found == []


def fit_with(**options):
    og.Trainer(MODEL, threads=1).fit(X, y, **{"epochs": 1, "verbose": 0, **options})


@pytest.mark.parametrize(
    "call",
    [
        lambda: og.Trainer(MODEL, quantize="int8", calibration=3),
        lambda: og.Trainer(MODEL).set_weights(None),
        lambda: og.data.Tokens(np.array(3)).rows,
        lambda: og.devices.load_plugin(3),
        lambda: fit_with(sampling="weighted", row_weights="x"),
        lambda: og.cross_validate(MODEL, X, y, trainer=3),
        lambda: og.cross_validate(MODEL, X, y, sample_weight=np.ones(3)),
        lambda: og.data.Preferences([3]),
    ],
)
def test_arguments_by_hand(call):
    with pytest.raises(og.Error) as caught:
        call()
    assert caught.value.hint


LINES = {
    b"\xff\xfe": "not readable",
    b"3": "line 1",
    b'{"input_ids": [[1], [2, 3]]}': "line 1",
    b'{"input_ids": [1, 2], "labels": 3}': "line 1",
    b'{"input_ids": [-1]}': "line 1",
    b'{"input_ids": [9223372036854775808]}': "line 1",
    b'{"input_ids": {"a": 1}}': "line 1",
    b'{"text": "\\ud800abc"}': "line 1",
    b'{"text": 3}': "line 1",
    b'{"messages": 3}': "template",
    b'{"prompt": 3, "completion": "a"}': "line 1",
    b'{"source": "a", "target": 3}': "line 1",
    b'{"text": ' + b"[" * 9000: "line 1",
}


@pytest.mark.parametrize("line", LINES)
def test_lines_of_files_of_tokens(line):
    Path("rows.jsonl").write_bytes(line + b"\n")
    source = og.data.Tokens("rows.jsonl", 4, tokenizer="bytes")
    with pytest.raises(og.Error, match=LINES[line]):
        _ = source.rows
    with pytest.raises(og.Error):
        og.data.Preferences("rows.jsonl", tokenizer="bytes")


@pytest.mark.parametrize("template", ["[3]", "3", '[{"name": 3}]', '{"a": 1}', "null"])
def test_templates_that_are_none(template):
    text = '{"tokenizer_class": "bytes", "chat_template": ' + template + "}"
    Path("tokenizer_config.json").write_text(text)
    tokenizer = og.data.tokens.as_tokenizer(".")
    with pytest.raises(og.DataError, match="template"):
        tokenizer.chat([{"role": "user", "content": "a"}], "here")


@pytest.mark.parametrize("option", ["separator", "pad", "mask_token", "start_token"])
@pytest.mark.parametrize("value", [2**63, -1, "x", 0.5])
def test_special_tokens_that_are_none(option, value):
    with pytest.raises(og.OptionError, match=option):
        og.data.Tokens([[1, 2]], 2, **{option: value})
