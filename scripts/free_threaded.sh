#!/usr/bin/env bash
# Runs tests under a free-threaded Python. The interpreter is built once per machine, next to the
# caches of setup.sh, from the newest source package that Debian's mirror hands out, 3.14 before
# 3.13; ONNXGRAD_FREE_THREADED names another. The wheel lies in build/free-threaded.
#
#   scripts/free_threaded.sh [ARGUMENTS OF PYTEST]    default: the tests below
#   scripts/free_threaded.sh --python                 prints the path of the interpreter
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
cache=${ONNXGRAD_DEPS:-${HOME:-/root}/.cache/onnxgrad}
work=$root/build/free-threaded
list=requirements/locked/old-free-threaded.txt
tests=(
  concurrent_calls linear_regression linear_steps session_calls session_options session_outputs fit_rows
  data_batches data_files data_targets data_arrow forward_backward derivatives optimizers losses schedules
  metrics checkpoints messages failed_steps recurrent_training threads
  convolutional_training registered_operators trainer_pickles signals history api_trainer api_sessions
)

say() { echo "free-threaded: $*" >&2; }

built_python() {
  local finished
  finished=$(find "$cache" -maxdepth 2 -path '*/python-3.*t/finished' 2>/dev/null | sort -V | tail -n 1)
  [[ -n $finished ]] && find "${finished%/*}/bin" -name 'python3.*t'
}

# Unpacks a source package into $1/source; prints its version. Lists may name what the mirror lacks.
fetch_source() {
  local to=$1 uri package suite
  # shellcheck disable=SC2016  # a variable of apt-get
  uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' |
    grep -v security | head -n 1)
  [[ -n $uri ]] || return 1
  mkdir -p "$to/lists/partial" "$to/parts" "$to/source"
  for package in python3.14 python3.13; do
    for suite in unstable testing stable; do
      echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" \
        >"$to/parts/one.list"
      local options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$to/parts"
        -o "Dir::State::lists=$to/lists" -o APT::Sandbox::User=root
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
      apt-get "${options[@]}" update >&2 || continue
      rm -f "$to"/"$package"_*
      if (cd "$to" && apt-get "${options[@]}" source --download-only "$package") >&2; then
        tar -xf "$to"/"$package"_*.orig.tar.xz -C "$to/source" --strip-components=1
        basename "$to"/"$package"_*.orig.tar.xz .orig.tar.xz | cut -d_ -f2
        return
      fi
    done
  done
  return 1
}

build_python() {
  local folder version prefix log=$cache/python-free-threaded.log
  mkdir -p "$cache"
  folder=$(mktemp -d -p "$cache")
  trap 'rm -rf "$folder"' RETURN
  say "building an interpreter; the log is $log"
  scripts/setup.sh --interpreter
  version=$(fetch_source "$folder" 2>"$log") || {
    say "no source package of Python 3.14 or 3.13 here; set ONNXGRAD_FREE_THREADED to an interpreter"
    return 1
  }
  prefix=$cache/python-${version}t
  rm -rf "$prefix"
  (cd "$folder/source" &&
    ./configure -q --prefix="$prefix" --disable-gil --with-ensurepip=install --disable-test-modules &&
    make -s -j "${ONNXGRAD_JOBS:-$(nproc)}" && make -s install) >>"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    return 1
  }
  touch "$prefix/finished"
}

python=${ONNXGRAD_FREE_THREADED:-$(built_python || true)}
if [[ -z $python ]]; then
  build_python
  python=$(built_python)
fi
if [[ ${1:-} == --python ]]; then
  echo "$python"
  exit
fi

made=$(cat scripts/free_threaded.sh "$list"; "$python" -VV)
made=$(sha256sum <<<"$made")
if [[ $(cat "$work/venv/made" 2>/dev/null) != "$made" ]]; then
  rm -rf "$work"
  "$python" -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install -q --disable-pip-version-check --no-input --only-binary :all: \
    --require-hashes -r "$list"
  echo "$made" >"$work/venv/made"
fi

export PATH=$work/venv/bin:$PATH
rm -rf "$work/dist" "$work/package"
python -m pip wheel . -q --disable-pip-version-check --no-deps --no-build-isolation -w "$work/dist" \
  -C build-dir="$work" -C cmake.define.CMAKE_CXX_COMPILER=c++ # as in build/release: ccache has the objects
python -m zipfile -e "$work"/dist/onnxgrad-*.whl "$work/package"
export PYTHONPATH=$work/package
# A module that needs the lock switches it on, with a warning.
python -W error -c '
import sys, onnxgrad
sys.exit("the global lock is on" if sys._is_gil_enabled() else 0)'
say "$(basename "$work"/dist/onnxgrad-*.whl), the global lock is off"
if (($# == 0)); then
  files=("${tests[@]/#/tests/python/test_}")
  set -- -n "${ONNXGRAD_JOBS:-2}" "${files[@]/%/.py}"
fi
export PYTHON_GIL=0 # also if another library would switch it on
python -m pytest -q -p no:cacheprovider "$@"
