#!/usr/bin/env bash
# Builds ONNX's own C++ library, once per machine, into a dependency prefix.
#
#   scripts/onnx_library.sh            builds and installs it if it is not there yet
#   scripts/onnx_library.sh --prefix   only prints the prefix (CMake asks this)
#   scripts/onnx_library.sh --is-built exit status 0 if the prefix is complete
#
# The prefix is ${ONNXGRAD_DEPS:-$HOME/.cache/onnxgrad}/onnx-<key>; the key covers the pinned source
# distribution, the build flags, the compiler and protobuf, so that a change of any makes a new one.
# Its last file, `finished`, is written when everything else is in place.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pin_file=$root/requirements/onnx-library.txt
flags_file=$root/requirements/onnx-library-flags.txt
compiler=${CXX:-c++}

key() {
  {
    grep -v '^#' "$pin_file"
    cat "$flags_file"
    "$compiler" -dumpfullversion -dumpmachine 2>/dev/null || true
    protoc --version 2>/dev/null || true
  } | sha256sum | cut -c1-16
}

prefix=${ONNXGRAD_DEPS:-${HOME:-/root}/.cache/onnxgrad}/onnx-$(key)

case "${1:-}" in
  --prefix)
    printf '%s\n' "$prefix"
    exit 0
    ;;
  --is-built) [[ -f $prefix/finished ]] && exit 0 || exit 1 ;;
esac
[[ -f $prefix/finished ]] && exit 0

mkdir -p "$(dirname "$prefix")"
exec 9>"$prefix.lock"
flock 9 # another set-up on this machine may be building the same prefix
[[ -f $prefix/finished ]] && exit 0

venv=${ONNXGRAD_VENV:-$root/.venv}
work=$(mktemp -d "$prefix.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
export PATH=$venv/bin:$PATH

echo "setup: downloading ONNX's sources" >&2
"$venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --no-binary onnx \
  --no-build-isolation --require-hashes -r "$pin_file" -d "$work"
mkdir "$work/source"
tar -xzf "$work"/onnx-*.tar.gz -C "$work/source" --strip-components=1

echo "setup: building ONNX's C++ library (about two minutes on two cores, once per machine)" >&2
mapfile -t flags <"$flags_file"
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
fi
log=$prefix.log
{
  cmake -G Ninja -S "$work/source" -B "$work/build" "${flags[@]}" "${launcher[@]}" \
    -DPython3_EXECUTABLE="$venv/bin/python" -DCMAKE_INSTALL_PREFIX="$prefix"
  cmake --build "$work/build" -j "${ONNXGRAD_JOBS:-$(nproc)}"
  rm -rf "$prefix"
  cmake --install "$work/build" --strip
  cp "$work/source/LICENSE" "$prefix/LICENSE"
} >"$log" 2>&1 || {
  tail -n 40 "$log" >&2
  echo "setup: building ONNX's C++ library failed; the whole log is in $log" >&2
  exit 1
}
touch "$prefix/finished"
echo "setup: ONNX's C++ library is in $prefix" >&2
