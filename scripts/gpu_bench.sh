#!/bin/bash
# usage: scripts/gpu_bench.sh [FOLDER [OUT [LABEL]]]: times the CUDA backend with the program of
# FOLDER (scripts/gpu_bundle.sh made it) on this machine's GPU: the figures of docs/performance.md.
# OUT/LABEL.jsonl: each command and its figures, one JSON object a line. OUT/LABEL.csv: clock, power,
# load, heat and memory of the card every 200 ms. OUT/LABEL.txt: what the programs had to say.
# ONLY='steps short long spread ...' picks runs, MODEL is a name of tools/model_config, ARGS go to
# every run. Exit status 1 when a run fails or takes too long: what it had printed stays.
set -u
cd "$(dirname "$0")/.." || exit 2
folder=$(realpath "${1:-build/bundle}")
out=${2:-docs/evidence/gpu/bench}
model=${MODEL:-qwen3-8b}
label=${3:-$model}
export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p "$out"
lines=$out/$label.jsonl
work=$(mktemp -d)
smi=
trap '[ -z "$smi" ] || kill "$smi" 2>/dev/null; rm -rf "$work"' EXIT
failed=0
mkdir "$work/$model"
tools/model_config "$model" >"$work/$model/config.json" || exit 2
: >"$lines"
: >"$out/$label.txt"
device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
if [ -n "$device" ]; then
    # A line at a time: what waits in a buffer is lost when it is ended.
    TZ=UTC stdbuf -oL nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,utilization.gpu,temperature.gpu,memory.used \
        --format=csv,noheader,nounits -lms 200 >"$out/$label.csv" 2>/dev/null &
    smi=$!
fi

run() { # NAME LIMIT ARGUMENTS...
    local name=$1 limit=$2 start rc seconds
    shift 2
    if [ -n "${ONLY:-}" ] && [[ " $ONLY " != *" $name "* ]]; then return; fi
    # shellcheck disable=SC2206
    local args=("$@" ${ARGS:-})
    printf '{"run": "%s", "model": "%s", "device": "%s", "command": "corun bench -m %s/config.json --dummy-weights --json %s"}\n' \
        "$name" "$model" "$device" "$model" "${args[*]}" >>"$lines"
    echo "== $name: ${args[*]}" >>"$out/$label.txt"
    start=$(date +%s.%N)
    (cd "$work" && timeout "$limit" "$folder/corun" bench -m "$model/config.json" --dummy-weights --json "${args[@]}") \
        >>"$lines" 2>>"$out/$label.txt" </dev/null
    rc=$?
    seconds=$(awk "BEGIN{printf \"%.1f\", $(date +%s.%N) - $start}")
    [ $rc -eq 0 ] || failed=1
    printf '{"end": "%s", "exit": %d, "seconds": %s, "limit": %d}\n' "$name" $rc "$seconds" "$limit" >>"$lines"
    printf '%-8s %s  %6.1f s\n' "$name" "$([ $rc -eq 0 ] && echo ok || echo "FAILED ($rc)")" "$seconds"
}

run steps 125 --device "${DEVICE:-cuda}" --steps 256x1536,256x1090,32x1090,1x1024 --prompts 256x1024,1x8192,1x32768
run short 60 --device "${DEVICE:-cuda}" --jobs 256x128/1024 --policy free,dynamic
run long 95 --device "${DEVICE:-cuda}" --jobs 256x1024/1024 --policy free,corun
run spread 200 --device "${DEVICE:-cuda}" --jobs 256x64-4096 --policy free,corun,invariant
[ -z "$smi" ] || kill "$smi" 2>/dev/null
smi=
tools/gpu_table --show "$lines" || failed=1
exit $failed
