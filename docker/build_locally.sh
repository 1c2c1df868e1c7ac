#!/usr/bin/env bash
# Build the image twice and run it without a network, where there is no Docker: with buildah over a base of debootstrap.
#
#   sudo bash docker/build_locally.sh           two builds, a run of each
#   sudo BUILDS=1 bash docker/build_locally.sh  one build, run twice
#
# Ends with an error unless both runs leave bitwise the same weights. Needs root, and Debian's packages buildah, crun,
# debootstrap and iproute2. The base image has Debian's Python in place of the official one; pip's configuration of this
# machine is used for the builds, and stays out of the image. WORK is removed at the end unless KEEP=1.
set -euo pipefail
cd "$(dirname "$0")/.."

WORK=${WORK:-/var/tmp/rl4dialog-image}
BUILDS=${BUILDS:-2}
TESTS=${TESTS:-tests/unit/functional tests/unit/scores}
BASE=localhost/debian-python
WEIGHTS=rl4dialog_exps/small_talk/model/model.safetensors
STORAGE=(--root "$WORK/storage" --runroot "$WORK/run" --storage-driver vfs)

say() { printf '\n== %s\n' "$*"; }

check_machine() {
    local program
    for program in buildah debootstrap ip unshare; do
        if ! command -v "$program" >/dev/null; then
            echo "error: no $program; on Debian: apt-get install buildah crun debootstrap iproute2" >&2
            exit 1
        fi
    done
    [ "$(id -u)" = 0 ] || { echo "error: debootstrap and chroot isolation need root" >&2; exit 1; }
    mkdir -p "$WORK"
}

# A minimal Debian with Python, and apt's settings of this machine (mirrors may be old, or need a proxy).
make_base() {
    if buildah "${STORAGE[@]}" inspect --type image "$BASE" >/dev/null 2>&1; then return; fi
    say "base image, by debootstrap"
    if [ ! -f "$WORK/base/.complete" ]; then
        rm -rf "$WORK/base"
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$WORK/base" >"$WORK/debootstrap.log"
        apt-config dump | grep -E '^Acquire::(Check|http|https)' >"$WORK/base/etc/apt/apt.conf.d/90build" || true
        rm -rf "$WORK"/base/dev/* "$WORK"/base/var/cache/apt/* "$WORK"/base/var/lib/apt/lists/*
        touch "$WORK/base/.complete"
    fi
    local container
    container=$(buildah "${STORAGE[@]}" from scratch)
    buildah "${STORAGE[@]}" copy --quiet "$container" "$WORK/base" /
    buildah "${STORAGE[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    buildah "${STORAGE[@]}" commit --quiet --rm "$container" "$BASE"
}

# pip's settings as one file, and a --volume for every local file or folder that they name.
read_pip_settings() {
    python3 -m pip config list | sed -nE "s/^(global|install|:env:)\.([a-z-]+)='(.*)'$/\2 = \3/p" | sort -u -t= -k1,1 \
        | { echo '[global]'; cat; } >"$WORK/pip.conf"
    VOLUMES=()
    local path
    for path in $(sed -nE 's/^[a-z-]+ = //p' "$WORK/pip.conf" | tr ' ' '\n' | sed -E 's#^file://##' | grep '^/' | sed 's#/simple$##'); do
        [ -e "$path" ] && VOLUMES+=(--volume "$path:$path:ro")
    done
    # A folder of wheels stands in for PyTorch's page, if pip has one.
    WHEELS=$(sed -n 's/^find-links = //p' "$WORK/pip.conf")
}

# build TAG
build() {
    say "build $1"
    local wheels=()
    [ -z "$WHEELS" ] || wheels=(--build-arg "TORCH_WHEELS=$WHEELS")
    buildah "${STORAGE[@]}" bud --isolation chroot --format docker --no-cache --pull-never --quiet \
        --build-arg BASE_IMAGE="$BASE" "${wheels[@]}" "${VOLUMES[@]}" \
        --secret "id=pip_conf,src=$WORK/pip.conf" --tag "$1" .
    buildah "${STORAGE[@]}" images --format '{{.Name}}:{{.Tag}} {{.Size}}' "$1"
}

# run TAG FOLDER ARGUMENT...: what `docker run --network none -v FOLDER:/runs TAG ARGUMENT...` does.
run() {
    local tag=$1 folder=$2 container status=0
    local -a entrypoint
    shift 2
    container=$(buildah "${STORAGE[@]}" from --pull-never "$tag")
    # Printed as [python /app/...]; buildah itself does not start it.
    read -ra entrypoint <<<"$(buildah "${STORAGE[@]}" inspect --format "{{.OCIv1.Config.Entrypoint}}" "$container" | tr -d "[]")"
    # Chroot isolation shares the network of its caller, so the caller has none but its own address, as with Docker.
    unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
        buildah "${STORAGE[@]}" run --isolation chroot --volume "$folder:/runs" "$container" -- \
        "${entrypoint[@]}" "$@" || status=$?
    buildah "${STORAGE[@]}" rm "$container" >/dev/null
    return "$status"
}

# train TAG OWNER FOLDER: a short run of the config that the README begins with, into a folder of that user.
train() {
    local folder=$3
    say "train in $1, results in a folder of user $2"
    install -d -o "$2" "$folder"
    run "$1" "$folder" train --config_path task_configs/small_talk/gpt2_ppo.yml --experiment_name small_talk \
        --set train_evaluation.n_iters=2 --set train_evaluation.max_eval_samples=50 --set 'logging.outputs=[tensorboard]'
    echo "results belong to user $(stat -c %u "$folder/$WEIGHTS")"
    sha256sum "$folder/$WEIGHTS"
}

main() {
    check_machine
    if command -v hadolint >/dev/null; then
        hadolint Dockerfile docker/Dockerfile.cuda
        say "hadolint: clean"
    fi
    make_base
    read_pip_settings
    rm -rf "$WORK/runs"
    build rl4dialog:1
    train rl4dialog:1 0 "$WORK/runs/1"
    [ "$BUILDS" -lt 2 ] || build rl4dialog:2
    train "rl4dialog:$BUILDS" 4321 "$WORK/runs/2"
    cmp "$WORK/runs/1/$WEIGHTS" "$WORK/runs/2/$WEIGHTS"
    say "two runs: the same weights, bit by bit"
    say "tests in the image"
    # shellcheck disable=SC2086 # a list of files
    run rl4dialog:1 "$WORK/runs/1" test $TESTS --numprocesses 0 --quiet
    [ -n "${KEEP:-}" ] || rm -rf "$WORK"
}

main
