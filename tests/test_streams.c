/* test_streams.c - the promise on random request streams (streams.h), 400 of them, or as many as
 * the first argument says: `test_streams 20000` takes some minutes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/philox.h"
#include "streams.h"

static uint64_t n_stream = 400;

enum { N_POLICY = sizeof stream_policies / sizeof *stream_policies };

static void test_streams(void **state)
{
    (void)state;
    corun_model *m[N_POLICY];
    for (int i = 0; i < N_POLICY; i++) m[i] = stream_model(stream_policies[i].model);
    stream_seen seen = {0};
    for (uint64_t k = 0; k < n_stream; k++) {
        uint32_t data[128];
        for (uint32_t i = 0; i < 128; i += 4) {
            memcpy(data + i, (uint32_t[]){i, (uint32_t)k, 0, 0}, 16);
            philox4x32(data + i, 20, 0);
        }
        stream_check(m, (const uint8_t *)data, sizeof data, &seen);
    }
    for (int i = 0; i < N_POLICY; i++) corun_model_close(m[i]);
    printf("# %" PRIu64 " streams, %" PRIu64 " samples compared; swaps %" PRIu64
           ", recomputes %" PRIu64 ", prefix hits %" PRIu64 ", prompt cuts %" PRIu64
           ", cancels %" PRIu64 "\n",
           seen.streams, seen.samples, seen.swaps, seen.recomputes, seen.prefix_hits,
           seen.prompt_cuts, seen.cancelled);
    assert_true(seen.swaps && seen.recomputes && seen.prefix_hits && seen.prompt_cuts);
    assert_true(seen.cancelled > 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_stream = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
