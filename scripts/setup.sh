#!/usr/bin/env bash
# Puts everything in place that onnxgrad is built and tested with; run it as often as you like.
#
# usage: setup.sh [--package | --mpi | --clang | --interpreter]
#
#   --package       without what only tests and linters need
#   --mpi           Open MPI and SLURM of Debian, for `make dist`, and nothing else
#   --clang         the compiler of `make clang`, and nothing else
#   --interpreter   libraries that a Python is built with, for `make free-threaded`, and nothing else
#
#   1. Debian packages (only what is missing; as root or through sudo)
#   2. .venv in the project's root with the pinned Python packages of requirements/, by their hashes
#   3. the C++ libraries of requirements/native.toml in a prefix (scripts/native_libraries.py)
#
# A run that finds nothing to do takes a fraction of a second: a stamp in .venv holds the hash of all
# inputs and what was installed. ONNXGRAD_DEPS moves the dependency prefix, PYTHON chooses the interpreter (>= 3.11).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=$root/.venv
stamp=$venv/.onnxgrad-setup
extent=all
[[ ${1:-} == --package ]] && extent=package

debian_packages=(
  ccache
  g++
  libbenchmark-dev
  libgmock-dev
  libgtest-dev
  ninja-build
  patch
  pkg-config
  protobuf-compiler
)

say() { echo "setup: $*" >&2; }

inputs_hash() {
  { cat scripts/setup.sh requirements/*.txt requirements/locked/*.txt; echo "$root"; } |
    sha256sum | cut -d' ' -f1
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -n "$@" || {
      say "could not run '$*' through sudo without a password; run it yourself, then start again"
      exit 1
    }
  else
    say "needs root (or sudo) to run: $*"
    exit 1
  fi
}

apt_install() {
  local packages=("$@")
  local log
  log=$(mktemp)
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
    --no-install-recommends "${packages[@]}" >"$log" 2>&1; then
    # Old or missing package lists are the common cause; fetch them and try once more.
    say "refreshing the package lists"
    as_root apt-get update -q >"$log" 2>&1 || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
      --no-install-recommends "${packages[@]}" >"$log" 2>&1 || {
      tail -n 30 "$log" >&2
      say "apt-get install failed: ${packages[*]}"
      exit 1
    }
  fi
  rm -f "$log"
}

install_debian_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: install these yourself: ${debian_packages[*]}"
    return
  fi
  local missing=() name
  for name in "${debian_packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed ||
      missing+=("$name")
  done
  if ((${#missing[@]})); then
    say "installing Debian packages: ${missing[*]}"
    apt_install "${missing[@]}"
  fi
}

is_good_python() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# venv and headers must be there: the extension is compiled against this interpreter.
can_build_with() {
  "$1" -c '
import ensurepip, os, sys, sysconfig, venv
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    [[ -n $candidate ]] && is_good_python "$candidate" || continue
    if can_build_with "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  apt_install python3 python3-dev python3-venv
  if is_good_python /usr/bin/python3 && can_build_with /usr/bin/python3; then
    echo /usr/bin/python3
    return
  fi
  say "no Python >= 3.11 with venv and headers found; set PYTHON to one"
  exit 1
}

# An environment whose interpreter is missing, or that was moved, is made again.
is_good_venv() {
  [[ -x $venv/bin/pip ]] && head -n 1 "$venv/bin/pip" | grep -qF "$venv/bin/python" &&
    "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

make_venv() {
  local python
  if ! is_good_venv; then
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
  fi
  local list lists=(build runtime demo) files=()
  [[ $extent == package ]] || lists+=(test lint)
  say "installing Python packages into .venv: ${lists[*]}"
  for list in "${lists[@]}"; do files+=(-r "requirements/locked/$list.txt"); done
  # Python compiles the modules that are imported when they are; all of them would take twenty seconds.
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-input --no-compile \
    --require-hashes "${files[@]}"
}

if [[ ${1:-} == --mpi ]]; then
  debian_packages=(iproute2 openmpi-bin)
  # A SLURM of this machine alone: only where it can run.
  [[ $(id -u) != 0 ]] ||
    debian_packages+=(munge slurm-client slurmctld slurmd slurm-wlm-basic-plugins libpmix-dev)
  install_debian_packages
  exit 0
fi

if [[ ${1:-} == --clang ]]; then
  debian_packages=(clang-19) # as preset clang names it
  install_debian_packages
  exit 0
fi

if [[ ${1:-} == --interpreter ]]; then
  debian_packages=(g++ libbz2-dev libffi-dev liblzma-dev libsqlite3-dev libssl-dev make pkg-config zlib1g-dev)
  install_debian_packages
  exit 0
fi

hash=$(inputs_hash)
installed=$(cat "$stamp" 2>/dev/null || true)
if [[ $installed == "$hash all" || $installed == "$hash $extent" ]] && "$venv/bin/python" scripts/native_libraries.py --is-built; then
  exit 0
fi

install_debian_packages
make_venv
"$venv/bin/python" scripts/native_libraries.py >/dev/null
echo "$hash $extent" >"$stamp"
say "done"
