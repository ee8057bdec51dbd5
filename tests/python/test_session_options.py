"""Signatures, docstrings, the command line and estimators follow the table of session options."""

import inspect
import pickle
import re

import numpy as np
import pytest
from sklearn.base import clone

import onnxgrad as og
from onnxgrad import session_options
from onnxgrad.cli.train_options import OPTIONS
from onnxgrad.run_folder.options import run_options
from onnxgrad.session_options.table import SESSION_OPTIONS, TAKERS, defaults_of
from onnxgrad.sklearn import OnnxClassifier, OnnxRegressor
from onnxgrad.sklearn.described import SESSION_PARAMETERS

TAKEN = [
    pytest.param(
        option,
        getattr(session_options, kind),
        getattr(og, function),
        id=f"{function}-{option.name}",
    )
    for taker, (kind, functions) in TAKERS.items()
    for function in functions
    for option in SESSION_OPTIONS
    if taker in option.takers
]
NOT_DEFAULT = {
    "penalty": {"coef": {"l2": 0.01}},
    "trainable": "coef",
    "frozen": "intercept",
    "new_head": 2,
    "lora": 2,
    "adapter": "lora",
    "teacher": "self",
    "distill": {"alpha": 0.25},
    "base": "int8",
    "quantize": "int8",
    "calibration": np.ones((2, 2), np.float32),
    "untie": False,
    "groups": og.optimizers.ParameterGroup("coef"),
    "clip_value": 1.0,
    "clip_norm": 1.0,
    "accumulate": 2,
    "average": "ema",
    "sam": 0.1,
    "stop_gradient": "Y",
    "training_mode": False,
    "open_batch": False,
    "precision": "bf16",
    "math": "tf32",
    "deterministic": False,
    "threads": 1,
    "memory_limit": "1GB",
}


@pytest.mark.parametrize(("option", "kind", "function"), TAKEN)
def test_an_option_is_in_signature_docstring_and_typed_dictionary(option, kind, function):
    parameter = inspect.signature(function).parameters[option.name]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default == option.default
    assert parameter.annotation == option.annotation
    assert kind.__annotations__[option.name].__forward_arg__ == option.annotation
    text = inspect.getdoc(function)
    assert text.count(f"\n{option.name} : {option.type}, default=") == 1
    assert option.first_sentence in " ".join(text.split())


@pytest.mark.parametrize("taker", TAKERS)
def test_the_typed_dictionary_has_no_other_options(taker):
    kind = getattr(session_options, TAKERS[taker][0])
    assert list(kind.__annotations__) == list(defaults_of(taker))


def test_unknown_options_name_the_nearest(linear_model):
    for function in (og.TrainingSession, og.Trainer, og.ForwardBackward, og.training_step):
        with pytest.raises(og.OptionError, match="has no argument 'training_modes'") as error:
            function(linear_model, training_modes=True)
        assert "training_mode" in str(error.value).splitlines()[-1]
    with pytest.raises(og.OptionError, match="has no argument 'clip'"):
        og.add_loss(linear_model, clip=1.0)
    with pytest.raises(TypeError):
        og.TrainingSession(linear_model, "squared_error", "sgd", "label")


def test_options_are_passed_on(linear_model):
    options: session_options.SessionOptions = {"target": "t", "outputs": ["gradient_norm"]}
    session = og.TrainingSession(linear_model, "squared_error", **options)
    assert session.target_name == "t"
    feeds = {"X": np.ones((3, 2), np.float32), "t": np.zeros((3, 1), np.float32)}
    assert len(session.step(feeds)[1]) == 1


def test_a_trainer_of_a_session_takes_no_option_of_a_session(linear_model):
    session = og.TrainingSession(linear_model, "squared_error")
    og.Trainer(
        session, device="auto", **{n: d for n, d in defaults_of("trainer").items() if n != "device"}
    )
    assert {*NOT_DEFAULT, "device"} == {*defaults_of("trainer")}
    for name, value in NOT_DEFAULT.items():
        with pytest.raises(
            og.OptionError, match=f"^{name} cannot be given together with a session"
        ):
            og.Trainer(session, **{name: value})


def test_a_described_training_takes_no_other_loss_options(linear_model):
    model = og.add_training_info(linear_model, "squared_error", "sgd")
    for option in ("target", "sample_weight", "penalty"):
        value = NOT_DEFAULT.get(option, "name")
        with pytest.raises(og.OptionError, match=f"^{option}= has no effect"):
            og.TrainingSession(model, **{option: value})


def test_iterators_are_read_once(linear_model):
    trainer = og.Trainer(linear_model, "squared_error", trainable=iter(["coef"]))
    again = pickle.loads(pickle.dumps(trainer))
    assert [weight.name for weight in again.session.trained_weights] == ["coef"]


ON_COMMAND_LINE = [option for option in SESSION_OPTIONS if option.command is not None]


class TestCommandLine:
    @pytest.mark.parametrize("option", ON_COMMAND_LINE, ids=lambda option: option.name)
    def test_it_has_the_option(self, option):
        (found,) = (one for one in OPTIONS if one.name == option.name)
        command = option.command
        assert (found.topic, found.kind, found.default) == (
            command.topic,
            command.type,
            command.default,
        )
        if found.default is not None:
            assert found.default == option.default
        assert "--" + option.name.replace("_", "-") in found.spelling
        wanted = (command.help or option.first_sentence).removesuffix(".")
        assert found.help.startswith(wanted)

    def test_a_run_folder_records_them(self, linear_model):
        not_there = ("groups", "deterministic")  # on the command line
        given = {name: value for name, value in NOT_DEFAULT.items() if name not in not_there}
        given |= {"frozen": None, "precision": "float32"}
        changes = ("new_head", "lora", "adapter", "base", "quantize", "calibration")
        given |= dict.fromkeys(changes)
        trainer = og.Trainer(linear_model, "squared_error", **given)
        fit = {**dict.fromkeys(inspect.signature(og.Trainer.fit).parameters), "metrics": ()}
        recorded = run_options(trainer, fit)
        shown = {"penalty": ["coef:l1=0.0,l2=0.01"], "trainable": ["coef"], "stop_gradient": ["Y"]}
        shown |= {"training_mode": "off", "open_batch": "off", "distill": "alpha=0.25"}
        wanted = {name: value for name, value in (given | shown).items() if value is not None}
        assert {name: recorded[name] for name in wanted} == wanted
        trainer = og.Trainer(linear_model, "squared_error", quantize={"scales": "tensor"})
        assert run_options(trainer, fit)["quantize"] == "int8:scales=tensor"
        trainer = og.Trainer(linear_model, "squared_error", adapter={"dora": {"rank": 3}})
        assert run_options(trainer, fit)["adapter"] == "dora:rank=3"
        lora = {"rank": 3, "alpha": 6, "targets": "linear", "dropout": 0.5}
        recorded = run_options(og.Trainer(linear_model, "squared_error", lora=lora), fit)
        wanted = {"lora": 3, "lora_alpha": 6.0, "lora_targets": ["linear"], "lora_dropout": 0.5}
        assert {name: recorded[name] for name in wanted} == wanted


@pytest.mark.parametrize("estimator", [OnnxRegressor, OnnxClassifier])
class TestEstimators:
    def test_their_signature_names_each_parameter(self, estimator):
        parameters = inspect.signature(estimator).parameters
        kinds = {one.kind for one in parameters.values()}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        made = estimator()
        assert made.get_params() == {name: one.default for name, one in parameters.items()}
        assert vars(made) == made.get_params()
        assert ("class_weight" in parameters) is (estimator is OnnxClassifier)
        for name in SESSION_PARAMETERS:
            assert parameters[name].default == defaults_of("trainer")[name]

    def test_their_docstring_describes_each_parameter_once(self, estimator):
        text = inspect.getdoc(estimator)
        for name in inspect.signature(estimator).parameters:
            assert len(re.findall(rf"^{name} : ", text, re.MULTILINE)) == 1
        assert "{" not in text.partition("Parameters")[0]
        assert text.index("\nAttributes\n") < text.index("\nvalidation_scores_ : ")
        assert text.index("\nvalidation_scores_ : ") < text.index("\nExamples\n")

    def test_parameters_are_set_and_cloned(self, estimator):
        made = estimator(trainable="coef", clip_norm=2.0, hidden_layer_sizes=(3,))
        assert clone(made).get_params() == made.get_params()
        with pytest.raises(og.OptionError, match="has no argument 'clip_nrm'") as error:
            estimator(clip_nrm=1.0)
        assert "clip_norm" in str(error.value)
