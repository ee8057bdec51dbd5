#!/usr/bin/env bash
# Jobs of several processes on every transport that is here: `make dist`. Sums and trained models must
# have the same bits on all of them; ranks that are missing, killed or failing must be named.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build/${preset:-release}/src/dist
hosts=$root/tests/distributed/hosts.sh
rank=$build/onnxgrad_dist_rank
scratch=$(mktemp -d)
slurm=$root/tests/distributed/slurm.sh
trap '"$hosts" down 2>/dev/null || true; "$slurm" down "$scratch/slurm"; rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

say() { printf '%-44s %s\n' "$1" "$2"; }
fail() { say "$1" "FAILED"; cat "$scratch/log" >&2; exit 1; }

# Of each library: how to start n ranks, by shared memory and by loopback.
declare -A mpiruns=()
[[ ! -x /usr/bin/mpirun ]] || mpiruns[debian]=/usr/bin/mpirun
[[ ! -x $root/.venv/bin/mpirun ]] || mpiruns[wheel]=$root/.venv/bin/mpirun
if [[ ! -x $root/build/mpich/bin/mpirun ]]; then  # its wheel would take the place of Open MPI's mpirun
  python -m venv "$root/build/mpich" && "$root/build/mpich/bin/pip" install -q --require-hashes \
    -r "$root/requirements/locked/distributed.txt" || true
fi
[[ ! -x $root/build/mpich/bin/mpirun ]] || mpiruns[mpich]=$root/build/mpich/bin/mpirun

start() {  # name, ranks, transport, command...
  local name=$1 ranks=$2 transport=$3
  shift 3
  local mpirun=${mpiruns[$name]}
  if [[ $name == mpich ]]; then
    "$mpirun" -n "$ranks" "$@"
  elif [[ $transport == loopback ]]; then
    "$mpirun" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca pml ob1 \
      --mca btl self,tcp --mca btl_tcp_if_include lo -n "$ranks" "$@"
  else
    "$mpirun" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n "$ranks" "$@"
  fi
}

no_hosts=$("$hosts" why-not)
[[ -n $no_hosts || -n ${mpiruns[debian]:-} ]] || no_hosts="Debian's mpirun is not installed"

# Runs a command on every transport; `on NAME` is called after each with what it is called.
everywhere() {  # ranks, on, command...
  local ranks=$1 on=$2 name transport
  shift 2
  for name in "${!mpiruns[@]}"; do
    for transport in shm loopback; do
      [[ $name != mpich || $transport == shm ]] || continue
      start "$name" "$ranks" "$transport" "$@" >"$scratch/log" 2>&1 || fail "$name $transport"
      "$on" "$name, $transport, $ranks ranks"
    done
  done
  onnxgrad launch -n "$ranks" --transport tcp "$@" >"$scratch/log" 2>&1 || fail "own TCP"
  "$on" "own TCP, $ranks ranks"
  if [[ -z $no_hosts && $((ranks % 3)) == 0 ]]; then
    "$hosts" run /usr/bin/mpirun "$ranks" 3 "$@" >"$scratch/log" 2>&1 || fail "3 hosts"
    "$on" "3 hosts, $ranks ranks"
  fi
}

echo "== unit tests"
"$build/onnxgrad_dist_test" --gtest_brief=1

if [[ -n $no_hosts ]]; then
  say "3 hosts as network namespaces" "skipped: $no_hosts"
else
  "$hosts" up 3
fi

echo "== sums: the same bits everywhere"
expected=""
check_sums() {
  local hash
  hash=$(grep -oE 'sums [0-9a-f]{16}' "$scratch/log") || fail "$1"
  [[ -z $expected || $hash == "$expected" ]] || fail "$1: $hash, not $expected"
  expected=$hash
  say "$1" "$hash"
}
for ranks in 2 4 6; do
  expected=""
  everywhere "$ranks" check_sums "$rank" sums
done

echo "== faults: rank and host are named"
for name in "${!mpiruns[@]}"; do
  for what in "missing 1:rank 1 on host .* did not arrive" "exit 1 7:rank 1 on host .* exited with code 7" \
    "kill 1:(rank 1 |EXIT CODE: 9)"; do
    # shellcheck disable=SC2086
    if start "$name" 3 shm "$rank" ${what%%:*} >"$scratch/log" 2>&1; then fail "$name ${what%%:*}"; fi
    grep -qE "${what#*:}" "$scratch/log" || fail "$name ${what%%:*}"
    say "$name, ${what%%:*}" "named"
  done
done

for how in sleeps stops exits; do  # rank 1 does not begin with MPI
  for name in "${!mpiruns[@]}"; do
    if start "$name" 3 shm bash -c '"$@"; exit $?' - "$rank" late 1 "$how" >"$scratch/log" 2>&1; then
      fail "$name, rank 1 $how"
    fi
    grep -qE "rank 1 of 3 has not arrived" "$scratch/log" || fail "$name, rank 1 $how"
    say "$name, rank 1 $how" "named"
  done
done

echo "== training: the same weights everywhere"
PYTHONPATH=$root/tests/distributed python -c \
  'import pathlib, sys, kills; kills.write_inputs(pathlib.Path(sys.argv[1]))' "$scratch"
check_weights() {
  local hash
  hash=$(sha256sum <"$scratch/out.onnx" | cut -c1-16)
  rm "$scratch/out.onnx"
  [[ -z $expected || $hash == "$expected" ]] || fail "$1: $hash, not $expected"
  expected=$hash
  say "$1" "weights $hash"
}
for ranks in 2 3; do
  expected=""
  everywhere "$ranks" check_weights "$root/.venv/bin/onnxgrad" train "$scratch/model.onnx" \
    --data "$scratch/rows.npz" --target y --batch-size 24 --epochs 2 --threads 1 -q \
    -o "$scratch/out.onnx"
done

echo "== SLURM"
no_slurm=$("$slurm" why-not)
[[ -n $no_slurm || -n ${mpiruns[debian]:-} ]] || no_slurm="Debian's libmpi is not installed"
if [[ -n $no_slurm ]]; then
  say "srun --mpi=pmix" "skipped: $no_slurm"
else
  "$slurm" up "$scratch/slurm" >"$scratch/log" 2>&1 </dev/null || fail "SLURM"
  export SLURM_CONF=$scratch/slurm/slurm.conf
  expected=""  # that of mpirun
  train=("$root/.venv/bin/onnxgrad" train "$scratch/model.onnx" --data "$scratch/rows.npz" --target y
    --batch-size 24 --threads 1 -q -o "$scratch/out.onnx")
  start debian 2 shm "${train[@]}" --epochs 2 >"$scratch/log" 2>&1 || fail "mpirun"
  check_weights "Debian's mpirun"
  timeout 120 srun -n 2 --mpi=pmix "${train[@]}" --epochs 2 >"$scratch/log" 2>&1 </dev/null ||
    fail "srun --mpi=pmix"
  check_weights "srun --mpi=pmix"
  timeout 200 "$root/tests/distributed/requeue.sh" "$scratch" "${train[@]}" >"$scratch/log" 2>&1 ||
    fail "SIGUSR1, requeue"
  say "sbatch, SIGUSR1, requeue" "$(tail -n 1 "$scratch/log")"
  unset SLURM_CONF
fi

echo "== Ray"
ray=${ONNXGRAD_RAY_VENV:-$HOME/.cache/onnxgrad/ray-venv}
if [[ ! -x $ray/bin/pytest ]]; then  # 455 MB: outside of the project
  { python -m venv "$ray" && "$ray/bin/pip" install -q --require-hashes \
    -r "$root/requirements/locked/ray.txt" -r "$root/requirements/locked/runtime.txt"; } \
    >"$scratch/log" 2>&1 || rm -rf "$ray"
fi
if [[ ! -x $ray/bin/pytest ]]; then
  say "onnxgrad.ray.fit" "skipped: pip install ray failed: $(tail -n 1 "$scratch/log")"
else
  PYTHONPATH=$root/python timeout 600 "$ray/bin/pytest" -q -p no:cacheprovider \
    "$root/tests/python/test_ray.py" >"$scratch/log" 2>&1 || fail "onnxgrad.ray.fit"
  say "onnxgrad.ray.fit" "$(tail -n 1 "$scratch/log")"
fi

echo "== tests"
python -m pytest -q -n 0 "$root"/tests/python/test_{launch,signals_of_workers,data_parallel,data_shards,ray}.py
