#!/usr/bin/env bash
# Trains a scikit-learn pipeline on real data through the command line and shows the result; called
# by `make demo`. Writes to runs/digits, or the folder given as argument; a second argument is the
# number of seeds.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$root/runs/digits}
seeds=${2:-5}
bin=$root/.venv/bin
export PATH=$bin:$PATH

rm -rf "$folder"
echo "demo: exporting a scikit-learn pipeline to $folder/pipeline.onnx"
python "$root/examples/digits/make_model.py" "$folder"
cd "$folder"

options=(--data train.csv --target digit --validation held_out.csv --init auto --epochs 30
  --batch-size 32 --optimizer adam --lr 0.001)
echo "demo: onnxgrad train pipeline.onnx ${options[*]} --seed 0 -o trained.onnx"
onnxgrad train pipeline.onnx "${options[@]}" --seed 0 -o trained.onnx --history history.csv
cp trained.onnx trained_0.onnx

echo "demo: the same for the seeds 1 to $((seeds - 1)), and with learning rate 0"
for ((seed = 0; seed < seeds; seed++)); do
  runs=()
  if [[ $seed != 0 ]]; then
    onnxgrad train pipeline.onnx "${options[@]}" --seed "$seed" -o "trained_$seed.onnx" --quiet >/dev/null &
    runs+=($!)
  fi
  onnxgrad train pipeline.onnx "${options[@]}" --seed "$seed" -o "untrained_$seed.onnx" --quiet \
    --lr 0 --epochs 1 >/dev/null &
  runs+=($!)
  for run in "${runs[@]}"; do wait "$run"; done
done
python "$root/examples/digits/summary.py" "$folder" "$seeds"
