#!/bin/sh
# usage: scripts/gpu_code.sh REVISION REVISION: whether the kernels of two revisions (or of the
# working tree: ".") are the same machine code. Then what a GPU showed of one holds of the other, as far
# as kernels go. Prints a line a file of kernels; exit 1 where one differs. Needs nvcc, no GPU.
set -eu
cd "$(dirname "$0")/.."
if [ $# -ne 2 ]; then
    sed -n 2,4p "$0" | cut -c 3- >&2
    exit 2
fi
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
flags=$(sed -n 's/^set(CORUN_NVCC_FLAGS \(.*\))$/\1/p' cmake/*.cmake)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
n=0
for revision in "$@"; do
    n=$((n + 1))
    mkdir -p "$folder/$n"
    if [ "$revision" = . ]; then
        cp -r src include "$folder/$n"
    else
        git archive "$revision" src include | tar x -C "$folder/$n"
    fi
    for kernels in "$folder/$n"/src/ops/cuda/*.cu; do
        # Without -lineinfo: lines are no machine code.
        (cd "$folder/$n" && "$nvcc" -cubin -std=c++17 -O3 -arch=sm_90a $flags -Iinclude -Isrc \
            -o "$(basename "$kernels" .cu).cubin" "src/ops/cuda/$(basename "$kernels")")
    done
done
same=0
for code in "$folder"/1/*.cubin "$folder"/2/*.cubin; do
    name=$(basename "$code" .cubin)
    if [ "${code#"$folder"/2/}" != "$code" ]; then
        [ -e "$folder/1/$name.cubin" ] && continue # said already
        echo "$name: in $2 alone"
        same=1
    elif [ ! -e "$folder/2/$name.cubin" ]; then
        echo "$name: in $1 alone"
        same=1
    elif cmp -s "$code" "$folder/2/$name.cubin"; then
        echo "$name: the same, sha256 $(sha256sum <"$code" | cut -c 1-32)"
    else
        echo "$name: differs"
        same=1
    fi
done
exit $same
