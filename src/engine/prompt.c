/* prompt.c - finds a model's chat templates in its files.
 * Invariant: the digest covers every byte of every template that a request could pick. */
#include "engine/prompt.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEMPLATE ((size_t)4 << 20)
#define MAX_CONFIG   ((size_t)64 << 20)
#define PATH_ROOM    4096

/* The text of the templates is digested as canonical JSON of name and text. */
static corun_status take(prompt_source *p, const json_t *v, const bpe *t, const char *what)
{
    if (v && !json_is_null(v)) {
        TRY(chat_templates_read(&p->templates, v, what));
        p->source = json_incref((json_t *)(uintptr_t)v);
        buf b;
        jw w;
        buf_init(&b, MAX_CONFIG);
        jw_init(&w, &b);
        jw_canonical(&w, v);
        corun_status st = buf_status(&b);
        if (st == CORUN_OK) p->digest = digest_of(b.data, b.len);
        buf_free(&b);
        TRY(st);
    }
    if (!(p->special = json_object())) FAIL(CORUN_ENOMEM, "special tokens: no memory");
    for (size_t i = 0; i < bpe_n_special(t); i++) {
        const char *name, *text;
        bpe_special_at(t, i, &name, &text);
        if (json_object_set_new(p->special, name, json_string(text)) != 0)
            FAIL(CORUN_EFORMAT, "%s: the special token %s is no UTF-8", what, name);
    }
    p->chat.templates = p->templates;
    p->chat.special = p->special;
    return CORUN_OK;
}

/* Adds {"name", "template"} from a file. */
static corun_status add_file(json_t *list, const char *path, const char *name)
{
    buf b;
    buf_init(&b, MAX_TEMPLATE);
    corun_status st = file_read(&b, path, MAX_TEMPLATE);
    json_t *text = st == CORUN_OK ? json_stringn(b.data ? b.data : "", b.len) : NULL;
    buf_free(&b);
    TRY(st);
    if (!text) FAIL(CORUN_EFORMAT, "%s: not UTF-8", path);
    json_t *item = json_object();
    int bad = !item || json_object_set_new(item, "name", json_string(name)) != 0;
    bad |= !item || json_object_set_new(item, "template", text) != 0;
    bad |= json_array_append_new(list, item) != 0;
    if (bad) FAIL(CORUN_ENOMEM, "%s: no memory", path);
    return CORUN_OK;
}

/* NAME.jinja files of a folder that may be absent. */
static corun_status add_folder(json_t *list, const char *folder)
{
    struct dirent **entry;
    int n = scandir(folder, &entry, NULL, alphasort);
    corun_status st = CORUN_OK;
    for (int i = 0; i < n; i++) {
        char *name = entry[i]->d_name, *dot = strrchr(name, '.');
        if (st == CORUN_OK && dot && dot > name && strcmp(dot, ".jinja") == 0) {
            char path[4096];
            int len = snprintf(path, sizeof path, "%s/%s", folder, name);
            *dot = 0;
            st = len < (int)sizeof path ? add_file(list, path, name)
                                        : err_set(CORUN_EINVAL, "%s: the path is too long", folder);
        }
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    return st;
}

/* *out: the templates, NULL where there are none; path: the file that has them. */
static corun_status read_folder(json_t **out, const char *folder, char path[PATH_ROOM])
{
    if (strlen(folder) > PATH_ROOM - 64) FAIL(CORUN_EINVAL, "%s: the path is too long", folder);
    snprintf(path, PATH_ROOM, "%s/chat_template.jinja", folder);
    if (file_exists(path)) {
        if (!(*out = json_array())) FAIL(CORUN_ENOMEM, "%s: no memory", path);
        TRY(add_file(*out, path, "default"));
        char more[PATH_ROOM];
        snprintf(more, sizeof more, "%s/additional_chat_templates", folder);
        return add_folder(*out, more);
    }
    snprintf(path, PATH_ROOM, "%s/tokenizer_config.json", folder);
    if (!file_exists(path)) return CORUN_OK;
    json_t *cfg;
    TRY(json_read_file(&cfg, path, MAX_CONFIG));
    *out = json_incref(json_object_get(cfg, "chat_template"));
    json_decref(cfg);
    return CORUN_OK;
}

corun_status prompt_open_folder(prompt_source *out, const char *folder, const bpe *t)
{
    json_t *v = NULL;
    *out = (prompt_source){0};
    char path[PATH_ROOM];
    corun_status st = read_folder(&v, folder, path);
    if (st == CORUN_OK) st = take(out, v, t, path);
    json_decref(v);
    return st;
}

corun_status prompt_open_gguf(prompt_source *out, const weights *w, const bpe *t)
{
    static const char key[] = "tokenizer.chat_template";
    const char *s;
    size_t len;
    *out = (prompt_source){0};
    if (!weights_meta_str(w, key, &s, &len)) return take(out, NULL, t, key);
    json_t *v = json_stringn(s, len);
    if (!v) FAIL(CORUN_EFORMAT, "%s: not UTF-8", key);
    corun_status st = take(out, v, t, key);
    json_decref(v);
    return st;
}

corun_status prompt_open_text(prompt_source *out, const char *src, const bpe *t)
{
    *out = (prompt_source){0};
    json_t *v = json_string(src);
    if (!v) FAIL(CORUN_EFORMAT, "template: not UTF-8");
    corun_status st = take(out, v, t, "template");
    json_decref(v);
    return st;
}

void prompt_close(prompt_source *p)
{
    chat_templates_free(p->templates);
    json_decref(p->special);
    json_decref(p->source);
    *p = (prompt_source){0};
}
