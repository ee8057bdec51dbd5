#!/usr/bin/env bash
# Installs the wheel of dist/ into a fresh environment, as a user would, and uses it there: outside
# the checkout, without anything of .venv.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheel=("$root"/dist/onnxgrad-*.whl)

"$root/.venv/bin/python" -m venv "$work/venv"
locked=$root/requirements/locked
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes \
  -r "$locked/runtime.txt" -r "$locked/wheel-test.txt"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "${wheel[0]}"
"$work/venv/bin/python" -m pip check
cp "$root/tests/python/smoke.py" "$work/smoke.py"
cd "$work"
env -i HOME="$work" PATH=/usr/bin:/bin "$work/venv/bin/python" "$work/smoke.py"
if [[ -x $work/venv/bin/onnxgrad ]]; then
  env -i HOME="$work" PATH=/usr/bin:/bin "$work/venv/bin/onnxgrad" --help >/dev/null
fi
echo "wheel: installed and used in a fresh environment ($(du -sm "$work/venv" | cut -f1) MB in total)"
