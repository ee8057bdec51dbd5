"""What scripts/generate.py writes from the extension's tables is what is in the repository."""

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import onnxgrad as og
from onnxgrad import _core, losses, optimizers, schedules

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate.py"
CLASSES = [
    (module, row)
    for module, table in (
        (losses, _core.loss_table()),
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
        parameters = dict(inspect.signature(getattr(module, row.python_name)).parameters)
        if module is losses:  # where it is put
            assert parameters.pop("output").default == ""
            assert parameters.pop("reduction").default == "mean"
        assert list(parameters) == [field.option for field in row.fields]
        for parameter, field in zip(parameters.values(), row.fields, strict=True):
            by_name = parameter.KEYWORD_ONLY
            kind = by_name if module is losses else parameter.POSITIONAL_OR_KEYWORD
            assert parameter.kind is kind
            is_unset = parameter.default is None and field.zero_is_none
            default, known = 0 if is_unset else parameter.default, field.default_value
            assert default == (tuple(known) if isinstance(known, list) else known)

    def test_its_defaults_are_those_of_the_struct(self, module, row):
        made = getattr(module, row.python_name)()
        if module is losses:
            fields = [field.name for field in row.fields if field.option != "axis"]
            ours, theirs = made._function(), _core.make_loss_function(row.type, {})
            assert all(getattr(ours, name) == getattr(theirs, name) for name in fields)
            return
        maker = _core.make_optimizer if module is optimizers else _core.make_schedule
        assert str(made._native()) == str(maker(row.type, {}))

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
