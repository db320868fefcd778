/* What rows of the table say is done: to tensors and to the configuration. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/base/memory.h"

int64_t assay_tensor_width(const assay_tensor *tensor)
{
    return assay_row_length(&tensor->spec.shape);
}

void assay_swap_values(double *a, double *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double value = a[i];
        a[i] = b[i];
        b[i] = value;
    }
}

bool assay_scale_values(assay_tensor *tensor, double factor)
{
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return factor != 1.0;
}

int assay_tensor_axis(const assay_tensor *tensor, const char *label)
{
    for (int axis = 0; axis < tensor->spec.shape.rank; axis++) {
        const char *found = tensor->spec.labels[axis];
        if (found != NULL && strcmp(found, label) == 0) return axis;
    }
    return -1;
}

assay_tensor *assay_tensor_beside_of(const assay_mutation *m, const assay_tensor *tensor, const char *part,
                                     const char *other)
{
    char path[ASSAY_PATH_SIZE];
    const char *place = NULL, *from = tensor->spec.path;
    for (const char *at = strstr(from, part); at != NULL; at = strstr(at + 1, part)) place = at;
    if (place == NULL) return NULL;
    snprintf(path, sizeof path, "%.*s%s%.100s", (int)(place - from), from, other, place + strlen(part));
    return assay_tensor_set_find(m->tensors, path);
}

assay_tensor *assay_tensor_beside(const assay_mutation *m, const assay_tensor *tensor, const char *part,
                                  const char *other)
{
    assay_tensor *found = assay_tensor_beside_of(m, tensor, part, other);
    return found != NULL && found->count == tensor->count ? found : NULL;
}

int assay_contracted_axis(const assay_tensor *tensor)
{
    return tensor->spec.role == ASSAY_ROLE_WEIGHT ? assay_tensor_axis(tensor, "blocks") : tensor->spec.shape.rank - 1;
}

/* --- places along axes --- */

/* The axes [first, end) that are taken as one. */
typedef struct axes {
    int first, end;
} axes;

static bool axes_by_name(const assay_mutation *m, const assay_tensor *tensor, const char *name, axes *a)
{
    const assay_shape *shape = &tensor->spec.shape;
    const int rank = shape->rank, contracted = assay_contracted_axis(tensor), last = rank > 0 ? rank - 1 : 0;
    const int e = assay_tensor_axis(tensor, "E"), g = assay_tensor_axis(tensor, "G"), expert = e >= 0 ? e : g;
    const bool is_table = tensor->values != NULL && rank > 1;
    const int beside = contracted == rank - 1 ? rank - 2 : rank - 1;
    const int summed = rank == 3 && assay_tensor_axis(tensor, "N") != 1 ? 1 : 0; /* [E,K,N]; else the first */
    const int fsdp = m->c->config.weights_on_shards ? 0 : 1;                     /* where it is outermost; else D */
    const struct {
        const char *name;
        bool there;
        axes axes;
    } known[] = {
        {"each", true, {0, rank}},
        {"first", rank > 0, {0, 1}},
        {"second", rank > 1, {1, 2}},
        {"last", true, {last, rank}},
        {"last two", rank > 1, {rank - 2, rank}},
        {"rows", true, {0, last}},
        {"rows or numbers", true, {0, is_table ? last : rank}},
        {"expert", expert >= 0, {expert, expert + 1}},
        {"experts first", rank > 1 && (e == 0 || g == 0), {0, 1}},
        {"fsdp", rank > 1, {fsdp, fsdp + 1}},
        {"summed", rank > 1, {summed, summed + 1}},
        {"contracted", contracted >= 0, {contracted, contracted + 1}},
        {"beside", rank > 1, {beside, beside + 1}},
        {"matrices", tensor->spec.role == ASSAY_ROLE_WEIGHT && contracted > 0, {0, 1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        *a = known[i].axes;
        return known[i].there;
    }
    a->first = assay_tensor_axis(tensor, name);
    a->end = a->first + 1;
    return a->first >= 0;
}

/* What lies at a place, before and behind it: a tensor is [outer, count, inner]. */
typedef struct view {
    assay_places places;
    int64_t outer, inner;
} view;

/* Of the row, or of the case where the row says so; else 1. */
static double number_of(const assay_mutation *m)
{
    if (m->row == NULL) return 1;
    return m->row->number > 0 ? m->row->number : assay_case_number_of(m->c, m->row->of_case);
}

static bool view_of(const assay_mutation *m, const assay_tensor *tensor, const char *axis, view *v)
{
    axes a;
    const assay_shape *shape = &tensor->spec.shape;
    if (!axes_by_name(m, tensor, axis, &a)) return false;
    *v = (view){.places = {m, tensor, assay_axes_product(shape, a.first, a.end), number_of(m)},
                .outer = assay_axes_product(shape, 0, a.first),
                .inner = assay_axes_product(shape, a.end, shape->rank)};
    return true;
}

static void move_values(const view *v, assay_place_map *from, double *values, double *before)
{
    const int64_t count = v->places.count, inner = v->inner;
    memcpy(before, values, (size_t)(count * inner) * sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        const int64_t place = from(&v->places, i);
        for (int64_t k = 0; k < inner; k++) values[i * inner + k] = place < 0 ? 0.0 : before[place * inner + k];
    }
}

static void move_indices(const view *v, assay_place_map *from, int32_t *indices, int32_t *before)
{
    const int64_t count = v->places.count, inner = v->inner;
    memcpy(before, indices, (size_t)(count * inner) * sizeof *indices);
    for (int64_t i = 0; i < count; i++)
        memcpy(indices + i * inner, before + from(&v->places, i) * inner, (size_t)inner * sizeof *indices);
}

bool assay_move_places(const assay_mutation *m, assay_tensor *tensor, const char *axis, assay_place_map *from)
{
    view v;
    bool moved = false;
    if (!view_of(m, tensor, axis, &v)) return false;
    for (int64_t i = 0; i < v.places.count; i++) moved |= from(&v.places, i) != i;
    for (int64_t o = 0; moved && o < v.outer; o++) {
        const int64_t first = o * v.places.count * v.inner;
        if (tensor->values != NULL) move_values(&v, from, tensor->values + first, m->scratch);
        if (tensor->indices != NULL) move_indices(&v, from, tensor->indices + first, (int32_t *)(void *)m->scratch);
    }
    return moved;
}

bool assay_edit_move(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_move_places(m, tensor, m->row->axis, m->row->places);
}

/* Numbers of the part that the row names become `by`, or are multiplied by it. */
static bool change_part(const assay_mutation *m, assay_tensor *tensor, bool multiply)
{
    view v;
    bool changed = false;
    if (!view_of(m, tensor, m->row->axis, &v)) return false;
    for (int64_t i = 0; i < tensor->count; i++) {
        if (m->row->places(&v.places, i / v.inner % v.places.count) >= 0) continue;
        tensor->values[i] = multiply ? tensor->values[i] * m->row->by : m->row->by;
        changed = true;
    }
    return changed;
}

bool assay_edit_scale(const assay_mutation *m, assay_tensor *tensor)
{
    if (m->row->places != NULL) return change_part(m, tensor, true);
    return assay_scale_values(tensor, m->row->by * number_of(m));
}

/* One after the other: a number may go by those before it, as they have become. */
static bool change_each(const assay_mutation *m, assay_tensor *tensor, assay_number_map *become)
{
    const assay_places all = {m, tensor, tensor->count, number_of(m)};
    bool changed = false;
    for (int64_t i = 0; i < tensor->count; i++) {
        const double before = tensor->values != NULL ? tensor->values[i] : tensor->indices[i];
        const double after = become(&all, i, before);
        if (tensor->values != NULL) tensor->values[i] = after;
        if (tensor->indices != NULL) tensor->indices[i] = (int32_t)after;
        changed |= after != before;
    }
    return changed;
}

bool assay_edit_each(const assay_mutation *m, assay_tensor *tensor)
{
    return change_each(m, tensor, m->row->each);
}

bool assay_edit_fill(const assay_mutation *m, assay_tensor *tensor)
{
    if (m->row->places != NULL) return change_part(m, tensor, false);
    change_each(m, tensor, assay_replaced);
    return true;
}

/* --- the tensors of a row --- */

bool assay_path_in(const char *path, const char *folder)
{
    const size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/* The golden's choice of experts is one. */
static bool is_input(const assay_tensors_change *change, const assay_tensor *tensor)
{
    const assay_tensor_role role = tensor->spec.role;
    const bool is_read =
        role == ASSAY_ROLE_INPUT || role == ASSAY_ROLE_WEIGHT || assay_path_is_choice(tensor->spec.path);
    return (change->cotangents ? role == ASSAY_ROLE_COTANGENT : is_read) &&
           assay_any_word(change->of, tensor->spec.path, assay_path_ends);
}

static bool is_result(const assay_tensors_change *change, const char *path)
{
    return assay_any_word(change->of, path, assay_path_in) &&
           (change->named == NULL || assay_any_word(change->named, path, assay_path_ends));
}

static bool is_float_result(const assay_tensors_change *change, const assay_tensor *tensor)
{
    return tensor->values != NULL && is_result(change, tensor->spec.path);
}

static bool is_integer_result(const assay_tensors_change *change, const assay_tensor *tensor)
{
    return tensor->indices != NULL && is_result(change, tensor->spec.path);
}

bool assay_change_tensor(const assay_mutation *m, const assay_tensors_change *change, assay_tensor *tensor)
{
    assay_mutation own = *m;
    own.row = change;
    return change->edit(&own, tensor);
}

/* Whether candidates must give numbers: where all is bits, checkpoints are what these are judged by, and no candidate's. */
static bool gives_numbers(const assay_tensor_set *tensors)
{
    for (int i = 0; i < tensors->count; i++)
        if (tensors->items[i].values != NULL && assay_role_is_required(tensors->items[i].spec.role)) return true;
    return false;
}

static bool change_tensors(const assay_mutation *m, const assay_tensors_change *change,
                           bool (*is_meant)(const assay_tensors_change *change, const assay_tensor *tensor))
{
    bool changed = false;
    for (int i = 0; change->edit != NULL && i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        if (tensor->count == 0 || !is_meant(change, tensor) || !assay_change_tensor(m, change, tensor)) continue;
        changed |= tensor->spec.role != ASSAY_ROLE_CHECKPOINT || gives_numbers(m->tensors);
    }
    return changed;
}

/* For all tensors of the set. */
static assay_status alloc_scratch(assay_context *ctx, assay_mutation *m)
{
    int64_t most = 0;
    for (int i = 0; i < m->tensors->count; i++)
        most = most > m->tensors->items[i].count ? most : m->tensors->items[i].count;
    return assay_alloc_f64(ctx, "copy of a tensor", most, &m->scratch);
}

bool assay_mutant_changes_inputs(const assay_mutant *mutant)
{
    return mutant->inputs.edit != NULL || mutant->change_inputs != NULL;
}

/* Beside a changed configuration this is the second half, which may find nothing to do. */
assay_status assay_mutant_change_inputs(assay_context *ctx, const assay_mutant *mutant, const assay_mutation *m,
                                        bool *applies)
{
    assay_mutation own = *m;
    OWNED double *scratch = NULL;
    const bool is_second = assay_mutant_changes_configuration(mutant);
    *applies = is_second || assay_case_is_where(m->c, mutant->where);
    if (!*applies || !assay_mutant_changes_inputs(mutant)) return ASSAY_OK;
    MUST(alloc_scratch(ctx, &own));
    scratch = own.scratch;
    bool changed = change_tensors(&own, &mutant->inputs, is_input);
    if (mutant->change_inputs != NULL) changed |= mutant->change_inputs(&own);
    *applies = changed || is_second;
    return ASSAY_OK;
}

assay_status assay_mutant_change_stage(assay_context *ctx, const assay_mutant *mutant, const assay_mutation *m,
                                       bool *applies)
{
    assay_mutation own = *m;
    OWNED double *scratch = NULL;
    MUST(alloc_scratch(ctx, &own));
    scratch = own.scratch;
    for (int i = 0; mutant->stage.edit != NULL && i < m->tensors->count; i++)
        *applies |= assay_change_tensor(&own, &mutant->stage, &m->tensors->items[i]);
    if (mutant->change_stage != NULL) *applies |= mutant->change_stage(&own);
    return ASSAY_OK;
}

assay_status assay_mutant_change_results(assay_context *ctx, const assay_mutant *mutant, const assay_mutation *m,
                                         bool *applies)
{
    assay_mutation own = *m;
    OWNED double *scratch = NULL;
    const bool any = mutant->results.edit != NULL || mutant->integers.edit != NULL || mutant->change_results != NULL;
    *applies = assay_case_is_where(m->c, mutant->where);
    if (!*applies || !any) return ASSAY_OK;
    MUST(alloc_scratch(ctx, &own));
    scratch = own.scratch;
    *applies = change_tensors(&own, &mutant->results, is_float_result);
    *applies |= change_tensors(&own, &mutant->integers, is_integer_result);
    own.row = &mutant->integers;
    if (mutant->change_results != NULL) *applies |= mutant->change_results(&own);
    return ASSAY_OK;
}

bool assay_mutant_evaluates(const assay_mutant *mutant, const char *path)
{
    return mutant->takes.of == NULL || is_result(&mutant->takes, path);
}

/* --- the configuration --- */

/* Flags and whole numbers are numbers too. */
static double changed_number(const assay_key_change *change, double value)
{
    if (change->how == ASSAY_KEY_FLIP) return value == 0.0;
    if (!(value > 0.0)) return value;
    if (change->how == ASSAY_KEY_PLUS) return value + change->by;
    if (change->how == ASSAY_KEY_SQUARED) return value * value;
    return change->how == ASSAY_KEY_TIMES ? change->by * value : change->by;
}

static bool read_as(const assay_model_key *key, const char *text, assay_model_config *config)
{
    char *at = (char *)config + key->offset, before[ASSAY_KEY_VALUE_SIZE], after[ASSAY_KEY_VALUE_SIZE];
    assay_model_key_text(key, config, before, sizeof before);
    if (key->type == ASSAY_KEY_I) *(int64_t *)(void *)at = strtoll(text, NULL, 10);
    if (key->type == ASSAY_KEY_D) *(double *)(void *)at = strtod(text, NULL);
    if (key->type == ASSAY_KEY_B) *(bool *)at = strcmp(text, "true") == 0;
    if (key->type == ASSAY_KEY_S || key->type == ASSAY_KEY_A)
        snprintf(at, ASSAY_TEXT_SIZE, "%s", strcmp(text, "\"\"") == 0 ? "" : text);
    assay_model_key_text(key, config, after, sizeof after);
    return strcmp(before, after) != 0;
}

/* Of "softmax>sigmoid *>softmax" what stands for this text; "*" is any other one but "". False: nothing does. */
static bool find_exchanged(const char *pairs, const char *text, char to[ASSAY_TEXT_SIZE])
{
    for (const char *at = pairs; *at != '\0'; at += strspn(at, " ")) {
        const size_t from = strcspn(at, ">"), length = strcspn(at, " ");
        const bool same = strlen(text) == from && strncmp(at, text, from) == 0;
        if (same || (at[0] == '*' && text[0] != '\0')) {
            snprintf(to, ASSAY_TEXT_SIZE, "%.*s", (int)(length - from - 1), at + from + 1);
            return true;
        }
        at += length;
    }
    return false;
}

/* Of a pair of texts the gate's. */
static bool exchange_text(const assay_model_key *key, const char *pairs, assay_model_config *config)
{
    char to[ASSAY_TEXT_SIZE];
    return find_exchanged(pairs, (char *)config + key->offset, to) && read_as(key, to, config);
}

static bool change_key(const assay_key_change *change, assay_model_config *config)
{
    const assay_model_key *key = &assay_model_keys[change->key];
    char *at = (char *)config + key->offset;
    if (change->how == ASSAY_KEY_READ_AS) return read_as(key, change->value, config);
    if (change->how == ASSAY_KEY_EXCHANGED) return exchange_text(key, change->value, config);
    if (change->how == ASSAY_KEY_GIVEN) {
        config->is_set[change->key] = true;
        return false;
    }
    double before = key->type == ASSAY_KEY_B ? *(bool *)at : 0;
    if (key->type == ASSAY_KEY_I) before = (double)*(int64_t *)(void *)at;
    if (key->type == ASSAY_KEY_D) before = *(double *)(void *)at;
    const double after = changed_number(change, before);
    if (key->type == ASSAY_KEY_B) *(bool *)at = after != 0.0;
    if (key->type == ASSAY_KEY_I) *(int64_t *)(void *)at = (int64_t)after;
    if (key->type == ASSAY_KEY_D) *(double *)(void *)at = after;
    return after != before;
}

bool assay_mutant_changes_configuration(const assay_mutant *mutant)
{
    return mutant->keys[0].how != ASSAY_KEY_STAYS || mutant->sets != 0 || mutant->router != NULL ||
           mutant->recipe_bug != NULL || mutant->configure != NULL;
}

bool assay_mutant_configure(const assay_mutant *mutant, assay_case *c)
{
    bool changed = mutant->keys[0].how == ASSAY_KEY_STAYS;
    if (!assay_case_is_where(c, mutant->where)) return false;
    for (int i = 0; i < ASSAY_MUTANT_KEYS; i++)
        changed |= mutant->keys[i].how != ASSAY_KEY_STAYS && change_key(&mutant->keys[i], &c->config);
    if (mutant->sets != 0) *((bool *)&c->config + mutant->sets) = true;
    if (mutant->router != NULL) c->config.other_rule = mutant->router;
    if (mutant->recipe_bug != NULL) changed = assay_change_recipe(mutant->recipe_bug, &c->config);
    return changed && (mutant->configure == NULL || mutant->configure(c));
}
