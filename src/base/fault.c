/* fault.c - owns which planted fault is on; empty in every build but that one. */
#include "base/fault.h"

#ifdef CORUN_BREAK
#include <string.h>

static const char *const names[] = {"none",         "order",      "stale_page", "rng_slot",
                                    "sampler_path", "load_split", "recompute",  "fold_order",
                                    "prefix_noid",  "page_early", "dead_write", "seed_n",
                                    "stop_late"};

fault fault_now = CORUN_BREAK;

bool fault_select(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            fault_now = (fault)i;
            return true;
        }
    return false;
}

void fault_pause(bool pause)
{
    static fault held;
    if (pause) held = fault_now;
    fault_now = pause ? FAULT_NONE : held;
}

const char *fault_name(void) { return names[fault_now]; }
#endif
