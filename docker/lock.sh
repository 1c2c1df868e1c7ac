#!/usr/bin/env bash
# Write docker/requirements.lock and docker/requirements-cuda.lock: every dependency of an image, with hashes.
# Versions are those of constraints.txt; what it does not name is resolved to the newest.
# TORCH_WHEELS: page or folder with the CPU builds of PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH_WHEELS=${TORCH_WHEELS:-https://download.pytorch.org/whl/cpu/torch/}
TORCH=$(grep '^torch==' constraints.txt)
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
"$tools/venv/bin/pip" install --quiet uv==0.13.9

echo setuptools >"$tools/build.txt" # what is published as source only is built with it
echo "$TORCH+cpu" >"$tools/cpu.txt"

# lock FILE [OPTION...]
lock() {
    local output=$1
    shift
    "$tools/venv/bin/uv" pip compile setup.py "$tools/build.txt" --quiet --constraints constraints.txt \
        --extra tensorboard --extra wandb --extra lora --extra test "$@" \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --generate-hashes --no-annotate --no-emit-find-links --no-emit-index-url \
        --custom-compile-command "bash docker/lock.sh" --upgrade --output-file "$output"
    echo "$output: $(grep -c == "$output") packages"
}

lock docker/requirements.lock --find-links "$TORCH_WHEELS" --overrides "$tools/cpu.txt"
lock docker/requirements-cuda.lock --extra 8bit
