#!/usr/bin/env bash
# Runs the tests about models, arrays and tables of other libraries with these libraries: torch (on
# the CPU, without its CUDA wheels), PEFT, transformers, timm, diffusers, JAX, polars, datasets, in an
# environment on top of .venv.
#
#   scripts/interop.sh [ARGUMENTS OF PYTEST]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=build/interop
list=requirements/locked/interop.txt
made=$(cat scripts/interop.sh scripts/cpu_torch.py "$list" | sha256sum)

if [[ $(cat "$venv/made" 2>/dev/null) != "$made" ]]; then
  rm -rf "$venv"
  .venv/bin/python -m venv "$venv"
  # torch declares packages that the list leaves out: --no-deps.
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-input --no-deps \
    --require-hashes -r "$list"
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/venv.pth"
  "$venv/bin/python" scripts/cpu_torch.py "$packages"
  echo "$made" >"$venv/made"
fi
ONNXGRAD_INTEROP=1 PYTHONPATH=python "$venv/bin/python" -m pytest -q \
  tests/python/test_exported_models.py tests/python/test_foreign_arrays.py \
  tests/python/test_language_models.py tests/python/test_language_training.py \
  tests/python/test_module_parameters.py \
  tests/python/test_peft.py tests/python/test_skl2onnx_converters.py "$@"
