#!/usr/bin/env bash
# Checks onnxgrad on a card, from the archive of `make cuda-archive`, without a network: operator
# cases, trainings, errors, then speed. Each part keeps its result and is not run again.
#
# usage: cuda_check.sh [OUT]    default: ./cuda_check_results; remove a part's .json to repeat it
#
# PYTHON (default python3) needs numpy and onnx; with PyTorch or JAX there, its times stand beside
# onnxgrad's, and NVIDIA's libraries are found in its environment.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "${1:-cuda_check_results}" && cd "${1:-cuda_check_results}" && pwd)
python=${PYTHON:-python3}

if [[ ! -d $out/site/onnxgrad ]]; then
  # A wheel is an archive of what is installed.
  for wheel in "$root"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$out/site"; done
fi
export PYTHONPATH=$out/site${PYTHONPATH:+:$PYTHONPATH}
export ONNXGRAD_CUDA_CACHE=${ONNXGRAD_CUDA_CACHE:-$out/images}
exec "$python" "$root/cuda_check.py" --root "$root" --out "$out"
