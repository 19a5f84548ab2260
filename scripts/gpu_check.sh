#!/bin/bash
# usage: scripts/gpu_check.sh [FOLDER [OUT]]: runs every check of the CUDA backend with the programs
# of FOLDER (scripts/gpu_bundle.sh made it) and writes OUT/gpu_check.txt (all output) and
# OUT/gpu_check.json (each command, its exit status, its time, its numeric identity; device and
# revision). Run it from the root of a checkout. ONLY='name ...' picks checks, LIMIT is of each in
# seconds. Exit status 1 when one fails. What takes a large model: scripts/gpu_promise.sh.
set -u
# shellcheck source=scripts/gpu_run.sh
. "$(dirname "$0")/gpu_run.sh"
gpu_begin "${1:-build/bundle}" "${2:-docs/evidence/gpu}" gpu_check 100000
limit=${LIMIT:-900}
tiny=tests/data/golden

gpu_check ops "$limit" "$folder/test_cuda_ops"
gpu_check sampling "$limit" "$folder/test_cuda_draw"
gpu_check products "$limit" "$folder/test_cuda_matmul"
gpu_check attention "$limit" "$folder/test_cuda_attention"
gpu_check definition "$limit" "$folder/test_products" "test_cuda*"
gpu_check accuracy "$limit" "$folder/test_ops_accuracy"
gpu_check goldens "$limit" "$folder/test_golden" "cuda *"
[ -e .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf ] &&
    gpu_check smollm2 "$limit" "$folder/test_golden_smollm2" test_cuda
gpu_check engine "$limit" "$folder/test_cuda_engine"
gpu_check audit "$limit" "$folder/corun" audit -m $tiny/qwen3_tied --device cuda
gpu_check verify "$limit" "$folder/corun" verify -m $tiny/llama_plain --device cuda --quick
if command -v compute-sanitizer >/dev/null; then gpu_sanitize gpu_check "$limit"; fi
gpu_end
