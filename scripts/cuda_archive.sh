#!/usr/bin/env bash
# Packs what checks a card into dist/onnxgrad-cuda-check.tar.xz, at most 60 MiB: the wheel of dist/
# and those that it needs, the operators' cases with their values in float64, models, the workloads
# of the benchmarks, and scripts/cuda_check*.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
build=build/${preset:-release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/onnxgrad-cuda-check
mkdir -p "$folder"/{wheels,cases,models,data} "$work/dump" dist
cp dist/onnxgrad-*.whl "$folder/wheels"
python -m pip download -q --disable-pip-version-check --no-deps --require-hashes \
  --only-binary=:all: --python-version 3.12 -d "$folder/wheels" -r requirements/locked/runtime.txt
cp scripts/cuda_check.sh "$folder"
cp -r scripts/cuda_check "$folder/cuda_check"
cp -r benchmarks/peers "$folder/peers"
find "$folder" -name __pycache__ -exec rm -rf {} +
ONNXGRAD_DUMP_CASES=$work/dump "$build/src/ops/onnxgrad_ops_test" \
  --gtest_filter=DumpCases.WritesThemWhereAskedTo --gtest_brief=1
PYTHONPATH=tests/python python scripts/cuda_check/pack_cases.py "$work/dump" "$folder/cases"
python - "$folder" <<'END'
import sys
from pathlib import Path

sys.path[:0] = ["tests/python", "benchmarks/peers"]
import numpy as np
import onnx
import workloads
from support import mlp_proto

folder = Path(sys.argv[1])
onnx.save(mlp_proto((16, 32, 3)), folder / "models/mlp.onnx")
for name in ("w1_linreg2", "w1_linreg100", "w2_mlp", "w2_mlp_nesterov"):  # scikit-learn makes them
    x, y = workloads.make_data(name)
    np.savez_compressed(folder / "data" / f"{name}.npz", x=x, y=y)
END
tar -C "$work" -cJf dist/onnxgrad-cuda-check.tar.xz onnxgrad-cuda-check
bytes=$(stat -c %s dist/onnxgrad-cuda-check.tar.xz)
printf 'archive: dist/onnxgrad-cuda-check.tar.xz, %s MB\n' "$((bytes / 1000000))"
((bytes < 60 << 20)) || { echo "the archive has more than 60 MiB" >&2; exit 1; }
