"""Files in the repository equal those that scripts/generate.py writes from the extension."""

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import onnxgrad as og
from onnxgrad import _core, losses, optimizers, schedules
from onnxgrad.cli.train_options import OPTIONS
from onnxgrad.losses import penalties
from onnxgrad.trainer.described import FitOptions

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate.py"
CLASSES = [
    (module, row)
    for module, table in (
        (losses, _core.loss_table()),
        (penalties, _core.penalty_table()),
        (optimizers, _core.optimizer_table()),
        (schedules, _core.schedule_table()),
    )
    for row in table
    if row.python_name
]


def default_of(field):
    """Return the default of a field in Python."""
    known = field.default_value
    if field.kind == "texts" or (field.none_is and known == 0):
        return None
    return tuple(known) if isinstance(known, list) else known


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
            is_of_loss = module in (losses, penalties)
            assert parameter.kind is (by_name if is_of_loss else parameter.POSITIONAL_OR_KEYWORD)
            assert parameter.default == default_of(field)

    def test_its_defaults_are_those_of_the_struct(self, module, row):
        made = getattr(module, row.python_name)()
        if module is losses:
            fields = [
                field.name
                for field in row.fields
                if field.option not in ("axis", "partners", "views")
            ]
            ours, theirs = made._native(), _core.make_loss_function(row.type, {})
            assert all(getattr(ours, name) == getattr(theirs, name) for name in fields)
            return
        if module is penalties:
            assert (made.l1, made.l2, made.weights) == (0, 0, ())
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


FIT_OPTIONS = _core.fit_option_table()[0].fields


@pytest.mark.parametrize("field", FIT_OPTIONS, ids=lambda field: field.option)
class TestFitOption:
    def test_it_is_an_argument_of_fit(self, field):
        parameters = inspect.signature(og.Trainer.fit).parameters
        text = inspect.getdoc(og.Trainer.fit)
        assert parameters[field.option].default == default_of(field)
        for name in (field.option, *field.aliases):
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
            assert name in FitOptions.__annotations__
            assert f"\n{name} : " in text

    def test_it_is_an_option_of_the_command_line(self, field):
        found = {option.name: option for option in OPTIONS}.get(field.option)
        if not field.topic:
            assert found is None
            return
        assert (found.topic, found.default) == (field.topic, default_of(field))
        for name in (field.option, *field.aliases):
            assert "--" + name.replace("_", "-") in found.spelling
        assert field.meaning.startswith(found.help.partition(".  [")[0].rstrip("."))

    def test_what_is_out_of_range_is_refused(self, field, linear_model):
        if field.kind == "flag":
            return
        wrong = "never" if field.kind == "text" else int(field.minimum) - 1
        with pytest.raises(og.OptionError, match=f"^{field.option}"):
            fit(linear_model, **{field.option: wrong})


def fit(model, **options):
    X, y = np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32)
    return og.Trainer(model).fit(X, y, verbose=0, **options)


def test_unknown_fit_options_name_the_nearest(linear_model):
    with pytest.raises(og.OptionError, match=r"Trainer.fit has no argument 'validate_every'") as e:
        fit(linear_model, validate_every=2)
    assert "validation_every" in str(e.value)
    with pytest.raises(og.OptionError, match=r"argument of Trainer\(clip_norm=\.\.\.\)"):
        fit(linear_model, clip_norm=1.0)


def test_a_fit_option_has_one_value_under_all_its_names(linear_model):
    assert fit(linear_model, non_finite="skip", on_nan="skip").stop_reason == ""
    with pytest.raises(og.OptionError, match="two names of the same option"):
        fit(linear_model, non_finite="stop", on_nan="skip")


def test_no_fit_option_is_named_in_python_by_hand():
    """But for those that need more than their row: a rule about several, or a dry run."""
    package = Path(og.__file__).parent
    generated = package / "trainer" / "described.py"
    folders = [package / "cli", package / "trainer", package / "run_folder"]
    sources = [path for folder in folders for path in folder.glob("*.py") if path != generated]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    by_hand = {
        field.option
        for field in FIT_OPTIONS
        if re.search(rf"[\"'. ]{field.option}(?:\"|'|=| =|:)", text)
    }
    in_logs = {"grad_norm"}
    others = {
        "allow_nan",
        "batch_size",
        "epochs",
        "keep_best",
        "max_time",
        "non_finite",
        "sampling",
    }
    assert by_hand <= in_logs | others
