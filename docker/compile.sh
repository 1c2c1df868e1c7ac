#!/bin/sh
# Write the bytecode of rl4dialog, and of what a short run imports. Whoever runs the image cannot write it, and that of
# all packages would add 200 MB, most of which is never imported.
set -eu
python -m compileall -q /app/rl4dialog
export HOME=/tmp/home
rl4dialog train --config_path /app/docs/examples/minimal.yml --base_path_to_store_results /tmp/home \
    --set 'datapool.args={n_train: 100, n_val: 10, n_test: 10}' --set train_evaluation.n_iters=1 \
    --set 'logging.outputs=[tensorboard]'
rm -rf /tmp/home
