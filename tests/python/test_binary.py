"""Contents of the built libraries: instruction sets, hardening, symbols, linked libraries."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onnxgrad._core

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check_symbols  # noqa: E402

EXTENSION = Path(onnxgrad._core.__file__)
LIBRARY = ROOT / "build/release/libonnxgrad.a"

x86_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX is x86's")


def compile_object(folder: Path, source: str, *flags: str) -> Path:
    (folder / "unit.cpp").write_text(source)
    target = folder / "unit.o"
    command = ["c++", "-std=c++20", "-O2", *flags, "-c", str(folder / "unit.cpp")]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


SHARED_TEMPLATE = """
namespace {space} {{
template <class T> [[gnu::noinline]] void scale(T* x, int n) {{
  for (int i = 0; i < n; ++i) x[i] *= 2;
}}
}}
void run(float* x, int n) {{ {space}::scale(x, n); }}
"""


@x86_only
def test_check_finds_a_shared_function_with_avx(tmp_path):
    flags = ("-O3", "-mavx2")
    shared = compile_object(tmp_path, SHARED_TEMPLATE.format(space="common"), *flags)
    assert any("scale" in name for name in check_symbols.shared_special_functions(shared))
    named = compile_object(tmp_path, SHARED_TEMPLATE.format(space="N_AVX2"), *flags)
    assert check_symbols.shared_special_functions(named) == []
    plain = compile_object(tmp_path, SHARED_TEMPLATE.format(space="common"), "-O3")
    assert check_symbols.shared_special_functions(plain) == []


@x86_only
def test_library_runs_on_every_x86_processor():
    if not LIBRARY.exists():
        pytest.skip("only in a checkout with build/release")
    assert check_symbols.shared_special_functions(LIBRARY) == []


def readelf(*flags: str) -> str:
    command = ["readelf", "--wide", *flags, str(EXTENSION)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_extension_is_hardened():
    dynamic, segments = readelf("--dynamic"), readelf("--segments")
    # Full RELRO: all of the global offset table is resolved at the start, then read-only.
    assert re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW|\(BIND_NOW\)", dynamic)
    assert "GNU_RELRO" in segments
    stack = next(line for line in segments.splitlines() if "GNU_STACK" in line)
    assert re.search(r" RW +0x", stack), stack  # and not RWE
    assert "(TEXTREL)" not in dynamic
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic) or "build/" in str(EXTENSION)
    imported = set(re.findall(r" UND (\w+)", readelf("--dyn-syms")))
    assert "__stack_chk_fail" in imported
    checked = {name for name in imported if name.endswith("_chk")}
    assert {"__memcpy_chk", "__memset_chk", "__snprintf_chk"} & checked, checked


@x86_only
def test_extension_is_marked_for_control_flow_enforcement():
    marks = re.search(r"x86 feature: (.*)", readelf("--notes"))
    assert marks is not None
    assert {"IBT", "SHSTK"} <= set(re.findall(r"\w+", marks[1]))
    # The start files of the C library may have no such marks: nothing of theirs is called.
    assert not re.search(r"\((INIT|FINI)\)", readelf("--dynamic"))


def test_extension_exports_only_its_entry_point():
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(EXTENSION)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    assert names == {"PyInit__core"}


def test_extension_holds_no_protobuf_of_its_own():
    # libprotobuf registers its own descriptors under this name; a static copy would carry it. A
    # shared one is vendored into the wheel under a hashed name, so that no other copy meets it.
    assert b"google/protobuf/descriptor.proto" not in EXTENSION.read_bytes()
