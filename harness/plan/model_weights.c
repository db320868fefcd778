#include "harness/plan/model_weights_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/operations/op_support.h"
#include "harness/operations/operands.h"
#include "oracle/base/memory.h"

/* Ours that hold several of theirs, side by side along their outputs. */
static const struct {
    const char *ours, *sources[SOURCES];
} FUSED[] = {
    {"moe/wi", {"moe/wi_0", "moe/wi_1"}},
    {"mlp/wi/kernel", {"mlp/wi_0/kernel", "mlp/wi_1/kernel"}},
    {"moe/shared_experts/wi/kernel", {"moe/shared_experts/wi_0/kernel", "moe/shared_experts/wi_1/kernel"}},
    {"self_attention/qkv_proj/kernel",
     {"self_attention/query/kernel", "self_attention/key/kernel", "self_attention/value/kernel"}},
    {"self_attention/qkv_proj/bias",
     {"self_attention/query/bias", "self_attention/key/bias", "self_attention/value/bias"}},
};

/* --- names --- */

/* A row's place in ours, which an operation by itself has without the block's name. A norm by itself is any of them. */
static bool is_ours(const char *ours, const char *place)
{
    const char *slash = strchr(ours, '/');
    if (strcmp(place, "scale") == 0) return false;
    return strcmp(ours, place) == 0 || (slash != NULL && strcmp(slash + 1, place) == 0);
}

/* Below weights/ and a stack's layers/N/. */
static const char *place_of(const char *path, int *layer)
{
    int length = 0;
    const char *place = strchr(path, '/') + 1;
    *layer = -1;
    if (sscanf(place, "layers/%d/%n", layer, &length) == 1 && length > 0) return place + length;
    *layer = -1;
    return place;
}

/* The index of "PREFIX.layers.N." + theirs, or without the component that the prefix may end with; -1. `name` is the first. */
static int find_name(const assay_model_weights *w, int layer, const char *theirs, int64_t expert, char name[NAME_SIZE])
{
    char number[32] = "", base[NAME_SIZE], whole[NAME_SIZE];
    const char *star = strchr(theirs, '*'), *dot = strchr(theirs, '.');
    if (star != NULL) snprintf(number, sizeof number, "%" PRId64, expert);
    snprintf(whole, sizeof whole, "%.*s%s%s", star != NULL ? (int)(star - theirs) : (int)strlen(theirs), theirs, number,
             star != NULL ? star + 1 : "");
    snprintf(base, sizeof base, "%s%s", w->prefix, w->prefix[0] != '\0' ? "." : "");
    if (layer >= 0) snprintf(base + strlen(base), 32, "layers.%d.", layer);
    snprintf(name, NAME_SIZE, "%.159s%.159s", base, whole);
    const int found = assay_checkpoint_find(w->checkpoint, name);
    if (found >= 0 || layer >= 0 || dot == NULL) return found;
    char shorter[NAME_SIZE];
    snprintf(shorter, sizeof shorter, "%.159s%.159s", base, whole + (dot - theirs) + 1);
    const int other = assay_checkpoint_find(w->checkpoint, shorter);
    if (other >= 0) snprintf(name, NAME_SIZE, "%s", shorter);
    return other;
}

static bool is_fused_experts(const char *theirs)
{
    static const char EXPERTS[] = "mlp.experts.";
    return strncmp(theirs, EXPERTS, strlen(EXPERTS)) == 0 && strchr(theirs, '*') == NULL;
}

/* Codes lie along the contraction. */
static bool is_row_of(const assay_model_weights *w, const weight_target *t, const assay_weight_name *row,
                      const char *ours)
{
    const bool gpt_oss = strcmp(w->c->config.decoder_block.text, "gpt_oss") == 0;
    if (t->entry->format != NULL && row->layout == ASSAY_WEIGHT_PLAIN) return false;
    return strcmp(row->ours, ours) == 0 && (!is_fused_experts(row->theirs) || row->gpt_oss == gpt_oss);
}

/* --- shapes --- */

static assay_status check_tensor(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                 const weight_source *p, const assay_weight_name *row, int index)
{
    const assay_shape shape = assay_weights_shape(t, p, row);
    return t->entry->format != NULL ? assay_weights_check_codes(ctx, w, t, row, index, shape)
                                    : assay_weights_check_shape(ctx, w, index, &shape);
}

/* --- finding --- */

static assay_status refuse_missing(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                   const weight_source *p)
{
    char names[ASSAY_MESSAGE_SIZE / 2] = "", name[NAME_SIZE];
    size_t used = 0;
    for (int i = 0; i < assay_weight_name_count && used < sizeof names - NAME_SIZE; i++) {
        const assay_weight_name *row = &assay_weight_names[i];
        if (!is_row_of(w, t, row, p->ours)) continue;
        find_name(w, t->layer, row->theirs, 0, name);
        if (strstr(names, name) != NULL) continue;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", name);
    }
    if (used == 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "--weights: no checkpoint of Hugging Face has %s of such a configuration",
                          t->entry->spec.path);
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has nothing for %s: expected %s", w->file, t->entry->spec.path, names);
}

/* The tensors of all experts. */
static assay_status take_row(assay_context *ctx, const assay_model_weights *w, const weight_target *t, weight_source *p)
{
    const bool each = strchr(p->row->theirs, '*') != NULL;
    const int64_t count = each ? t->experts : 1;
    MUST(assay_alloc_list(ctx, w->file, count, sizeof *p->tensors, &p->tensors));
    MUST(assay_alloc_list(ctx, w->file, count, sizeof *p->scales, &p->scales));
    MUST(assay_alloc_list(ctx, w->file, count, sizeof *p->tensor_scales, &p->tensor_scales));
    for (int64_t e = 0; e < count; e++) {
        char name[NAME_SIZE];
        p->tensors[e] = find_name(w, t->layer, p->row->theirs, e, name);
        if (p->tensors[e] < 0) {
            MUST(assay_fail(ctx, ASSAY_BAD_INPUT, "%s has no %s, which %s needs", w->file, name, t->entry->spec.path));
        }
        w->used[p->tensors[e]] = true;
        MUST(check_tensor(ctx, w, t, p, p->row, p->tensors[e]));
        MUST(assay_weights_read_scales(ctx, w, t, p, name, e));
    }
    return ASSAY_OK;
}

/* The first row of which the checkpoint has the tensor in its shape. */
static assay_status find_source(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                weight_source *p)
{
    assay_status status = ASSAY_OK, misshapen = ASSAY_OK;
    for (int i = 0; i < assay_weight_name_count; i++) {
        char name[NAME_SIZE];
        const assay_weight_name *row = &assay_weight_names[i];
        const int index = is_row_of(w, t, row, p->ours) ? find_name(w, t->layer, row->theirs, 0, name) : -1;
        if (index < 0) continue;
        assay_context own = *ctx;
        status = check_tensor(&own, w, t, p, row, index);
        if (status == ASSAY_OK) {
            p->row = row;
            return take_row(ctx, w, t, p);
        }
        if (misshapen == ASSAY_OK) memcpy(ctx->message, own.message, sizeof ctx->message);
        misshapen = status;
    }
    return misshapen != ASSAY_OK ? misshapen : refuse_missing(ctx, w, t, p);
}

/* --- targets --- */

/* The parts of a tensor of ours and how wide they are; none where the table has it not. */
static void set_sources(weight_target *t, const char *place)
{
    for (int i = 0; i < assay_weight_name_count && t->source_count == 0; i++) {
        if (!is_ours(assay_weight_names[i].ours, place)) continue;
        t->sources[t->source_count++].ours = assay_weight_names[i].ours;
        t->vector = assay_weight_names[i].layout == ASSAY_WEIGHT_VECTOR;
    }
    for (size_t i = 0; i < sizeof FUSED / sizeof *FUSED && t->source_count == 0; i++) {
        if (!is_ours(FUSED[i].ours, place)) continue;
        t->vector = assay_path_ends(place, "bias");
        while (t->source_count < SOURCES && FUSED[i].sources[t->source_count] != NULL) {
            t->sources[t->source_count].ours = FUSED[i].sources[t->source_count];
            t->source_count++;
        }
    }
}

static void set_widths(const assay_model_weights *w, weight_target *t)
{
    const assay_shape *shape = &t->entry->spec.shape;
    const int64_t head = shape->dims[shape->rank - 1], query = w->c->config.base_num_query_heads * head;
    for (int i = 0; i < t->source_count; i++) t->sources[i].outputs = t->outputs / t->source_count;
    if (t->source_count != 3) return;
    t->sources[0].outputs = query;
    t->sources[1].outputs = t->sources[2].outputs = (t->outputs - query) / 2;
}

/* Of a scale as of its codes, in blocks. */
static assay_status plan_target(assay_context *ctx, const assay_model_weights *w, const assay_tensor_list *list,
                                const assay_tensor_entry *given, weight_target *t)
{
    const assay_tensor_entry *entry = assay_operand_of(list, given);
    const assay_shape *shape = &entry->spec.shape;
    *t = (weight_target){.entry = entry, .experts = 1, .inputs = 1, .outputs = 1};
    const char *place = place_of(entry->spec.path, &t->layer);
    t->stacked = shape->rank > 1 && strcmp(entry->spec.labels[0], "E") == 0;
    set_sources(t, place);
    if (t->source_count == 0) {
        t->sources[0].ours = "";
        return refuse_missing(ctx, w, t, &t->sources[0]);
    }
    const int first = t->stacked, last = shape->rank - 1;
    const int cut = t->vector ? first : assay_path_ends(place, "out/kernel") ? last : first + 1;
    if (t->stacked) t->experts = shape->dims[0];
    for (int axis = first; axis < shape->rank; axis++) {
        if (axis < cut) t->inputs *= shape->dims[axis];
        if (axis >= cut) t->outputs *= shape->dims[axis];
    }
    set_widths(w, t);
    for (int i = 0; i < t->source_count; i++) {
        MUST(find_source(ctx, w, t, &t->sources[i]));
    }
    if (given->part == ASSAY_OPERAND_SCALE) *t = assay_weights_in_blocks(t);
    if (given->part == ASSAY_OPERAND_TENSOR_SCALE) t->inputs = t->outputs = 1;
    t->entry = given;
    return ASSAY_OK;
}

/* Grouped queries of Hugging Face's kernels are multiplied by head_dim^-0.5 afterwards. */
static assay_status check_query_scale(assay_context *ctx, const assay_model_weights *w, const assay_tensor_list *list)
{
    const assay_model_config *m = &w->c->config;
    bool grouped = false;
    for (int i = 0; i < list->count; i++) {
        const char *path = list->entries[i].spec.path;
        grouped |= assay_path_ends(path, "key/kernel") || assay_path_ends(path, "qkv_proj/kernel");
    }
    const double scale = 1 / sqrt((double)m->head_dim);
    if (!grouped || fabs(assay_query_scale_of(m) - scale) <= 1e-9 * scale) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "--weights: %s multiplies queries by %g, expected %.17g for Hugging Face's kernels: "
                      "give --set query_pre_attn_scalar=%.17g",
                      w->c->name, assay_query_scale_of(m), scale, scale);
}

/* Of models whose first layers are dense: which layer of theirs ours is says LAYER, of which kind ours is the case. */
static assay_status check_kind_of_layer(assay_context *ctx, const assay_model_weights *w)
{
    static const char *const names[] = {"mlp.gate_proj.weight", "mlp.gate.weight"};
    static const char *const kinds[] = {"dense", "of experts"};
    const bool dense = w->c->config.first_num_dense_layers > 0;
    char name[NAME_SIZE];
    if (!assay_is_layer(w->c) || assay_is_stack(w->c) || find_name(w, -1, names[dense], 0, name) < 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "%s has %s: that layer is %s, and %s is %s: give --set first_num_dense_layers=%d", w->file, name,
                      kinds[dense], w->c->name, kinds[!dense], !dense);
}

static assay_status plan_targets(assay_context *ctx, assay_model_weights *w, const assay_tensor_list *list)
{
    if (w->c->config.weights_on_shards) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--weights: expected weights_on_shards: false");
    }
    MUST(check_query_scale(ctx, w, list));
    MUST(check_kind_of_layer(ctx, w));
    MUST(assay_alloc_list(ctx, "the list of weights", list->count + 1, sizeof *w->targets, &w->targets));
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_entry *entry = &list->entries[i];
        if (entry->spec.role != ASSAY_ROLE_WEIGHT || entry->spec.type == ASSAY_INT32) continue;
        MUST(plan_target(ctx, w, list, entry, &w->targets[w->target_count++]));
    }
    if (w->target_count == 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--weights: op %s has no weights", w->c->op);
    }
    return ASSAY_OK;
}

/* --- what is left over --- */

/* Buffers of old checkpoints, which hold nothing. */
static bool is_buffer(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL && strcmp(dot, ".inv_freq") == 0;
}

/* Whether some part lies beside the tensor: below the same component of the layer, of a router beside its own tensors alone;
 * of a layer anywhere. `rest` is below the prefix. */
static bool is_beside(const assay_model_weights *w, const char *rest)
{
    const assay_operation *operation = assay_operation_by_name(w->c->op);
    const bool router =
        (operation->components & ASSAY_USES_EXPERTS) == 0 && (operation->components & ASSAY_USES_ROUTER) != 0;
    int layer = 0, end_of_number = 0;
    if (w->targets[0].layer >= 0) {
        return sscanf(rest, "layers.%d.%n", &layer, &end_of_number) == 1 && end_of_number > 0 &&
               layer <= w->targets[w->target_count - 1].layer;
    }
    if (assay_is_layer(w->c)) return true;
    for (int i = 0; i < w->target_count; i++) {
        const weight_source *p = &w->targets[i].sources[0];
        const char *theirs = p->row->theirs, *dot = strchr(theirs, '.');
        const char *name = assay_checkpoint_name(w->checkpoint, p->tensors[0]);
        const char *below = name + strlen(w->prefix) + (w->prefix[0] != '\0');
        const char *end = strrchr(below, '.');
        size_t length = end != NULL ? (size_t)(end - below) + 1 : 0;
        if (!router) length = strncmp(below, theirs, (size_t)(dot - theirs) + 1) == 0 ? (size_t)(dot - theirs) + 1 : 0;
        if (strncmp(rest, below, length) == 0) return true; /* 0: the prefix has the component */
    }
    return false;
}

static assay_status check_left_over(assay_context *ctx, const assay_model_weights *w)
{
    const size_t length = strlen(w->prefix);
    int count = 0;
    const char *first = NULL;
    for (int i = 0; i < assay_checkpoint_count(w->checkpoint); i++) {
        const char *name = assay_checkpoint_name(w->checkpoint, i);
        const bool below = length == 0 || (strncmp(name, w->prefix, length) == 0 && name[length] == '.');
        if (!below || w->used[i] || is_buffer(name) || !is_beside(w, name + length + (length > 0))) continue;
        if (first == NULL) first = name;
        count++;
    }
    if (count == 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "%s has %s, which no weight of %s takes (%d such tensors): another configuration?", w->file,
                      first, w->c->name, count);
}

/* --- the file and its layer --- */

int assay_model_weights_path(const char *text)
{
    struct stat about;
    const char *colon = stat(text, &about) == 0 ? NULL : strrchr(text, ':');
    return colon != NULL ? (int)(colon - text) : (int)strlen(text);
}

/* FILE, FOLDER, or either with :PREFIX. */
static assay_status split(assay_context *ctx, assay_model_weights *w, const char *text)
{
    const int length = assay_model_weights_path(text);
    const char *prefix = text[length] == ':' ? text + length + 1 : "";
    if (length >= FILE_SIZE || strlen(prefix) >= sizeof w->prefix) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--weights: path too long");
    }
    snprintf(w->file, sizeof w->file, "%.*s", length, text);
    snprintf(w->prefix, sizeof w->prefix, "%s", prefix);
    const size_t end = strlen(w->prefix);
    if (end > 0 && w->prefix[end - 1] == '.') w->prefix[end - 1] = '\0';
    return ASSAY_OK;
}

/* Where "layers.N." begins in a name; NULL: nowhere. */
static const char *layers_in(const char *name, int *layer)
{
    int length = 0;
    const char *at = strncmp(name, "layers.", 7) == 0 ? name : strstr(name, ".layers.");
    if (at == NULL) return NULL;
    at += *at == '.';
    return sscanf(at, "layers.%d.%n", layer, &length) == 1 && length > 0 ? at : NULL;
}

/* Without a prefix: the one layer that there is, for a stack what stands before the layers. */
static assay_status find_prefix(assay_context *ctx, assay_model_weights *w, bool stack)
{
    const char *example = NULL;
    int least = INT32_MAX, most = -1;
    if (w->prefix[0] != '\0') return ASSAY_OK;
    for (int i = 0; i < assay_checkpoint_count(w->checkpoint); i++) {
        int layer;
        const char *name = assay_checkpoint_name(w->checkpoint, i), *at = layers_in(name, &layer);
        if (at == NULL) continue;
        if (layer < least) least = layer;
        if (layer > most) most = layer;
        const int length = stack ? (int)(at - name) - (at > name) : (int)(strchr(at + 7, '.') - name);
        if (example == NULL) snprintf(w->prefix, sizeof w->prefix, "%.*s", length, name);
        example = name;
    }
    if (stack || least >= most) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has the layers %d to %d: say which, as in %s:%s", w->file, least, most,
                      w->file, w->prefix);
}

static assay_status check_prefix(assay_context *ctx, const assay_model_weights *w)
{
    const size_t length = strlen(w->prefix);
    for (int i = 0; i < assay_checkpoint_count(w->checkpoint); i++) {
        const char *name = assay_checkpoint_name(w->checkpoint, i);
        if (length == 0 || (strncmp(name, w->prefix, length) == 0 && name[length] == '.')) return ASSAY_OK;
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has no tensor %s.*%s%s", w->file, w->prefix,
                      assay_checkpoint_count(w->checkpoint) > 0 ? "; its first is " : "",
                      assay_checkpoint_count(w->checkpoint) > 0 ? assay_checkpoint_name(w->checkpoint, 0) : "");
}

static bool is_stack(const assay_tensor_list *list)
{
    bool stack = false;
    for (int i = 0; i < list->count; i++) stack |= strncmp(list->entries[i].spec.path, "weights/layers/", 15) == 0;
    return stack;
}

assay_status assay_model_weights_open(assay_context *ctx, const char *text, const assay_case *c,
                                      const assay_tensor_list *list, assay_model_weights **weights)
{
    assay_status status;
    assay_model_weights *w = calloc(1, sizeof *w);
    *weights = NULL;
    if (w == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for --weights");
    w->c = c;
    TRY(split(ctx, w, text));
    TRY(assay_checkpoint_open(ctx, w->file, &w->checkpoint));
    TRY(find_prefix(ctx, w, is_stack(list)));
    TRY(check_prefix(ctx, w));
    TRY(assay_alloc_list(ctx, "--weights", assay_checkpoint_count(w->checkpoint) + 1, sizeof *w->used, &w->used));
    TRY(plan_targets(ctx, w, list));
    TRY(check_left_over(ctx, w));
    *weights = w;
    w = NULL;
cleanup:
    assay_model_weights_close(w);
    return status;
}

void assay_model_weights_close(assay_model_weights *w)
{
    if (w == NULL) return;
    for (int i = 0; i < w->target_count; i++) {
        for (int p = 0; p < SOURCES; p++) {
            free(w->targets[i].sources[p].tensors);
            free(w->targets[i].sources[p].scales);
            free(w->targets[i].sources[p].tensor_scales);
        }
    }
    free(w->targets);
    free(w->used);
    free(w->slab);
    assay_checkpoint_close(w->checkpoint);
    free(w);
}
