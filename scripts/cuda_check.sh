#!/usr/bin/env bash
# Checks onnxgrad on a card, from the archive of `make cuda-archive`, without a network.
#
# usage: cuda_check.sh [correctness|speed|all] [OUT]    default: all, ./cuda_check_results
#
# Each part takes at most 240 s. What is not done by then is done by the next call: results are
# kept as JSON in OUT; remove one to repeat it. The last lines are a table, also OUT/table.txt.
#
# PYTHON (default python3, 3.12) needs nothing but itself; NVIDIA's libraries come from the system,
# the toolkit, or that Python's packages. With PyTorch or JAX there, their times stand beside ours.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
part=${1:-all}
out=$(mkdir -p "${2:-cuda_check_results}" && cd "${2:-cuda_check_results}" && pwd)
python=${PYTHON:-python3}

# A wheel is an archive of what is installed. Behind the packages that are there: PyTorch's NumPy
# stays in place.
if [[ ! -f $out/site/unpacked ]]; then
  for wheel in "$root"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$out/site"; done
  touch "$out/site/unpacked"
fi
export ONNXGRAD_CUDA_CACHE=${ONNXGRAD_CUDA_CACHE:-$out/images} PYTHONDONTWRITEBYTECODE=1
exec "$python" "$root/cuda_check/main.py" "$part" "$root" "$out"
