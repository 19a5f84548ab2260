/* facts.h - what all runs that work on one file must have in common, as a JSON object, and in words
 * what differs between two of them. */
#ifndef APP_FACTS_H
#define APP_FACTS_H

#include "app/cmd.h"

/* Adds a member. v is taken over; NULL: there was no memory for it. */
corun_status facts_set(json_t *o, const char *key, json_t *v);
/* Adds release, identity, numeric (the identity field by field) and pool_pages. */
corun_status facts_of_engine(json_t *o, const cmd_session *s);
/* Appends a line for each of the first members of `is` that differ in `was`, and counts all of
 * them. Members that only `was` has are compared inside of objects, not at the top. */
corun_status facts_compare(const json_t *was, const json_t *is, const char *was_name,
                           const char *is_name, buf *text, unsigned *n);

#endif
