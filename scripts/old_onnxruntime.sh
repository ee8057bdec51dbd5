#!/usr/bin/env bash
# Makes an environment with an onnxruntime of 2024, which runs opsets up to 20, next to the caches of
# setup.sh; tests/python/test_onnx_target_opset.py runs models there and fails without it. Only
# ONNXGRAD_OFFLINE=1 leaves both out.
#
#   scripts/old_onnxruntime.sh         makes it, unless it is there; prints the path of its python
#   scripts/old_onnxruntime.sh --path  only prints the path
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n 's/^onnxruntime==//p' "$root/requirements/old-onnxruntime.txt")
prefix=${ONNXGRAD_DEPS:-${HOME:-/root}/.cache/onnxgrad}/onnxruntime-$version
python=$prefix/bin/python

if [[ ${1:-} != --path && ! -f $prefix/finished ]]; then
  rm -rf "$prefix"
  "$root/.venv/bin/python" -m venv "$prefix"
  "$python" -m pip install -q --disable-pip-version-check --no-input \
    --require-hashes -r "$root/requirements/locked/old-onnxruntime.txt" >&2 || {
    echo "setup: could not install onnxruntime $version, which the tests run models in;" \
      "without a network, set ONNXGRAD_OFFLINE=1 to leave that test out" >&2
    exit 1
  }
  touch "$prefix/finished"
fi
echo "$python"
