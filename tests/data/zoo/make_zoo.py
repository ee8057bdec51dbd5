"""Makes models of this folder, their stored values and their rows of index.json.

    python make_zoo.py MODULE.py|NAME ...       for example: make_zoo.py layers_models.py unet_bilinear

README.md says which packages a module needs and what the files hold. Using them needs onnx and numpy only.
"""
import importlib
import json
import os
import pathlib
import random
import sys
import traceback
import warnings
import zlib

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import numpy as np
import onnxruntime as ort

import reference

warnings.filterwarnings("ignore")
ort.set_default_logger_severity(4)


def seed(name):
    number = zlib.crc32(name.encode()) % 100003
    random.seed(number)
    np.random.seed(number)
    if "torch" in sys.modules:
        import torch
        torch.set_num_threads(1)
        torch.manual_seed(number)


def main(arguments):
    path = HERE / "index.json"
    chosen = []
    modules = [a for a in arguments if a.endswith(".py")]
    for module in modules or sorted(p.name for p in HERE.glob("*_models.py")):
        try:
            importlib.import_module(module.removesuffix(".py"))
        except ImportError as error:
            if modules:
                raise
            print("without", module, error)
    for name, spec in reference.SPECS.items():
        if not arguments or name in arguments or spec["module"] + "_models.py" in modules:
            chosen.append(spec)
    failed = 0
    for spec in chosen:
        name = spec["name"]
        seed(name)
        try:
            row = spec.get("run", reference.make)(spec)
            size = sum((HERE / (name + end)).stat().st_size for end in (".onnx", ".npz"))
            print("%-34s %4d nodes %7d bytes, float32 %s, tolerance %s" % (name, row["nodes"], size, row.get("float32_error"), row["tolerance"]), flush=True)
        except Exception as error:
            failed += 1
            row = None
            for end in (".onnx", ".npz"):
                (HERE / (name + end)).unlink(missing_ok=True)
            print("FAILED", name, type(error).__name__, str(error)[-900:], flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
        rows = {r["name"]: r for r in json.loads(path.read_text())} if path.exists() else {}
        rows.pop(name, None)
        if row is not None:
            rows[name] = dict(row, module=spec["module"])
        kept = sorted(rows.values(), key=lambda r: (r["module"], r["kind"], r["name"]))
        path.write_text("[\n" + ",\n".join(json.dumps(r) for r in kept) + "\n]\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
