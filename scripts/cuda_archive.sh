#!/usr/bin/env bash
# Packs what checks a card into dist/onnxgrad-cuda-check.tar.xz: the wheel of dist/, the operators'
# test binary, a model, the workloads of the benchmarks, and scripts/cuda_check.*. At most 60 MiB.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
build=build/${preset:-release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/onnxgrad-cuda-check
mkdir -p "$folder/wheels" dist
cp dist/onnxgrad-*.whl "$folder/wheels"
python -m pip download -q --disable-pip-version-check --no-deps --require-hashes \
  --only-binary=:all: --python-version 3.12 -d "$folder/wheels" -r requirements/locked/runtime.txt
strip -o "$folder/onnxgrad_ops_test" "$build/src/ops/onnxgrad_ops_test"
cp scripts/cuda_check.sh scripts/cuda_check.py "$folder"
cp -r benchmarks/peers "$folder/peers"
rm -rf "$folder/peers/__pycache__"
python - "$folder/mlp.onnx" <<'END'
import sys
sys.path.insert(0, "tests/python")
import onnx
from support import mlp_proto
onnx.save(mlp_proto((16, 32, 3)), sys.argv[1])
END
tar -C "$work" -cJf dist/onnxgrad-cuda-check.tar.xz onnxgrad-cuda-check
bytes=$(stat -c %s dist/onnxgrad-cuda-check.tar.xz)
printf 'archive: dist/onnxgrad-cuda-check.tar.xz, %s MB\n' "$((bytes / 1000000))"
((bytes < 60 << 20)) || { echo "the archive has more than 60 MiB" >&2; exit 1; }
