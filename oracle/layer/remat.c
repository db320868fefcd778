#define _GNU_SOURCE /* O_TMPFILE */
#include "oracle/layer/remat.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle/base/memory.h"

const char *const assay_remat_names[ASSAY_REMAT_NAMES] = {
#define X(code, name) [ASSAY_REMAT_##code] = #name,
    ASSAY_REMAT_TABLE(X)
#undef X
};

static const char *const action_texts[] = {
    [ASSAY_REMAT] = "remat", [ASSAY_DEVICE] = "device", [ASSAY_OFFLOAD] = "offload"};

enum { ACTIONS = sizeof action_texts / sizeof *action_texts };

/* Sets of names, a bit each. */
enum {
    SPLIT_QKV = 1 << ASSAY_REMAT_QUERY_PROJ | 1 << ASSAY_REMAT_KEY_PROJ | 1 << ASSAY_REMAT_VALUE_PROJ,
    QKV = SPLIT_QKV | 1 << ASSAY_REMAT_QKV_PROJ,
    OUT = 1 << ASSAY_REMAT_OUT_PROJ,
    CONTEXT = 1 << ASSAY_REMAT_CONTEXT,
    MLPWI = 1 << ASSAY_REMAT_MLPWI | 1 << ASSAY_REMAT_MLPWI_0 | 1 << ASSAY_REMAT_MLPWI_1,
    MLPWO = 1 << ASSAY_REMAT_MLPWO,
};

typedef struct preset {
    const char *name;
    assay_remat_action action; /* of the names; others are remat */
    unsigned names;
} preset;

static const preset presets[] = {
    {"full", ASSAY_REMAT, 0},
    {"minimal", ASSAY_DEVICE, QKV | OUT | MLPWI | MLPWO},
    {"minimal_offloaded", ASSAY_OFFLOAD, QKV | OUT | MLPWI | MLPWO},
    {"minimal_with_context", ASSAY_DEVICE, QKV | OUT | MLPWI | MLPWO | CONTEXT},
    {"save_dot_with_context_except_mlp", ASSAY_DEVICE, QKV | OUT | CONTEXT},
    {"save_dot_except_mlpwi", ASSAY_DEVICE, QKV | OUT | MLPWO},
    {"save_dot_except_mlp", ASSAY_DEVICE, QKV | OUT},
    {"save_qkv_proj", ASSAY_DEVICE, QKV},
    {"qkv_proj_offloaded", ASSAY_OFFLOAD, SPLIT_QKV},
    {"save_out_proj", ASSAY_DEVICE, OUT},
    {"custom", ASSAY_REMAT, 0},
};

enum { PRESETS = sizeof presets / sizeof *presets };

/* The plain names of the routed experts' tensors. */
static const assay_remat_name plain_names[ASSAY_REMAT_NAMES] = {
    [ASSAY_REMAT_MOE_MLPWI] = ASSAY_REMAT_MLPWI,
    [ASSAY_REMAT_MOE_MLPWI_0] = ASSAY_REMAT_MLPWI_0,
    [ASSAY_REMAT_MOE_MLPWI_1] = ASSAY_REMAT_MLPWI_1,
    [ASSAY_REMAT_MOE_MLPWO] = ASSAY_REMAT_MLPWO,
};

static assay_status find_preset(assay_context *ctx, const char *name, const preset **found)
{
    for (int i = 0; i < PRESETS; i++) {
        *found = &presets[i];
        if (strcmp(presets[i].name, name) == 0) return ASSAY_OK;
    }
    char names[256] = "";
    for (int i = 0; i < PRESETS; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", presets[i].name);
    }
    return assay_refuse(ctx, "remat_policy is \"%.60s\", expected one of %s", name, names);
}

static assay_status find_action(assay_context *ctx, const char *name, const char *text, assay_remat_action *action)
{
    for (int i = 0; i < ACTIONS; i++) {
        *action = (assay_remat_action)i;
        if (strcmp(action_texts[i], text) == 0) return ASSAY_OK;
    }
    return assay_refuse(ctx, "%s is \"%s\", expected remat, device or offload", name, text);
}

assay_status assay_remat_policy_make(assay_context *ctx, assay_remat_policy *policy, const char *preset_name,
                                     const char *const texts[ASSAY_REMAT_NAMES])
{
    const preset *base = NULL;
    MUST(find_preset(ctx, preset_name, &base));
    *policy = (assay_remat_policy){0};
    for (int name = 0; name < ASSAY_REMAT_NAMES; name++) {
        const bool routed = name >= ASSAY_REMAT_MOE_MLPWI;
        assay_remat_action own;
        if ((base->names >> name & 1) != 0) policy->action[name] = base->action;
        if (routed) policy->action[name] = policy->action[plain_names[name]];
        if (routed && texts[name][0] == '\0') continue;
        MUST(find_action(ctx, assay_remat_names[name], texts[name], &own));
        if (own != ASSAY_REMAT || routed) policy->action[name] = own;
    }
    if (policy->action[ASSAY_REMAT_DECODER_LAYER_INPUT] == ASSAY_REMAT) {
        return assay_refuse(ctx,
                            "decoder_layer_input is \"remat\", expected device or offload: backward starts from it");
    }
    return ASSAY_OK;
}

/* One intermediate of one layer. */
typedef struct held {
    double *values; /* on the device */
    off_t offset;   /* in the spill file */
    int64_t count;  /* 0: nothing is held */
} held;

struct assay_remat_store {
    assay_remat_policy policy;
    int64_t layers;
    held *items; /* [layers,ASSAY_REMAT_SLOTS] */
    int file;    /* -1: none so far */
    off_t end;
    assay_remat_report report;
};

assay_status assay_remat_open(assay_context *ctx, assay_remat_store **store, const assay_remat_policy *policy,
                              int64_t layers)
{
    assay_status status = ASSAY_OK;
    assay_remat_store *made = NULL;
    int64_t count = 0;
    *store = NULL;
    TRY(assay_checked_count(ctx, "checkpoints", 2, (int64_t[]){layers, ASSAY_REMAT_SLOTS}, &count));
    TRY(assay_alloc(ctx, "checkpoints", 1, sizeof *made, &made));
    *made = (assay_remat_store){.policy = *policy, .layers = layers, .file = -1};
    TRY(assay_alloc(ctx, "checkpoints", count, sizeof *made->items, &made->items));
    memset(made->items, 0, (size_t)count * sizeof *made->items);
    *store = made;
    return ASSAY_OK;
cleanup:
    free(made);
    return status;
}

void assay_remat_close(assay_remat_store *store)
{
    if (store == NULL) return;
    for (int64_t i = 0; i < store->layers * ASSAY_REMAT_SLOTS; i++) free(store->items[i].values);
    if (store->file >= 0) close(store->file);
    free(store->items);
    free(store);
}

assay_remat_action assay_remat_action_of(const assay_remat_policy *policy, int slot)
{
    const bool attention_out = slot == ASSAY_REMAT_LSE || slot == ASSAY_REMAT_ATTENTION_OUT;
    if (!attention_out) return policy->action[slot];
    const assay_remat_action own = policy->action[ASSAY_REMAT_ATTENTION_OUT];
    return own != ASSAY_REMAT ? own : policy->action[ASSAY_REMAT_CONTEXT];
}

/* A file without a name from the start, or, where the file system has none, one whose name goes at once. */
static assay_status open_spill_file(assay_context *ctx, assay_remat_store *store)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];
    if (folder == NULL || folder[0] == '\0') folder = "/var/tmp";
    store->file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (store->file >= 0) return ASSAY_OK;
    int length = snprintf(path, sizeof path, "%s/assay-spill-XXXXXX", folder);
    if (length > 0 && length < (int)sizeof path) store->file = mkstemp(path);
    if (store->file < 0) {
        return assay_fail(ctx, ASSAY_IO,
                          "%s: no spill file for offloaded checkpoints: %s (TMPDIR names another folder)", folder,
                          strerror(errno));
    }
    unlink(path);
    return ASSAY_OK;
}

/* All of an item, to or from where it lies in the file. */
static assay_status transfer(assay_context *ctx, const assay_remat_store *store, const held *item, double *values,
                             bool out)
{
    char *bytes = (char *)values;
    off_t offset = item->offset;
    size_t left = (size_t)item->count * sizeof *values;
    while (left > 0) {
        const ssize_t done = out ? pwrite(store->file, bytes, left, offset) : pread(store->file, bytes, left, offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            return assay_fail(ctx, ASSAY_IO, "spill file, %zu bytes left to %s at %" PRId64 ": %s", left,
                              out ? "write" : "read", (int64_t)offset,
                              done == 0 && !out ? "it ends there" : strerror(errno));
        }
        bytes += done;
        left -= (size_t)done;
        offset += done;
    }
    return ASSAY_OK;
}

static assay_status spill(assay_context *ctx, assay_remat_store *store, held *item, double *values)
{
    const int64_t bytes = item->count * (int64_t)sizeof *values;
    if (store->file < 0) MUST(open_spill_file(ctx, store));
    item->offset = store->end;
    MUST(transfer(ctx, store, item, values, true));
    store->end += bytes;
    store->report.bytes_offloaded += bytes;
    return ASSAY_OK;
}

static assay_status read_back(assay_context *ctx, const assay_remat_store *store, const held *item, double **values)
{
    OWNED double *read = NULL;
    MUST(assay_alloc_f64(ctx, "offloaded checkpoint", item->count, &read));
    MUST(transfer(ctx, store, item, read, false));
    *values = read;
    read = NULL;
    return ASSAY_OK;
}

assay_status assay_remat_put(assay_context *ctx, assay_remat_store *store, int64_t layer, int slot, int64_t count,
                             double **values)
{
    return assay_remat_hold(ctx, store, layer, slot, assay_remat_action_of(&store->policy, slot), count, values);
}

assay_status assay_remat_hold(assay_context *ctx, assay_remat_store *store, int64_t layer, int slot,
                              assay_remat_action action, int64_t count, double **values)
{
    assay_status status = ASSAY_OK;
    held *item = &store->items[layer * ASSAY_REMAT_SLOTS + slot];
    if (*values != NULL && action != ASSAY_REMAT) {
        item->count = count;
        if (action == ASSAY_DEVICE) {
            item->values = *values;
            *values = NULL;
            store->report.bytes_kept += count * (int64_t)sizeof **values;
        } else {
            status = spill(ctx, store, item, *values);
        }
    }
    free(*values);
    *values = NULL;
    return status;
}

assay_status assay_remat_load(assay_context *ctx, assay_remat_store *store, int64_t layer, int slot, double **values)
{
    held *item = &store->items[layer * ASSAY_REMAT_SLOTS + slot];
    assay_status status = ASSAY_OK;
    *values = item->values;
    if (item->count > 0 && item->values == NULL) status = read_back(ctx, store, item, values);
    *item = (held){0};
    return status;
}

void assay_remat_kept(assay_remat_store *store, int64_t bytes)
{
    store->report.bytes_kept += bytes;
}

void assay_remat_recomputed(assay_remat_store *store, double operations)
{
    store->report.operations_recomputed += operations;
}

assay_remat_report assay_remat_report_of(const assay_remat_store *store)
{
    return store->report;
}
