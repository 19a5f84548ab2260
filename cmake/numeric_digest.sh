#!/bin/sh
# usage: numeric_digest.sh OUT COMPILER FILE...: a header with the compiler's words and one digest
# over the files without comments and white space. Both are part of the numeric identity.
set -eu
out=$1 compiler=$2
shift 2
digest=$(for f in $(printf '%s\n' "$@" | sort); do
    cc -fpreprocessed -dD -E -P -x c "$f" 2>/dev/null
done | tr -d '[:space:]' | sha256sum | cut -c1-32)
printf '#define CUDA_NUMERIC_DIGEST "%s"\n#define CUDA_COMPILER "%s"\n' "$digest" \
    "$(echo "$compiler" | tr ';' ' ')" >"$out"
