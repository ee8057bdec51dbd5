#!/usr/bin/env bash
# Builds the wheel and makes it self-contained: auditwheel copies protobuf, Highway and the like
# into it under hashed names. The result is in dist/; its size is printed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export PATH=$root/.venv/bin:$PATH
raw=$root/build/wheel-raw
rm -rf "$raw"
mkdir -p "$raw" dist

python -m pip wheel . -q --disable-pip-version-check --no-deps --no-build-isolation -w "$raw"
rm -f dist/onnxgrad-*.whl
auditwheel --verbose repair --plat auto -w dist "$raw"/onnxgrad-*.whl >"$raw/auditwheel.log" 2>&1 || {
  tail -n 30 "$raw/auditwheel.log" >&2
  exit 1
}
for wheel in dist/onnxgrad-*.whl; do
  printf 'wheel: %s, %s kB\n' "$wheel" "$(($(stat -c %s "$wheel") / 1000))"
done
