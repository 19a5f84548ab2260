/* hub.c - owns the way from a model's name to a snapshot in the Hugging Face cache folder.
 * Invariant: no part of a name can lead out of that folder. */
#include "files/hub.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"

#define MAX_ID    96 /* bytes of ORG/NAME, as on the hub */
#define MAX_INDEX ((size_t)1 << 28)
#define MAX_PART  99999
#define COMMIT    40 /* hexadecimal digits */
#define FETCHES   "CoRun downloads nothing"

typedef struct hub_name {
    char org[MAX_ID + 1], repo[MAX_ID + 1];
    char revision[256];
    const char *file; /* NULL: none is named */
} hub_name;

/* ---- names ------------------------------------------------------------------------------------
 */

static bool plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

/* One part of ORG/NAME. */
static bool take_part(const char *s, size_t n, char *out)
{
    if (n < 1 || n > MAX_ID || strchr(".-", s[0]) || strchr(".-", s[n - 1])) return false;
    for (size_t i = 0; i < n; i++) {
        if (!plain(s[i])) return false;
        if (i > 0 && strchr(".-", s[i]) && s[i] == s[i - 1]) return false;
    }
    memcpy(out, s, n);
    out[n] = 0;
    return true;
}

/* A path below a folder: no part of it is empty or begins with a dot. */
static bool is_below(const char *s, size_t n, bool only_plain)
{
    if (n < 1 || s[n - 1] == '/') return false;
    for (size_t i = 0; i < n; i++) {
        if ((i == 0 || s[i - 1] == '/') && (s[i] == '/' || s[i] == '.')) return false;
        if ((unsigned char)s[i] < 32) return false;
        if (only_plain && !plain(s[i]) && !strchr("/+", s[i])) return false;
    }
    return true;
}

static bool ends_in(const char *s, size_t n, const char *tail)
{
    size_t k = strlen(tail);
    return n > k && memcmp(s + n - k, tail, k) == 0;
}

static bool parse(hub_name *out, const char *s)
{
    *out = (hub_name){.revision = "main"};
    const char *slash = strchr(s, '/'), *colon = strchr(s, ':');
    size_t head = colon ? (size_t)(colon - s) : strlen(s);
    const char *at = memchr(s, '@', head);
    size_t id = at ? (size_t)(at - s) : head;
    if (!slash || (size_t)(slash - s) >= id || id > MAX_ID) return false;
    size_t org = (size_t)(slash - s);
    if (!take_part(s, org, out->org) || !take_part(slash + 1, id - org - 1, out->repo))
        return false;
    if (at) {
        size_t n = head - id - 1;
        if (n >= sizeof out->revision || !is_below(at + 1, n, true)) return false;
        memcpy(out->revision, at + 1, n);
        out->revision[n] = 0;
    }
    if (!colon) return true;
    out->file = colon + 1;
    size_t n = strlen(out->file);
    return is_below(out->file, n, false) && ends_in(out->file, n, ".gguf");
}

/* ---- folders ----------------------------------------------------------------------------------
 */

static corun_status join(char out[PATH_MAX], const char *folder, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    if (n < 0 || n >= PATH_MAX) FAIL(CORUN_EINVAL, "%s/%s: the path is too long", folder, name);
    return CORUN_OK;
}

/* The value of a variable with a tail; false where it is not set. "~/" is the home folder. */
static bool from_variable(char out[PATH_MAX], const char *variable, const char *tail)
{
    const char *v = getenv(variable), *home = "";
    if (!v || !*v) return false;
    if (v[0] == '~' && v[1] == '/') {
        home = getenv("HOME");
        if (!home) return false;
        v++;
    }
    int n = snprintf(out, PATH_MAX, "%s%s%s", home, v, tail);
    return n > 0 && n < PATH_MAX;
}

static bool cache_folder(char out[PATH_MAX])
{
    return from_variable(out, "HF_HUB_CACHE", "") || from_variable(out, "HF_HOME", "/hub") ||
           from_variable(out, "XDG_CACHE_HOME", "/huggingface/hub") ||
           from_variable(out, "HOME", "/.cache/huggingface/hub");
}

static int only_commits(const struct dirent *d) { return d->d_name[0] != '.'; }

/* A revision that the cache does not know: names the commits that it has. */
static corun_status no_revision(const hub_name *h, const char *repo, const char *ref, int err)
{
    char folder[PATH_MAX], have[256] = "";
    struct dirent **entry;
    TRY(join(folder, repo, "snapshots"));
    int n = scandir(folder, &entry, only_commits, alphasort);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        if (strlen(name) == COMMIT && at + COMMIT + 2 < sizeof have)
            at += (size_t)snprintf(have + at, sizeof have - at, "%s%s", at ? ", " : "", name);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    FAIL(CORUN_EFORMAT, "%s/%s: no revision %s in the cache: %s: %s; it has %s (" FETCHES ")",
         h->org, h->repo, h->revision, ref, strerror(err), *have ? have : "no snapshot");
}

static bool is_commit(const char *s)
{
    return strlen(s) == COMMIT && strspn(s, "0123456789abcdef") == COMMIT;
}

/* The folder of the snapshot. */
static corun_status find_snapshot(const hub_name *h, const char *cache, char out[PATH_MAX])
{
    char name[2 * MAX_ID + 16], repo[PATH_MAX], ref[PATH_MAX], commit[COMMIT + 16] = "";
    struct stat sb;
    snprintf(name, sizeof name, "models--%s--%s", h->org, h->repo);
    TRY(join(repo, cache, name));
    if (stat(repo, &sb) != 0)
        FAIL(CORUN_EFORMAT,
             "%s/%s: no file or folder of this name, and no model either: %s: %s (" FETCHES ")",
             h->org, h->repo, repo, strerror(errno));
    if (is_commit(h->revision)) {
        memcpy(commit, h->revision, COMMIT + 1);
    } else {
        char at[300];
        buf b;
        snprintf(at, sizeof at, "refs/%s", h->revision);
        TRY(join(ref, repo, at));
        if (stat(ref, &sb) != 0) return no_revision(h, repo, ref, errno);
        buf_init(&b, COMMIT + 8);
        corun_status st = file_read(&b, ref, COMMIT + 8);
        if (st == CORUN_OK && b.len) memcpy(commit, b.data, b.len);
        buf_free(&b);
        TRY(st);
        commit[strcspn(commit, " \r\n\t")] = 0;
        if (!is_commit(commit)) FAIL(CORUN_EFORMAT, "%s: holds no commit", ref);
    }
    snprintf(name, sizeof name, "snapshots/%s", commit);
    TRY(join(out, repo, name));
    if (stat(out, &sb) != 0) return no_revision(h, repo, out, errno);
    return CORUN_OK;
}

/* ---- what must be there -----------------------------------------------------------------------
 */

static corun_status need(const hub_name *h, const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat sb, link;
    TRY(join(path, folder, name));
    if (stat(path, &sb) == 0) return CORUN_OK;
    int err = errno;
    if (lstat(path, &link) == 0)
        FAIL(CORUN_EFORMAT,
             "%s/%s: %s is not in the cache: %s is a link that leads nowhere (" FETCHES ")", h->org,
             h->repo, name, path);
    FAIL(CORUN_EFORMAT, "%s/%s: %s is not in the cache: %s: %s (" FETCHES ")", h->org, h->repo,
         name, path, strerror(err));
}

static corun_status need_shards(const hub_name *h, const char *folder, const char *index)
{
    char path[PATH_MAX];
    json_t *root, *file;
    const char *tensor, *last = "";
    TRY(need(h, folder, index));
    TRY(join(path, folder, index));
    TRY(json_read_file(&root, path, MAX_INDEX));
    corun_status st = CORUN_OK; /* what is wrong with the index itself, its reader says */
    json_object_foreach (json_object_get(root, "weight_map"), tensor, file) {
        const char *s = json_string_value(file);
        if (st != CORUN_OK || !s || strchr(s, '/') || strcmp(s, last) == 0) continue;
        st = need(h, folder, last = s);
    }
    json_decref(root);
    return st;
}

/* The place of the part's number in the name of a part of a split set; 0: it is none. */
static size_t part_at(const char *name, int *n_part)
{
    int no, count, used = 0;
    size_t tail = strlen("-00001-of-00003.gguf"), len = strlen(name);
    if (len <= tail) return 0;
    const char *s = name + len - tail;
    if (sscanf(s, "-%5d-of-%5d.gguf%n", &no, &count, &used) != 2 || (size_t)used != tail) return 0;
    if (no < 1 || no > count || count > MAX_PART) return 0;
    *n_part = count;
    return len - tail + 1;
}

/* A GGUF file with all its parts. */
static corun_status need_gguf(const hub_name *h, const char *folder, const char *name)
{
    char part[PATH_MAX], no[16];
    int n_part = 0;
    size_t at = part_at(name, &n_part);
    if (!at) return need(h, folder, name);
    if (snprintf(part, sizeof part, "%s", name) >= PATH_MAX)
        FAIL(CORUN_EINVAL, "%s: the path is too long", name);
    for (int i = 1; i <= n_part; i++) {
        snprintf(no, sizeof no, "%05d", i);
        memcpy(part + at, no, 5);
        TRY(need(h, folder, part));
    }
    return CORUN_OK;
}

static int only_gguf(const struct dirent *d)
{
    return d->d_name[0] != '.' && ends_in(d->d_name, strlen(d->d_name), ".gguf");
}

/* The one GGUF file at the top of the snapshot, a split set by its first part. None: an empty
 * text. */
static corun_status one_gguf(const hub_name *h, const char *folder, char out[NAME_MAX + 1])
{
    struct dirent **entry;
    char list[512] = "";
    size_t at = 0, count = 0;
    int n = scandir(folder, &entry, only_gguf, alphasort), n_part;
    *out = 0;
    for (int i = 0; i < n; i++) {
        char *name = entry[i]->d_name;
        size_t no = part_at(name, &n_part);
        if (no) memcpy(name + no, "00001", 5);
        if (strcmp(name, out) != 0) {
            count++;
            snprintf(out, NAME_MAX + 1, "%s", name);
            if (at + strlen(name) + 6 < sizeof list)
                at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", name);
            else if (at + 6 < sizeof list)
                at += (size_t)snprintf(list + at, sizeof list - at, ", ...");
        }
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    if (count > 1)
        FAIL(CORUN_EINVAL, "%s/%s has %zu GGUF files, %s: name one as %s/%s:FILE.gguf", h->org,
             h->repo, count, list, h->org, h->repo);
    return CORUN_OK;
}

/* What of the snapshot is the model: "" for the folder itself. */
static corun_status choose(const hub_name *h, const char *folder, bool config_only,
                           char file[PATH_MAX])
{
    static const char index[] = "model.safetensors.index.json", single[] = "model.safetensors";
    char path[PATH_MAX];
    *file = 0;
    if (h->file) {
        if (snprintf(file, PATH_MAX, "%s", h->file) >= PATH_MAX)
            FAIL(CORUN_EINVAL, "%s: the path is too long", h->file);
        return need_gguf(h, folder, file);
    }
    TRY(join(path, folder, index));
    bool sharded = file_exists(path);
    TRY(join(path, folder, single));
    bool has = sharded || file_exists(path);
    TRY(join(path, folder, "config.json"));
    if (!has && !(config_only && file_exists(path))) {
        char one[NAME_MAX + 1];
        TRY(one_gguf(h, folder, one));
        if (*one) {
            snprintf(file, PATH_MAX, "%s", one);
            return need_gguf(h, folder, file);
        }
    }
    TRY(need(h, folder, "config.json"));
    if (config_only) return CORUN_OK;
    TRY(need(h, folder, "tokenizer.json"));
    return sharded ? need_shards(h, folder, index) : need(h, folder, single);
}

corun_status hub_find(char **out, const char *name, bool config_only)
{
    struct stat sb;
    hub_name h;
    char cache[PATH_MAX], folder[PATH_MAX], file[PATH_MAX], path[PATH_MAX];
    *out = NULL;
    if (stat(name, &sb) != 0) {
        int err = errno;
        if ((err != ENOENT && err != ENOTDIR) || lstat(name, &sb) == 0)
            FAIL(file_refusal(err), "%s: %s", name, strerror(err));
        if (!parse(&h, name))
            FAIL(file_refusal(err), "%s: %s, nor is this a name like ORG/NAME[@REVISION][:X.gguf]",
                 name, strerror(err));
        if (!cache_folder(cache))
            FAIL(CORUN_EFORMAT,
                 "%s: no file or folder of this name, and HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME "
                 "and HOME name no cache folder",
                 name);
        TRY(find_snapshot(&h, cache, folder));
        TRY(choose(&h, folder, config_only, file));
        if (*file)
            TRY(join(path, folder, file));
        else
            memcpy(path, folder, sizeof path);
        name = path;
    }
    *out = mem_dup(name, strlen(name), "path");
    return *out ? CORUN_OK : CORUN_ENOMEM;
}
