#include "harness/fuzz/draw.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/golden/golden_memory.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "harness/plan/results.h"
#include "oracle/base/memory.h"

/* A case takes milliseconds up to here, and shows what a larger one does. */
#define MOST_ELEMENTS 400000
#define MOST_FLOPS 3e7

enum { ATTEMPTS = 8, TEXT = 512 };

/* ---- numbers ---- */

typedef struct dice {
    uint64_t seed, rolls;
} dice;

static uint64_t roll(dice *d)
{
    return assay_random_bits(d->seed, "fuzz", d->rolls++);
}

static int64_t pick(dice *d, int64_t count)
{
    return (int64_t)(roll(d) % (uint64_t)count);
}

static double uniform(dice *d)
{
    return (double)(roll(d) >> 11) * 0x1p-53;
}

/* Of weights, one of which is above 0. */
static int pick_weighted(dice *d, const double *weights, int count)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++) sum += weights[i];
    double at = uniform(d) * sum;
    for (int i = 0; i < count; i++) {
        if (weights[i] > 0.0 && at < weights[i]) return i;
        at -= weights[i];
    }
    for (int i = count - 1; i > 0; i--) {
        if (weights[i] > 0.0) return i;
    }
    return 0;
}

/* ---- the table's texts ---- */

static const char *word_at(const char *values, int choice, int *length)
{
    for (int i = 0; i < choice; i++) {
        values += strcspn(values, " ");
        values += strspn(values, " ");
    }
    *length = (int)strcspn(values, " ");
    return values;
}

int assay_draw_choices(const char *values)
{
    int count = 1;
    for (; *values != '\0'; values++) count += *values == ' ';
    return count;
}

/* "3-9" and "edge" become numbers; what follows a semicolon stays. */
static void value_of(dice *d, const char *word, int length, char *text, size_t size)
{
    long low, high;
    int read = 0, edges = 0;
    const int head = (int)strcspn(word, "; ");
    while (assay_draw_edges[edges] != 0) edges++;
    if (head == 4 && strncmp(word, "edge", 4) == 0) {
        read = snprintf(text, size, "%d", assay_draw_edges[pick(d, edges)] - 1 + (int)pick(d, 3));
    } else if (word[0] != '-' && sscanf(word, "%ld-%ld%n", &low, &high, &read) == 2 && read == head) {
        read = snprintf(text, size, "%ld", low + (long)pick(d, high - low + 1));
    } else {
        read = snprintf(text, size, "%.*s", head, word);
    }
    snprintf(text + read, size - (size_t)read, "%.*s", length - head, word + head);
}

/* "4;other=2" of a key. */
static assay_status set_all(assay_context *ctx, assay_case *c, const char *key, const char *value)
{
    char one[TEXT + 64];
    snprintf(one, sizeof one, "%s=%.*s", key, (int)strcspn(value, ";"), value);
    for (;;) {
        const assay_status status = assay_case_set(ctx, c, one);
        value += strcspn(value, ";");
        if (status != ASSAY_OK || *value == '\0') return status;
        value++;
        snprintf(one, sizeof one, "%.*s", (int)strcspn(value, ";"), value);
    }
}

assay_status assay_draw_set(assay_context *ctx, const assay_draw_sets *sets, assay_case *c)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < sets->count && status == ASSAY_OK; i++) status = assay_case_set(ctx, c, sets->items[i]);
    return status;
}

static bool is_set(const assay_draw_sets *sets, const char *key)
{
    const size_t length = strlen(key);
    bool found = false;
    for (int i = 0; i < sets->count; i++)
        found |= strncmp(sets->items[i], key, length) == 0 && sets->items[i][length] == '=';
    return found;
}

/* ---- what there is ---- */

assay_status assay_draw_forgive(assay_context *ctx, assay_status status)
{
    if (status == ASSAY_BAD_INPUT) ctx->message[0] = '\0';
    return status == ASSAY_BAD_INPUT ? ASSAY_OK : status;
}

assay_status assay_draw_check(assay_context *ctx, const assay_case *c, const assay_profile *profile, bool *is_case)
{
    assay_plan plan = {0};
    const assay_status status = assay_plan_describe(ctx, &plan, c, NULL, profile);
    *is_case = status == ASSAY_OK && plan.elements <= MOST_ELEMENTS &&
               assay_operation_flops(plan.operation, c, true) <= MOST_FLOPS;
    assay_plan_free(&plan);
    return assay_draw_forgive(ctx, status);
}

assay_status assay_draw_check_numbers(assay_context *ctx, const assay_case *c, const assay_profile *profile,
                                      bool *is_case)
{
    assay_status status;
    assay_plan plan = {0};
    assay_inputs inputs = {0};
    assay_tensor_set tensors = {0};
    assay_golden golden = {0};
    *is_case = false;
    TRY(assay_plan_describe(ctx, &plan, c, NULL, profile));
    TRY(assay_plan_require_memory(ctx, &plan));
    TRY(assay_inputs_open(ctx, &inputs, c, &plan.list, NULL));
    const assay_source drawn = assay_inputs_source(&inputs);
    TRY(assay_plan_tensors(ctx, &tensors, &plan, &drawn));
    TRY(assay_golden_of_memory(ctx, &plan, &tensors, &golden));
    *is_case = true;
cleanup:
    assay_golden_close(&golden);
    assay_tensor_set_free(&tensors);
    if (inputs.c != NULL) assay_inputs_close(&inputs);
    assay_plan_free(&plan);
    return assay_draw_forgive(ctx, status);
}

int64_t assay_draw_elements(const assay_case *c, const assay_profile *profile)
{
    assay_context ctx = {.threads = 1};
    assay_plan plan = {0};
    if (assay_plan_describe(&ctx, &plan, c, NULL, profile) != ASSAY_OK) return 0;
    const int64_t elements = plan.elements;
    assay_plan_free(&plan);
    return elements;
}

/* How many groups inputs/group_sizes has, and the rows that they share. */
static void count_groups(const assay_case *c, int64_t *groups, int64_t *rows)
{
    *groups = c->config.num_experts;
    *rows = c->batch * c->sequence * c->config.num_experts_per_tok;
    const assay_program_tensor *t = c->program != NULL ? assay_program_find(c->program, "group_sizes") : NULL;
    if (t == NULL) return;
    *groups = c->program->sizes[(unsigned char)t->axes[0]];
    *rows = t->high;
}

/* Sizes of groups that are listed, cut where the rows end. */
static void fit_groups(assay_case_input *input, int64_t groups, int64_t rows)
{
    assay_fill *fill = &input->fill;
    if (fill->distribution == ASSAY_GROUP_SIZES) fill->high = (double)rows;
    if (fill->distribution == ASSAY_CONSTANT) fill->mean = floor((double)rows / (double)groups);
    if (input->values == NULL) return;
    if (fill->value_count > groups) fill->value_count = groups;
    double left = (double)rows;
    for (int64_t i = 0; i < fill->value_count; i++) {
        input->values[i] = fmin(input->values[i], left);
        left -= input->values[i];
    }
}

void assay_draw_fit(assay_case *c)
{
    const int64_t tokens = c->batch * c->sequence;
    const int64_t keys = c->config.pagedattn_num_pages > 0 && c->config.pagedattn_max_pages_per_group > 0
                             ? c->config.pagedattn_max_pages_per_group * c->config.pagedattn_tokens_per_page
                             : c->config.cache_length;
    int64_t groups, rows;
    count_groups(c, &groups, &rows);
    for (int i = 0; i < c->input_count; i++) {
        assay_case_input *input = &c->inputs[i];
        if (assay_path_ends(input->path, "group_sizes")) fit_groups(input, groups, rows);
        if (assay_path_ends(input->path, "segment_ids") && input->fill.value_count > tokens)
            input->fill.value_count = tokens;
        if (assay_path_ends(input->path, "selected_experts") && input->values != NULL) {
            if (input->fill.value_count > rows) input->fill.value_count = rows;
            for (int64_t k = 0; k < input->fill.value_count; k++)
                input->values[k] = fmin(input->values[k], (double)(c->config.num_experts - 1));
        }
        if (assay_path_ends(input->path, "cache_seqlens") && input->values != NULL) {
            for (int64_t b = 0; b < input->fill.value_count; b++)
                input->values[b] = fmin(input->values[b], (double)keys);
        }
        if (input->tail_nan_rows > 0) input->unused_nan = true;
        input->tail_nan_rows = 0;
    }
}

assay_status assay_draw_settle(assay_context *ctx, const assay_draw_sets *sets, const assay_profile *profile,
                               assay_case *c, bool *is_case)
{
    assay_status status;
    *is_case = false;
    TRY(assay_draw_set(ctx, sets, c));
    TRY(assay_draw_check(ctx, c, profile, is_case));
    if (*is_case) goto cleanup;
    assay_draw_fit(c);
    TRY(assay_draw_check(ctx, c, profile, is_case));
cleanup:
    return assay_draw_forgive(ctx, status);
}

/* The change, or the case as it was. status: of the change. */
static assay_status keep_if_case(assay_context *ctx, assay_draws *draws, assay_status status, assay_case *c,
                                 assay_case *changed, bool *kept)
{
    *kept = false;
    if (status == ASSAY_OK) status = assay_draw_settle(ctx, &draws->sets, NULL, changed, kept);
    if (*kept) {
        const assay_case before = *c;
        *c = *changed;
        *changed = before;
    }
    draws->refused += status == ASSAY_OK && !*kept;
    return assay_draw_forgive(ctx, status);
}

/* ---- one change ---- */

/* Little of what the backend does not have. */
static double support(const assay_draw_count *count)
{
    return (1.0 + count->ran) / (1.0 + count->ran + 2.0 * count->unsupported);
}

static int pick_key(dice *d, const assay_draws *draws, const assay_operation *operation, int place)
{
    double weights[ASSAY_DRAW_KEYS_MOST] = {0};
    int keys = 0;
    for (; assay_draw_keys[keys].key != NULL; keys++) {
        int ran = 0;
        if ((assay_draw_keys[keys].components & operation->components) == 0 ||
            is_set(&draws->sets, assay_draw_keys[keys].key))
            continue;
        for (int i = 0; i < ASSAY_CHOICES_MOST; i++) ran += draws->of_keys[place][keys][i].ran;
        weights[keys] = assay_draw_keys[keys].weight * (1.0 + 8.0 / (1.0 + ran));
    }
    return pick_weighted(d, weights, keys);
}

static assay_status change_key(assay_context *ctx, assay_draws *draws, dice *d, assay_case *c, assay_drawn *drawn)
{
    char value[TEXT];
    double weights[ASSAY_CHOICES_MOST] = {0};
    OWNED_BY(assay_case_free) assay_case changed = {0};
    bool kept = false;
    const int key = pick_key(d, draws, assay_operations[drawn->operation], drawn->operation);
    const assay_draw_key *row = &assay_draw_keys[key];
    const int choices = assay_draw_choices(row->values);
    for (int i = 0; i < choices; i++) weights[i] = support(&draws->of_keys[drawn->operation][key][i]);
    const int choice = pick_weighted(d, weights, choices);
    int length = 0;
    const char *word = word_at(row->values, choice, &length);
    value_of(d, word, length, value, sizeof value);
    MUST(assay_case_copy(ctx, c, &changed));
    assay_case_drop_tags(&changed); /* the numbers of an exact case may be so no more */
    MUST(keep_if_case(ctx, draws, set_all(ctx, &changed, row->key, value), c, &changed, &kept));
    if (!kept) return ASSAY_OK;
    drawn->keys[drawn->count] = key;
    drawn->choices[drawn->count++] = choice;
    return ASSAY_OK;
}

assay_status assay_draw_size(assay_context *ctx, assay_case *c, int axis, int64_t size)
{
    char set[64];
    const int64_t before = c->program->sizes[axis];
    snprintf(set, sizeof set, "sizes.%c=%" PRId64, axis, size);
    MUST(assay_case_set(ctx, c, set));
    for (int i = 0; i < c->program->tensor_count; i++) {
        assay_program_tensor *t = &c->program->tensors[i];
        if (t->integers && t->high == before - 1) t->high = size - 1;
    }
    return ASSAY_OK;
}

/* An axis of a program. */
static assay_status change_size(assay_context *ctx, assay_draws *draws, dice *d, assay_case *c, assay_drawn *drawn)
{
    static const char *const sizes[] = {"1", "2-9", "2-9", "11-40", "edge"};
    int axes[ASSAY_PROGRAM_LETTERS], count = 0;
    char value[32];
    OWNED_BY(assay_case_free) assay_case changed = {0};
    bool kept = false;
    for (int axis = 0; axis < ASSAY_PROGRAM_LETTERS; axis++)
        if (c->program->sizes[axis] > 0) axes[count++] = axis;
    const char *word = sizes[pick(d, sizeof sizes / sizeof *sizes)];
    value_of(d, word, (int)strlen(word), value, sizeof value);
    MUST(assay_case_copy(ctx, c, &changed));
    assay_case_drop_tags(&changed);
    const assay_status status = assay_draw_size(ctx, &changed, axes[pick(d, count)], strtol(value, NULL, 10));
    MUST(keep_if_case(ctx, draws, status, c, &changed, &kept));
    if (kept) drawn->keys[drawn->count++] = -1;
    return ASSAY_OK;
}

/* Groups that are empty, of a tile's size or one beside it, and rows behind the last one. */
static void group_sizes_text(dice *d, const assay_case *c, char *text, size_t size)
{
    static const int sizes[] = {0, 0, 0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 127, 129};
    int64_t groups, left;
    count_groups(c, &groups, &left);
    const int64_t takes_all = pick(d, 2) == 0 ? pick(d, groups) : -1;
    size_t used = (size_t)snprintf(text, size, "{values: [");
    for (int64_t i = 0; i < groups && used + 16 < size; i++) {
        int64_t n = sizes[pick(d, sizeof sizes / sizeof *sizes)];
        if (i == takes_all || n > left) n = left;
        left -= n;
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i == 0 ? "" : ", ", n);
    }
    snprintf(text + used, size - used, "]}");
}

/* Which input, of those that there are or that may be described. */
static bool pick_input(dice *d, const assay_tensor_list *list, const assay_draw_fill **fill, const char **path)
{
    double weights[128] = {0};
    int rows = 0, given = 0;
    for (; assay_draw_fills[rows].path != NULL; rows++) {
        const bool whole = strcmp(assay_draw_fills[rows].path, "segment_ids") == 0;
        weights[rows] = whole ? 1.0 : 0.0;
        for (int i = 0; i < list->count; i++) {
            const assay_tensor_spec *spec = &list->entries[i].spec;
            if (assay_role_is_input(spec->role) && spec->type != ASSAY_INT32 &&
                fnmatch(assay_draw_fills[rows].path, strchr(spec->path, '/') + 1, 0) == 0)
                weights[rows] = assay_draw_fills[rows].weight;
        }
    }
    *fill = &assay_draw_fills[pick_weighted(d, weights, rows)];
    *path = (*fill)->path;
    if (strpbrk(*path, "*") == NULL) return true;
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_spec *spec = &list->entries[i].spec;
        if (!assay_role_is_input(spec->role) || spec->type == ASSAY_INT32 ||
            fnmatch((*fill)->path, strchr(spec->path, '/') + 1, 0) != 0)
            continue;
        if (pick(d, ++given) == 0) *path = spec->path;
    }
    return given > 0;
}

static assay_status change_input(assay_context *ctx, assay_draws *draws, dice *d, assay_case *c, assay_drawn *drawn)
{
    assay_status status;
    char set[4 * TEXT], values[3 * TEXT];
    const assay_operation *operation = NULL;
    assay_tensor_list list = {0};
    assay_case changed = {0};
    const assay_draw_fill *fill = NULL;
    const char *path = NULL;
    bool kept = false;
    TRY(assay_operation_prepare(ctx, c, &operation, &list));
    TRY(assay_case_copy(ctx, c, &changed));
    assay_case_drop_tags(&changed);
    if (assay_tensor_list_find(&list, "inputs/group_sizes") != NULL && pick(d, 2) == 0) {
        group_sizes_text(d, c, values, sizeof values);
        snprintf(set, sizeof set, "inputs.group_sizes=%s", values);
    } else {
        if (!pick_input(d, &list, &fill, &path)) goto cleanup;
        snprintf(set, sizeof set, "inputs.%s=%s", path, fill->fill);
    }
    TRY(keep_if_case(ctx, draws, assay_case_set(ctx, &changed, set), c, &changed, &kept));
    if (kept) drawn->keys[drawn->count++] = -1;
cleanup:
    assay_tensor_list_free(&list);
    assay_case_free(&changed);
    return assay_draw_forgive(ctx, status);
}

/* ---- a draw ---- */

static int place_of(const char *op)
{
    for (int i = 0; assay_operations[i] != NULL; i++) {
        if (strcmp(assay_operations[i]->name, op) == 0) return i;
    }
    return -1;
}

/* With the settings, where they go with it. */
static assay_status prepare_base(assay_context *ctx, const assay_draws *draws, assay_case *c, bool *is_case)
{
    assay_status status;
    TRY(assay_case_set(ctx, c, "profiles=none"));
    TRY(assay_draw_set(ctx, &draws->sets, c));
    TRY(assay_draw_check(ctx, c, NULL, is_case));
cleanup:
    if (status != ASSAY_BAD_INPUT) return status;
    *is_case = false; /* why, is told where there is no other case */
    return ASSAY_OK;
}

assay_status assay_draws_start(assay_context *ctx, assay_draws *draws, uint64_t seed, const char *op,
                               const assay_draw_sets *sets)
{
    assay_status status;
    int kept = 0;
    *draws = (assay_draws){.seed = seed};
    if (sets != NULL) draws->sets = *sets;
    if (op != NULL && place_of(op) < 0) {
        assay_tensor_list list;
        const assay_operation *operation = NULL;
        assay_case c = {.name = "--op", .config = assay_model_defaults};
        snprintf(c.op, sizeof c.op, "%s", op);
        return assay_operation_prepare(ctx, &c, &operation, &list); /* refuses it, with the nearest names */
    }
    TRY(assay_catalogue(ctx, &draws->bases, &draws->base_count));
    for (int i = 0; i < draws->base_count; i++) {
        assay_case *c = &draws->bases[i];
        bool is_case = op == NULL || strcmp(c->op, op) == 0;
        if (is_case) TRY(prepare_base(ctx, draws, c, &is_case));
        if (is_case) {
            const assay_case here = draws->bases[kept];
            draws->bases[kept++] = *c;
            *c = here;
        }
    }
    for (int i = kept; i < draws->base_count; i++) assay_case_free(&draws->bases[i]);
    draws->base_count = kept;
    if (kept == 0 && draws->sets.count > 0) {
        status = ctx->message[0] != '\0' ? ASSAY_BAD_INPUT
                                         : assay_fail(ctx, ASSAY_BAD_INPUT, "--set: no case goes with %s",
                                                      draws->sets.items[draws->sets.count - 1]);
        goto cleanup;
    }
    ctx->message[0] = '\0';
    TRY(assay_alloc(ctx, "draws", kept + 1, sizeof *draws->of_bases, &draws->of_bases));
    memset(draws->of_bases, 0, ((size_t)kept + 1) * sizeof *draws->of_bases);
    for (; assay_operations[draws->operations] != NULL; draws->operations++) continue;
cleanup:
    if (status != ASSAY_OK) assay_draws_free(draws);
    return status;
}

void assay_draws_free(assay_draws *draws)
{
    assay_cases_free(draws->bases, draws->base_count);
    free(draws->of_bases);
    *draws = (assay_draws){0};
}

static bool says_bug(const assay_case *c)
{
    bool found = false;
    for (int i = 0; i < c->tags.count; i++) {
        found |= strncmp(c->tags.items[i], "bug-", 4) == 0 || strcmp(c->tags.items[i], "adversarial") == 0 ||
                 strcmp(c->tags.items[i], "edge") == 0;
    }
    return found;
}

/* Operations by the root of how many cases they have, over their parts: of what is small by itself a failure says more.
 * Then a case of it that was drawn rarely. */
static assay_status pick_base(assay_context *ctx, const assay_draws *draws, dice *d, assay_drawn *drawn)
{
    double of_operations[ASSAY_OPERATIONS_MOST] = {0};
    double *weights = NULL;
    MUST(assay_alloc(ctx, "draws", draws->base_count + 1, sizeof(double), &weights));
    for (int i = 0; i < draws->base_count; i++) of_operations[place_of(draws->bases[i].op)] += 1.0;
    for (int i = 0; i < draws->operations; i++) {
        const int components = __builtin_popcount(assay_operations[i]->components);
        /* programs have none, and few backends take them */
        of_operations[i] =
            sqrt(of_operations[i]) * support(&draws->of_operations[i]) / (components > 0 ? components : 8);
    }
    drawn->operation = pick_weighted(d, of_operations, draws->operations);
    for (int i = 0; i < draws->base_count; i++) {
        const assay_draw_count *count = &draws->of_bases[i];
        const double rare = 1.0 + count->ran + count->unsupported;
        weights[i] = place_of(draws->bases[i].op) != drawn->operation
                         ? 0.0
                         : (says_bug(&draws->bases[i]) ? 2.0 : 1.0) * support(count) / (rare * rare);
    }
    drawn->base = pick_weighted(d, weights, draws->base_count);
    free(weights);
    return ASSAY_OK;
}

static assay_status change_base(assay_context *ctx, assay_draws *draws, dice *d, assay_case *c, assay_drawn *drawn)
{
    static const double of_changes[ASSAY_CHANGES_MOST + 1] = {1, 3, 3, 2, 1};
    const int changes = pick_weighted(d, of_changes, ASSAY_CHANGES_MOST + 1);
    drawn->count = 0;
    MUST(assay_case_copy(ctx, &draws->bases[drawn->base], c));
    if (draws->sets.count > 0) assay_case_drop_tags(c); /* as where a key is changed */
    for (int i = 0; i < ATTEMPTS && drawn->count < changes; i++) {
        const bool input = pick(d, 4) == 0;
        if (c->program != NULL && !input) {
            MUST(change_size(ctx, draws, d, c, drawn));
        } else {
            MUST(input ? change_input(ctx, draws, d, c, drawn) : change_key(ctx, draws, d, c, drawn));
        }
    }
    return ASSAY_OK;
}

assay_status assay_draw(assay_context *ctx, assay_draws *draws, int64_t number, assay_case *c, assay_drawn *drawn)
{
    assay_status status;
    bool is_case = false;
    dice d = {.seed = assay_random_bits(draws->seed, "draw", (uint64_t)number)};
    *drawn = (assay_drawn){0};
    *c = (assay_case){0};
    TRY(pick_base(ctx, draws, &d, drawn));
    for (int attempt = 0; attempt < ATTEMPTS && !is_case; attempt++) {
        assay_case_free(c);
        TRY(change_base(ctx, draws, &d, c, drawn));
        TRY(assay_draw_check_numbers(ctx, c, NULL, &is_case));
        if (!is_case) {
            assay_draw_fit(c);
            TRY(assay_draw_check_numbers(ctx, c, NULL, &is_case));
        }
        draws->refused += !is_case;
    }
    snprintf(c->description, sizeof c->description, "drawn as %" PRId64 " of seed %" PRIu64 " from %.120s", number,
             draws->seed, draws->bases[drawn->base].name);
    snprintf(c->name, sizeof c->name, "fuzz/%s-%" PRId64, c->op, number);
cleanup:
    if (status != ASSAY_OK) assay_case_free(c);
    return status;
}

static void add(assay_draw_count *count, bool supported)
{
    count->ran += supported;
    count->unsupported += !supported;
}

/* Of a size that is one of an edge's: which. -1: of none. */
static int edge_of(int64_t size)
{
    for (int i = 0; assay_draw_edges[i] != 0; i++) {
        const int64_t beside = size - assay_draw_edges[i];
        if (beside >= -1 && beside <= 1) return 3 * i + (int)beside + 1;
    }
    return -1;
}

static void note_edges(assay_draws *draws, const assay_case *c)
{
    const int64_t sizes[ASSAY_EDGE_SIZES] = {c->batch * c->sequence, c->config.base_emb_dim, c->config.base_mlp_dim,
                                             c->config.base_moe_mlp_dim, c->config.num_experts};
    for (int i = 0; i < ASSAY_EDGE_SIZES; i++) {
        const int edge = edge_of(sizes[i]);
        if (edge >= 0) draws->edges[i][edge] = true;
    }
}

void assay_draws_learn(assay_draws *draws, const assay_drawn *drawn, const assay_case *c, bool supported)
{
    if (supported) note_edges(draws, c);
    add(&draws->of_bases[drawn->base], supported);
    add(&draws->of_operations[drawn->operation], supported);
    for (int i = 0; i < drawn->count; i++) {
        if (drawn->keys[i] < 0) continue;
        add(&draws->of_keys[drawn->operation][drawn->keys[i]][drawn->choices[i]], supported);
    }
}
