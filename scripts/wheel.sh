#!/usr/bin/env bash
# Builds the wheel into dist/: one file for CPython 3.11 and later on Linux with glibc 2.28 or newer.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export PATH=$root/.venv/bin:$PATH
raw=$root/build/wheel-raw
rm -rf "$raw"
mkdir -p "$raw" dist

python -m pip install -q --disable-pip-version-check --no-input --no-compile --require-hashes \
  -r requirements/locked/wheel.txt
python -m pip wheel . -q --disable-pip-version-check --no-deps --no-build-isolation -w "$raw" \
  -C cmake.define.CMAKE_CXX_COMPILER=c++ -C cmake.define.ONNXGRAD_OLD_GLIBC=ON # as in `make build`: ccache has the objects
rm -f dist/onnxgrad-*.whl
auditwheel --verbose repair --plat manylinux_2_28_x86_64 --only-plat -w dist "$raw"/onnxgrad-*.whl \
  >"$raw/auditwheel.log" 2>&1 || {
  tail -n 30 "$raw/auditwheel.log" >&2
  exit 1
}
for wheel in dist/onnxgrad-*.whl; do
  printf 'wheel: %s, %s kB\n' "$wheel" "$(($(stat -c %s "$wheel") / 1000))"
done
