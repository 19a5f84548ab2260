/* portable.c - the bits of the tiny golden models, for any build on any machine.
 *
 * usage: corun_portable ISA FOLDER MODEL...
 *
 * For each FOLDER/MODEL: a prompt in one piece, the same prompt in pieces, and decode steps beside
 * another row; prints the model and the digest of all fp32 logits. The lines are compared with
 * tests/data/golden/portable.txt: one file for every instruction set, compiler and architecture.
 * Exits 1 when the pieces differ from the whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

enum { PROMPT = 150, DECODE = 6, PAGE = 64, PAGES = 4 };

typedef struct state {
    model *m;
    uint64_t step;
    float *row;
    digest_stream *d;
} state;

/* Runs rows and adds the logits of every wanted row to the digest. */
static corun_status run(state *s, const step_row *row, int32_t n_row, const int32_t *tok,
                        int32_t n_tok)
{
    step st = {.id = ++s->step,
               .kind = STEP_MIXED,
               .n_row = n_row,
               .row = row,
               .n_tok = n_tok,
               .tok = tok};
    ops *o = s->m->o;
    TRY(s->m->forward(s->m, &st));
    for (int32_t first = 0; first < o->n_want; first += o->conf.logit_rows) {
        int32_t n = o->n_want - first < o->conf.logit_rows ? o->n_want - first : o->conf.logit_rows;
        TRY(s->m->logits(s->m, first, n));
        for (int32_t i = 0; i < n; i++) {
            TRY(o->logits_get(o, i, s->row));
            digest_add(s->d, s->row, (size_t)s->m->cfg.n_vocab * sizeof *s->row);
        }
    }
    return CORUN_OK;
}

static corun_status run_model(model *m, digest *out, bool *same)
{
    static const int32_t page[3][PAGES] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
    static const int32_t cut[] = {0, 1, 64, 65, 130, PROMPT};
    int32_t tok[PROMPT + DECODE];
    for (int32_t i = 0; i < PROMPT + DECODE; i++) tok[i] = (i * 7919 + 13) % m->cfg.n_vocab;
    ops_conf c = {.n_ctx = PAGE * PAGES,
                  .max_tok = PROMPT,
                  .max_row = 4,
                  .max_want = PROMPT,
                  .max_lane = 4,
                  .n_slot = 4,
                  .page_tokens = PAGE,
                  .n_page = 16,
                  .n_swap = 1,
                  .logit_rows = 16,
                  .n_top = 1};
    TRY(m->configure(m, &c));
    state s = {.m = m};
    if (!MEM_NEW(s.row, (size_t)m->cfg.n_vocab) || !(s.d = digest_open())) return CORUN_ENOMEM;
    step_row r = {.slot = STEP_NO_SLOT,
                  .q_len = PROMPT,
                  .page = page[0],
                  .n_page = PAGES,
                  .want = STEP_WANT_ALL};
    TRY(run(&s, &r, 1, tok, PROMPT));
    digest whole = digest_value(s.d);
    digest_reset(s.d);
    for (size_t i = 0; i + 1 < sizeof cut / sizeof *cut; i++) {
        r.pos = cut[i];
        r.q_len = cut[i + 1] - cut[i];
        r.page = page[1];
        TRY(run(&s, &r, 1, tok + cut[i], r.q_len));
    }
    digest pieces = digest_value(s.d);
    *same = memcmp(&whole, &pieces, sizeof whole) == 0;
    for (int32_t i = 0; i < DECODE; i++) {
        step_row two[2] = {{.slot = 1,
                            .pos = PROMPT + i,
                            .q_len = 1,
                            .tok_first = 0,
                            .page = page[1],
                            .n_page = PAGES,
                            .want = STEP_WANT_LAST},
                           {.seq = 1,
                            .slot = 2,
                            .pos = i,
                            .q_len = 1,
                            .tok_first = 1,
                            .page = page[2],
                            .n_page = PAGES,
                            .want = STEP_WANT_LAST}};
        int32_t t[2] = {tok[PROMPT + i], tok[i]};
        TRY(run(&s, two, 2, t, 2));
    }
    *out = digest_value(s.d);
    digest_close(s.d);
    mem_free(s.row);
    return CORUN_OK;
}

static corun_status one(const char *isa, const char *folder, const char *name, pool *threads)
{
    char path[1024], hex[33];
    weights *w;
    config cfg;
    model *m;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    TRY(weights_open(&w, path));
    TRY(config_open(&cfg, path));
    ops_open_opts oo = {.threads = threads, .isa = isa};
    TRY(model_load(&m, w, &cfg, &oo));
    digest d;
    bool same;
    TRY(run_model(m, &d, &same));
    digest_hex(d, hex);
    printf("%s %s\n", name, hex);
    model_close(m);
    weights_close(w);
    if (!same) FAIL(CORUN_EMISMATCH, "%s: the prompt in pieces gives other bits", name);
    return CORUN_OK;
}

int main(int argc, char **argv)
{
    pool *threads;
    char golden[33];
    if (argc < 4 || !ops_isa_pick(argv[1])) {
        fprintf(stderr, "usage: corun_portable ISA FOLDER MODEL...\n");
        return 2;
    }
    corun_status st = pool_open(&threads, 2);
    if (st == CORUN_OK) st = ops_golden_check(threads, argv[1], golden);
    if (st == CORUN_OK) printf("golden %s\n", golden);
    for (int i = 3; i < argc && st == CORUN_OK; i++) st = one(argv[1], argv[2], argv[i], threads);
    if (st != CORUN_OK) {
        fprintf(stderr, "corun_portable: %s\n", err_text());
        return 1;
    }
    pool_close(threads);
    return 0;
}
