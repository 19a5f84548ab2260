/* prefix.c - owns the entries. Invariant: an entry stands in the bucket of its key, and in the list
 * of the idle ones exactly while nobody owns its page. */
#include "sched/prefix.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

enum { NONE = -1, MAX_PAGE_TOKENS = 128 };

typedef struct entry {
    digest key;
    uint64_t uid, before; /* uid of the entry before this one, 0: the root */
    bool in, idle;
    int32_t next;         /* in the bucket */
    int32_t older, newer; /* idle */
} entry;

struct prefix {
    int32_t n_page, page_tokens;
    digest mask;
    entry *e;        /* [n_page] */
    int32_t *tokens; /* [n_page][page_tokens] */
    int32_t *bucket; /* [n_bucket], a power of two */
    int32_t n_bucket;
    int32_t oldest, newest, n_idle;
    uint64_t last_uid;
};

corun_status prefix_open(prefix **out, int32_t n_page, int32_t page_tokens, int32_t key_bits)
{
    *out = NULL;
    if (page_tokens < 1 || page_tokens > MAX_PAGE_TOKENS)
        FAIL(CORUN_EINVAL, "prefix cache: page_tokens is %d, not 1 to %d", page_tokens,
             MAX_PAGE_TOKENS);
    prefix *p;
    if (!MEM_NEW(p, 1)) return CORUN_ENOMEM;
    *p = (prefix){.n_page = n_page, .page_tokens = page_tokens, .oldest = NONE, .newest = NONE};
    p->mask = (digest){UINT64_MAX, UINT64_MAX};
    if (FAULT(PREFIX_NOID)) key_bits = 3;
    if (key_bits) p->mask = (digest){0, ((uint64_t)1 << key_bits) - 1};
    for (p->n_bucket = 1; p->n_bucket < n_page;) p->n_bucket *= 2;
    if (!MEM_NEW(p->e, (size_t)n_page) || !MEM_NEW(p->bucket, (size_t)p->n_bucket) ||
        !MEM_NEW(p->tokens, (size_t)n_page * (size_t)page_tokens)) {
        prefix_close(p);
        return CORUN_ENOMEM;
    }
    for (int32_t i = 0; i < p->n_bucket; i++) p->bucket[i] = NONE;
    *out = p;
    return CORUN_OK;
}

void prefix_close(prefix *p)
{
    if (!p) return;
    mem_free(p->e);
    mem_free(p->bucket);
    mem_free(p->tokens);
    mem_free(p);
}

static digest key_of(const prefix *p, digest before, const int32_t *tokens)
{
    struct {
        digest before;
        int32_t tokens[MAX_PAGE_TOKENS];
    } text;
    size_t n = (size_t)p->page_tokens * sizeof *tokens;
    text.before = before;
    memcpy(text.tokens, tokens, n);
    digest d = digest_of(&text, sizeof text.before + n);
    return (digest){d.hi & p->mask.hi, d.lo & p->mask.lo};
}

static int32_t *tokens_of(const prefix *p, int32_t page)
{
    return p->tokens + (size_t)page * (size_t)p->page_tokens;
}

static int32_t *bucket_of(const prefix *p, digest key)
{
    return &p->bucket[key.lo & (uint64_t)(p->n_bucket - 1)];
}

/* What a hit rests on: not the digest, the ids themselves and those before them. */
static bool holds(const prefix *p, int32_t page, uint64_t before, const int32_t *tokens)
{
    if (FAULT(PREFIX_NOID)) return true;
    return p->e[page].before == before &&
           memcmp(tokens_of(p, page), tokens, (size_t)p->page_tokens * sizeof *tokens) == 0;
}

static int32_t find(const prefix *p, uint64_t before, digest key, const int32_t *tokens)
{
    for (int32_t i = *bucket_of(p, key); i >= 0; i = p->e[i].next) {
        const entry *e = &p->e[i];
        if (e->key.hi == key.hi && e->key.lo == key.lo && holds(p, i, before, tokens)) return i;
    }
    return NONE;
}

int32_t prefix_find(const prefix *p, prefix_at *at, const int32_t *tokens)
{
    digest key = key_of(p, at->key, tokens);
    int32_t page = find(p, at->uid, key, tokens);
    if (page >= 0) *at = (prefix_at){at->n + 1, p->e[page].uid, key};
    return page;
}

void prefix_add(prefix *p, prefix_at *at, const int32_t *tokens, int32_t page)
{
    uint64_t before = at->uid;
    if (prefix_find(p, at, tokens) >= 0) return;
    prefix_forget(p, page);
    entry *e = &p->e[page];
    digest key = key_of(p, at->key, tokens);
    *e = (entry){.key = key, .uid = ++p->last_uid, .before = before, .in = true};
    memcpy(tokens_of(p, page), tokens, (size_t)p->page_tokens * sizeof *tokens);
    e->next = *bucket_of(p, key);
    *bucket_of(p, key) = page;
    *at = (prefix_at){at->n + 1, e->uid, key};
}

bool prefix_has(const prefix *p, int32_t page) { return p->e[page].in; }

void prefix_forget(prefix *p, int32_t page)
{
    entry *e = &p->e[page];
    if (!e->in) return;
    int32_t *at = bucket_of(p, e->key);
    while (*at != page) at = &p->e[*at].next;
    *at = e->next;
    e->in = false;
}

void prefix_idle(prefix *p, int32_t page)
{
    entry *e = &p->e[page];
    e->idle = true;
    e->newer = NONE;
    e->older = p->newest;
    if (p->newest >= 0)
        p->e[p->newest].newer = page;
    else
        p->oldest = page;
    p->newest = page;
    p->n_idle++;
}

void prefix_wake(prefix *p, int32_t page)
{
    entry *e = &p->e[page];
    if (e->older >= 0)
        p->e[e->older].newer = e->newer;
    else
        p->oldest = e->newer;
    if (e->newer >= 0)
        p->e[e->newer].older = e->older;
    else
        p->newest = e->older;
    e->idle = false;
    p->n_idle--;
}

int32_t prefix_reclaim(prefix *p)
{
    int32_t page = p->oldest;
    if (page < 0) return NONE;
    prefix_wake(p, page);
    prefix_forget(p, page);
    return page;
}

int32_t prefix_n_idle(const prefix *p) { return p->n_idle; }
