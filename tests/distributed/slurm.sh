#!/usr/bin/env bash
# A SLURM cluster of this machine alone, for tests; needs root and Debian's packages slurmctld,
# slurmd, slurm-client, slurm-wlm-basic-plugins and munge (`make dist` installs them).
#
# usage: slurm.sh why-not          why this machine cannot; nothing if it can
#        slurm.sh up FOLDER        starts it; then SLURM_CONF=FOLDER/slurm.conf srun ...
#        slurm.sh down FOLDER
set -euo pipefail

why_not() {
  [[ $(id -u) == 0 ]] || { echo "slurmd needs root"; return; }
  local program
  for program in munged mungekey slurmctld slurmd srun sbatch scontrol; do
    command -v "$program" >/dev/null || { echo "$program is not installed"; return; }
  done
  srun --mpi=list 2>&1 | grep -qw pmix || SLURM_CONF=/dev/null ls /usr/lib/*/slurm*/mpi_pmix.so \
    >/dev/null 2>&1 || echo "SLURM here has no plugin for PMIx"
}

up() {
  local folder=$1 cpus memory
  mkdir -p "$folder"/{state,spool,munge}
  chmod 711 "$folder"
  chmod 755 "$folder/munge"
  cpus=$(nproc)
  memory=$(($(getconf _PHYS_PAGES) / 1024 * $(getconf PAGESIZE) / 1024))
  ((cpus >= 2)) || cpus=2  # two ranks share it
  mungekey --create --force --keyfile "$folder/munge/key"
  munged --force --key-file "$folder/munge/key" --socket "$folder/munge/socket" \
    --pid-file "$folder/munge/pid" --log-file "$folder/munge/log" --seed-file "$folder/munge/seed"
  cat >"$folder/slurm.conf" <<CONF
ClusterName=onnxgrad
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
# A job that is requeued waits until its credential has expired.
AuthInfo=socket=$folder/munge/socket,cred_expire=5
SlurmctldPort=26817
SlurmdPort=26818
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
JobRequeue=1
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
  printf "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n" >"$folder/cgroup.conf"
  SLURM_CONF=$folder/slurm.conf slurmctld -c -f "$folder/slurm.conf"
  SLURM_CONF=$folder/slurm.conf slurmd -c -f "$folder/slurm.conf"
  local state=""
  for ((i = 0; i < 100; ++i)); do
    state=$(SLURM_CONF=$folder/slurm.conf sinfo -h -o %T 2>&1 || true)
    [[ $state != idle ]] || return 0
    sleep 0.2
  done
  echo "SLURM did not start: $state" >&2
  tail -n 20 "$folder"/slurm*.log "$folder"/munge/log >&2
  return 1
}

down() {
  local folder=$1 pid
  SLURM_CONF=$folder/slurm.conf scancel --user root 2>/dev/null || true
  for pid in "$folder"/slurmd.pid "$folder"/slurmctld.pid "$folder"/munge/pid; do
    [[ ! -s $pid ]] || kill "$(cat "$pid")" 2>/dev/null || true
  done
}

case ${1:-} in
  why-not) why_not ;;
  up | down) command=$1; shift; "$command" "$@" ;;
  *) sed -n '2,7p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
