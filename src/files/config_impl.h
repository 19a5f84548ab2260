/* config_impl.h - what the two sources of a configuration share. */
#ifndef FILES_CONFIG_IMPL_H
#define FILES_CONFIG_IMPL_H

#include "files/config.h"

/* How a source spells the fields that the common checks name. */
typedef struct config_keys {
    const char *n_head, *n_kv, *d_head;
} config_keys;

#define CONFIG_MAX_LAYER 4096
#define CONFIG_MAX_WIDTH (1 << 20)
#define CONFIG_MAX_HEAD  65536
#define CONFIG_MAX_DIM   1024
#define CONFIG_MAX_VOCAB (1 << 24)
#define CONFIG_MAX_CTX   (1 << 27)

/* Neutral values, absent ids. */
void config_init(config *c);
/* Adds an eos id once. */
corun_status config_add_eos(config *c, int64_t id, const char *key, const char *what);
/* What must hold between the fields of any source. */
corun_status config_check(const config *c, const config_keys *k, const char *what);
/* The family of this name; false: none of ours. */
bool config_find_family(config *c, const char *name);

#endif
