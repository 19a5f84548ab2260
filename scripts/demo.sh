#!/bin/sh
# The promise, shown: examples/demo.jsonl is run three times with --policy corun. The second time its
# lines are shuffled, arrive at another rate, and the KV pool is so small that requests are swapped
# out. The third time the run is killed (kill -9) once its journal holds KILL rows, and the same
# command is given again. Then the rows are sorted by custom_id and compared byte by byte: a row counts
# when it is the same in all three. The last line is "identical: 64/64", or fewer and exit code 1.
# With BREAK=1 the program under test is build/break/corun, whose kernels sum in an order that depends
# on the neighbours: it must not reach 64. Its rows go to demo-out-break: they name the identity of the
# right program.
set -eu
cd "$(dirname "$0")/.."
corun=build/corun
out=demo-out
if [ -n "${BREAK:-}" ]; then
    corun=build/break/corun
    out=demo-out-break
fi
model=${MODEL:-.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf}
lines=examples/demo.jsonl

[ -f "$model" ] || python3 tools/fetch demo || {
    echo "demo: the demo model could not be fetched" >&2
    exit 4
}
rm -rf "$out"
mkdir -p "$out"
shuf --random-source="$lines" "$lines" >"$out/shuffled.jsonl"

echo "First run: the lines in order, all submitted at once, room for every request."
"$corun" batch -m "$model" --policy corun --page 16 -i "$lines" -o "$out/first.jsonl" \
    --metrics "$out/first.metrics.json" --strict
echo "Second run: shuffled, 0 to 8 lines before each step, a pool of ${POOL:=16M}."
"$corun" batch -m "$model" --policy corun --page 16 -i "$out/shuffled.jsonl" -o "$out/second.jsonl" \
    --metrics "$out/second.metrics.json" --strict --arrival seed:7 --kv "$POOL" --swap 256M

set -- batch -m "$model" --policy corun --page 16 -i "$lines" -o "$out/third.jsonl" \
    --metrics "$out/third.metrics.json" --strict
rows() { grep -ao CoRJ "$out/third.jsonl.corun-journal" 2>/dev/null | tail -n +2 | wc -l; }
echo "Third run: as the first, killed once its journal holds ${KILL:=24} rows, and started again."
"$corun" "$@" -q &
pid=$!
polls=0
while [ "$(rows)" -lt "$KILL" ] && [ ! -e "$out/third.jsonl" ] && [ $polls -lt 3000 ]; do
    sleep 0.05
    polls=$((polls + 1))
done
kill -9 $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
echo "killed with $(rows) rows in the journal"
"$corun" "$@"

# The eighth field between quotes is the custom_id: {"id":"...","custom_id":"...",
for run in first second third; do
    LC_ALL=C sort -t '"' -k 8,8 "$out/$run.jsonl" >"$out/$run.sorted.jsonl"
done

echo
python3 - "$out" "$KILL" <<'PY'
import json, sys
out = sys.argv[1]
rows = {r["custom_id"]: r for r in map(json.loads, open(f"{out}/first.jsonl"))}
asked = {r["custom_id"]: r["body"] for r in map(json.loads, open("examples/demo.jsonl"))}
for cid in ("demo-01", "demo-02", "demo-07", "demo-04"):
    question = asked[cid]["messages"][-1]["content"]
    answer = rows[cid]["response"]["body"]["choices"][0]["message"]["content"]
    print(f"{cid}  {question}\n    " + answer.strip().replace("\n", "\n    ") + "\n")
for run in ("first", "second", "third"):
    m = json.load(open(f"{out}/{run}.metrics.json"))
    kept = f"{m['rows_restored']} rows from the journal, " if m["rows_restored"] else ""
    print(f"{run} run: {kept}{m['tokens_new']} new tokens, {m['new_tokens_per_second']:.0f} tokens/s, "
          f"swapped out {m['swaps_out']}, in {m['swaps_in']}, live rows seen: "
          + " ".join(map(str, m["live_rows_seen"])))
m = json.load(open(f"{out}/second.metrics.json"))
m3 = json.load(open(f"{out}/third.metrics.json"))
if len(m["live_rows_seen"]) < 3 or m["swaps_out"] < 1:
    sys.exit("demo: the second run saw too little: at least 3 live-row counts and 1 swap are asked for")
if m3["rows_restored"] < int(sys.argv[2]):
    sys.exit("demo: the third run did not go on from its journal")
PY

total=$(wc -l <"$out/first.sorted.jsonl")
same=$(awk 'FNR == 1 { file++ }
    file == 1 { row[FNR] = $0; next }
    row[FNR] == $0 { equal[FNR]++ }
    END { for (i in equal) n += equal[i] == 2; print n + 0 }' \
    "$out/first.sorted.jsonl" "$out/second.sorted.jsonl" "$out/third.sorted.jsonl")
echo "five rows again, each alone:
    $corun replay $out/first.jsonl -m $model -i $lines --policy corun --page 16 -n 5
"
echo "identical: $same/$total"
[ "$same" -eq 64 ] && [ "$total" -eq 64 ] &&
    cmp -s "$out/first.sorted.jsonl" "$out/second.sorted.jsonl" &&
    cmp -s "$out/first.jsonl" "$out/third.jsonl"
