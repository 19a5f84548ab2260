/* cmd_serve.c - owns `corun serve` of a build without the server, which says so. Invariant: with
 * one it is serve_main's alone. */
#include <stdio.h>

#include "app/cmd.h"

int cmd_serve(int argc, char **argv)
{
#ifdef CORUN_SERVER
    return serve_main(argc, argv);
#else
    (void)argc;
    (void)argv;
    fputs("corun serve: this build has no server (CMake option CORUN_SERVER)\n", stderr);
    return CMD_BAD;
#endif
}
