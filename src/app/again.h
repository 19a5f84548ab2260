/* again.h - the request that a result row answers, made again from the row itself. */
#ifndef APP_AGAIN_H
#define APP_AGAIN_H

#include "base/json.h"

/* Appends the input line of an answered row: of a batch row that holds prompt_token_ids a
 * completion of those ids with the sampling parameters of the row (`corun` in its body), of a score
 * row its tokens (*score true). CORUN_EINVAL with the reason when the row does not hold enough. */
bool again_is_score(const json_t *row); /* a row that `corun score` wrote */
corun_status again_line(const json_t *row, buf *line, bool *score);

#endif
