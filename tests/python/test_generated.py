"""What scripts/generate.py writes from the extension's tables is what is in the repository."""

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import onnxgrad as og
from onnxgrad import _core, optimizers, schedules

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate.py"
CLASSES = [
    (module, row)
    for module, table in (
        (optimizers, _core.optimizer_table()),
        (schedules, _core.schedule_table()),
    )
    for row in table
    if row.python_name
]


def test_generated_files_are_those_of_the_tables():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "row"), [pytest.param(m, r, id=r.python_name) for m, r in CLASSES]
)
class TestClass:
    def test_its_signature_is_the_row(self, module, row):
        parameters = inspect.signature(getattr(module, row.python_name)).parameters
        assert list(parameters) == [field.option for field in row.fields]
        for parameter, field in zip(parameters.values(), row.fields, strict=True):
            assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            default = 0 if parameter.default is None else parameter.default
            known = field.default_value
            assert default == (tuple(known) if isinstance(known, list) else known)

    def test_its_defaults_are_those_of_the_struct(self, module, row):
        made = getattr(module, row.python_name)()._native()
        maker = _core.make_optimizer if module is optimizers else _core.make_schedule
        assert str(made) == str(maker(row.type, {}))

    def test_it_is_pickled_and_shown_by_its_options(self, module, row):
        described = getattr(module, row.python_name)()
        assert pickle.loads(pickle.dumps(described)) == described
        assert eval(repr(described), vars(module)) == described

    def test_its_docstring_has_each_option(self, module, row):
        text = inspect.getdoc(getattr(module, row.python_name))
        for field in row.fields:
            assert f"\n{field.option} : " in text

    def test_numbers_out_of_range_are_refused(self, module, row):
        class_ = getattr(module, row.python_name)
        for field in row.fields:
            if not isinstance(field.default_value, float):
                continue
            outside = [x for x in (field.below, field.maximum + 1) if x != float("inf")]
            if field.minimum != -float("inf"):
                outside.append(field.minimum if field.is_open else field.minimum - 1)
            for value in outside:
                with pytest.raises(og.OptionError, match=f"^{field.option}"):
                    class_(**{field.option: value})
