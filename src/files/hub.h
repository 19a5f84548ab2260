/* hub.h - a model by its name: ORG/NAME to its files in the user's Hugging Face cache folder.
 *
 * Nothing is downloaded and nothing is written. The environment says in which folder files are
 * looked for, never what they are: the digests of their content are in the numeric identity. */
#ifndef FILES_HUB_H
#define FILES_HUB_H

#include "base/err.h"

/* The path of a model. What exists on disk is its own path, and wins. Else the name must be
 * ORG/NAME[@REVISION][:FILE.gguf]; REVISION is a branch, a tag or a whole commit (default: main).
 * It is looked for in $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else
 * $HOME/.cache/huggingface/hub.
 *
 * A snapshot with model.safetensors or its index gives its folder; one without gives its .gguf
 * file: the one at its top (a split set is one), or the one that is named. All files that the model
 * cannot do without must be there: CORUN_EFORMAT names the first that is not. config_only:
 * config.json is all that is needed.
 * *out is new memory: mem_free. */
corun_status hub_find(char **out, const char *name, bool config_only);

#endif
