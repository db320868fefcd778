#include "harness/fixes/hidden_codes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/thresholds.h"
#include "harness/plan/code_ranges.h"
#include "harness/scales/hidden.h"
#include "harness/scales/hidden_deviation.h"
#include "oracle/base/memory.h"
#include "oracle/ops/quantised_deviation.h"

void assay_hidden_codes_free(assay_hidden_codes *codes)
{
    assay_tensor_set_free(&codes->staged);
    *codes = (assay_hidden_codes){0};
}

static void find_wrong(assay_hidden_codes *codes, const char *path, const char *message)
{
    if (codes->wrong++ > 0) return;
    snprintf(codes->wrong_path, sizeof codes->wrong_path, "%s", path);
    snprintf(codes->message, sizeof codes->message, "%s", message);
}

static bool has_elements(const assay_tensor_spec *found, const assay_tensor_spec *expected, int a_byte)
{
    assay_shape shape = expected->shape;
    int64_t *last = &shape.dims[shape.rank - 1];
    if (*last % a_byte != 0) return false;
    *last /= a_byte;
    return assay_shape_equal(&found->shape, &shape);
}

/* Bits to numbers; NaN where they are more than a byte. */
static void decode(const assay_context *ctx, assay_dtype type, int64_t count, const int32_t *bits, double *numbers)
{
    assay_quantised_decode(ctx, type, count, bits, numbers);
    for (int64_t i = 0; i < count && type != ASSAY_FLOAT32; i++)
        if ((bits[i] & 0xFF) != bits[i]) numbers[i] = NAN;
}

/* ASSAY_BAD_INPUT: not in a form that is known. */
static assay_status read_numbers(assay_context *ctx, assay_fixture_reader *candidate, const assay_tensor_spec *expected,
                                 assay_dtype type, double *numbers)
{
    OWNED int32_t *bits = NULL;
    const assay_tensor_spec *found = assay_fixture_find(candidate, expected->path);
    const int64_t count = assay_shape_count(&expected->shape);
    const int a_byte = has_elements(found, expected, 1) ? 1 : 2;
    if (a_byte == 2 && (type != ASSAY_FLOAT4_E2M1FN || found->type != ASSAY_INT32 || !has_elements(found, expected, 2)))
        return ASSAY_BAD_INPUT;
    if (found->type != ASSAY_INT32) return assay_fixture_read(ctx, candidate, expected->path, 0, count, numbers);
    MUST(assay_alloc_i32(ctx, expected->path, count, &bits));
    MUST(assay_fixture_read_i32(ctx, candidate, expected->path, 0, count / a_byte, bits));
    if (a_byte == 2) {
        assay_unpack_e2m1(numbers, bits, count / 2);
    } else {
        decode(ctx, type, count, bits, numbers);
    }
    return ASSAY_OK;
}

/* One tensor, to the set and back to the candidate as numbers. */
static assay_status take(assay_context *ctx, assay_fixture_reader *candidate, const assay_tensor_spec *expected,
                         assay_dtype type, assay_tensor_set *staged, bool *taken)
{
    assay_status status;
    assay_tensor_spec spec = *expected;
    assay_tensor *tensor = NULL;
    double *numbers = NULL;
    assay_staged_path(expected->path, spec.path);
    TRY(assay_tensor_set_add(ctx, staged, &spec, &tensor));
    status = read_numbers(ctx, candidate, expected, type, tensor->values);
    *taken = status == ASSAY_OK;
    if (status == ASSAY_BAD_INPUT) {
        ctx->message[0] = '\0';
        return ASSAY_OK;
    }
    TRY(status);
    tensor->written = tensor->count;
    TRY(assay_alloc_f64(ctx, expected->path, tensor->count, &numbers));
    memcpy(numbers, tensor->values, (size_t)tensor->count * sizeof *numbers);
    assay_fixture_forget(candidate, expected->path);
    TRY(assay_fixture_put(ctx, candidate, expected, numbers));
cleanup:
    return status;
}

static const assay_tensor *staged_of(const assay_tensor_set *staged, const assay_tensor_spec *spec)
{
    char path[ASSAY_PATH_SIZE];
    assay_staged_path(spec->path, path);
    const assay_tensor *tensor = assay_tensor_set_find(staged, path);
    return tensor != NULL && assay_tensor_is_complete(tensor) ? tensor : NULL;
}

/* An output of a program that is such numbers need not be given: it is what the codes and scales say. */
static assay_status put_numbers(assay_context *ctx, const assay_plan *plan, const assay_hidden *hidden,
                                const assay_quantize_config *config, const assay_tensor_set *staged,
                                assay_fixture_reader *candidate)
{
    const assay_program *p = plan->c->program;
    const double *of_tensor = config->format->tensor_scale ? &config->tensor_scale : NULL;
    const assay_tensor *codes = staged_of(staged, hidden->codes), *scale = staged_of(staged, hidden->scale);
    const assay_program_line *line = p == NULL ? NULL : assay_program_coded_line(p, hidden->codes->path);
    for (int i = 0; line != NULL && i < p->line_count; i++) {
        double *numbers = NULL;
        if (!p->lines[i].output || p->lines[i].node != line->node) continue;
        const assay_tensor_entry *output = assay_tensor_list_find(&plan->list, p->lines[i].path);
        if (output == NULL || assay_fixture_find(candidate, p->lines[i].path) != NULL) continue;
        MUST(assay_alloc_f64(ctx, p->lines[i].path, codes->count, &numbers));
        assay_dequantize(ctx, numbers, codes->values, scale->values, of_tensor, config);
        MUST(assay_fixture_put(ctx, candidate, &output->spec, numbers));
    }
    return ASSAY_OK;
}

assay_status assay_hidden_codes_adopt(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *candidate,
                                      assay_hidden_codes *codes)
{
    assay_hidden hidden[ASSAY_MOST_HIDDEN];
    const int count = assay_hidden_list(&plan->list, hidden);
    for (int i = 0; i < count; i++) {
        assay_quantize_config config;
        bool taken = false, scaled = false;
        char message[256];
        const bool has_codes = assay_fixture_find(candidate, hidden[i].codes->path) != NULL;
        const bool has_scale = assay_fixture_find(candidate, hidden[i].scale->path) != NULL;
        if (has_codes != has_scale) {
            const char *overlay = (has_codes ? hidden[i].codes : hidden[i].scale)->path;
            snprintf(message, sizeof message, "%.100s is given without %.100s", overlay,
                     (has_codes ? hidden[i].scale : hidden[i].codes)->path);
            find_wrong(codes, overlay, message);
        }
        if (!has_codes || !has_scale) continue;
        MUST(assay_hidden_rules(ctx, plan->c, &hidden[i], &config));
        MUST(take(ctx, candidate, hidden[i].codes, config.format->element, &codes->staged, &taken));
        MUST(take(ctx, candidate, hidden[i].scale, config.format->scale, &codes->staged, &scaled));
        if (!taken || !scaled) codes->staged.items[codes->staged.count - (scaled ? 1 : 2)].written = 0;
        if (taken && scaled) MUST(put_numbers(ctx, plan, &hidden[i], &config, &codes->staged, candidate));
    }
    return ASSAY_OK;
}

/* A block: all of h with what this may be off, the candidate's codes and scales, and which of them are the block's. */
typedef struct block {
    const assay_hidden *hidden;
    const assay_quantize_config *config;
    const double *h, *tau, *codes;
    double scale;
    int64_t row, row_end, column, column_end;
    int64_t down, across; /* where its scale is */
} block;

static void describe(assay_hidden_codes *codes, const assay_tensor_spec *spec, int64_t row, int64_t column,
                     double found, double golden, double least, double most)
{
    char message[256], place[96] = "";
    int length = 0;
    int64_t index[ASSAY_MAX_RANK];
    for (int axis = spec->shape.rank - 2; axis >= 0; axis--) {
        index[axis] = row % spec->shape.dims[axis];
        row /= spec->shape.dims[axis];
    }
    for (int axis = 0; axis < spec->shape.rank - 1; axis++)
        length += snprintf(place + length, sizeof place - (size_t)length, "%" PRId64 ",", index[axis]);
    snprintf(message, sizeof message, "%.90s[%s%" PRId64 "] is %.9g, the golden has %.9g; errors allow %.9g to %.9g",
             spec->path, place, column, found, golden, least, most);
    find_wrong(codes, spec->path, message);
}

static void count_verdict(assay_hidden_codes *codes, bool exact, bool admissible)
{
    codes->exact += exact;
    codes->admissible += !exact && admissible;
}

static void judge_scale(assay_hidden_codes *codes, const block *b)
{
    assay_code_range amax = {0};
    for (int64_t row = b->row; row < b->row_end; row++) {
        const int64_t first = row * b->config->columns + b->column;
        assay_amax_range(&amax, b->column_end - b->column, b->h + first, b->tau + first);
    }
    const assay_code_range range = assay_scale_range(&amax, b->config);
    const bool ok = assay_code_is_within(&range, b->scale);
    codes->scales++;
    count_verdict(codes, ok && b->scale == range.golden, ok);
    if (!ok) describe(codes, b->hidden->scale, b->down, b->across, b->scale, range.golden, range.least, range.most);
}

static void judge_code(assay_hidden_codes *codes, const block *b, int64_t row, int64_t column)
{
    const int64_t i = row * b->config->columns + column;
    const assay_code_range range = assay_element_range(b->h[i], b->tau[i], b->scale, b->config);
    const bool ok = assay_code_is_within(&range, b->codes[i]);
    codes->codes++;
    count_verdict(codes, ok && b->codes[i] == range.golden, ok);
    if (!ok) describe(codes, b->hidden->codes, row, column, b->codes[i], range.golden, range.least, range.most);
}

static assay_status judge_one(assay_context *ctx, const assay_plan *plan, const assay_hidden *hidden, const double *h,
                              const double *tau, assay_hidden_codes *codes)
{
    assay_quantize_config config;
    const assay_tensor *mine = staged_of(&codes->staged, hidden->codes),
                       *scale = staged_of(&codes->staged, hidden->scale);
    MUST(assay_hidden_rules(ctx, plan->c, hidden, &config));
    const int64_t rows = config.format->rows, columns = config.format->columns,
                  blocks = assay_block_count(config.columns, columns);
    for (int64_t i = 0; i < scale->count; i++) {
        const int64_t row = i / blocks * rows, column = i % blocks * columns;
        const block b = {.hidden = hidden,
                         .config = &config,
                         .h = h,
                         .tau = tau,
                         .codes = mine->values,
                         .scale = scale->values[i],
                         .row = row,
                         .row_end = assay_smaller(row + rows, mine->count / config.columns),
                         .column = column,
                         .column_end = assay_smaller(column + columns, config.columns),
                         .down = i / blocks,
                         .across = i % blocks};
        const int64_t wrong = codes->wrong;
        judge_scale(codes, &b);
        /* by a scale that is wrong no code is right */
        for (int64_t at = row; codes->wrong == wrong && at < b.row_end; at++)
            for (int64_t k = column; codes->wrong == wrong && k < b.column_end; k++) judge_code(codes, &b, at, k);
    }
    return ASSAY_OK;
}

assay_status assay_hidden_codes_judge(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                                      double false_alarm, assay_hidden_codes *codes)
{
    assay_hidden hidden[ASSAY_MOST_HIDDEN];
    OWNED_BY(assay_tensor_set_free) assay_tensor_set h = {0}, spread = {0};
    int64_t judged = 0;
    const int count = assay_hidden_list(&plan->list, hidden);
    assay_overlay overlay = {assay_tensor_set_source(&codes->staged), *in};
    const assay_source source = assay_overlay_source(&overlay); /* codes of a layer lead to h of the next */
    MUST(assay_hidden_deviation(ctx, plan, &plan->precisions[0], &source, &h, &spread));
    for (int i = 0; i < codes->staged.count; i++) judged += codes->staged.items[i].count;
    /* thresholds of elements take a third of what they are given */
    const double deviations = assay_thresholds_of(3 * false_alarm, judged, 0, 0).element;
    for (int i = 0; i < count; i++) {
        char path[ASSAY_PATH_SIZE];
        if (staged_of(&codes->staged, hidden[i].codes) == NULL || staged_of(&codes->staged, hidden[i].scale) == NULL)
            continue;
        assay_deviation_path(hidden[i].h->path, path);
        assay_tensor *tau = assay_tensor_set_find(&spread, path);
        for (int64_t k = 0; k < tau->count; k++) tau->values[k] *= deviations;
        MUST(
            judge_one(ctx, plan, &hidden[i], assay_tensor_set_find(&h, hidden[i].h->path)->values, tau->values, codes));
    }
    return ASSAY_OK;
}

void assay_hidden_codes_note(const assay_hidden_codes *codes, assay_report *report)
{
    bool before = false;
    if (codes->codes + codes->wrong == 0) return;
    snprintf(report->codes, sizeof report->codes,
             "%" PRId64 " codes and %" PRId64 " scales of h: %" PRId64 " as the golden's, %" PRId64
             " within errors, %" PRId64 " wrong%s",
             codes->codes, codes->scales, codes->exact, codes->admissible, codes->wrong,
             codes->wrong == 0 ? "; what follows is evaluated given them" : "");
    if (codes->wrong == 0) return;
    for (int i = 0; i < report->count; i++) {
        assay_tensor_result *r = &report->tensors[i];
        if (strcmp(r->spec.path, codes->wrong_path) == 0) {
            r->verdict = ASSAY_FAIL;
            r->finding = ASSAY_FINDING_INTEGERS;
            snprintf(r->message, sizeof r->message, "%s", codes->message);
            break;
        }
        before |= r->verdict == ASSAY_FAIL;
    }
    report->verdict = ASSAY_FAIL;
    if (before) return;
    snprintf(report->message, sizeof report->message, "%s", codes->message);
    report->diagnosis[0] = '\0'; /* what follows other codes looks like nothing */
}
