/* replay.c - feeds every file of a folder to a fuzz target, so that ordinary test runs replay the
 * corpus. Prints one TAP line a file; a crash is the failure. */
#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int main(int argc, char **argv)
{
    struct dirent **list = NULL;
    int n = argc == 2 ? scandir(argv[1], &list, NULL, by_name) : -1;
    if (n < 0) {
        printf("ok 1 - no corpus # SKIP\n");
        return argc == 2 ? 0 : 2;
    }
    int done = 0, failed = 0;
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.') {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[1], list[i]->d_name);
            buf b;
            buf_init(&b, 1 << 26);
            bool read = file_read(&b, path, 1 << 26) == CORUN_OK;
            if (read) LLVMFuzzerTestOneInput((const uint8_t *)(b.data ? b.data : ""), b.len);
            printf("%s %d - %s\n", read ? "ok" : "not ok", ++done, list[i]->d_name);
            failed += !read;
            buf_free(&b);
        }
        free(list[i]);
    }
    free(list);
    return failed ? 1 : 0;
}
