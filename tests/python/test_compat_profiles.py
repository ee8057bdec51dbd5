"""Profiles as text: lines that pyquickhelper has printed, from the numbers that they print."""

import cProfile
import pstats

import pytest

from onnxgrad.compat.pyquickhelper.pycode.profiling import profile, profile2graph

# Calls, time inside and with what is called; then the same by caller.
ROOT = ("run.py", 18, "<lambda>")
FIT = ("optimizers_partial.py", 263, "fit")
INIT = ("data_loader.py", 26, "__init__")
SET_STATE = ("optimizers_partial.py", 196, "set_state")
TO_VALUE = ("onnxruntime_helper.py", 120, "numpy_to_ort_value")
RANDINT = ("~", 0, "<method 'randint' of 'numpy.random.mtrand.RandomState' objects>")
TINY = ("abc.py", 96, "__instancecheck__")
TABLE = {
    ROOT: (1, 1, 0.00001, 3.78074, {}),
    FIT: (1, 1, 0.00181, 3.78073, {ROOT: (1, 1, 0.00181, 3.78073)}),
    INIT: (1, 1, 0.00002, 0.00003, {FIT: (1, 1, 0.00002, 0.00003)}),
    SET_STATE: (4, 4, 0.00008, 0.00026, {FIT: (4, 4, 0.00008, 0.00026)}),
    TO_VALUE: (
        13426, 13426, 0.00661, 0.03872,
        {INIT: (2, 2, 0.0, 0.00001), SET_STATE: (24, 24, 0.00002, 0.00011),
         FIT: (13400, 13400, 0.00658, 0.0386)},
    ),
    RANDINT: (6700, 6700, 0.05838, 0.05838, {TO_VALUE: (6700, 6700, 0.05838, 0.05838)}),
    TINY: (4, 4, 0.00001, 0.00001, {FIT: (4, 4, 0.00001, 0.00001)}),
}  # fmt: skip


@pytest.fixture
def root():
    class Stats:
        stats = TABLE

    return profile2graph(Stats())[0]


def words(line):
    return " ".join(line.split())


def test_numbers_are_those_of_the_calls(root):
    lines = [words(line) for line in root.to_text().splitlines()]
    key = "onnxruntime_helper.py:120:numpy_to_ort_value (numpy_to_ort_value)"
    assert lines[0] == "<lambda> -- 1 1 -- 0.00001 3.78074 -- run.py:18:<lambda> (<lambda>)"
    under_init = f"numpy_to_ort_value -- 2 2 -- 0.00000 0.00001 -- {key} +++"
    under_state = f"numpy_to_ort_value -- 24 24 -- 0.00002 0.00011 -- {key} +++"
    under_fit = f"numpy_to_ort_value -- 13400 13400 -- 0.00658 0.03860 -- {key} +++"
    alone = f"numpy_to_ort_value -- 13426 13426 -- 0.00661 0.03872 -- {key}"
    assert lines[lines.index(under_init) - 1].startswith("__init__ -- 1 1 ")
    assert lines[lines.index(under_state) - 1].startswith("set_state -- 4 4 ")
    assert {under_fit, alone} < set(lines)
    assert len(lines) == 9
    assert lines[lines.index(alone) + 1].startswith("<method 'randint' of 'numpy...")


def test_indentation_and_widths(root):
    text = root.to_text().splitlines()
    assert {line.index(" -- ") for line in text} == {60}
    depths = {words(line).split(" ", 1)[0]: len(line) - len(line.lstrip()) for line in text[:4]}
    assert depths == {"<lambda>": 0, "fit": 4, "__init__": 8, "numpy_to_ort_value": 12}
    # The number column is as wide as the largest number, behind a blank for the sign.
    assert text[0][60:].startswith(" --      1      1 -- ")


def test_without_files_everything_is_open(root):
    lines = root.to_text(with_file=False).splitlines()
    assert not any("+++" in line or ".py" in line for line in lines)
    found = [words(line) for line in lines]
    # As printed: a name of 40 letters, cut in its middle; here one level less is 4 letters less.
    randint = "<method 'randint' o...domState' objects> -- 6700 6700 -- 0.05838 0.05838 --"
    values = [
        "numpy_to_ort_value -- 2 2 -- 0.00000 0.00001 --",
        "numpy_to_ort_value -- 24 24 -- 0.00002 0.00011 --",
        "numpy_to_ort_value -- 13400 13400 -- 0.00658 0.03860 --",
    ]
    places = [found.index(line) for line in values]
    for place in places:
        assert found[place + 1].startswith("<method 'randint' of")
    wide = root.to_text(with_file=False, fct_width=56)
    assert randint in words(wide)
    assert len(found) == 10


def test_small_functions_of_the_library_are_left_out(root):
    assert "__instancecheck__" not in root.to_text()
    assert "set_state" in root.to_text()


def down(n):
    return n if n == 0 else down(n - 1)


@pytest.mark.parametrize("with_file", [True, False])
def test_recursion_ends(with_file):
    root, nodes = profile2graph(profile(lambda: down(5))[0])
    lines = root.to_text(with_file=with_file).splitlines()
    assert sum("down" in line for line in lines) == (3 if with_file else 2)
    (node,) = (node for node in nodes.values() if node.func_name == "down")
    assert (node.nc1, node.nc2) == (1, 6)


def test_results_of_profile():
    stats, text = profile(lambda: down(2))
    assert isinstance(stats, pstats.Stats)
    assert "test_compat_" in text
    profiler = cProfile.Profile()
    profiler.runcall(down, 2)
    root, _ = profile2graph(profiler)
    assert root.func_name == "down"
