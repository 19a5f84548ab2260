/* fuzz_streams.c - the promise itself: bytes shape a stream of requests and two schedules of it
 * (tests/streams.h); another answer of a kept request aborts. */
#include "../streams.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { N = sizeof stream_policies / sizeof *stream_policies };
    static corun_model *m[N];
    static stream_seen seen;
    for (int i = 0; i < N && !m[i]; i++) m[i] = stream_model(stream_policies[i].model);
    stream_check(m, data, size, &seen);
    return 0;
}
