#!/usr/bin/env bash
# Hosts on one machine, as network namespaces on a bridge; needs root.
#
# usage: hosts.sh up N [RATE]      hosts 10.77.0.1 to N, each with its own network, at RATE (2gbit) if given
#        hosts.sh down
#        hosts.sh run MPIRUN N_RANKS N_HOSTS COMMAND...     mpirun on these hosts
#        hosts.sh rsh ADDRESS COMMAND...     what mpirun runs instead of ssh
#        hosts.sh why-not                    why this machine cannot; nothing if it can
set -euo pipefail

self=$(readlink -f "${BASH_SOURCE[0]}")

why_not() {
  [[ $(id -u) == 0 ]] || { echo "network namespaces need root"; return; }
  command -v ip >/dev/null || { echo "there is no command ip (package iproute2)"; return; }
  ip netns add ogprobe 2>/dev/null || { echo "this machine allows no network namespaces"; return; }
  ip link add ogprobe type veth peer name ogprobe2 2>/dev/null || echo "this machine has no veth"
  ip link del ogprobe 2>/dev/null || true
  ip netns del ogprobe
}

up() {
  local count=$1 rate=${2:-}
  down
  ip link add ogbr type bridge
  ip link set ogbr up
  for ((i = 1; i <= count; ++i)); do
    ip netns add "og$i"
    ip link add "ogv$i" type veth peer name eth0 netns "og$i"
    ip link set "ogv$i" master ogbr up
    ip -n "og$i" link set lo up
    ip -n "og$i" addr add "10.77.0.$i/24" dev eth0
    ip -n "og$i" link set eth0 up
    [[ -z $rate ]] ||
      ip netns exec "og$i" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms
  done
}

down() {
  local name
  for name in $(ip netns list | grep -oE '^og[0-9]+' || true); do ip netns del "$name"; done
  ip link del ogbr 2>/dev/null || true
}

# Own host name and /dev/shm: otherwise MPI takes all hosts for one machine.
rsh() {
  while [[ $1 == -* ]]; do shift; done
  local host="og${1##*.}"
  shift
  exec ip netns exec "$host" unshare --uts --mount sh -c \
    "hostname $host; mount -t tmpfs tmpfs /dev/shm; $*"
}

run() {
  local mpirun=$1 ranks=$2 hosts=$3 list="" slots
  shift 3
  slots=$(((ranks + hosts - 1) / hosts))
  for ((i = 1; i <= hosts; ++i)); do list+="${list:+,}10.77.0.$i:$slots"; done
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  "$self" rsh 10.77.0.1 exec "$mpirun" --wdir "$PWD" --mca plm_rsh_agent "'$self rsh'" \
    --mca oob_tcp_if_include eth0 --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include eth0 \
    --mca mpi_yield_when_idle 1 --bind-to none -x PATH -x PYTHONPATH \
    -H "$list" -n "$ranks" "$(printf '%q ' "$@")"
}

case ${1:-} in
  why-not) why_not ;;
  up | down | rsh | run) command=$1; shift; "$command" "$@" ;;
  *) sed -n '2,9p' "$self"; exit 2 ;;
esac
