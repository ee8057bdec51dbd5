"""ONNX's node tests, forward and by gradients, beside what is written down of them.

One operator: `pytest tests/python/test_node_suite.py -k "[TopK]"`.
"""

import numpy as np
import onnx.parser
import pytest

import node_records
from onnxgrad.gradient_checks.slopes import Slopes


@pytest.mark.parametrize("operator", node_records.operators())
def test_operator(operator: str) -> None:
    found = node_records.find(operator)
    assert not found.wrong, "\n".join(found.wrong)

    known = {row.test for row in node_records.stored_not_run() if row.operator == operator}
    refused = {row.test: row.reason for row in found.not_run}
    lost = [f"{test}: {reason}" for test, reason in refused.items() if test not in known]
    assert not lost, "tests that ran before:\n" + "\n".join(lost)

    stored = {pair.input: pair for pair in node_records.stored_pairs() if pair.operator == operator}
    gone = [
        f"{pair.input}: {pair.reason}"
        for pair in found.pairs
        if pair.way == "none" and pair.input in stored and stored[pair.input].way != "none"
    ]
    assert not gone, "inputs that had a gradient:\n" + "\n".join(gone)
    assert not stored.keys() - {pair.input for pair in found.pairs}

    hint = f"python scripts/node_tests.py {operator}   # writes this down"
    assert known == set(refused), f"tests that run now: {known - set(refused)}; {hint}"
    ways = {(pair.input, pair.kind, pair.way) for pair in found.pairs}
    assert ways == {(pair.input, pair.kind, pair.way) for pair in stored.values()}, hint


def test_page_is_that_of_the_lists() -> None:
    assert node_records.PAGE.read_text(encoding="utf-8") == node_records.page(), (
        "python scripts/node_tests.py --page"
    )


def test_lists_name_tests_that_there_are() -> None:
    tests = {case.name for case in node_records.node_suite.all_cases()}
    listed = [row.test for row in node_records.stored_not_run()]
    assert {test for test in listed if not test.startswith("own_")} <= tests
    assert len(set(listed)) == len(listed)
    marked, further = (node_records.counts()[kind][1] for kind in ("marked", "further"))
    assert (marked, further) == (162, 58)


def slopes_of(body: str, x: list[float]) -> Slopes:
    text = f"""<ir_version: 10, opset_import: ["" : 26]>
    g (double[{len(x)}] x) => (double[{len(x)}] y) <double zero = {{0}}> {{ {body} }}"""
    return Slopes(onnx.parser.parse_model(text), {"x": np.array(x)})


class TestSlopes:
    """The judge itself."""

    @pytest.mark.parametrize(
        ("body", "x"),
        [
            ("y = Exp (x)", [0.3, -2.0, 7.0]),
            ("y = Relu (x)", [0.0, 1.0, -1.0]),  # a kink
            ("y = Abs (x)", [0.0]),
            ("y = Sqrt (x)", [0.0, 4.0]),  # infinite at a border
            ("y = Floor (x)", [1.0, 1.5]),  # a jump
            ("y = Acosh (x)", [1.0, 2.0]),
            ("y = Mul (x, x)", [3e6, 1e-9]),
        ],
    )
    def test_right_gradients_pass(self, body, x):
        assert slopes_of(body, x).problem("x") == ""

    @pytest.mark.parametrize(
        ("body", "x", "given"),
        [
            ("y = Exp (x)", [0.0], 1.00002),
            ("y = Relu (x)", [0.0], 1.1),
            ("y = Relu (x)", [0.0], -0.1),
            ("y = Relu (x)", [1.0], 0.5),  # between the slopes of a kink that is elsewhere
            ("y = Abs (x)", [2.0], -1.0),
            ("y = Mul (x, x)", [2.0], np.inf),
            ("y = Mul (x, x)", [2.0], np.nan),
            ("y = Sqrt (x)", [4.0], np.inf),
            ("y = Floor (x)", [1.0], 5.0),
            ("y = Exp (x)", [0.0], 0.0),
        ],
    )
    def test_wrong_gradients_are_found(self, body, x, given, monkeypatch):
        slopes = slopes_of(body, x)
        seed = next(iter(slopes._seeds.values()))
        monkeypatch.setattr(slopes, "_gradient", lambda name: np.array([given]) * seed)
        assert slopes.problem("x") != ""
