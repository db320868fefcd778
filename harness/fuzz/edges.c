#include "harness/fuzz/edges.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Below and on the edges of tiles, and one beyond. */
static const int64_t probes[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65};
enum { PROBES = sizeof probes / sizeof *probes };

static const char *const sizes[] = {"sequence",         "batch",      "base_emb_dim", "base_moe_mlp_dim",
                                    "base_mlp_dim",     "head_dim",   "num_experts",  "base_num_query_heads",
                                    "qk_nope_head_dim", "v_head_dim", "q_lora_rank",  "kv_lora_rank"};

typedef enum outcome { FAILS, PASSES, SOMETHING_ELSE } outcome;

/* Whether the case of that operation reads the key, and nobody has set it. */
static bool is_free(const assay_shrinking *s, const assay_case *c, const char *key)
{
    const size_t length = strlen(key);
    bool reads = strcmp(key, "sequence") == 0 || strcmp(key, "batch") == 0;
    for (int i = 0; assay_draw_keys[i].key != NULL; i++) {
        if (strcmp(assay_draw_keys[i].key, key) == 0)
            reads |= (assay_draw_keys[i].components & assay_operation_by_name(c->op)->components) != 0;
    }
    for (int i = 0; i < s->sets.count; i++)
        reads &= strncmp(s->sets.items[i], key, length) != 0 || s->sets.items[i][length] != '=';
    return reads;
}

static assay_status try_size(assay_context *ctx, assay_shrinking *s, const assay_case *c, const char *key, int64_t size,
                             outcome *found)
{
    OWNED_BY(assay_case_free) assay_case changed = {0};
    OWNED_BY(assay_attempt_free) assay_attempt a = {0};
    char set[64];
    bool is_case = false;
    *found = SOMETHING_ELSE;
    snprintf(set, sizeof set, "%s=%" PRId64, key, size);
    MUST(assay_case_copy(ctx, c, &changed));
    assay_status status = assay_case_set(ctx, &changed, set);
    if (status == ASSAY_OK) status = assay_draw_settle(ctx, &s->sets, s->tried->profile, &changed, &is_case);
    MUST(assay_draw_forgive(ctx, status));
    if (!is_case) return ASSAY_OK;
    MUST(assay_attempt_make(ctx, s->tried, &changed, 0, &a));
    if (a.end == ASSAY_ATTEMPT_PASS) *found = PASSES;
    if (a.end == ASSAY_ATTEMPT_FAIL && assay_reason_is_alike(&a.reason, &s->reason)) *found = FAILS;
    return ASSAY_OK;
}

/* Neighbours that end alike are one range; what is no case is passed over. */
static void say(const char *key, int count, const int64_t *tried, const outcome *found, char text[ASSAY_EDGES_TEXT])
{
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, ASSAY_EDGES_TEXT - used, "%s:", key);
    for (int first = 0, next; first < count && used + 64 < ASSAY_EDGES_TEXT; first = next) {
        for (next = first + 1; next < count && found[next] == found[first];) next++;
        const bool several = next > first + 1;
        char to[24] = "";
        if (several) snprintf(to, sizeof to, " to %" PRId64, tried[next - 1]);
        used += (size_t)snprintf(text + used, ASSAY_EDGES_TEXT - used, "%s %" PRId64 "%s %s%s", first == 0 ? "" : ",",
                                 tried[first], to, found[first] == FAILS ? "fail" : "pass",
                                 several                 ? ""
                                 : found[first] == FAILS ? "s"
                                                         : "es");
    }
    snprintf(text + used, ASSAY_EDGES_TEXT - used, " (%d sizes tried)\n", count);
}

static assay_status find_of(assay_context *ctx, assay_shrinking *s, const assay_case *c, const char *key,
                            char text[ASSAY_EDGES_TEXT])
{
    int64_t tried[PROBES];
    outcome found[PROBES];
    int count = 0, passes = 0;
    for (int i = 0; i < PROBES && !assay_shrinking_is_over(s); i++) {
        MUST(try_size(ctx, s, c, key, probes[i], &found[count]));
        if (found[count] == SOMETHING_ELSE) continue;
        passes += found[count] == PASSES;
        tried[count++] = probes[i];
    }
    if (passes > 0 && passes < count && strlen(text) + 160 < ASSAY_EDGES_TEXT) say(key, count, tried, found, text);
    return ASSAY_OK;
}

assay_status assay_edges_find(assay_context *ctx, assay_shrinking *s, const assay_case *c, char text[ASSAY_EDGES_TEXT])
{
    text[0] = '\0';
    s->tries = 0; /* time is what limits these */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (is_free(s, c, sizes[i])) MUST(find_of(ctx, s, c, sizes[i], text));
    }
    return ASSAY_OK;
}
