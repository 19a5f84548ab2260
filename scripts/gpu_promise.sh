#!/bin/bash
# usage: scripts/gpu_promise.sh OUT PART...: what takes a device and large models, with the programs
# of build/bundle (BUNDLE names another folder; scripts/gpu_bundle.sh makes it). Each part writes
# OUT/PART.txt (all output) and OUT/PART.json (each command, exit status, seconds, numeric identity;
# device and revision). Run it from the root of a checkout. Exit status 1 when a check fails.
#
#   tests     the test programs of the CUDA backend, and every product against its definition
#   verify    corun verify at the dimensions of Qwen3-8B, 256 slots, each policy; its tables as JSON
#   widths    128 requests in steps of up to 128 rows and of 8: `dynamic` must differ, `free` must not
#   long      a prompt of 100,000 tokens at the dimensions of Llama-3.1-8B, cut and found two ways
#   faults    the planted faults of corun verify (tools/check_faults)
#   machines  digests of two fixed runs, to be held against those of another machine
#   beside    two programs on one device at once, in steps of few rows: the bytes of one alone
#   audit     corun audit at the dimensions of Qwen3 0.6B, 8B and 32B
#   sanitize  memcheck, racecheck, initcheck on ops, sampling, attention, products
#   smollm2   the demo model's real weights, where .cache/models has them, and the reference framework
#             on the same GPU (its Python needs torch, transformers and gguf; SITE: a folder of packages)
#
# DEVICE (cuda), CONFIGS (tests/data/configs), SLOTS (256), LENGTH (100000) and CTX (8192) make a
# trial on another machine with other models; SECONDS_EACH is the time of a part.
# The parts are called by their names; words that hold options are split.
# shellcheck disable=SC2317,SC2086
set -u
# shellcheck source=scripts/gpu_run.sh
. "$(dirname "$0")/gpu_run.sh"
[ $# -ge 2 ] || { sed -n '2,20s/^# \{0,1\}//p' "$0" && exit 2; }
out=$1
shift
bundle=${BUNDLE:-build/bundle} device=${DEVICE:-cuda} configs=${CONFIGS:-tests/data/configs}
slots=${SLOTS:-256} ctx=${CTX:-8192} length=${LENGTH:-100000} each=${SECONDS_EACH:-}
corun=$bundle/corun
dummy="--dummy-weights --device $device"
requests="python3 scripts/gpu_requests.py"

begin() { gpu_begin "$bundle" "$out" "$1" "${each:-$2}"; } # PART SECONDS

end_with() { # FOLDER of the part's inputs, which goes
    gpu_end
    local rc=$?
    rm -rf "$1"
    return $rc
}

part_tests() {
    begin tests 260
    gpu_also products 140 "$bundle/test_products" "test_cuda*"
    gpu_also ops 60 "$bundle/test_cuda_ops"
    gpu_also sampling 60 "$bundle/test_cuda_draw"
    gpu_also attention 60 "$bundle/test_cuda_attention"
    gpu_also engine 240 "$bundle/test_cuda_engine"
    gpu_also goldens 60 "$bundle/test_golden" "cuda *"
    gpu_also matmul 120 "$bundle/test_cuda_matmul"
    gpu_end
}

part_verify() {
    local p
    begin verify 400
    for p in free corun invariant; do
        gpu_check $p 130 $corun verify $dummy -m $configs/qwen3_8b --slots $slots --ctx $ctx \
            --requests 8 --policy $p --recipe A,B,E,F,G,I,J,L,O,P,Q,R --json "$out/verify_$p.json"
    done
    gpu_check table 10 python3 scripts/gpu_requests.py table "$out"
    gpu_end
}

part_widths() {
    local in p n
    begin widths 150
    in=$(mktemp -d)
    $requests widths "$in"
    for p in dynamic free; do
        for n in 128 8; do
            gpu_check $p-$n 40 $corun batch $dummy -m $configs/qwen3_8b --ctx 2048 --slots $n --policy $p \
                --restart -q -i $in/in.jsonl -o $in/${p}_$n.jsonl
        done
    done
    gpu_check differ 20 $requests differ "$in"
    end_with "$in"
}

part_long() {
    local in kv=${KV:-16G} long
    begin long 240
    in=$(mktemp -d)
    $requests long "$length" "$in"
    long="$corun batch $dummy -m $configs/llama3.1_8b --ctx $(((length + 127) / 64 * 64)) --kv $kv"
    long="$long --swap 0 --restart -q"
    gpu_check free-one 60 $long -i $in/b.jsonl -o $in/free_one.jsonl --policy free --slots 16 --chunk 8192
    gpu_check free-cut 60 $long -i $in/beside.jsonl -o $in/free_cut.jsonl --policy free --slots 16 --chunk 512
    gpu_check free-warm 60 $long -i $in/ab.jsonl -o $in/free_warm.jsonl --policy free --slots 1 \
        --chunk 8192 --metrics $in/free_warm.json
    gpu_check corun-one 60 $long -i $in/b.jsonl -o $in/corun_one.jsonl --policy corun --slots 16
    gpu_check corun-beside 60 $long -i $in/beside.jsonl -o $in/corun_beside.jsonl --policy corun --slots 16
    gpu_check invariant-one 60 $long -i $in/b.jsonl -o $in/invariant_one.jsonl --policy invariant --slots 16
    gpu_check invariant-warm 60 $long -i $in/ab.jsonl -o $in/invariant_warm.jsonl --policy invariant \
        --slots 1 --metrics $in/invariant_warm.json
    gpu_check same 20 $requests same "$in"
    end_with "$in"
}

part_faults() {
    begin faults 200
    gpu_check faults 195 tools/check_faults --device "$device" --break "$bundle/corun_break" \
        --program "$corun" --jobs "${JOBS:-4}"
    gpu_end
}

part_machines() {
    local in p
    begin machines 90
    in=$(mktemp -d)
    $requests machines "$in"
    for p in free corun; do
        gpu_check $p 40 $corun batch $dummy -m $configs/qwen3_8b --ctx $ctx --slots 64 --policy $p \
            --restart -q -i $in/in.jsonl -o $in/$p.jsonl
    done
    gpu_check digest 10 $requests digest "$in" "$out/machines.digest" docs/evidence/gpu/machines.digest
    end_with "$in"
}

part_beside() {
    local n batch="$corun batch $dummy -m $configs/qwen3_8b --ctx $ctx --slots 16 --policy free --restart -q"
    begin beside 150
    in=$(mktemp -d)
    $requests machines "$in"
    gpu_check alone 40 $batch -i $in/in.jsonl -o $in/alone.jsonl
    for n in one two; do gpu_also $n 100 $batch -i $in/in.jsonl -o $in/$n.jsonl; done
    gpu_wait
    for n in one two; do gpu_check same-$n 10 cmp $in/alone.jsonl $in/$n.jsonl; done
    end_with "$in"
}

part_audit() {
    local m
    begin audit 180
    for m in qwen3_0.6b qwen3_8b qwen3_32b; do
        gpu_check $m 80 $corun audit $dummy -m $configs/$m --slots $slots --ctx $ctx --json "$out/audit_$m.json"
    done
    gpu_end
}

part_sanitize() {
    begin sanitize 240
    gpu_sanitize gpu_also 230
    gpu_end
}

part_smollm2() {
    local model=.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
    begin smollm2 280
    gpu_check present 10 sha256sum $model
    gpu_check golden 60 "$bundle/test_golden_smollm2" test_cuda
    gpu_check framework 140 env ${SITE:+PYTHONPATH=$SITE} python3 tools/golden_smollm2.py --gpu
    gpu_check verify 120 $corun verify --device "$device" -m $model --quick --slots 64
    gpu_end
}

failed=0
for name in "$@"; do
    declare -F "part_$name" >/dev/null || { echo "gpu_promise: no part $name" >&2 && exit 2; }
done
for name in "$@"; do
    echo "== $name"
    "part_$name" || failed=1
done
exit $failed
