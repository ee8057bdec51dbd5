#!/usr/bin/env bash
# A training in a batch job of SLURM that gets SIGUSR1 in its middle: it ends with a checkpoint and exit
# code 75, the job is requeued and continues; the weights must be those of a job that was not stopped.
#
# usage: requeue.sh FOLDER COMMAND...    the command of `onnxgrad train`, which writes FOLDER/out.onnx
set -euo pipefail

folder=$1
shift
epochs=(--epochs 400 --optimizer adam --lr 0.001)

srun -n 2 --mpi=pmix "$@" "${epochs[@]}" </dev/null
mv "$folder/out.onnx" "$folder/unbroken.onnx"

cat >"$folder/job.sh" <<JOB
#!/usr/bin/env bash
#SBATCH --ntasks=2 --requeue --open-mode=append --output=$folder/job.log
srun --mpi=pmix $(printf '%q ' "$@" "${epochs[@]}") --run-dir $folder/run --checkpoint-every 100 --resume auto
status=\$?
echo "start \${SLURM_RESTART_COUNT:-0} ended with \$status"
[[ \$status != 75 ]] || scontrol requeue "\$SLURM_JOB_ID"
exit \$status
JOB
job=$(sbatch --parsable "$folder/job.sh")
wait_for() {  # what, command...
  local what=$1
  shift
  for ((i = 0; i < 600; ++i)); do
    ! "$@" >/dev/null 2>&1 || return 0
    sleep 0.1
  done
  echo "no $what" >&2
  cat "$folder/job.log" >&2
  exit 1
}
has_checkpoint() { compgen -G "$folder/run/checkpoints/ck-*"; }
is_requeued() { grep -q "start 0 ended with 75" "$folder/job.log"; }
is_done() { grep -qE "start [1-9][0-9]* ended with 0" "$folder/job.log"; }
wait_for "checkpoint" has_checkpoint
scancel --signal=USR1 "$job.0"
wait_for "exit with 75" is_requeued
wait_for "end after the restart" is_done
cmp "$folder/out.onnx" "$folder/unbroken.onnx"
echo "weights as without the stop"
