"""What ran of ONNX's node tests when it was last written down, and the page that says it.

tests/data/node_tests has three lists: tests that do not run, with the reason, the inputs of
operators with what their gradient is, and the element types that kernels lack.
`python scripts/node_tests.py` writes them, and docs/operators.md from them.
"""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import onnx

import node_suite
from node_suite import ROOT, Gradient
from node_types import Missing, missing_types
from onnxgrad import _core

DATA = ROOT / "tests/data/node_tests"
NOT_RUN = DATA / "not_run.txt"
GRADIENTS = DATA / "gradients.txt"
TYPES = DATA / "types.txt"
PAGE = ROOT / "docs/operators.md"

# Inputs that ONNX's schemas do not mark differentiable, and that people differentiate by. Names
# that no schema has are those of gradient_models.
FURTHER = {
    "AffineGrid": ["theta"],
    "Attention": ["Q", "K", "V", "attn_mask", "past_key", "past_value"],
    "CausalConvWithState": ["past_state"],
    "Clip": ["min", "max"],
    "ConcatFromSequence": ["input_sequence"],
    "DFT": ["input"],
    "DeformConv": ["X", "W", "offset", "B", "mask"],
    "DequantizeLinear": ["x_scale"],
    "GRU": ["initial_h"],
    "GridSample": ["grid"],
    "If": ["captures"],
    "LSTM": ["initial_h", "initial_c"],
    "LayerNormalization": ["X", "Scale", "B"],
    "LinearAttention": ["past_state"],
    "Loop": ["v_initial"],
    "Mod": ["B"],
    "NegativeLogLikelihoodLoss": ["weight"],
    "OneHot": ["values"],
    "Optional": ["input"],
    "OptionalGetElement": ["input"],
    "Pad": ["constant_value"],
    "QuantizeLinear": ["x", "y_scale"],
    "RMSNormalization": ["X", "scale"],
    "RNN": ["initial_h"],
    "Range": ["start", "delta"],
    "ReverseSequence": ["input"],
    "RoiAlign": ["X", "rois"],
    "RotaryEmbedding": ["X", "cos_cache", "sin_cache"],
    "STFT": ["signal", "window"],
    "Scan": ["states", "inputs"],
    "SequenceAt": ["input_sequence"],
    "SequenceConstruct": ["inputs"],
    "SequenceErase": ["input_sequence"],
    "SequenceInsert": ["tensor"],
    "SequenceMap": ["input_sequence"],
    "SoftmaxCrossEntropyLoss": ["weights"],
    "SplitToSequence": ["input"],
}


class NotRun(NamedTuple):
    """A test that does not run."""

    operator: str
    test: str
    reason: str


class Pair(NamedTuple):
    """An input of an operator. `way` is how its gradient comes about; "none": there is none."""

    operator: str
    input: str
    kind: str  # "marked" by the schema, "further" (FURTHER), or "other"
    way: str  # "rule", "body", "lowered", "zero", "none"
    reason: str  # where there is none


class Found(NamedTuple):
    """What the tests of one operator gave."""

    not_run: list[NotRun]
    pairs: list[Pair]
    wrong: list[str]


@cache
def marked() -> dict[str, list[str]]:
    """Return the inputs that the newest schemas mark differentiable."""
    table = {}
    for schema in onnx.defs.get_all_schemas():
        category = schema.DifferentiationCategory.Differentiable
        names = [f.name for f in schema.inputs if f.differentiation_category == category]
        if names and not schema.deprecated:
            table[schema.name] = names
    return table


def operators() -> list[str]:
    """Return all operators with a test, or with an input that has or should have a gradient."""
    return sorted({*node_suite.cases_by_operator(), *marked(), *FURTHER})


@cache
def _ways() -> dict[str, str]:
    ways = {}
    for row in _core.operator_table():
        if row.has_zero_grad:
            ways[row.op_type] = "zero"
        elif row.has_rule:
            ways[row.op_type] = "rule"
        elif row.is_lowered:
            ways[row.op_type] = "lowered"
    return ways


def find(operator: str) -> Found:
    """Run all tests of an operator."""
    not_run: list[NotRun] = []
    gradients: list[Gradient] = []
    wrong = []
    for case in node_suite.cases_by_operator().get(operator, []):
        try:
            if refusal := node_suite.run(case):
                not_run.append(NotRun(operator, case.name, refusal))
                continue
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            wrong.append(f"{case.name}: {' '.join(lines[:6])}")
            continue
        for gradient in node_suite.check_gradients(case):
            gradients.append(gradient)
            if gradient.problem:
                wrong.append(f"{case.name}: {gradient.problem}")
    return Found(not_run, _pairs(operator, gradients, not_run), wrong)


def _pairs(operator: str, gradients: list[Gradient], not_run: list[NotRun]) -> list[Pair]:
    of_schema = marked().get(operator, [])
    further = FURTHER.get(operator, [])
    found = {g.input for g in gradients if g.operator == operator and g.input}
    pairs = []
    for name in [*of_schema, *further, *sorted(found - {*of_schema, *further})]:
        kind = "marked" if name in of_schema else "further" if name in further else "other"
        ours = [g for g in gradients if (g.operator, g.input) == (operator, name)]
        if any(g.problem for g in ours):
            way, reason = "none", "wrong"
        elif any(not g.refusal for g in ours):
            way, reason = _ways().get(operator, "body"), ""
        elif ours:
            way, reason = "none", ours[0].refusal
        else:
            way, reason = "none", "the operator does not run" if not_run else "no test"
        if kind != "other" or way in ("rule", "body", "lowered"):
            pairs.append(Pair(operator, name, kind, way, reason))
    return pairs


def stored_not_run() -> list[NotRun]:
    return [NotRun(*line.split("\t")) for line in _lines(NOT_RUN)]


def stored_pairs() -> list[Pair]:
    return [Pair(*line.split("\t")) for line in _lines(GRADIENTS)]


def stored_types() -> list[Missing]:
    return [Missing(*line.split("\t")) for line in _lines(TYPES)]


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def write(found: dict[str, Found]) -> None:
    """Replace what is stored of these operators, and write the page."""
    kept_tests = [row for row in stored_not_run() if row.operator not in found]
    kept_pairs = [row for row in stored_pairs() if row.operator not in found]
    tests = [*kept_tests, *(row for one in found.values() for row in one.not_run)]
    pairs = [*kept_pairs, *(row for one in found.values() for row in one.pairs)]
    DATA.mkdir(exist_ok=True)
    # A merge of two branches may have left a line twice.
    _write_lines(NOT_RUN, sorted(set(tests)))
    _write_lines(GRADIENTS, sorted(dict.fromkeys(pairs), key=lambda pair: pair.operator))
    types = [row for row in stored_types() if row.operator not in found]
    types += [row for operator in found for row in missing_types(operator)]
    _write_lines(TYPES, sorted(set(types)))
    PAGE.write_text(page(), encoding="utf-8")


def _write_lines(file: Path, rows: Iterable[tuple[str, ...]]) -> None:
    file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def counts() -> dict[str, tuple[int, int]]:
    """Return of tests that run, and of inputs with a right gradient, how many of how many."""
    own = sum(row.test.startswith("own_") for row in stored_not_run())
    tests = len(node_suite.all_cases())
    table = {"tests": (tests - (len(stored_not_run()) - own), tests)}
    for kind in ("marked", "further"):
        ways = [pair.way for pair in stored_pairs() if pair.kind == kind]
        table[kind] = (sum(way != "none" for way in ways), len(ways))
    return table


INTRODUCTION = """# Operators

Written by `python scripts/node_tests.py` from ONNX's own node tests (onnx {version}), which
`tests/python/test_node_suite.py` runs as they are.

- **{tests[0]} of {tests[1]} tests run**, none gives a wrong output.
- **{marked[0]} of {marked[1]} inputs** that ONNX's schemas mark differentiable have a gradient that
  agrees with differences of the model in float64 in all tests of the operator that run, and
  {further[0]} of {further[1]} further ones that people differentiate by.

## Gradients

The operator has a rule of its own, unless there is a remark. *body*: ONNX defines the operator by
others, which have rules. *lowered*: it is written by others when a model is loaded. *zero*: the
gradient is zero wherever there is one. Inputs in italics are not marked in ONNX's schemas.

| operator | gradient by | none by |
| --- | --- | --- |
"""


TYPES_TEXT = """
## Element types

Types that an operator's schema allows at opset 26 and no kernel takes, found by its tests with
these types instead of their own. Operators that are not here take all. Complex numbers are moved,
not computed with: no model that trains has them.

| operator | type parameter | types without a kernel |
| --- | --- | --- |
"""


def page() -> str:
    """Return docs/operators.md, which follows from the lists alone."""
    text = INTRODUCTION.format(version=onnx.__version__, **counts())
    by_operator: dict[str, list[Pair]] = {}
    for pair in stored_pairs():
        by_operator.setdefault(pair.operator, []).append(pair)
    for operator, pairs in by_operator.items():
        text += f"| {operator} | {_inputs(pairs, True)} | {_inputs(pairs, False)} |\n"
    text += TYPES_TEXT
    for row in stored_types():
        text += f"| {row.operator} | {row.parameter} | {row.types} |\n"
    text += "\n## Tests that do not run\n"
    reasons: dict[str, Counter[str]] = {}
    names: dict[tuple[str, str], list[str]] = {}
    for row in stored_not_run():
        reasons.setdefault(row.operator, Counter())[row.reason] += 1
        names.setdefault((row.operator, row.reason), []).append(row.test)
    for operator, counter in reasons.items():
        text += f"\n### {operator}\n"
        for reason in counter:
            tests = names[operator, reason]
            text += f"\n{reason}\n\n" + "".join(f"- `{test}`\n" for test in tests)
    return text


def _inputs(pairs: list[Pair], has_gradient: bool) -> str:
    parts = []
    for pair in pairs:
        if (pair.way != "none") == has_gradient:
            name = pair.input if pair.kind == "marked" else f"*{pair.input}*"
            way = "" if pair.way == "rule" else f" ({pair.way})"
            parts.append(f"{name}{way}" if has_gradient else f"{name}: {pair.reason}")
    return ", ".join(parts) if has_gradient else "; ".join(parts)
