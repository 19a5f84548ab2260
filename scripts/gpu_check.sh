#!/bin/bash
# usage: scripts/gpu_check.sh [FOLDER [OUT]]: runs every check of the CUDA backend with the programs
# of FOLDER (scripts/gpu_bundle.sh made it) and writes OUT/gpu_check.txt (all output) and
# OUT/gpu_check.json (each command, its exit status, its time; device and revision). Run it from the
# root of a checkout. ONLY='name ...' picks checks, LIMIT is of each in seconds. Exit status 1 when one fails.
set -u
folder=${1:-build/bundle}
out=${2:-docs/evidence/gpu}
export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p "$out"
text=$out/gpu_check.txt rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
failed=0
: >"$text"

check() { # NAME COMMAND...
    local name=$1 start end rc
    shift
    if [ -n "${ONLY:-}" ] && [[ " $ONLY " != *" $name "* ]]; then return; fi
    echo "== $name: $*" >>"$text"
    start=$(date +%s.%N)
    timeout "${LIMIT:-900}" "$@" >>"$text" 2>&1 </dev/null
    rc=$?
    end=$(date +%s.%N)
    [ $rc -eq 0 ] || failed=1
    echo "== $name: exit $rc" >>"$text"
    printf '%-12s %s  %6.1f s\n' "$name" "$([ $rc -eq 0 ] && echo ok || echo "FAILED ($rc)")" \
        "$(echo "$end - $start" | bc 2>/dev/null || awk "BEGIN{print $end - $start}")"
    printf '%s\t%s\t%s\t%s\n' "$name" "$*" $rc "$(awk "BEGIN{printf \"%.1f\", $end - $start}")" >>"$rows"
}

tiny=tests/data/golden
check ops "$folder/test_cuda_ops"
check sampling "$folder/test_cuda_draw"
check products "$folder/test_cuda_matmul"
check attention "$folder/test_cuda_attention"
check accuracy "$folder/test_ops_accuracy"
check goldens "$folder/test_golden" "cuda *"
[ -e .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf ] &&
    check smollm2 "$folder/test_golden_smollm2" test_cuda
check engine "$folder/test_cuda_engine"
"$folder/corun" audit --help >/dev/null 2>&1 &&
    check audit "$folder/corun" audit -m $tiny/qwen3_tied --device cuda
"$folder/corun" verify --help >/dev/null 2>&1 &&
    check verify "$folder/corun" verify -m $tiny/llama_plain --device cuda --quick
if command -v compute-sanitizer >/dev/null; then
    # A test asks for more memory than there is, so failing calls are no finding.
    for tool in memcheck racecheck initcheck; do
        for t in ops draw; do
            check $tool-$t env CORUN_TEST_SHORT=1 compute-sanitizer --tool $tool --report-api-errors no \
                --error-exitcode 9 "$folder/test_cuda_$t"
        done
    done
fi

device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
awk -F'\t' -v device="$device" -v version="$(cat "$folder/version" 2>/dev/null)" '
    function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
    BEGIN { printf "{\"device\": %s, \"version\": %s, \"checks\": [", quoted(device), quoted(version) }
    { printf "%s\n  {\"name\": %s, \"command\": %s, \"exit\": %d, \"seconds\": %s}", (NR > 1 ? "," : ""),
        quoted($1), quoted($2), $3, $4 }
    END { print "\n]}" }' "$rows" >"$out/gpu_check.json"
exit $failed
