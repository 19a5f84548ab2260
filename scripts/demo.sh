#!/bin/sh
# The promise, shown: examples/demo.jsonl is run twice with --policy corun, the second time with its
# lines shuffled, at another arrival rate and with a KV pool so small that requests are swapped out.
# Then the rows are sorted by custom_id and compared byte by byte. The last line is
# "identical: 64/64", or fewer and exit code 1. With BREAK=1 the program under test is build/break,
# whose kernels sum in an order that depends on the neighbours: it must not reach 64.
set -eu
cd "$(dirname "$0")/.."
corun=build/corun
[ -z "${BREAK:-}" ] || corun=build/break/corun
model=${MODEL:-.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf}
out=demo-out
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

# The eighth field between quotes is the custom_id: {"id":"...","custom_id":"...",
for run in first second; do
    LC_ALL=C sort -t '"' -k 8,8 "$out/$run.jsonl" >"$out/$run.sorted.jsonl"
done

echo
python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
rows = {r["custom_id"]: r for r in map(json.loads, open(f"{out}/first.jsonl"))}
asked = {r["custom_id"]: r["body"] for r in map(json.loads, open("examples/demo.jsonl"))}
for cid in ("demo-01", "demo-02", "demo-07", "demo-04"):
    question = asked[cid]["messages"][-1]["content"]
    answer = rows[cid]["response"]["body"]["choices"][0]["message"]["content"]
    print(f"{cid}  {question}\n    " + answer.strip().replace("\n", "\n    ") + "\n")
for run in ("first", "second"):
    m = json.load(open(f"{out}/{run}.metrics.json"))
    print(f"{run} run: {m['tokens_new']} new tokens, {m['new_tokens_per_second']:.0f} tokens/s, "
          f"swapped out {m['swaps_out']}, in {m['swaps_in']}, live rows seen: "
          + " ".join(map(str, m["live_rows_seen"])))
m = json.load(open(f"{out}/second.metrics.json"))
if len(m["live_rows_seen"]) < 3 or m["swaps_out"] < 1:
    sys.exit("demo: the second run saw too little: at least 3 live-row counts and 1 swap are asked for")
PY

total=$(wc -l <"$out/first.sorted.jsonl")
if cmp -s "$out/first.sorted.jsonl" "$out/second.sorted.jsonl"; then
    same=$total
else
    same=$(awk 'NR == FNR { row[NR] = $0; next } row[FNR] == $0 { n++ } END { print n + 0 }' \
        "$out/first.sorted.jsonl" "$out/second.sorted.jsonl")
fi
echo "identical: $same/$total"
[ "$same" -eq 64 ] && [ "$total" -eq 64 ]
