"""Fails if a file includes what its layer may not; `python scripts/check_layers.py [root]`.

Reads the #include lines of src/, include/, python/bindings and the imports of python/onnxgrad.
The table below is the one of docs/architecture.md; what a layer may include is transitive.

Tests (*_test.*, *_bench.*, folders named testing/) may include anything. In src/ops only kernel
files (stems ending in _cpu, _cuda or _simd) see src/device and the kernel libraries.
"""

import ast
import re
import sys
from pathlib import Path

from source_files import ROOT, list_files

# Folder of src/ -> folders that it may include besides itself, directly.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "ir": {"base"},
    "opdef": {"ir"},
    "onnx": {"ir", "opdef"},
    "device": {"opdef"},
    "ops": {"opdef"},
    "autodiff": {"opdef"},
    "passes": {"opdef"},
    "runtime": {"opdef", "device", "passes"},
    "train": {"onnx", "device", "ops", "autodiff", "passes", "runtime"},
    "dist": {"onnx", "device", "ops", "autodiff", "passes", "runtime", "train"},
    "api": {"onnx", "device", "ops", "autodiff", "passes", "runtime", "train", "dist"},
}
KERNELS_ALSO = {"device"}  # for the kernel files of src/ops

# Pattern of a library's headers -> layers that may include them ("kernels": kernel files of ops).
LIBRARIES: list[tuple[str, str, set[str]]] = [
    ("protobuf", r"google/protobuf/", {"onnx"}),
    ("spdlog", r"spdlog/", {"base"}),
    ("Highway", r"hwy/", {"device", "kernels"}),
    ("nanobind", r"nanobind/", {"bindings"}),
]
# What python/onnxgrad/sklearn imports besides the public names of onnxgrad (threadpoolctl comes
# with scikit-learn).
ESTIMATORS_MAY_IMPORT = {"numpy", "onnx", "sklearn", "threadpoolctl"}
# What the compatibility layers may import besides the standard library and onnxgrad's public names.
COMPAT_LIBRARIES = {
    "IPython",
    "matplotlib",
    "ndonnx",
    "numpy",
    "onnx",
    "onnx_array_api",
    "onnxruntime",
    "sklearn",
    "skl2onnx",
    "tqdm",
}
# What compat modules do not use, since they hold no algorithms: names (of functions and
# attributes) -> where that is done.
COMPAT_NEVER_USES = {
    "graphs are written by onnxgrad itself": {
        "make_function",
        "make_graph",
        "make_model",
        "make_node",
        "parse_function",
        "parse_graph",
        "parse_model",
        "parse_node",
    },
    "graphs are taken apart and changed by onnxgrad.graph_tools": {"GraphProto"},
    "rows are drawn by onnxgrad.data and the sampler of Trainer.fit": {
        "choice",
        "permutation",
        "shuffle",
    },
}
_INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
_SOURCE_SUFFIXES = {".h", ".hpp", ".cpp", ".cu", ".inc"}


def closure(layer: str, allowed: dict[str, set[str]] = ALLOWED) -> set[str]:
    """Return `layer` and every layer that it may include, directly or through others."""
    reached: set[str] = set()
    open_layers = [layer]
    while open_layers:
        current = open_layers.pop()
        if current not in reached:
            reached.add(current)
            open_layers.extend(allowed[current])
    return reached


def is_test(path: Path) -> bool:
    """Tell whether `path` is test or benchmark code, which may include anything."""
    return path.stem.endswith(("_test", "_bench")) or "testing" in path.parts


def is_kernel(path: Path) -> bool:
    """Tell whether `path` is a kernel file of src/ops."""
    return path.stem.endswith(("_cpu", "_cuda", "_simd"))


def check_includes(path: Path, text: str, src_folders: set[str]) -> list[str]:
    """Return what is wrong with the includes of `path`, relative to the root, as messages.

    `src_folders` are the folders that exist in src/: an include whose first part is none of them
    and not "onnxgrad" belongs to a library or to the standard.
    """
    parts = path.parts
    if parts[:2] == ("include", "onnxgrad"):
        return _check_public(path, text, src_folders)
    if parts[:2] == ("python", "bindings"):
        layer, visible, roles = "python/bindings", set[str](), {"bindings"}
    elif parts[0] == "src" and len(parts) > 2:
        layer = parts[1]
        if layer not in ALLOWED:
            return [f"{path}: folder src/{layer} is not in the table of scripts/check_layers.py"]
        if is_test(path):
            return []
        visible, roles = closure(layer), {layer}
        if layer == "ops" and is_kernel(path):
            visible |= set().union(*(closure(name) for name in KERNELS_ALSO))
            roles.add("kernels")
    else:
        return []

    problems = []
    for quote, name in _INCLUDE.findall(text):
        first = name.split("/", maxsplit=1)[0]
        if quote == "<" and first == "onnx":  # ONNX's own headers; ours are written in quotes
            if "onnx" not in roles:
                problems.append(f"{path}: includes <{name}>; ONNX's library belongs in src/onnx")
        elif "/" in name and first in src_folders and first not in visible:
            may = ", ".join(sorted(visible - {layer})) or "include/onnxgrad only"
            problems.append(f'{path}: includes "{name}"; {layer} may include {may}')
        elif name.startswith("../") or "/../" in name:
            problems.append(f'{path}: includes "{name}"; write it relative to src/ or include/')
        for library, pattern, owners in LIBRARIES:
            if re.match(pattern, name) and not owners & roles:
                problems.append(
                    f"{path}: includes <{name}>; {library} belongs in {', '.join(sorted(owners))}"
                )
    return problems


def _check_public(path: Path, text: str, src_folders: set[str]) -> list[str]:
    problems = []
    for _, name in _INCLUDE.findall(text):
        first = name.split("/", maxsplit=1)[0]
        standard = "/" not in name and "." not in name
        if first == "onnxgrad" or standard or name in {"stdint.h", "stddef.h"}:
            continue
        problems.append(
            f"{path}: includes {name}; public headers include only the standard library and "
            f"onnxgrad/{' (src/' + first + ' is private)' if first in src_folders else ''}"
        )
    return problems


def imported_modules(text: str) -> list[str]:
    """Return the full names of the modules that Python source `text` imports."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def used_names(text: str) -> set[str]:
    """Return the names and attributes that Python source `text` reads or imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.name for alias in node.names)
    return names


def check_imports(path: Path, text: str) -> list[str]:
    """Return what is wrong with the imports of `path`, a file of python/onnxgrad."""
    if path.parts[:2] != ("python", "onnxgrad") or path.suffix != ".py":
        return []
    is_compat = "compat" in path.parts
    is_sklearn = path.parts[2] == "sklearn"
    problems = []
    if is_compat:
        names = used_names(text)
        problems += [
            f"{path}: uses {name}; compat holds no algorithms: {where}"
            for where, banned in COMPAT_NEVER_USES.items()
            for name in sorted(banned & names)
        ]
    for name in imported_modules(text):
        parts = name.strip(".").split(".")
        if parts[0] in {"torch", "tensorflow", "jax"}:
            problems.append(f"{path}: imports {name}; the package must not need {parts[0]}")
        if is_compat and not name.startswith((".", "__future__")):
            problems += [f"{path}: imports {name}; {what}" for what in _wrong_for_compat(parts)]
        if not is_compat and name.startswith(("onnxgrad.compat", ".compat")):
            problems.append(f"{path}: imports {name}; compat sits on top, nothing depends on it")
        if is_sklearn:
            problems += _check_estimators(path, name)
        elif not is_compat and name.startswith(("sklearn", "onnxgrad.sklearn", ".sklearn")):
            problems.append(f"{path}: imports {name}; scikit-learn belongs in onnxgrad.sklearn")
    return problems


def _check_estimators(path: Path, name: str) -> list[str]:
    """Return what is wrong with the import `name` in a file of onnxgrad.sklearn."""
    parts = name.split(".")
    if parts[0] in ESTIMATORS_MAY_IMPORT:
        return []
    if parts[0] != "onnxgrad" and parts[0] not in sys.stdlib_module_names:
        may = ", ".join(sorted(ESTIMATORS_MAY_IMPORT))
        return [f"{path}: imports {name}; estimators may import onnxgrad, {may}"]
    if parts[0] == "onnxgrad" and any(part.startswith("_") for part in parts[1:]):
        return [f"{path}: imports {name}; estimators use only public names of onnxgrad"]
    return []


def _wrong_for_compat(parts: list[str]) -> list[str]:
    if parts[:2] == ["onnxgrad", "compat"]:
        return []
    if parts[0] == "onnxgrad":
        is_private = any(part.startswith("_") and not part.endswith("__") for part in parts[1:])
        return ["compat uses only public names of onnxgrad"] if is_private else []
    if parts[0] in COMPAT_LIBRARIES or parts[0] in sys.stdlib_module_names:
        return []
    return [f"compat may not need {parts[0]}; see COMPAT_LIBRARIES in scripts/check_layers.py"]


def shadowing_headers(root: Path) -> list[str]:
    """Return a message for each header of src/onnx that would hide one of ONNX's own.

    ONNX's headers include each other as "onnx/checker.h", and src/ comes first on the path.
    """
    taken = {"checker.h", "onnx_pb.h", "onnx-ml.pb.h", "onnx-data.pb.h", "onnx-operators_pb.h"}
    taken |= {"proto_utils.h", "py_utils.h", "string_utils.h"}
    taken_folders = {"common", "defs", "inliner", "shape_inference", "version_converter"}
    return [
        f"{path.relative_to(root)}: hides a header of ONNX's library; give it another name"
        for path in list_files(root)
        if path.relative_to(root).parts[:2] == ("src", "onnx")
        and (path.name in taken or path.relative_to(root).parts[2] in taken_folders)
    ]


def check_tree(root: Path) -> list[str]:
    """Return every violation under `root`, as messages."""
    src_folders = set(ALLOWED)
    if (root / "src").is_dir():
        src_folders |= {p.name for p in (root / "src").iterdir() if p.is_dir()}
    problems = shadowing_headers(root)
    for path in list_files(root):
        relative = path.relative_to(root)
        if path.suffix in _SOURCE_SUFFIXES:
            problems += check_includes(relative, path.read_text(encoding="utf-8"), src_folders)
        elif path.suffix == ".py":
            problems += check_imports(relative, path.read_text(encoding="utf-8"))
    return problems


def main(arguments: list[str]) -> int:
    """Print every violation; return the exit status."""
    problems = check_tree(Path(arguments[0]).resolve() if arguments else ROOT)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
