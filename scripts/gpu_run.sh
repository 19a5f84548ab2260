# scripts/gpu_run.sh: sourced by the scripts that check a GPU. Runs commands under a time limit and
# keeps each one's output, exit status, seconds and numeric identity.
#   gpu_begin FOLDER OUT NAME SECONDS   the programs' folder; OUT/NAME.txt and .json; time for all
#   gpu_check NAME LIMIT COMMAND...     runs one, for at most LIMIT seconds
#   gpu_also NAME LIMIT COMMAND...      the same beside what comes next, until gpu_wait
#   gpu_sanitize RUN LIMIT              RUN, one of these two, for each tool of compute-sanitizer
#   gpu_end                             writes both files; exit status 1 when one has failed
# ONLY='name ...' picks checks. Nothing starts when the time is over: its exit status is 124 then. A
# test program that skips a case, or runs none, proves nothing here: 77 (but goldens: some have no
# kernels there).
# shellcheck shell=bash

gpu_begin() {
    folder=$1 out=$2 part=$3 gpu_until=$((SECONDS + $4)) gpu_n=0 gpu_jobs=()
    export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export XDG_CACHE_HOME=${XDG_CACHE_HOME:-/tmp/corun-gpu-cache} # kept audits: not the user's
    mkdir -p "$out"
    gpu_tmp=$(mktemp -d)
}

gpu_wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }

gpu_one() { # NUMBER NAME LIMIT COMMAND...
    local at=$gpu_tmp/$1 name=$2 limit=$3 left=$((gpu_until - SECONDS)) start end rc=124 seconds
    shift 3
    [ "$limit" -le "$left" ] || limit=$left
    start=$(date +%s.%N)
    if [ "$limit" -gt 0 ]; then
        timeout -k 5 "$limit" "$@" >"$at.text" 2>&1 </dev/null
        rc=$?
        [ $rc -ne 0 ] || [ "$name" = goldens ] || ! grep -q '^\[  SKIPPED \]' "$at.text" || rc=77
        ! grep -q 'Running 0 test' "$at.text" || rc=77
    else
        echo "not run: the time of this part was over" >"$at.text"
    fi
    end=$(date +%s.%N)
    seconds=$(awk "BEGIN{printf \"%.1f\", $end - $start}")
    printf '%-22s %s  %6.1f s\n' "$name" "$([ $rc -eq 0 ] && echo ok || echo "FAILED ($rc)")" "$seconds"
    printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$*" $rc "$seconds" \
        "$(grep -aom1 'identity [0-9a-f]\{32\}' "$at.text" | cut -c10-)" >"$at.row"
}

gpu_check() {
    gpu_wanted "$1" || return 0
    gpu_n=$((gpu_n + 1))
    gpu_one "$(printf %03d $gpu_n)" "$@"
}

gpu_also() {
    gpu_wanted "$1" || return 0
    gpu_n=$((gpu_n + 1))
    gpu_one "$(printf %03d $gpu_n)" "$@" &
    gpu_jobs+=($!)
}

gpu_wait() {
    [ ${#gpu_jobs[@]} -eq 0 ] || wait "${gpu_jobs[@]}"
    gpu_jobs=()
}

# Short forms. A test asks for more memory than there is, so failing calls are no finding. racecheck
# follows every access to shared memory: only tests that are small and run no kernel of a library.
gpu_sanitize() {
    local tool t
    for tool in memcheck initcheck; do
        for t in attention matmul ops draw; do
            gpu_sanitized "$1" "$2" $tool $t
        done
    done
    for t in "attention test_few" "attention test_planted_fault" draw "ops test_norm" "ops test_silu" \
        "ops test_qkv_post" "ops test_pages" "ops test_between_rows"; do
        # shellcheck disable=SC2086
        gpu_sanitized "$1" "$2" racecheck $t
    done
}

gpu_sanitized() { # RUN LIMIT TOOL PROGRAM [TEST]
    "$1" "$3-$4${5:+-$5}" "$2" env CORUN_TEST_SHORT=1 compute-sanitizer --tool "$3" \
        --report-api-errors no --error-exitcode 9 "$folder/test_cuda_$4" ${5:+"$5"}
}

gpu_end() {
    local row device version
    gpu_wait
    : >"$out/$part.txt"
    for row in "$gpu_tmp"/*.row; do
        [ -e "$row" ] || continue
        awk -F'\t' '{print "== " $1 ": " $2}' "$row"
        cat "${row%.row}.text"
        awk -F'\t' '{print "== " $1 ": exit " $3 ", " $4 " s"}' "$row"
    done >>"$out/$part.txt"
    device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
    version=$(cat "$folder/version" 2>/dev/null)
    cat "$gpu_tmp"/*.row 2>/dev/null | awk -F'\t' -v device="$device" -v version="$version" '
        function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
        BEGIN { printf "{\"device\": %s, \"version\": %s, \"checks\": [", quoted(device), quoted(version) }
        { printf "%s\n  {\"name\": %s, \"command\": %s, \"exit\": %d, \"seconds\": %s, \"identity\": %s}",
            (NR > 1 ? "," : ""), quoted($1), quoted($2), $3, $4, ($5 ? quoted($5) : "null") }
        END { print "\n]}" }' >"$out/$part.json"
    ! awk -F'\t' '$3 != 0 {found = 1} END {exit !found}' "$gpu_tmp"/*.row 2>/dev/null
    row=$?
    rm -rf "$gpu_tmp"
    return $row
}
