#!/usr/bin/env bash
# Measures rl4dialog on the GPU of this machine in at most eight minutes, and leaves one JSON in docs/performance/.
# PYTHON names an interpreter with rl4dialog's dependencies; with TRL, that is measured, too. An argument names the JSON.
# Replies from CUDA graphs are compared with those of the loop before they are measured, and what only a GPU can show is
# tested. The exit code is 1 if anything is not as it should be, such as a policy that did not sample with graphs.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
no_gpu="benchmarks/gpu.sh measures on a CUDA device, and PyTorch finds none on this machine"
device=$($python -c "import torch; print(torch.cuda.is_available() and torch.cuda.get_device_name().replace(' ', '_'))")
[ "$device" != False ] || { echo "$no_gpu" >&2; exit 2; }
output=${1:-docs/performance/$(date +%Y-%m-%d)-$device.json}
mkdir -p "$(dirname "$output")"
$python -m benchmarks.gpu --tests --seconds 450 --config task_configs/guess_what/llama_ppo.yml --output "$output"
