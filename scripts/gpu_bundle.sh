#!/bin/sh
# usage: scripts/gpu_bundle.sh [FOLDER]: the program and the tests of the CUDA backend for a machine
# that has a driver and the CUDA 13 libraries, and a checkout of this repository, and nothing else.
set -eu
cd "$(dirname "$0")/.."
out=${1:-build/bundle}
tests="test_cuda_ops test_cuda_draw test_cuda_matmul test_cuda_attention test_cuda_engine test_ops_accuracy test_golden test_golden_smollm2 test_products"
# shellcheck disable=SC2086
tools/build gpu-bundle corun $tests
tools/build gpu-break corun
rm -rf "$out"
mkdir -p "$out/lib"
cp build/gpu-bundle/corun "$out"
cp build/gpu-break/corun "$out/corun_break" # with planted faults
for t in $tests; do cp "build/gpu-bundle/tests/$t" "$out"; done
strip "$out"/corun "$out"/corun_break "$out"/test_*
cp -L "$(ldconfig -p | sed -n 's/.*libcmocka\.so\.0 .*=> //p' | head -1)" "$out/lib/libcmocka.so.0"
build/gpu-bundle/corun --version >"$out/version"
echo "$out: $(du -sh "$out" | cut -f1)"
