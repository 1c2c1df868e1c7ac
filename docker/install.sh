#!/bin/sh
# Make /opt/venv with exactly the packages of a lock: install.sh LOCK [OPTION OF PIP...]
set -eu
lock=$1
shift

if [ -s /run/secrets/pip.conf ]; then
    export PIP_CONFIG_FILE=/run/secrets/pip.conf
fi
python3 -m venv /opt/venv
# What is published as source only is built with the lock's setuptools, not with whatever is newest.
sed -n '/^setuptools==/,/[^\\]$/p' "$lock" >/tmp/setuptools.lock
pip install --require-hashes --requirement /tmp/setuptools.lock
# The lock is whole, so that nothing is left to resolve. Bytecode is written by compile.sh, for what a run imports.
pip install --require-hashes --no-deps --no-build-isolation --no-compile --requirement "$lock" "$@"
pip check

# Never used: the packages' own tests, headers for compiling against them, symbols for debuggers, and the protocol Flight.
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for folder in torch/include torch/test pyarrow/include pyarrow/src pyarrow/tests; do
    rm -rf "${packages:?}/$folder"
done
strip --strip-unneeded "$packages/torch/lib/libtorch_cpu.so" "$packages/torch/lib/libtorch_python.so"
rm -f "$packages"/pyarrow/*flight*.so*
find "$packages/torch/bin" -type f ! -name torch_shm_manager -delete
for package in matplotlib mpmath mpl_toolkits networkx numpy pandas scipy sympy; do
    find "$packages/$package" -name tests -type d -prune -exec rm -rf {} +
done
rm -f /tmp/setuptools.lock
