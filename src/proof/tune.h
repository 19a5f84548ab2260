/* tune.h - the search for the plans of a model's matrix products, and the table that holds them. */
#ifndef PROOF_TUNE_H
#define PROOF_TUNE_H

#include "corun.h"

#include <stdio.h>

typedef struct tune_opts {
    const char *model; /* a folder with config.json, or a .gguf file: only its sizes are read */
    const char *out;   /* the table; one that is there is added to */
    double seconds;    /* for all shapes together */
    bool again;        /* search shapes that the table has, too */
} tune_opts;

/* Searches the shapes of the model on the first Hopper device and writes the table after each of
 * them. One line a cell goes to report. CORUN_EMISMATCH: an admitted configuration gave other bits
 * than the definition; CORUN_EUNSUPPORTED: this build has no CUDA backend. */
corun_status tune_run(const tune_opts *o, FILE *report);

#endif
