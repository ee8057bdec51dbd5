"""Stores what PEFT makes of small networks, for tests/python/test_peft_values.py.

    build/interop/bin/python tests/data/peft/make_values.py      (after `make interop`)

Written with torch 2.15.0, transformers 5.24.0 and peft 0.21.2. NETWORK_EXPORTER.onnx: as torch
exports it before PEFT adapts it. NETWORK/KIND/: as save_pretrained() writes it. values.npz:
`NETWORK/rows`, `NETWORK/seed`, `NETWORK/KIND/outputs` and `NETWORK/KIND/grad/TENSOR`, the gradients
of sum(seed * outputs) by the names in the files.
"""

import pathlib
import shutil
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))
import peft_networks as networks  # noqa: E402

CASES = {
    "block": ["rslora", "patterns", "biases", "dora_all", "dora_patterns", "ia3", "ia3_swapped"],
    "cnn": ["patterns", "dora", "ia3"],
    "bag": ["lora", "head", "dora"],
    "bert": ["patterns", "dora_all", "ia3"],
}
EXPORTERS = {"block": [True, False], "cnn": [False], "bag": [False], "bert": [False]}


def main() -> None:
    """Write all files."""
    stored = {}
    for name, kinds in CASES.items():
        base, rows = networks.network(name), networks.rows_of(name)
        for dynamo in EXPORTERS[name]:
            file = HERE / f"{name}_{'dynamo' if dynamo else 'script'}.onnx"
            file.write_bytes(networks.export(base, rows, dynamo=dynamo))
        outputs = networks.values(base, rows)
        seed = np.random.default_rng(3).normal(size=outputs.shape).astype(np.float32)
        stored |= {f"{name}/rows": rows, f"{name}/seed": seed}
        shutil.rmtree(HERE / name, ignore_errors=True)
        for kind in kinds:
            adapted = networks.adapted_network(base, networks.configurations(name)[kind])
            adapted.save_pretrained(HERE / name / kind)
            (HERE / name / kind / "README.md").unlink(missing_ok=True)
            stored[f"{name}/{kind}/outputs"] = networks.values(adapted, rows)
            for key, value in networks.gradients_of(adapted, rows, seed).items():
                stored[f"{name}/{kind}/grad/{key}"] = value
    np.savez_compressed(HERE / "values.npz", **stored)


if __name__ == "__main__":
    main()
