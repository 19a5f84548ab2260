#!/bin/sh
# usage: check.sh ISA PROGRAM [EMULATOR...]: the bits of the tiny golden models against
# tests/data/golden/portable.txt. Prints one TAP line.
set -u
isa=$1 program=$2
shift 2
golden=$(cd "$(dirname "$0")/../data/golden" && pwd)
models=$(cd "$golden" && for f in */config.json; do dirname "$f"; done)
# shellcheck disable=SC2086
if got=$("$@" "$program" "$isa" "$golden" $models) && [ "$got" = "$(cat "$golden/portable.txt")" ]; then
    echo "ok 1 - portable $isa"
else
    echo "$got" | diff "$golden/portable.txt" - | sed 's/^/# /'
    echo "not ok 1 - portable $isa"
    exit 1
fi
