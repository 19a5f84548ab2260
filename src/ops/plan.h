/* plan.h - the table of matmul plans of one device and one library version: which configuration of
 * the library a product of a shape runs with. Host code only; every build has it.
 *
 * Invariant: a table that parsed holds nothing that its kernel set forbids (canonical and fixed:
 * admitted algorithm ids, no split, no reduction: docs/numerics.md, section 1), and no key twice.
 *
 * The file is text, one item a line. Lines that begin with '#' are comments, kept with the next
 * plan:
 *   corun-plan 1
 *   device LIBRARY_VERSION SM_COUNT NAME
 *   fixed ID TILE STAGES CLUSTER CUSTOM SWIZZLE
 *   plan SET N_OUT N_IN bias|none bf16|f32 ROWS ID TILE STAGES CLUSTER CUSTOM SWIZZLE SPLIT
 * REDUCTION NS The numbers of a configuration are those of cublasLt.h; NS is the time measured, for
 * people. */
#ifndef OPS_PLAN_H
#define OPS_PLAN_H

#include "base/mem.h"
#include "ops/ops.h"

#define PLAN_MAX_ROWS 8192 /* token rows of one product; more are run in pieces */

/* One configuration of cuBLASLt's matmul. */
typedef struct plan_config {
    int32_t id, tile, stages, cluster, custom, swizzle;
    int32_t split;     /* parts of K; 1: none */
    int32_t reduction; /* how the parts are added; 0: no reduction */
} plan_config;

typedef struct plan_shape {
    int64_t n_out, n_in;
    bool bias;
    ops_dtype out; /* OPS_BF16 or OPS_F32 */
} plan_shape;

typedef struct plan_entry {
    ops_set set; /* STANDARD or CANONICAL; FIXED has one configuration for all */
    plan_shape shape;
    int32_t rows; /* the entry serves products of at most so many rows */
    plan_config config;
    int64_t ns;
    char *note; /* the comment lines before it, NULL: none; the table's */
} plan_entry;

typedef struct plan_table {
    char device[64];
    int32_t sm_count;
    int64_t version; /* cublasLtGetVersion */
    bool has_fixed;
    plan_config fixed;
    plan_entry *entry; /* in order of set, shape, rows */
    size_t n_entry, cap;
    char *end; /* the comment lines behind the last entry, NULL: none */
} plan_table;

/* True for the ids whose kernels have the canonical order. */
static inline bool plan_admitted(int32_t id)
{
    return id == 21 || id == 23 || id == 41 || id == 42 || id == 66;
}
bool plan_config_equal(const plan_config *a, const plan_config *b);

/* An empty table for a device. */
corun_status plan_new(plan_table **out, const char *device, int32_t sm_count, int64_t version);
/* Parse apart from open. CORUN_EFORMAT names `what`, the line and the rule. */
corun_status plan_parse(plan_table **out, const char *text, size_t len, const char *what);
corun_status plan_open(plan_table **out, const char *path);
/* The table of src/ops/plans/ that was made for this device and library; *out NULL: none was. */
corun_status plan_builtin(plan_table **out, const char *device, int32_t sm_count, int64_t version);
/* The texts of those tables, made by the build. */
typedef struct plan_text {
    const char *name, *text;
    size_t len;
} plan_text;
extern const plan_text plan_texts[];
extern const size_t plan_n_text;
void plan_close(plan_table *t); /* NULL is fine */

/* Puts an entry in its place; one with the same key is replaced, and its comments go with it unless
 * the configuration is the same. e->note NULL. CORUN_EINVAL for one that the set forbids. */
corun_status plan_add(plan_table *t, const plan_entry *e);
/* The entry of the shape with the fewest rows that serves `rows`, else its largest; NULL: none. */
const plan_entry *plan_find(const plan_table *t, ops_set set, const plan_shape *s, int32_t rows);
/* Which products of a model the table has no plan for, as a sentence for people; "": none. */
void plan_missing(const plan_table *t, const ops_dims *d, char *out, size_t cap);
/* Whether the table was made on this device with this library. */
bool plan_is_for(const plan_table *t, const char *device, int32_t sm_count, int64_t version);
/* The text of the table, comments included. */
void plan_write(const plan_table *t, buf *b);
/* Digest of what a set takes from the table; times and comments move nothing. t NULL: no table. */
corun_status plan_digest(const plan_table *t, ops_set set, char hex[33]);

#endif
