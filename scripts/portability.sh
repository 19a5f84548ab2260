#!/bin/sh
# One result file whatever the machine: the demo batch with every instruction set of this processor,
# with 1, 2 and 5 threads and with a clang build, and four short requests with the plain C kernels
# and with an aarch64 build under qemu-user. Every file must be the bytes of the first. Exit code 1
# when one is not.
set -eu
cd "$(dirname "$0")/.."
model=${MODEL:-.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf}
out=demo-out/portability
[ -f "$model" ] || python3 tools/fetch demo
tools/build release corun
tools/build clang corun
tools/build aarch64 corun
mkdir -p "$out"
failed=0

batch() { # name, input, program..., then options
    name=$1 input=$2
    shift 2
    "$@" -i "$input" -o "$out/$name.jsonl" -q --strict --policy corun
}

compare() { # name, reference
    if cmp -s "$out/$1.jsonl" "$out/$2.jsonl"; then
        echo "$1: the bytes of $2"
    else
        echo "$1: DIFFERS from $2"
        failed=1
    fi
}

for isa in avx512 avx2; do
    build/corun info "$model" --isa "$isa" >/dev/null 2>&1 || {
        echo "$isa: not on this processor"
        continue
    }
    for threads in 1 2 5; do
        batch "$isa-$threads" examples/demo.jsonl build/corun batch -m "$model" --isa "$isa" \
            --threads "$threads"
        [ -n "${first:-}" ] || first=$isa-$threads
        compare "$isa-$threads" "$first"
    done
done
batch clang examples/demo.jsonl build/clang/corun batch -m "$model"
[ -n "${first:-}" ] || first=clang
compare clang "$first"

# Short requests for the slow ways: four of a few tokens each.
python3 - "$out/short.in.jsonl" <<'PY'
import json, sys
with open(sys.argv[1], "w") as f:
    for i, text in enumerate(["Say hello.", "One plus one?", "Name a colour.", "Go."]):
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 3,
                "logprobs": True, "top_logprobs": 5, "temperature": i / 2}
        f.write(json.dumps({"custom_id": f"s{i}", "method": "POST",
                            "url": "/v1/chat/completions", "body": body}) + "\n")
PY
# Two slots and a short context: the audit at open tries the kernels at these sizes, and the emulator
# is a hundred times slower.
short() { # name, program..., then options
    name=$1
    shift
    batch "$name" "$out/short.in.jsonl" "$@" -m "$model" --slots 2 --ctx 128
}
short short build/corun batch
short generic build/corun batch --isa generic
compare generic short
short aarch64 qemu-aarch64 build/aarch64/corun batch
compare aarch64 short
exit $failed
