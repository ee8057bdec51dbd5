"""Every error that the Python package raises says what the user can do.

In C++ the compiler sees to it: a `Problem` without a hint does not compile.
"""

import ast
from pathlib import Path

import pytest

import onnxgrad as og
from onnxgrad import errors

PACKAGE = Path(og.__file__).parent
CLASSES = set(errors.__all__) - {"InternalError"}
FILES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if "compat" not in path.parts and path.name != "errors.py"
)


def name_of(function):
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def calls_without_hint(source):
    """Lines of `source` where an error of ours is made without saying what to do."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or name_of(node.func) not in CLASSES:
            continue
        hint = next((keyword.value for keyword in node.keywords if keyword.arg == "hint"), None)
        if hint is None or (isinstance(hint, ast.Constant) and not hint.value):
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_error_has_a_hint(path):
    assert list(calls_without_hint(path.read_text(encoding="utf-8"))) == []


def test_an_error_without_a_hint_is_found():
    source = """
raise DataError(what="x", hint="Give y.")
raise errors.DataError(what="x")
raise OptionError("x")
raise ModelError(what="x", hint="")
raise InternalError(what="x")
"""
    assert list(calls_without_hint(source)) == [3, 4, 5]
