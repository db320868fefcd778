#define _GNU_SOURCE /* setenv */
#include "harness/equivalences/company.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/thresholds.h"
#include "harness/equivalences/free_axes.h"
#include "harness/operations/operation.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "oracle/base/memory.h"

const assay_company assay_companies[] = {
    {"repeat", "again, on other threads and addresses", ASSAY_COMPANY_AGAIN},
    {"batch", "among %lld others", ASSAY_COMPANY_OTHERS},
    {"order", "in reverse order", ASSAY_COMPANY_ORDER},
    {"pad", "beside %lld rows of padding", ASSAY_COMPANY_PAD},
    {"chunk", "with the half of them alone", ASSAY_COMPANY_CHUNKS},
    {NULL, NULL, ASSAY_COMPANY_AGAIN},
};

enum { PADDING = 7, MOST_ELEMENTS = 50000000 };

/* Rows `from` on of the case stand at `at` on among `total`; the others are drawn anew, or padding: NaN, and a large number where
 * the case takes no NaN. */
typedef struct placing {
    const char *axis; /* the label of rows */
    int64_t total, from, kept, at;
    bool reversed, pads;
    double padding;
} placing;

/* Why no rows of the case are without knowledge of each other; NULL: there are some. */
static const char *coupled_by(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    const int64_t shards =
        c->mesh_data * c->mesh_fsdp * c->mesh_expert * c->mesh_tensor * c->mesh_mlp_tensor * c->mesh_fsdp_transpose;
    const bool by_bytes = m->use_indexer || strcmp(m->kv_cache_dtype.text, "auto") != 0;
    if (c->program != NULL && assay_program_row_axis(c->program) == '\0')
        return "steps go over every axis of its inputs";
    if (m->capacity_factor > 0 || m->ragged_buffer_factor > 0) return "rows are dropped, by what the others are";
    if (shards > 1) return "each shard has rows of its own";
    if (m->cache_length > 0 && m->pagedattn_num_pages == 0 && by_bytes)
        return "lists and bytes in a cache without pages count through all sequences";
    return NULL;
}

static int64_t rows_of(const assay_case *c, const char *axis)
{
    if (c->program != NULL) return axis[0] == '\0' ? 1 : c->program->sizes[(unsigned char)axis[0]];
    return axis[0] == 'S' ? c->sequence : c->batch;
}

/* The axis of rows, and what lies before and behind it; false: the tensor has none. */
static bool find_axis(const assay_tensor_spec *spec, const char *label, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    bool found = false;
    for (int a = 0; a < spec->shape.rank; a++) {
        const bool here = !found && spec->labels[a] != NULL && strcmp(spec->labels[a], label) == 0;
        *(found ? inner : outer) *= here ? 1 : spec->shape.dims[a];
        found |= here;
    }
    return found;
}

static int64_t source_of(const placing *p, int64_t kept)
{
    return p->from + (p->reversed ? p->kept - 1 - kept : kept);
}

static void copy(const assay_tensor *from, int64_t a, assay_tensor *to, int64_t b, int64_t count)
{
    if (to->values != NULL) memcpy(to->values + b, from->values + a, (size_t)count * sizeof *to->values);
    if (to->indices != NULL) memcpy(to->indices + b, from->indices + a, (size_t)count * sizeof *to->indices);
}

/* The case's own numbers where they are to stand. The others' whole numbers are the same: they read the same pages. False: the
 * tensor has another size, and no rows. */
static bool place(const placing *p, int64_t rows, const assay_tensor *from, assay_tensor *to)
{
    int64_t outer, inner;
    if (!find_axis(&to->spec, p->axis, &outer, &inner)) {
        const bool more = to->spec.labels[0] != NULL && strcmp(to->spec.labels[0], "pages") == 0;
        if (from->count > to->count || (from->count < to->count && !more)) return false;
        copy(from, 0, to, 0, from->count);
        return true;
    }
    if (from->count != outer * rows * inner || to->count != outer * p->total * inner) return false;
    for (int64_t i = 0; p->pads && to->values != NULL && i < to->count; i++) to->values[i] = p->padding;
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t t = 0; to->indices != NULL && t < p->total; t++)
            copy(from, (o * rows + t % rows) * inner, to, (o * p->total + t) * inner, inner);
        for (int64_t k = 0; k < p->kept; k++)
            copy(from, (o * rows + source_of(p, k)) * inner, to, (o * p->total + p->at + k) * inner, inner);
    }
    return true;
}

/* BAD_INPUT where a case of another size has no meaning, as its inputs are of this one. `own` owns the program of another size. */
static assay_status resize(assay_context *ctx, const assay_form *one, const placing *p, assay_case *own,
                           assay_form *form)
{
    char set[40];
    static char none[] = "none";
    static char *nothing[] = {none};
    OWNED_BY(assay_inputs_close) assay_inputs inputs = {0};
    form->c = one->c;
    form->c.inputs = NULL;
    MUST(assay_alloc(ctx, "inputs", one->c.input_count + 1, sizeof *form->c.inputs, &form->c.inputs));
    for (int i = 0; i < one->c.input_count; i++) form->c.inputs[i] = one->c.inputs[i];
    if (one->c.program == NULL) *(p->axis[0] == 'S' ? &form->c.sequence : &form->c.batch) = p->total;
    if (one->c.program != NULL && p->axis[0] != '\0') {
        snprintf(set, sizeof set, "sizes.%s=%lld", p->axis, (long long)p->total);
        MUST(assay_case_copy(ctx, &one->c, own));
        MUST(assay_case_set(ctx, own, set));
        form->c.program = own->program;
    }
    form->c.seed++; /* the others are none of the case's */
    const bool resized = p->total != rows_of(&one->c, p->axis);
    for (int i = 0; resized && i < one->results.count; i++) { /* listed for each row: the others have the first */
        const assay_tensor *t = &one->results.items[i];
        const assay_case_input *rule = assay_case_input_of(&form->c, t->spec.path);
        int64_t outer, inner;
        if (rule == NULL || rule->fill.value_count != t->count || !find_axis(&t->spec, p->axis, &outer, &inner))
            continue;
        const double first = rule->fill.mean + rule->fill.scale * rule->fill.values[0];
        form->c.inputs[rule - form->c.inputs].fill = (assay_fill){.distribution = ASSAY_CONSTANT, .mean = first};
    }
    for (int i = 0; i < one->c.input_count; i++) form->c.inputs[i].tail_nan_rows = 0; /* the case's own are copied */
    assay_model_config *m = &form->c.config;
    const int64_t each =
        m->pagedattn_max_pages_per_group > 0 ? m->pagedattn_max_pages_per_group : m->pagedattn_num_pages;
    /* a list may name a row behind the last page, which is none */
    if (resized && m->pagedattn_num_pages > 0 && !m->use_indexer) m->pagedattn_num_pages += each * (p->total + 1);
    form->c.profiles = (assay_text_list){nothing, 1};
    MUST(assay_plan_make(ctx, &form->plan, &form->c));
    /* NaN for a backend, too; of scales as codes there may be none */
    for (int i = 0; i < form->plan.list.count; i++)
        form->plan.list.entries[i].any_number |= p->pads && one->c.quant_format_count == 0;
    MUST(assay_inputs_open(ctx, &inputs, &form->c, &form->plan.list, NULL));
    if (form->plan.elements > MOST_ELEMENTS)
        return assay_refuse(ctx, "%lld numbers, of which at most %d are tried", (long long)form->plan.elements,
                            MOST_ELEMENTS);
    const assay_source drawn = assay_inputs_source(&inputs);
    MUST(assay_plan_tensors(ctx, &form->results, &form->plan, &drawn));
    for (int i = 0; i < form->results.count; i++) {
        assay_tensor *to = &form->results.items[i];
        const assay_tensor *from = assay_tensor_set_find(&one->results, to->spec.path);
        if (!assay_role_is_input(to->spec.role)) continue;
        if (from == NULL || !place(p, rows_of(&one->c, p->axis), from, to))
            return assay_refuse(ctx, "%s has another size, and no axis %s of rows", to->spec.path, p->axis);
    }
    return ASSAY_OK;
}

/* What is asked of whom. */
typedef struct asking {
    const assay_backend_check_options *options;
    const assay_form *one;
    const char *what, *axis;
    int64_t rows;
    double quantile;
    bool again;   /* the same request: gradients of weights count too */
    bool coupled; /* a loss over all rows: gradients of rows know the others */
    assay_backend_end *end;
} asking;

/* Whether a tensor's rows are what they are in the case; *r is the first that differs, its grade the worst of all. */
static void compare(const asking *a, const placing *p, const assay_tensor *from, const assay_tensor *to,
                    assay_company_result *r)
{
    int64_t outer = 1, inner = 1;
    const bool by_rows = find_axis(&from->spec, a->axis, &outer, &inner);
    const assay_tensor *scales = assay_results_scales(&a->one->results, a->options->profile, from->spec.path);
    const bool depends = !by_rows || (a->coupled && strncmp(from->spec.path, "gradients/", 10) == 0) ||
                         assay_path_ends(from->spec.path, "physical_experts"); /* replicas are chosen in turn */
    if ((depends && !a->again) || (from->indices == NULL && scales == NULL)) return;
    if (!by_rows) outer = 1, inner = from->count;
    const int64_t rows = by_rows ? a->rows : 1, kept = by_rows ? p->kept : 1, total = by_rows ? p->total : 1;
    const assay_dtype storage = assay_profile_type_of(a->options->profile, &from->spec);
    const double unit = assay_dtype_unit_roundoff(storage), tiny = 0.5 * assay_dtype_least_subnormal(storage);
    assay_company_result found = {.rows = outer * kept, .fewer = -1};
    for (int64_t k = 0; k < outer * kept; k++) {
        const int64_t source = by_rows ? source_of(p, k % kept) : 0;
        const int64_t x_at = (k / kept * rows + source) * inner;
        const int64_t y_at = (k / kept * total + (by_rows ? p->at : 0) + k % kept) * inner;
        bool differs = false;
        for (int64_t i = 0; i < inner; i++) {
            const double x = from->indices != NULL ? from->indices[x_at + i] : from->values[x_at + i];
            const double y = to->indices != NULL ? to->indices[y_at + i] : to->values[y_at + i];
            if (x == y || (isnan(x) && isnan(y))) continue;
            const double allowed = scales == NULL ? 0 : a->quantile * scales->values[x_at + i] + unit * fabs(x) + tiny;
            const double place = fmax(2 * unit * ldexp(1, ilogb(x != 0 ? x : 1)), 2 * tiny);
            const bool within = fabs(y - x) <= allowed;
            found.last_places = fmax(found.last_places, fabs(y - x) / (scales == NULL ? 1 : place));
            found.grade = within && found.grade != ASSAY_COMPANY_BEYOND ? ASSAY_COMPANY_ROUNDING : ASSAY_COMPANY_BEYOND;
            differs = true;
        }
        if (differs && found.wrong++ == 0) found.first = source;
    }
    const assay_company_grade worst = r->grade > found.grade ? r->grade : found.grade;
    if (r->wrong == 0) *r = found;
    if (r->path[0] == '\0' && found.wrong > 0) snprintf(r->path, sizeof r->path, "%s", from->spec.path);
    r->grade = worst;
}

static const assay_company_result no_result = {.why = "no result has rows that do not know each other", .fewer = -1};

/* The rows in this company. */
static assay_status try_placing(assay_context *ctx, const asking *a, const placing *p, assay_company_result *r)
{
    OWNED_BY(assay_case_free) assay_case own_program = {0};
    OWNED_BY(assay_form_free) assay_form form = {0};
    char threads[16] = "";
    const char *own = getenv("OMP_NUM_THREADS");
    assay_status status = resize(ctx, a->one, p, &own_program, &form);
    snprintf(threads, sizeof threads, "%s", own == NULL ? "" : own);
    if (a->again) setenv("OMP_NUM_THREADS", strcmp(threads, "3") == 0 ? "2" : "3", 1);
    if (status == ASSAY_OK) status = assay_backend_form_results(ctx, a->options, &form, a->what, a->end);
    if (a->again) own == NULL ? unsetenv("OMP_NUM_THREADS") : setenv("OMP_NUM_THREADS", threads, 1);
    if (status == ASSAY_BAD_INPUT) {
        snprintf(r->why, sizeof r->why, "%s", ctx->message);
        return ASSAY_OK;
    }
    MUST(status);
    for (int i = 0; a->end->outcome == ASSAY_OUTCOME_DONE && i < a->one->plan.spec_count; i++) {
        const assay_tensor_spec *spec = &a->one->plan.specs[i];
        const assay_tensor *from = assay_tensor_set_find(&a->one->results, spec->path);
        const assay_tensor *to = assay_tensor_set_find(&form.results, spec->path);
        const bool measure = spec->role == ASSAY_ROLE_ROUTING && assay_path_ends(spec->path, "margin");
        if (!assay_role_is_compared(spec->role) || measure || assay_path_is_hidden(spec->path)) continue;
        if (to != NULL && assay_tensor_is_complete(from) && assay_tensor_is_complete(to)) compare(a, p, from, to, r);
    }
    return ASSAY_OK;
}

static assay_status try_among(assay_context *ctx, const asking *a, int64_t others, assay_company_result *r)
{
    const int64_t total = others + 1, kept = a->rows < total ? a->rows : total;
    const placing p = {.axis = a->axis, .total = total, .kept = kept, .at = (total - kept) / 2};
    *r = no_result;
    const assay_status status = try_placing(ctx, a, &p, r);
    r->others = others;
    return status;
}

/* From alone up; where a row differs, the fewest others are searched for with which it does. */
static assay_status try_others(assay_context *ctx, const asking *a, assay_company_result *r)
{
    static const int64_t others[] = {0, 1, 7, 64, 257};
    int64_t fewer = -1;
    for (size_t i = 0; r->wrong == 0 && i < sizeof others / sizeof *others; i++) {
        assay_company_result found;
        if (i > 0) fewer = others[i - 1];
        MUST(try_among(ctx, a, others[i], &found));
        if (found.why[0] == '\0' || r->why[0] != '\0') *r = found; /* more may be too many */
        if (a->end->outcome != ASSAY_OUTCOME_DONE) return ASSAY_OK;
    }
    while (r->wrong > 0 && fewer >= 0 && r->others - fewer > 1) {
        assay_company_result found;
        MUST(try_among(ctx, a, (fewer + r->others) / 2, &found));
        if (a->end->outcome != ASSAY_OUTCOME_DONE) return ASSAY_OK;
        if (found.wrong > 0) *r = found;
        if (found.wrong == 0) fewer = found.others;
    }
    r->fewer = fewer;
    return ASSAY_OK;
}

assay_status assay_company_check(assay_context *ctx, const assay_backend_check_options *options, const assay_form *one,
                                 const assay_company *company, assay_backend_end *end, assay_company_result *r)
{
    const bool again = company->how == ASSAY_COMPANY_AGAIN;
    const char *why = coupled_by(&one->c);
    char axis[2] = {assay_operation_by_name(one->c.op)->by_token ? 'S' : 'B'};
    if (one->c.program != NULL) axis[0] = assay_program_row_axis(one->c.program);
    if (again && why != NULL) why = NULL, axis[0] = '\0';
    const int64_t rows = rows_of(&one->c, axis), half = rows / 2;
    int64_t elements = 0;
    *r = no_result;
    if (why == NULL && rows < 2 && (company->how == ASSAY_COMPANY_ORDER || company->how == ASSAY_COMPANY_CHUNKS))
        why = "it has one row";
    if (why != NULL) {
        snprintf(r->why, sizeof r->why, "%s", why);
        return ASSAY_OK;
    }
    asking a = {
        .options = options, .one = one, .what = company->name, .axis = axis, .rows = rows, .again = again, .end = end};
    for (int i = 0; i < one->results.count; i++) {
        const assay_tensor_spec *spec = &one->results.items[i].spec;
        int64_t outer, inner;
        a.coupled |= spec->role == ASSAY_ROLE_COTANGENT && !find_axis(spec, axis, &outer, &inner);
        elements += one->results.items[i].count;
    }
    a.quantile = assay_thresholds_of(options->false_alarm, elements, 1, 0).element;
    placing p = {.axis = axis, .total = rows, .kept = rows, .reversed = company->how == ASSAY_COMPANY_ORDER};
    if (company->how == ASSAY_COMPANY_OTHERS) return try_others(ctx, &a, r);
    if (company->how == ASSAY_COMPANY_CHUNKS) {
        p.total = p.kept = half;
        MUST(try_placing(ctx, &a, &p, r));
        if (r->wrong > 0 || r->why[0] != '\0' || end->outcome != ASSAY_OUTCOME_DONE) return ASSAY_OK;
        p = (placing){.axis = axis, .total = rows - half, .from = half, .kept = rows - half};
    }
    p.pads = company->how == ASSAY_COMPANY_PAD;
    p.padding = NAN;
    if (p.pads) p.total += PADDING;
    MUST(try_placing(ctx, &a, &p, r));
    p.padding = 1e4;
    if (p.pads && (r->why[0] != '\0' || end->outcome != ASSAY_OUTCOME_DONE)) MUST(try_placing(ctx, &a, &p, r));
    r->others = PADDING;
    return ASSAY_OK;
}
