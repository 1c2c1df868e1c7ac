#!/usr/bin/env bash
# Measures rl4dialog on the GPU of this machine in at most eight minutes, and leaves a JSON in docs/performance/.
# First, whether replies from CUDA graphs are those of the loop, and what only a GPU can show, is checked.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
output=${1:-docs/performance/$(date +%Y-%m-%d)-$($python -c "import torch; print(torch.cuda.get_device_name().replace(' ', '_'))").json}
mkdir -p "$(dirname "$output")"
$python -m pytest -q tests/invariants/test_gpu.py
$python -m benchmarks.gpu --seconds 400 --config task_configs/guess_what/llama_ppo.yml --output "$output"
