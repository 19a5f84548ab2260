/* levels.h - the levels that the ops of a model were found to meet here: measured once, kept in the
 * user's cache folder ($XDG_CACHE_HOME/corun/audit, else ~/.cache/corun/audit), read at open.
 *
 * A result is kept under the digest of all that it rests on: backend and instruction set, threads,
 * digest of the numeric sources and of the compiler, shapes, widths. A result that cannot be read
 * or does not say what it must is measured again; a folder that cannot be written is no error. */
#ifndef ENGINE_LEVELS_H
#define ENGINE_LEVELS_H

#include "base/mem.h"
#include "engine/engine.h"
#include "ops/audit.h"

/* What an engine with these options rests on: n_slot, n_ctx and page_tokens are in range. */
void levels_spec(const corun_model *m, const corun_engine_opts *o, audit_spec *out);
/* The object of everything that the result rests on, as JSON, and its digest. */
corun_status levels_identity(const corun_model *m, const audit_spec *s, buf *json, char key[33]);
/* The result as one JSON object; identity is a JSON text. */
corun_status levels_text(const audit_report *r, bool full, const buf *identity, buf *out);
/* Reads such an object back; CORUN_EFORMAT unless it is whole and of this identity. */
corun_status levels_read(audit_report *out, const char *text, size_t len, const char *key);
/* Into the cache. CORUN_EIO when it cannot be written; path (NULL: not wanted) is where it is. */
corun_status levels_save(const char *key, const buf *text, char path[1024]);

/* *out: the levels of a model under these options, from memory, from the cache, or measured now
 * (quick form) and kept. It belongs to the model. NULL for the fake model, whose tokens do not come
 * from ops, and in builds with a planted fault, which must run to be seen failing: what the ops
 * declare counts there. */
corun_status levels_get(corun_model *m, const corun_engine_opts *o, const audit_report **out);

#endif
