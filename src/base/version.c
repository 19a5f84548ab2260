/* version.c - owns the release and source revision text, and the digest of the sources. */
#include "base/version.h"
#include "corun.h"
#include "revision.h"
#include "sources.h"

const char *corun_version(void) { return CORUN_VERSION " (" CORUN_REVISION ")"; }

const char *version_sources(void) { return CORUN_SOURCES; }
