#include "harness/plan/candidate_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/plan/golden_read.h"
#include "oracle/base/memory.h"
#include "oracle/moe/permute.h"

#define ORDER "sorted_selected_experts"

/* The tensor of both, where the candidate has it in the golden's shape and kind of type; else the comparer has its words
 * for it. */
static bool is_shared(const assay_fixture_reader *golden, const assay_fixture_reader *candidate, const char *path)
{
    const assay_tensor_spec *expected = assay_fixture_find(golden, path), *found = assay_fixture_find(candidate, path);
    return expected != NULL && found != NULL && assay_shape_equal(&expected->shape, &found->shape) &&
           (expected->type == ASSAY_INT32) == (found->type == ASSAY_INT32);
}

static assay_status read_numbers(assay_context *ctx, assay_fixture_reader *from, const char *path, int64_t count,
                                 double **out)
{
    assay_status status = assay_alloc_f64(ctx, path, count, out);
    if (status == ASSAY_OK) status = assay_fixture_read(ctx, from, path, 0, count, *out);
    if (status == ASSAY_OK) return ASSAY_OK;
    free(*out);
    *out = NULL;
    return status;
}

static assay_status read_integers(assay_context *ctx, assay_fixture_reader *from, const char *path, int64_t count,
                                  int32_t **out)
{
    assay_status status = assay_alloc_i32(ctx, path, count, out);
    if (status == ASSAY_OK) status = assay_fixture_read_i32(ctx, from, path, 0, count, *out);
    if (status == ASSAY_OK) return ASSAY_OK;
    free(*out);
    *out = NULL;
    return status;
}

/* Of reading from the candidate: what its file does not let us read is NULL, and left to the comparer. */
static assay_status or_leave(assay_context *ctx, assay_status status)
{
    if (status != ASSAY_BAD_INPUT) return status;
    ctx->message[0] = '\0';
    return ASSAY_OK;
}

/* Rows of [used rows,width] that are not used become those of `from`. */
static void take_rows(double *to, const double *from, const bool *used, int64_t count, int64_t width)
{
    for (int64_t i = 0; i < count; i++) {
        if (!used[i / width]) to[i] = from[i];
    }
}

/* The same of bytes, each a row by itself. */
static assay_status take_unused_bytes(assay_context *ctx, const assay_tensor_entry *entry, const bool *used,
                                      assay_fixture_reader *golden, assay_fixture_reader *candidate)
{
    const int64_t count = assay_shape_count(&entry->spec.shape);
    OWNED int32_t *values = NULL;
    OWNED int32_t *expected = NULL;
    MUST(read_integers(ctx, golden, entry->spec.path, count, &expected));
    MUST(or_leave(ctx, read_integers(ctx, candidate, entry->spec.path, count, &values)));
    if (values == NULL) return ASSAY_OK;
    for (int64_t i = 0; i < count; i++) {
        if (!used[i]) values[i] = expected[i];
    }
    int32_t *taken = values;
    values = NULL;
    return assay_fixture_replace(ctx, candidate, entry->spec.path, NULL, taken);
}

static assay_status take_unused(assay_context *ctx, const assay_tensor_entry *entry, const bool *used,
                                assay_fixture_reader *golden, assay_fixture_reader *candidate)
{
    const int64_t count = assay_shape_count(&entry->spec.shape);
    OWNED double *values = NULL, *expected = NULL;
    MUST(read_numbers(ctx, golden, entry->spec.path, count, &expected));
    MUST(or_leave(ctx, read_numbers(ctx, candidate, entry->spec.path, count, &values)));
    if (values == NULL) return ASSAY_OK;
    take_rows(values, expected, used, count, assay_unused_row_width(entry));
    const assay_status status = assay_fixture_replace(ctx, candidate, entry->spec.path, values, NULL);
    values = NULL;
    return status;
}

/* A result of which some rows may belong to nothing; a choice of experts is judged by itself. */
static bool has_unused_rows(const assay_tensor_entry *entry)
{
    const bool judged = entry->spec.type != ASSAY_INT32 || entry->spec.role == ASSAY_ROLE_OUTPUT;
    return entry->unused_row_axes > 0 && assay_role_is_result(entry->spec.role) && judged;
}

static bool is_nan(int32_t code)
{
    return code == 0x7f || code == 0xff;
}

static assay_status take_nan_codes(assay_context *ctx, const char *path, int64_t count, assay_fixture_reader *golden,
                                   assay_fixture_reader *candidate)
{
    OWNED int32_t *codes = NULL, *expected = NULL;
    MUST(read_integers(ctx, golden, path, count, &expected));
    MUST(or_leave(ctx, read_integers(ctx, candidate, path, count, &codes)));
    if (codes == NULL) return ASSAY_OK;
    for (int64_t i = 0; i < count; i++) {
        if (is_nan(expected[i]) && is_nan(codes[i])) codes[i] = expected[i];
    }
    const assay_status status = assay_fixture_replace(ctx, candidate, path, NULL, codes);
    codes = NULL;
    return status;
}

assay_status assay_candidate_put_as_golden(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                           assay_fixture_reader *candidate)
{
    const assay_source given = assay_golden_inputs(golden);
    MUST(assay_candidate_read_sketches(ctx, plan, candidate));
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_entry *entry = &plan->list.entries[i];
        if (!is_shared(golden, candidate, entry->spec.path)) continue;
        if (has_unused_rows(entry)) {
            OWNED bool *used = NULL;
            MUST(plan->operation->used_rows(ctx, plan->c, entry, &given, &used));
            MUST((entry->spec.type == ASSAY_INT32 ? take_unused_bytes : take_unused)(ctx, entry, used, golden,
                                                                                     candidate));
        }
        if (entry->nan_codes)
            MUST(take_nan_codes(ctx, entry->spec.path, assay_shape_count(&entry->spec.shape), golden, candidate));
    }
    return ASSAY_OK;
}

assay_status assay_results_copy_unused(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                                       assay_tensor_set *results)
{
    const assay_source given = assay_input_source(golden);
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_entry *entry = &plan->list.entries[i];
        const assay_tensor *from = assay_tensor_set_find(golden, entry->spec.path);
        const assay_tensor *to = assay_tensor_set_find(results, entry->spec.path);
        if (!has_unused_rows(entry) || from == NULL || to == NULL) continue;
        OWNED bool *used = NULL;
        MUST(plan->operation->used_rows(ctx, plan->c, entry, &given, &used));
        if (entry->spec.type != ASSAY_INT32)
            take_rows(to->values, from->values, used, to->count, assay_unused_row_width(entry));
        for (int64_t j = 0; entry->spec.type == ASSAY_INT32 && j < to->count; j++) {
            if (!used[j]) to->indices[j] = from->indices[j];
        }
    }
    return ASSAY_OK;
}

/* An order of token copies, "routing/layers/3/sorted_selected_experts", and where the tensors in it are. */
typedef struct copies_order {
    const assay_tensor_spec *spec;
    char layer[ASSAY_PATH_SIZE]; /* "layers/3/" or "" */
    assay_permute_dims dims;
    int64_t copies;
    int32_t *golden, *candidate, *group_sizes;
    int32_t *expert, *place; /* of each copy: its expert, and where the golden has it */
} copies_order;

static void copies_order_free(copies_order *o)
{
    free(o->golden);
    free(o->candidate);
    free(o->group_sizes);
    free(o->expert);
    free(o->place);
    *o = (copies_order){0};
}

/* Whether the tensor's rows come in the order: its first axis has the copies of its own layer. */
static bool is_ordered(const copies_order *o, const assay_tensor_spec *spec)
{
    const char *name = strchr(spec->path, '/') + 1, *last = strrchr(spec->path, '/') + 1;
    const size_t length = strlen(o->layer);
    if (!assay_role_is_result(spec->role) || spec->type == ASSAY_INT32 || spec->shape.rank != 2) return false;
    return strcmp(spec->labels[0], "T*K") == 0 && strncmp(name, o->layer, length) == 0 && name + length == last;
}

/* The candidate's row at a place of its own order belongs where the golden has the same copy. */
static assay_status take_order(assay_context *ctx, const copies_order *o, const assay_tensor_spec *spec,
                               assay_fixture_reader *candidate)
{
    const int64_t width = spec->shape.dims[1];
    OWNED double *values = NULL, *moved = NULL;
    MUST(or_leave(ctx, read_numbers(ctx, candidate, spec->path, o->copies * width, &values)));
    if (values == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, spec->path, o->copies * width, &moved));
    for (int64_t j = 0; j < o->copies; j++) {
        memcpy(moved + o->place[o->candidate[j]] * width, values + j * width, (size_t)width * sizeof *moved);
    }
    const assay_status status = assay_fixture_replace(ctx, candidate, spec->path, moved, NULL);
    moved = NULL;
    return status;
}

static assay_status take_tensors(assay_context *ctx, const assay_plan *plan, copies_order *o,
                                 assay_fixture_reader *candidate)
{
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        const assay_tensor_spec *found = assay_fixture_find(candidate, spec->path);
        if (!is_ordered(o, spec) || found == NULL || found->type == ASSAY_INT32) continue;
        if (!assay_shape_equal(&found->shape, &spec->shape)) continue;
        MUST(take_order(ctx, o, spec, candidate));
    }
    int32_t *taken = o->golden;
    o->golden = NULL;
    return assay_fixture_replace(ctx, candidate, o->spec->path, NULL, taken);
}

/* The golden's order says of each copy which expert has it. False: it is no order of all copies by expert. */
static bool find_experts(copies_order *o)
{
    int64_t end = 0, expert = -1;
    for (int64_t i = 0; i < o->copies; i++) o->place[i] = -1;
    for (int64_t j = 0; j < o->copies; j++) {
        const int32_t copy = o->golden[j];
        while (j >= end && expert + 1 < o->dims.experts) end += o->group_sizes[++expert];
        if (copy < 0 || copy >= o->copies || o->place[copy] >= 0 || j >= end) return false;
        o->expert[copy] = (int32_t)expert;
        o->place[copy] = (int32_t)j;
    }
    return true;
}

static assay_status read_order(assay_context *ctx, const assay_plan *plan, const assay_tensor_spec *spec,
                               assay_fixture_reader *golden, assay_fixture_reader *candidate, copies_order *o,
                               bool *readable)
{
    char sizes[ASSAY_PATH_SIZE];
    const char *name = strchr(spec->path, '/') + 1;
    const int stem = (int)(strlen(spec->path) - strlen(ORDER));
    const int64_t per_token = plan->c->config.num_experts_per_tok;
    o->spec = spec;
    o->copies = spec->shape.dims[0];
    o->dims = (assay_permute_dims){
        .tokens = o->copies / per_token, .experts_per_token = per_token, .experts = plan->c->config.num_experts};
    snprintf(o->layer, sizeof o->layer, "%.*s", (int)(strlen(name) - strlen(ORDER)), name);
    snprintf(sizes, sizeof sizes, "%.*sgroup_sizes", stem, spec->path);
    MUST(assay_alloc_i32(ctx, spec->path, o->copies, &o->expert));
    MUST(assay_alloc_i32(ctx, spec->path, o->copies, &o->place));
    MUST(read_integers(ctx, golden, spec->path, o->copies, &o->golden));
    MUST(read_integers(ctx, golden, sizes, o->dims.experts, &o->group_sizes));
    MUST(or_leave(ctx, read_integers(ctx, candidate, spec->path, o->copies, &o->candidate)));
    *readable = o->candidate != NULL && find_experts(o);
    return ASSAY_OK;
}

static void note_wrong(const char *path, const char *message, assay_row_orders *orders)
{
    if (orders->wrong_path[0] != '\0') return;
    snprintf(orders->wrong_path, sizeof orders->wrong_path, "%s", path);
    snprintf(orders->message, sizeof orders->message, "%s", message);
}

/* The first choice that is no replica of its expert, as a line; "": there is none. */
static void find_wrong_replica(const char *path, const int32_t *map, int64_t physical, const int32_t *selected,
                               const int32_t *chosen, int64_t count, int64_t per_token, char line[ASSAY_MESSAGE_SIZE])
{
    line[0] = '\0';
    for (int64_t i = 0; i < count; i++) {
        const int32_t p = chosen[i];
        const bool none = selected[i] == ASSAY_NO_EXPERT && p == ASSAY_NO_EXPERT;
        if (none || (p >= 0 && p < physical && map[p] == selected[i])) continue;
        const int length =
            snprintf(line, ASSAY_MESSAGE_SIZE, "%.90s of token %" PRId64 ", slot %" PRId64 " is %" PRId32, path,
                     i / per_token, i % per_token, p);
        if (p >= 0 && p < physical) {
            snprintf(line + length, ASSAY_MESSAGE_SIZE - (size_t)length,
                     ", a replica of expert %" PRId32 ", expected one of expert %" PRId32, map[p], selected[i]);
        } else {
            snprintf(line + length, ASSAY_MESSAGE_SIZE - (size_t)length, ", expected 0 to %" PRId64, physical - 1);
        }
        return;
    }
}

/* Of the layer that the map "inputs/layers/3/physical_to_logical_map" is of. */
static assay_status take_replicas_of(assay_context *ctx, const assay_plan *plan, const assay_tensor_spec *of_map,
                                     assay_fixture_reader *golden, assay_fixture_reader *candidate,
                                     assay_row_orders *orders)
{
    char line[ASSAY_MESSAGE_SIZE], path[ASSAY_PATH_SIZE], selected_path[ASSAY_PATH_SIZE];
    OWNED int32_t *map = NULL, *selected = NULL, *expected = NULL, *chosen = NULL;
    const char *layer = strchr(of_map->path, '/') + 1;
    const int length = (int)(strrchr(of_map->path, '/') + 1 - layer);
    snprintf(path, sizeof path, "routing/%.*sphysical_experts", length, layer);
    snprintf(selected_path, sizeof selected_path, "routing/%.*sselected_experts", length, layer);
    if (!is_shared(golden, candidate, path)) return ASSAY_OK;
    const int64_t physical = of_map->shape.dims[0];
    const int64_t count = assay_shape_count(&assay_fixture_find(golden, path)->shape);
    MUST(read_integers(ctx, golden, of_map->path, physical, &map));
    MUST(read_integers(ctx, golden, selected_path, count, &selected));
    MUST(read_integers(ctx, golden, path, count, &expected));
    MUST(or_leave(ctx, read_integers(ctx, candidate, path, count, &chosen)));
    if (chosen == NULL) return ASSAY_OK;
    if (memcmp(expected, chosen, (size_t)count * sizeof *chosen) == 0) return ASSAY_OK;
    find_wrong_replica(path, map, physical, selected, chosen, count, plan->c->config.num_experts_per_tok, line);
    if (line[0] != '\0') {
        note_wrong(path, line, orders);
        return ASSAY_OK;
    }
    orders->other_replicas = true;
    const assay_status status = assay_fixture_replace(ctx, candidate, path, NULL, expected);
    expected = NULL;
    return status;
}

static assay_status take_replicas(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                  assay_fixture_reader *candidate, assay_row_orders *orders)
{
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (assay_path_ends(spec->path, "physical_to_logical_map"))
            MUST(take_replicas_of(ctx, plan, spec, golden, candidate, orders));
    }
    return ASSAY_OK;
}

/* Of an order that is an output: gradients go by it. */
static assay_status give_order(assay_context *ctx, const copies_order *o, assay_tensor_set *given)
{
    assay_tensor_spec spec = *o->spec;
    assay_tensor *order = NULL;
    assay_tensor_call(&spec, "routing/" ORDER);
    MUST(assay_tensor_set_add(ctx, given, &spec, &order));
    order->written = order->count;
    memcpy(order->indices, o->candidate, (size_t)order->count * sizeof *order->indices);
    return ASSAY_OK;
}

static assay_status take_orders(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                assay_fixture_reader *candidate, assay_row_orders *orders, assay_tensor_set *given)
{
    assay_status status = ASSAY_OK;
    OWNED_BY(copies_order_free) copies_order o = {0};
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        bool readable = false;
        if (!assay_role_is_result(spec->role) || !assay_path_ends(spec->path, ORDER) || spec->shape.rank != 1) continue;
        if (!is_shared(golden, candidate, spec->path)) continue;
        copies_order_free(&o);
        MUST(read_order(ctx, plan, spec, golden, candidate, &o, &readable));
        if (!readable || memcmp(o.golden, o.candidate, (size_t)o.copies * sizeof *o.golden) == 0) continue;
        status = assay_permute_check_order(ctx, spec->path, o.candidate, o.expert, o.group_sizes, &o.dims);
        if (status == ASSAY_BAD_INPUT) {
            note_wrong(spec->path, ctx->message, orders);
            ctx->message[0] = '\0';
            status = ASSAY_OK;
            continue;
        }
        MUST(status);
        orders->other++;
        if (spec->role == ASSAY_ROLE_OUTPUT) {
            orders->is_output = true;
            MUST(give_order(ctx, &o, given));
        } else {
            MUST(take_tensors(ctx, plan, &o, candidate));
        }
    }
    return status;
}

assay_status assay_candidate_align_rows(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                        assay_fixture_reader *candidate, assay_row_orders *orders,
                                        assay_tensor_set *given)
{
    const assay_status status = take_orders(ctx, plan, golden, candidate, orders, given);
    return status == ASSAY_OK ? take_replicas(ctx, plan, golden, candidate, orders) : status;
}
