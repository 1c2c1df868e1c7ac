#!/usr/bin/env bash
# Measures rl4dialog on the GPU of this machine in at most eight minutes, and leaves a JSON in docs/performance/.
# PYTHON names an interpreter with rl4dialog's dependencies; with TRL, that is measured, too. An argument names the JSON.
# First, whether replies from CUDA graphs are those of the loop, and what only a GPU can show, is checked.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
device=$($python -c "import torch; print(torch.cuda.get_device_name().replace(' ', '_'))")
output=${1:-docs/performance/$(date +%Y-%m-%d)-$device.json}
mkdir -p "$(dirname "$output")"
# What is missing is found before anything is measured, and a failed test spoils no measurement.
$python -c "import benchmarks.gpu"
timeout 90 $python -m pytest -q -x tests/invariants/test_gpu.py | tail -20 || echo "these tests failed, or there is no pytest"
$python -m benchmarks.gpu --seconds 350 --config task_configs/guess_what/llama_ppo.yml --output "$output"
