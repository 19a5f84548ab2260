/* test_cuda_matmul.c - the matrix products of the CUDA backend by their bits: over the number of
 * rows, over plans, in graphs, against ref_mma; what each kernel set may and may not do. Skips
 * where there is no Hopper device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef CORUN_CUDA

#include <cuda_runtime_api.h>

#include "ops/cuda/matmul.h"
#include "ops/ref_mma.h"

enum { MAX_ROWS = PLAN_MAX_ROWS + 777 };

/* ---- the device and operands ---------------------------------------------------------------- */

typedef struct operands {
    plan_shape shape;
    int32_t rows;
    void *w, *x, *bias, *out;
    float *acc; /* [rows][n_out], the canonical product without bias */
} operands;

static gpu device;
static bool have;

static int open_device(void **state)
{
    (void)state;
    have = gpu_open(&device, -1) == CORUN_OK;
    if (!have) print_message("skipped: %s\n", corun_last_error());
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    gpu_close(&device);
    return 0;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CORUN_OK) fail_msg("%s: %s", #call, corun_last_error());                     \
    } while (0)
#define CUDA(call) OK(gpu_status((int)(call), #call))
#define NEED_DEVICE                                                                                \
    do {                                                                                           \
        (void)state;                                                                               \
        if (!have) skip();                                                                         \
    } while (0)

static void *to_host(const void *dev, size_t bytes)
{
    void *host = malloc(bytes);
    assert_non_null(host);
    CUDA(cudaStreamSynchronize((cudaStream_t)device.stream));
    CUDA(cudaMemcpy(host, dev, bytes, cudaMemcpyDeviceToHost));
    return host;
}

static gpu_matmul *open_set(ops_set set, const plan_table *t)
{
    gpu_matmul *m;
    OK(gpu_matmul_open_plan(&m, &device, set, t));
    OK(gpu_matmul_room(m, true));
    return m;
}

static void run(gpu_matmul *m, const operands *o, int32_t first, int32_t rows, ops_dtype type,
                bool bias, void *out)
{
    size_t in = (size_t)o->shape.n_in * 2;
    OK(gpu_matmul_run(m, rows, o->shape.n_out, o->shape.n_in, o->w, bias ? o->bias : NULL,
                      (char *)o->x + (size_t)first * in, type, out));
}

static operands make(int64_t n_out, int64_t n_in, int32_t rows)
{
    operands o = {.shape = {n_out, n_in, false, OPS_F32}, .rows = rows};
    size_t n = (size_t)n_out, k = (size_t)n_in, m = (size_t)rows;
    OK(gpu_alloc(&device, &o.w, n * k * 2, "w"));
    OK(gpu_alloc(&device, &o.x, m * k * 2, "x"));
    OK(gpu_alloc(&device, &o.bias, n * 2, "bias"));
    OK(gpu_alloc(&device, &o.out, m * n * 4, "out"));
    OK(gpu_alloc(&device, (void **)&o.acc, m * n * 4, "acc"));
    OK(gpu_fill_normal(&device, o.w, n * k, 11, 0.05f));
    OK(gpu_fill_normal(&device, o.x, m * k, 12, 1.0f));
    OK(gpu_fill_normal(&device, o.bias, n, 13, 1.0f));
    gpu_matmul *c = open_set(OPS_SET_CANONICAL, NULL);
    run(c, &o, 0, rows, OPS_F32, false, o.acc);
    gpu_matmul_close(c);
    return o;
}

static void drop(operands *o)
{
    gpu_free(o->w);
    gpu_free(o->x);
    gpu_free(o->bias);
    gpu_free(o->out);
    gpu_free(o->acc);
}

/* Rows [first, first + rows) by m into a poisoned output; how many elements are not acc + bias. */
static unsigned long long differing(gpu_matmul *m, const operands *o, int32_t first, int32_t rows,
                                    ops_dtype type, bool bias)
{
    cudaStream_t stream = (cudaStream_t)device.stream;
    size_t n = (size_t)o->shape.n_out;
    unsigned long long *count, got;
    OK(gpu_alloc(&device, (void **)&count, sizeof *count, "count"));
    CUDA(cudaMemsetAsync(o->out, 0xff, (size_t)rows * n * (type == OPS_F32 ? 4 : 2), stream));
    run(m, o, first, rows, type, bias, o->out);
    OK(gpu_count_differing(&device, o->acc + (size_t)first * n, bias ? o->bias : NULL, o->out, type,
                           (size_t)rows, o->shape.n_out, count));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(&got, count, sizeof got, cudaMemcpyDeviceToHost));
    gpu_free(count);
    return got;
}

/* ---- canonical ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void check_ref(const operands *o)
{
    size_t n = (size_t)o->shape.n_out, k = (size_t)o->shape.n_in;
    uint16_t *w = to_host(o->w, n * k * 2), *x = to_host(o->x, (size_t)o->rows * k * 2);
    float *acc = to_host(o->acc, (size_t)o->rows * n * 4);
    for (uint64_t i = 0; i < 400; i++) {
        size_t r = mix(2 * i) % (uint64_t)o->rows, c = mix(2 * i + 1) % n;
        float want = ref_mma_dot(x + r * k, w + c * k, (int64_t)k);
        assert_memory_equal(&acc[r * n + c], &want, 4);
    }
    free(w);
    free(x);
    free(acc);
}

static const int64_t shapes[][2] = {
    {960, 576}, {128, 4096}, {576, 1536}, {4096, 1024}, {1024, 3072}};

/* Under a sanitizer two shapes and a thousand rows. */
static size_t n_shape(void)
{
    return getenv("CORUN_TEST_SHORT") ? 2 : sizeof shapes / sizeof *shapes;
}
static int32_t max_rows(void) { return getenv("CORUN_TEST_SHORT") ? 1000 : MAX_ROWS; }

static void test_rows(void **state)
{
    static const int32_t rows[] = {1,    2,    3,    7,    8,    9,    16,   17,  31,
                                   32,   33,   63,   64,   65,   96,   127,  128, 129,
                                   192,  255,  256,  257,  511,  512,  513,  777, 999,
                                   1024, 2047, 2048, 2049, 4095, 4097, 8191, 8192};
    NEED_DEVICE;
    for (size_t s = 0; s < n_shape(); s++) {
        int32_t most = max_rows();
        operands o = make(shapes[s][0], shapes[s][1], most);
        gpu_matmul *m = open_set(OPS_SET_CANONICAL, NULL);
        check_ref(&o);
        for (size_t i = 0; i < sizeof rows / sizeof *rows && rows[i] <= most; i++) {
            int32_t first = (int32_t)(mix(i) % (uint64_t)(most - rows[i] + 1));
            for (int form = 0; form < 4; form++)
                assert_int_equal(
                    differing(m, &o, first, rows[i], form & 1 ? OPS_F32 : OPS_BF16, form & 2), 0);
        }
        assert_int_equal(differing(m, &o, 0, most, OPS_BF16, false), 0);
        assert_int_equal(differing(m, &o, 0, most, OPS_F32, true), 0);
        gpu_matmul_close(m);
        drop(&o);
    }
}

/* Configurations that the rule or the table picks for other numbers of rows, each made the plan. */
static void test_plans(void **state)
{
    static const int32_t from[] = {1, 16, 64, 128, 256, 1024, 8192};
    NEED_DEVICE;
    for (size_t s = 0; s < n_shape(); s++) {
        operands o = make(shapes[s][0], shapes[s][1], 512);
        int taken = 0;
        for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
            plan_entry e = {.set = OPS_SET_CANONICAL, .shape = o.shape, .rows = 512};
            plan_config c;
            bool of_table;
            plan_table *t;
            gpu_matmul *m = open_set(OPS_SET_CANONICAL, NULL);
            OK(gpu_matmul_plan(m, from[i], &e.shape, &e.config, &of_table));
            gpu_matmul_close(m);
            assert_true(plan_admitted(e.config.id) && e.config.split == 1);
            OK(plan_new(&t, device.name, device.sm_count, (int64_t)device.lt_version));
            OK(plan_add(t, &e));
            m = open_set(OPS_SET_CANONICAL, t);
            assert_string_equal(gpu_matmul_note(m), "");
            OK(gpu_matmul_plan(m, 300, &e.shape, &c, &of_table));
            assert_true(!of_table || plan_config_equal(&c, &e.config));
            taken += of_table;
            assert_int_equal(differing(m, &o, 5, 300, OPS_F32, false), 0);
            assert_int_equal(differing(m, &o, 0, 512, OPS_F32, false), 0);
            gpu_matmul_close(m);
            plan_close(t);
        }
        assert_true(taken > 0);
        drop(&o);
    }
}

/* A table that is not of this device or library: said, left aside, and the bits are the same. */
static void test_foreign(void **state)
{
    NEED_DEVICE;
    operands o = make(960, 576, 256);
    plan_table *t;
    char with[33], without[33];
    plan_entry e = {.set = OPS_SET_CANONICAL,
                    .shape = o.shape,
                    .rows = 256,
                    .config = {.id = 66, .tile = 60000, .split = 1}};
    OK(plan_new(&t, "NVIDIA H300", 132, 1));
    OK(plan_add(t, &e));
    gpu_matmul *m = open_set(OPS_SET_CANONICAL, t);
    assert_non_null(strstr(gpu_matmul_note(m), "the plan table is for NVIDIA H300"));
    assert_int_equal(differing(m, &o, 0, 256, OPS_F32, false), 0);
    gpu_matmul_digest(m, without);
    gpu_matmul_close(m);
    plan_close(t);
    /* of this device, with a configuration that the library refuses: the rule picks */
    OK(plan_new(&t, device.name, device.sm_count, (int64_t)device.lt_version));
    OK(plan_add(t, &e));
    m = open_set(OPS_SET_CANONICAL, t);
    plan_config c;
    bool of_table;
    OK(gpu_matmul_plan(m, 256, &e.shape, &c, &of_table));
    assert_false(of_table);
    assert_int_equal(differing(m, &o, 0, 256, OPS_F32, false), 0);
    gpu_matmul_digest(m, with);
    assert_string_not_equal(with, without);
    gpu_matmul_close(m);
    plan_close(t);
    drop(&o);
}

/* Captured once, replayed with other inputs behind the same pointers; nothing is allocated. */
static void test_graph(void **state)
{
    NEED_DEVICE;
    operands o = make(4096, 1024, 256);
    cudaStream_t stream = (cudaStream_t)device.stream;
    gpu_matmul *m = open_set(OPS_SET_CANONICAL, NULL);
    size_t bytes = (size_t)96 * 1024 * 2;
    void *x;
    unsigned long long *count, got;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(gpu_alloc(&device, &x, bytes, "x"));
    OK(gpu_alloc(&device, (void **)&count, sizeof *count, "count"));
    OK(gpu_matmul_prepare(m, 96, 4096, 1024, true, OPS_F32));
    mem_guard(true);
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    corun_status st = gpu_matmul_run(m, 96, 4096, 1024, o.w, o.bias, x, OPS_F32, o.out);
    mem_guard(false);
    OK(st);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int32_t first = 0; first <= 160; first += 40) {
        CUDA(cudaMemcpyAsync(x, (char *)o.x + (size_t)first * 2048, bytes, cudaMemcpyDeviceToDevice,
                             stream));
        CUDA(cudaMemsetAsync(o.out, 0xff, (size_t)96 * 4096 * 4, stream));
        CUDA(cudaGraphLaunch(exec, stream));
        OK(gpu_count_differing(&device, o.acc + (size_t)first * 4096, o.bias, o.out, OPS_F32, 96,
                               4096, count));
    }
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(&got, count, sizeof got, cudaMemcpyDeviceToHost));
    assert_int_equal(got, 0);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    gpu_free(x);
    gpu_free(count);
    gpu_matmul_close(m);
    drop(&o);
}

/* ---- the other sets ------------------------------------------------------------------------- */

static void test_fixed(void **state)
{
    static const int32_t rows[] = {1, 8, 64, 100, 256, 1000, 8192};
    NEED_DEVICE;
    for (size_t s = 0; s < n_shape(); s++) {
        operands o = make(shapes[s][0], shapes[s][1], max_rows());
        gpu_matmul *m = open_set(OPS_SET_FIXED, NULL);
        plan_config first, c;
        bool of_table;
        OK(gpu_matmul_plan(m, 256, &o.shape, &first, &of_table));
        for (size_t i = 0; i < sizeof rows / sizeof *rows && rows[i] <= o.rows; i++) {
            OK(gpu_matmul_plan(m, rows[i], &o.shape, &c, &of_table));
            assert_true(plan_config_equal(&first, &c));
            assert_int_equal(differing(m, &o, 0, rows[i], OPS_F32, false), 0);
        }
        gpu_matmul_close(m);
        drop(&o);
    }
}

/* Other bits are allowed, other values are not; the same call gives the same bits. */
static void test_standard(void **state)
{
    static const int32_t rows[] = {1, 8, 17, 64, 256, 1000};
    NEED_DEVICE;
    unsigned long long others = 0;
    for (size_t s = 0; s < n_shape(); s++) {
        operands o = make(shapes[s][0], shapes[s][1], 1000);
        gpu_matmul *m = open_set(OPS_SET_STANDARD, NULL);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            size_t n = (size_t)rows[i] * (size_t)o.shape.n_out;
            others += differing(m, &o, 0, rows[i], OPS_F32, false);
            float *got = to_host(o.out, n * 4), *acc = to_host(o.acc, n * 4), *twice;
            double error = 0, size = 0;
            for (size_t k = 0; k < n; k++) {
                double d = (double)got[k] - (double)acc[k];
                error += d * d;
                size += (double)acc[k] * (double)acc[k];
            }
            assert_true(error <= 1e-10 * size);
            (void)differing(m, &o, 0, rows[i], OPS_F32, false);
            twice = to_host(o.out, n * 4);
            assert_memory_equal(got, twice, n * 4);
            free(got);
            free(acc);
            free(twice);
        }
        gpu_matmul_close(m);
        drop(&o);
    }
    print_message("standard: %llu outputs have other bits than canonical\n", others);
    assert_true(others > 0 || n_shape() == 2); /* else this program could not see a split */
}

static void test_bad(void **state)
{
    NEED_DEVICE;
    gpu_matmul *m = open_set(OPS_SET_CANONICAL, NULL);
    assert_int_equal(gpu_matmul_prepare(m, 0, 64, 64, false, OPS_BF16), CORUN_EINVAL);
    assert_int_equal(gpu_matmul_prepare(m, 1, 64, 64, false, OPS_F8_E4M3), CORUN_EINVAL);
    assert_int_equal(gpu_matmul_prepare(m, 1, 1 << 20, 64, true, OPS_F32), CORUN_EUNSUPPORTED);
    gpu_matmul_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),  cmocka_unit_test(test_plans), cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_graph), cmocka_unit_test(test_fixed), cmocka_unit_test(test_standard),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

#else

static void test_none(void **state)
{
    (void)state;
    print_message("skipped: this build has no CUDA backend\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
