"""Fails if a file includes headers that its layer may not; `python scripts/check_layers.py [root]`.

Reads the #include lines of src/, include/, python/bindings and the imports of python/onnxgrad.
The tables below are those of docs/architecture.md; what a layer, or a sub-package of onnxgrad,
may include is transitive. Imports for type checkers alone count as well.

Tests (*_test.*, *_bench.*, folders named testing/) may include anything. In src/ops only kernel
files (stems ending in _cpu, _cuda or _simd) see src/device and the kernel libraries. Of
src/device, the layers above see what is the same for all devices.
"""

import ast
import re
import sys
from pathlib import Path

from source_files import CPP_SUFFIXES, list_files, run_check

# Folder of src/ -> folders that it may include besides itself, directly.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "dist": {"base"},
    "ir": {"base"},
    "opdef": {"ir"},
    "onnx": {"ir", "opdef"},
    "device": {"opdef"},
    "ops": {"opdef"},
    "autodiff": {"opdef"},
    "passes": {"opdef"},
    "runtime": {"opdef", "device", "passes"},
    "train": {"onnx", "device", "ops", "autodiff", "passes", "runtime", "dist"},
    "api": {"onnx", "device", "ops", "autodiff", "passes", "runtime", "train"},
}
# Folder of src/train -> folders of it that it may include besides itself, directly.
TRAIN: dict[str, set[str]] = {
    "tools": set(),
    "schedules": {"tools"},
    "checkpoints": set(),
    "losses": {"tools"},
    "heads": {"losses"},
    "optimizers": {"tools", "schedules"},
    "weights": {"tools"},
    "adapters": {"checkpoints", "weights"},
    "transfer": {"adapters"},
    "quantization": {"graphs"},
    "precision": {"tools"},
    "graphs": {"heads", "optimizers", "precision", "weights"},
    "open_batch": {"graphs"},
    "data": {"losses"},
    "session": {"checkpoints", "data", "open_batch"},
    "fit": {"session"},
}
KERNELS_ALSO = {"device"}  # for the kernel files of src/ops
# Headers of one device, such as device/cpu/threads.h. Other layers see only src/device/*.h.
OF_ONE_DEVICE = re.compile(r"device/\w+/")

# Pattern of a library's headers -> layers that may include them ("kernels": kernel files of ops).
LIBRARIES: list[tuple[str, str, set[str]]] = [
    ("protobuf", r"google/protobuf/", {"onnx"}),
    ("spdlog", r"spdlog/", {"base"}),
    ("Highway", r"hwy/", {"device", "kernels"}),
    ("RE2", r"re2/", {"kernels", "train"}),
    ("nanobind", r"nanobind/", {"bindings"}),
]
# Sub-package of python/onnxgrad (or public module of one file) -> those that it may import besides
# itself, directly.
SUBPACKAGES: dict[str, set[str]] = {
    "errors": set(),
    "base": {"errors"},
    "devices": {"data"},
    "files": {"base"},
    "plotting": {"base"},
    "graph_pictures": {"base"},
    "history": {"files", "plotting"},
    "profiles": {"files"},
    "data": {"base"},
    "distributed": {"base"},
    "metrics": {"data"},
    "families": {"base"},  # losses, optimizers, schedules
    "adapters": {"data", "files"},
    "quantization": {"data"},
    "session_options": {"adapters", "distributed", "families", "quantization"},
    "sessions": {"data", "profiles", "session_options"},
    "graphs": {"data", "session_options"},
    "gradient_checks": {"graphs", "sessions"},
    "embeddings": {"graphs", "sessions"},
    "callbacks": {"history", "metrics", "sessions"},
    "run_folder": {"callbacks"},
    "trainer": {"distributed", "run_folder"},
    "cli": {"devices", "gradient_checks", "graphs", "trainer"},
    "ray": {"distributed"},
    "sklearn": {"graphs", "trainer"},
    "compat": {"devices", "graph_pictures", "graphs", "sklearn", "trainer"},
}
# Modules that belong to a sub-package but are not in its folder.
IN_SUBPACKAGE = {
    "losses": "families",
    "optimizers": "families",
    "precision": "families",
    "schedules": "families",
}
# Imports of python/onnxgrad/sklearn besides the public names of onnxgrad (threadpoolctl comes
# with scikit-learn).
ESTIMATORS_MAY_IMPORT = {"numpy", "onnx", "skl2onnx", "sklearn", "threadpoolctl"}
# Arguments, models and arrays are read as everywhere.
ESTIMATORS_CHECK_WITH = (
    "onnxgrad.base.checks",
    "onnxgrad.base.exporters",
    "onnxgrad.base.models",
    "onnxgrad.data.arrays",
    "onnxgrad.data.arrow",
    "onnxgrad.data.foreign",
)
COMPAT_READS_WITH = "onnxgrad.data.arrays"  # arrays of any library
# Imports of the compatibility layers besides the standard library and onnxgrad's public names.
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
# Names (of functions and attributes) that compat modules do not use, since they have no algorithms,
# except in compat/graphs -> where that is done.
COMPAT_NEVER_USES = {
    "graphs are written by onnxgrad itself and in compat/graphs": {
        "make_function",
        "make_graph",
        "make_model",
        "make_node",
        "parse_function",
        "parse_graph",
        "parse_model",
        "parse_node",
    },
    "graphs are taken apart and changed in compat/graphs": {"GraphProto"},
    "rows are drawn by onnxgrad.data and the sampler of Trainer.fit": {
        "choice",
        "permutation",
        "shuffle",
    },
}
_INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


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
    """Return whether `path` is test or benchmark code, which may include anything."""
    return path.stem.endswith(("_test", "_bench")) or "testing" in path.parts


def is_kernel(path: Path) -> bool:
    """Return whether `path` is a kernel file of src/ops."""
    return path.stem.endswith(("_cpu", "_cuda", "_simd"))


def check_train(path: Path, text: str) -> list[str]:
    """Return what is wrong with the includes of `path`, a file of src/train, within src/train."""
    folder = path.parts[2]
    if folder not in TRAIN:
        return [f"{path}: src/train/{folder} is no folder in TRAIN of scripts/check_layers.py"]
    visible = closure(folder, TRAIN)
    problems = []
    for _, name in _INCLUDE.findall(text):
        if not name.startswith("train/"):
            continue
        included = name.split("/")[1]
        if included not in visible:
            may = ", ".join(sorted(visible - {folder})) or "no other folder of src/train"
            problems.append(f'{path}: includes "{name}" of {included}; {folder} may include {may}')
    return problems


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

    problems = check_train(path, text) if layer == "train" else []
    for quote, name in _INCLUDE.findall(text):
        first = name.split("/", maxsplit=1)[0]
        if quote == "<" and first == "onnx":  # ONNX's own headers; ours are written in quotes
            if "onnx" not in roles:
                problems.append(f"{path}: includes <{name}>; ONNX's library belongs in src/onnx")
        elif "/" in name and first in src_folders and first not in visible:
            may = ", ".join(sorted(visible - {layer})) or "include/onnxgrad only"
            problems.append(f'{path}: includes "{name}"; {layer} may include {may}')
        elif OF_ONE_DEVICE.match(name) and not {"device", "kernels"} & roles:
            problems.append(f'{path}: includes "{name}"; {layer} uses devices through device/*.h')
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
    """Return the full names of what Python source `text` imports."""
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


def subpackage_of(module: str) -> str:
    """Return the sub-package of a module of onnxgrad, e.g. "data" of "onnxgrad.data.arrays"."""
    first = module.split(".")[1]
    return IN_SUBPACKAGE.get(first, first)


def check_imports(path: Path, text: str) -> list[str]:
    """Return what is wrong with the imports of `path`, a file of python/onnxgrad."""
    if path.parts[:2] != ("python", "onnxgrad") or path.suffix != ".py":
        return []
    subpackage = subpackage_of(f"onnxgrad.{path.parts[2].removesuffix('.py')}")
    if len(path.parts) > 3 and subpackage not in SUBPACKAGES:
        return [f"{path}: folder {subpackage} is not in the table of scripts/check_layers.py"]
    is_adaptor = subpackage == "compat" and path.parts[3] != "graphs"
    problems = []
    if is_adaptor:
        names = used_names(text)
        problems += [
            f"{path}: uses {name}; compat holds no algorithms: {where}"
            for where, banned in COMPAT_NEVER_USES.items()
            for name in sorted(banned & names)
        ]
    for name in imported_modules(text):
        library = name.split(".")[0]
        if library in {"torch", "tensorflow", "jax"}:
            problems.append(f"{path}: imports {name}; the package must not need {library}")
        elif library == "onnxgrad":
            problems += [
                f"{path}: imports {name}; {what}" for what in _wrong_import(subpackage, name)
            ]
            if (is_adaptor or subpackage == "sklearn") and not _is_public(name, subpackage):
                problems.append(f"{path}: imports {name}; {subpackage} uses only public names")
        elif subpackage == "compat" and library not in COMPAT_LIBRARIES | sys.stdlib_module_names:
            what = f"compat may not need {library}; see COMPAT_LIBRARIES in scripts/check_layers.py"
            problems.append(f"{path}: imports {name}; {what}")
        elif (
            subpackage == "sklearn"
            and library not in ESTIMATORS_MAY_IMPORT | sys.stdlib_module_names
        ):
            may = ", ".join(sorted(ESTIMATORS_MAY_IMPORT))
            problems.append(f"{path}: imports {name}; estimators may import onnxgrad, {may}")
        elif library == "sklearn" and subpackage not in {"compat", "sklearn"}:
            problems.append(f"{path}: imports {name}; scikit-learn belongs in onnxgrad.sklearn")
    return problems


def _wrong_import(subpackage: str, name: str) -> list[str]:
    """Return what is wrong if `subpackage` imports `name`, "onnxgrad" or something in it."""
    if subpackage in {"__init__", "__main__"}:
        return []
    if "." not in name or subpackage_of(name) not in SUBPACKAGES:
        if subpackage in {"compat", "sklearn"} or name.startswith("onnxgrad._core"):
            return []
        return ["name the sub-package; onnxgrad itself imports all of them"]
    if subpackage_of(name) not in closure(subpackage, SUBPACKAGES):
        may = ", ".join(sorted(closure(subpackage, SUBPACKAGES) - {subpackage})) or "no other"
        return [f"{subpackage} may import {may}"]
    return []


def _is_public(name: str, subpackage: str) -> bool:
    """Return whether `name` is one of the package's public names, or belongs to `subpackage`."""
    parts = name.split(".")
    if parts[1:2] == [subpackage] or len(parts) == 1:
        return True
    if subpackage == "sklearn" and name.startswith(ESTIMATORS_CHECK_WITH):
        return True
    if subpackage == "compat" and name.startswith(COMPAT_READS_WITH):
        return True
    is_private = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return not is_private and parts[1] != "base" and len(parts) <= 3


def import_circles(sources: dict[str, str]) -> list[list[str]]:
    """Return the circles among modules (full name -> text) that import each other."""
    imports = {
        module: {
            found
            for name in imported_modules(text)
            if (found := name if name in sources else name.rpartition(".")[0]) in sources
            and found not in {module, "onnxgrad"}
        }
        for module, text in sources.items()
    }
    reached = {module: closure(module, imports) for module in imports}
    circles = {
        tuple(sorted(other for other in found if module in reached[other]))
        for module, found in reached.items()
    }
    return [list(circle) for circle in sorted(circles) if len(circle) > 1]


def check_circles(root: Path) -> list[str]:
    """Return a message for each circle of imports among the modules of python/onnxgrad."""
    sources = {}
    for path in list_files(root):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[:2] == ("python", "onnxgrad") and path.suffix == ".py":
            module = ".".join(parts[1:]).removesuffix(".__init__")
            sources[module] = path.read_text(encoding="utf-8")
    return [f"modules import each other: {', '.join(c)}" for c in import_circles(sources)]


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
    problems = shadowing_headers(root) + check_circles(root)
    for path in list_files(root):
        relative = path.relative_to(root)
        if path.suffix in CPP_SUFFIXES:
            problems += check_includes(relative, path.read_text(encoding="utf-8"), src_folders)
        elif path.suffix == ".py":
            problems += check_imports(relative, path.read_text(encoding="utf-8"))
    return problems


if __name__ == "__main__":
    sys.exit(run_check(check_tree, sys.argv[1:]))
