/* version.c - owns the release and source revision text. */
#include "corun.h"
#include "revision.h"

const char *corun_version(void) { return CORUN_VERSION " (" CORUN_REVISION ")"; }
