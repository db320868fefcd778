#include "harness/plan/written_codes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/thresholds.h"
#include "harness/plan/code_ranges.h"
#include "oracle/base/memory.h"
#include "oracle/ops/cache_format.h"

enum { BFLOAT16_BYTES = 2 };

void assay_written_codes_free(assay_written_codes *codes)
{
    assay_tensor_set_free(&codes->written);
    *codes = (assay_written_codes){0};
}

static bool makes_numbers(const assay_plan *plan)
{
    for (int i = 0; i < plan->list.count; i++) {
        if (plan->list.entries[i].always_stored) return true;
    }
    return false;
}

/* --- what is read --- */

/* Numbers that are written, and how far off each may be; of an exact tensor not at all. */
typedef struct written_numbers {
    int64_t width; /* of a token */
    double *x, *tau;
} written_numbers;

static void written_numbers_free(written_numbers *m)
{
    free(m->x);
    free(m->tau);
    *m = (written_numbers){0};
}

/* Stage by stage the candidate's own number, which its kernel may have had finer than it is stored, where it gives that. */
static assay_status take_own(assay_context *ctx, const assay_profile *profile, assay_fixture_reader *candidate,
                             const assay_tensor_spec *spec, written_numbers *made, bool *taken)
{
    const assay_tensor_spec *found = assay_fixture_find(candidate, spec->path);
    const assay_dtype type = assay_profile_type_of(profile, spec);
    const int64_t count = assay_shape_count(&spec->shape);
    *taken = found != NULL && found->type != ASSAY_INT32 && assay_shape_equal(&found->shape, &spec->shape);
    if (!*taken) return ASSAY_OK;
    MUST(assay_fixture_read(ctx, candidate, spec->path, 0, count, made->x));
    for (int64_t i = 0; i < count; i++)
        made->tau[i] = assay_dtype_unit_roundoff(type) * fabs(made->x[i]) + 0.5 * assay_dtype_least_subnormal(type);
    return ASSAY_OK;
}

/* `own`: NULL, or the candidate whose own numbers count where it has them. */
static assay_status read_written(assay_context *ctx, const assay_profile *profile, double deviations,
                                 assay_fixture_reader *golden, assay_fixture_reader *own, const char *name,
                                 written_numbers *made)
{
    char path[ASSAY_PATH_SIZE], scales[ASSAY_PATH_SIZE];
    if (name == NULL) return ASSAY_OK;
    const bool output =
        assay_role_of(name) == ASSAY_ROLE_OUTPUT; /* which may be stored before, whatever its errors are */
    snprintf(path, sizeof path, "%s%s", output ? "" : "checkpoints/", name);
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile->precision.name, path, scales);
    const assay_tensor_spec *spec = assay_fixture_find(golden, path);
    if (spec == NULL || assay_fixture_find(golden, scales) == NULL) return ASSAY_OK;
    const int64_t count = assay_shape_count(&spec->shape);
    const assay_dtype type = assay_profile_type_of(profile, spec);
    const double unit = assay_dtype_unit_roundoff(type), least = 0.5 * assay_dtype_least_subnormal(type);
    bool exact = true, taken = false;
    MUST(assay_alloc_f64(ctx, path, count, &made->x));
    MUST(assay_alloc_f64(ctx, scales, count, &made->tau));
    MUST(assay_fixture_read(ctx, golden, path, 0, count, made->x));
    MUST(assay_fixture_read(ctx, golden, scales, 0, count, made->tau));
    made->width = spec->shape.rank > 0 ? count / spec->shape.dims[0] : 1;
    for (int64_t i = 0; i < count; i++) exact &= made->tau[i] == 0 && !output;
    if (own != NULL && !exact) MUST(take_own(ctx, profile, own, spec, made, &taken));
    if (taken) return ASSAY_OK;
    for (int64_t i = 0; i < count && !exact; i++)
        made->tau[i] = deviations * made->tau[i] + unit * fabs(made->x[i]) + least;
    return ASSAY_OK;
}

/* A tensor of bytes: the golden's, and what the candidate has, which becomes as the golden has it. */
typedef struct byte_pair {
    char path[ASSAY_PATH_SIZE];
    int64_t page; /* bytes */
    int32_t *golden, *mine;
    bool changed;
} byte_pair;

static void pair_free(byte_pair *p)
{
    free(p->golden);
    free(p->mine);
}

/* What the candidate lacks, or has in another shape or type, is left to the comparer's words: NULL. */
static assay_status read_pair(assay_context *ctx, const char *name, assay_fixture_reader *golden,
                              assay_fixture_reader *candidate, byte_pair *p)
{
    snprintf(p->path, sizeof p->path, "outputs/%s", name);
    const assay_tensor_spec *expected = assay_fixture_find(golden, p->path);
    const assay_tensor_spec *found = assay_fixture_find(candidate, p->path);
    if (expected == NULL || found == NULL || !assay_shape_equal(&expected->shape, &found->shape)) return ASSAY_OK;
    if (found->type != ASSAY_INT32) return ASSAY_OK;
    const int64_t count = assay_shape_count(&expected->shape);
    p->page = expected->shape.dims[1];
    MUST(assay_alloc_i32(ctx, p->path, count, &p->mine));
    const assay_status status = assay_fixture_read_i32(ctx, candidate, p->path, 0, count, p->mine);
    if (status == ASSAY_BAD_INPUT) {
        ctx->message[0] = '\0';
        free(p->mine);
        p->mine = NULL;
        return ASSAY_OK;
    }
    MUST(status);
    MUST(assay_alloc_i32(ctx, p->path, count, &p->golden));
    return assay_fixture_read_i32(ctx, golden, p->path, 0, count, p->golden);
}

static assay_status keep_written(assay_context *ctx, const byte_pair *p, const assay_tensor_spec *spec,
                                 assay_tensor_set *given)
{
    assay_tensor *tensor = NULL;
    MUST(assay_tensor_set_add(ctx, given, spec, &tensor));
    memcpy(tensor->indices, p->mine, (size_t)tensor->count * sizeof *tensor->indices);
    tensor->written = tensor->count;
    return ASSAY_OK;
}

static assay_status hand_over(assay_context *ctx, assay_fixture_reader *candidate, byte_pair *p)
{
    int32_t *bytes = p->mine;
    if (!p->changed) return ASSAY_OK;
    p->mine = NULL;
    return assay_fixture_replace(ctx, candidate, p->path, NULL, bytes);
}

/* --- one row --- */

typedef struct stream_judge {
    assay_written_codes *codes;
    bool staged;
    const assay_cache_stream *stream;
    assay_quantize_config rules;
    assay_block_format block;
    byte_pair bytes, scales; /* scales: of formats that have them apart */
    int64_t token, head, page;
} stream_judge;

static void find_wrong(stream_judge *j, const byte_pair *p, int64_t byte, const char *what, int64_t column,
                       double found, const assay_code_range *range)
{
    assay_written_codes *codes = j->codes;
    if (codes->wrong++ > 0) return;
    snprintf(codes->wrong_path, sizeof codes->wrong_path, "%s", p->path);
    snprintf(codes->message, sizeof codes->message,
             "%.60s[%" PRId64 ",%" PRId64 "]: %s %" PRId64 " of token %" PRId64 ", head %" PRId64
             ", is %.9g, the golden has %.9g; errors allow %.9g to %.9g",
             p->path, j->page, byte, what, column, j->token, j->head, found, range->golden, range->least, range->most);
}

static bool are_equal(const byte_pair *p, int64_t first, int64_t count)
{
    return memcmp(p->golden + first, p->mine + first, (size_t)count * sizeof *p->mine) == 0;
}

static void take(byte_pair *p, int64_t first, int64_t count)
{
    memcpy(p->mine + first, p->golden + first, (size_t)count * sizeof *p->mine);
    p->changed = true;
}

static bool are_bytes(const int32_t *bytes, int64_t count)
{
    bool all = true;
    for (int64_t i = 0; i < count; i++) all &= bytes[i] >= 0 && bytes[i] <= 255;
    return all;
}

static uint32_t little_endian(const int32_t *bytes, int64_t count)
{
    uint32_t bits = 0;
    for (int64_t i = 0; i < count; i++) bits |= (uint32_t)bytes[i] << (8 * i);
    return bits;
}

static double bfloat16_at(const int32_t *bytes)
{
    double number = NAN;
    if (!are_bytes(bytes, BFLOAT16_BYTES)) return NAN;
    const uint16_t bits = (uint16_t)little_endian(bytes, BFLOAT16_BYTES);
    assay_dtype_decode(ASSAY_BFLOAT16, 1, &bits, &number);
    return number;
}

/* A number of bfloat16 by itself. Mutants that write another row have what is none of its numbers: that has to be equal. */
static void judge_plain(stream_judge *j, int64_t at, int64_t column, double x, double tau)
{
    byte_pair *p = &j->bytes;
    const int64_t first = j->page * p->page + at;
    j->codes->codes++;
    if (are_equal(p, first, BFLOAT16_BYTES)) {
        j->codes->exact++;
        return;
    }
    const double off = tau == 0 ? 0 : assay_code_reach(x, tau), found = bfloat16_at(p->mine + first);
    const assay_code_range range = {assay_dtype_round(ASSAY_BFLOAT16, x - off, false),
                                    assay_dtype_round(ASSAY_BFLOAT16, x, false),
                                    assay_dtype_round(ASSAY_BFLOAT16, x + off, false)};
    const bool of_golden = assay_code_is_within(&range, bfloat16_at(p->golden + first));
    if (tau > 0 && of_golden && assay_code_is_within(&range, found)) {
        take(p, first, BFLOAT16_BYTES);
        j->codes->admissible++;
    } else {
        find_wrong(j, p, at, "the number", column, found, &range);
    }
}

/* Numbers of a block that lie side by side, and where its codes and its scale are. */
typedef struct code_block {
    int64_t column, columns;
    const double *x, *tau;
    byte_pair *of_scale;
    int64_t codes, code_bytes, scale, scale_bytes; /* in the page; scale_bytes 0: it is given */
} code_block;

static double decode_scale(const assay_context *ctx, const stream_judge *j, const code_block *b, const int32_t *bytes)
{
    double scale = NAN;
    if (!are_bytes(bytes, b->scale_bytes)) return NAN;
    const int32_t bits = (int32_t)little_endian(bytes, b->scale_bytes);
    assay_quantised_decode(ctx, j->block.scale, 1, &bits, &scale);
    return scale;
}

/* To numbers of the element's type. */
static void decode_codes(const assay_context *ctx, const stream_judge *j, const code_block *b, const int32_t *bytes,
                         double *found)
{
    const int64_t of_byte = b->columns / b->code_bytes;
    if (of_byte > 1) {
        assay_unpack_e2m1(found, bytes, b->code_bytes);
    } else {
        assay_quantised_decode(ctx, j->block.element, b->columns, bytes, found);
    }
    for (int64_t i = 0; i < b->columns; i++) {
        if (!are_bytes(bytes + i / of_byte, 1)) found[i] = NAN;
    }
}

static bool is_exact(const code_block *b)
{
    for (int64_t i = 0; i < b->columns; i++) {
        if (b->tau[i] > 0) return false;
    }
    return true;
}

/* The first that is not what errors allow. */
typedef struct wrong_code {
    bool any, scale;
    int64_t column; /* in the block */
    double found;
    assay_code_range range;
} wrong_code;

/* Of scale and codes as one side has them; by a scale that is wrong no code is right. */
static wrong_code first_wrong(const assay_context *ctx, const stream_judge *j, const code_block *b,
                              const int32_t *codes, const int32_t *scales, double *room)
{
    double scale = j->rules.tensor_scale;
    if (b->scale_bytes > 0) {
        assay_code_range amax = {0};
        assay_amax_range(&amax, b->columns, b->x, b->tau);
        const assay_code_range range = assay_scale_range(&amax, &j->rules);
        scale = decode_scale(ctx, j, b, scales);
        if (!assay_code_is_within(&range, scale)) return (wrong_code){true, true, 0, scale, range};
    }
    decode_codes(ctx, j, b, codes, room);
    for (int64_t i = 0; i < b->columns; i++) {
        const assay_code_range range = assay_element_range(b->x[i], b->tau[i], scale, &j->rules);
        if (!assay_code_is_within(&range, room[i])) return (wrong_code){true, false, i, room[i], range};
    }
    return (wrong_code){0};
}

/* Of a block that is right: which of its codes are the golden's own. */
static void count_codes(const stream_judge *j, const code_block *b, int64_t codes, int64_t scale)
{
    const int64_t of_byte = b->columns / b->code_bytes;
    for (int64_t i = 0; i < b->code_bytes; i++)
        *(are_equal(&j->bytes, codes + i, 1) ? &j->codes->exact : &j->codes->admissible) += of_byte;
    if (b->scale_bytes > 0)
        *(are_equal(b->of_scale, scale, b->scale_bytes) ? &j->codes->exact : &j->codes->admissible) += 1;
}

static void judge_block(const assay_context *ctx, stream_judge *j, const code_block *b, double *room)
{
    byte_pair *p = &j->bytes, *s = b->of_scale;
    const int64_t codes = j->page * p->page + b->codes, scale = j->page * s->page + b->scale;
    j->codes->codes += b->columns;
    j->codes->scales += b->scale_bytes > 0;
    if (are_equal(p, codes, b->code_bytes) && are_equal(s, scale, b->scale_bytes)) {
        count_codes(j, b, codes, scale);
        return;
    }
    const wrong_code wrong = first_wrong(ctx, j, b, p->mine + codes, s->mine + scale, room);
    const bool other = is_exact(b) || first_wrong(ctx, j, b, p->golden + codes, s->golden + scale, room).any;
    if (!wrong.any && !other) {
        count_codes(j, b, codes, scale);
        take(p, codes, b->code_bytes);
        take(s, scale, b->scale_bytes);
    } else if (wrong.scale) {
        find_wrong(j, s, b->scale, "the scale of block", b->column / j->block.columns, wrong.found, &wrong.range);
    } else {
        find_wrong(j, p, b->codes + wrong.column * b->code_bytes / b->columns, "the code of number",
                   b->column + wrong.column, wrong.found, &wrong.range);
    }
}

static void judge_row(const assay_context *ctx, stream_judge *j, int32_t slot, const double *x, const double *tau,
                      double *room)
{
    const assay_cache_config *c = &j->stream->cache;
    const assay_cache_row row = assay_cache_row_of(c, slot % c->tokens, j->head);
    const bool plain = j->block.element == ASSAY_BFLOAT16, packed = j->block.element == ASSAY_FLOAT4_E2M1FN;
    const int64_t scale_bytes = row.scale_bytes == 0 ? 0 : j->block.scale == ASSAY_FLOAT32 ? (int64_t)sizeof(float) : 1;
    j->page = slot / c->tokens;
    for (int64_t i = 0; plain && i < c->columns; i++) judge_plain(j, row.codes + i * BFLOAT16_BYTES, i, x[i], tau[i]);
    for (int64_t i = 0; !plain && i < c->columns; i += j->block.columns) {
        const int64_t columns = c->columns - i < j->block.columns ? c->columns - i : j->block.columns;
        const code_block b = {.column = i,
                              .columns = columns,
                              .x = x + i,
                              .tau = tau + i,
                              .of_scale = j->scales.mine != NULL ? &j->scales : &j->bytes,
                              .codes = row.codes + (packed ? i / 2 : i),
                              .code_bytes = packed ? columns / 2 : columns,
                              .scale = row.scales + i / j->block.columns * scale_bytes,
                              .scale_bytes = scale_bytes};
        judge_block(ctx, j, &b, room);
    }
}

/* --- one stream --- */

static assay_status read_given_scales(assay_context *ctx, const assay_cache_stream *s, assay_fixture_reader *golden,
                                      double **scales, int64_t *count)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s", s->scale);
    const assay_tensor_spec *spec = assay_fixture_find(golden, path);
    *count = 0;
    if (spec == NULL) return ASSAY_OK;
    *count = assay_shape_count(&spec->shape);
    MUST(assay_alloc_f64(ctx, path, *count, scales));
    return assay_fixture_read(ctx, golden, path, 0, *count, *scales);
}

/* A token's numbers of one head: those of the first tensor, and of the second where it is quantised with them. */
static void gather(const assay_cache_stream *s, const double *first, const double *second, int64_t token, int64_t head,
                   double *row)
{
    const int64_t columns = s->first_columns, rest = s->cache.columns - columns;
    memcpy(row, first + (token * s->cache.heads + head) * columns, (size_t)columns * sizeof *row);
    if (rest > 0) memcpy(row + columns, second + token * rest, (size_t)rest * sizeof *row);
}

static assay_status judge_tokens(assay_context *ctx, stream_judge *j, const written_numbers *first,
                                 const written_numbers *second, const int32_t *slots, int64_t tokens,
                                 const double *given, int64_t given_count)
{
    const assay_cache_config *c = &j->stream->cache;
    OWNED double *x = NULL;
    OWNED double *tau = NULL;
    OWNED double *room = NULL;
    MUST(assay_alloc_f64(ctx, "a row", c->columns, &x));
    MUST(assay_alloc_f64(ctx, "what it may be off", c->columns, &tau));
    MUST(assay_alloc_f64(ctx, "its codes", c->columns, &room));
    for (int64_t i = 0; i < tokens * c->heads; i++) {
        j->token = i / c->heads;
        j->head = i % c->heads;
        if (slots[j->token] < 0) continue;
        if (given_count > 0) j->rules.tensor_scale = given[given_count > 1 ? j->head : 0];
        gather(j->stream, first->x, second->x, j->token, j->head, x);
        gather(j->stream, first->tau, second->tau, j->token, j->head, tau);
        judge_row(ctx, j, slots[j->token], x, tau, room);
        const int64_t rope = assay_cache_row_of(c, slots[j->token] % c->tokens, j->head).rope;
        for (int64_t k = 0; k < c->rope; k++)
            judge_plain(j, rope + k * BFLOAT16_BYTES, k, second->x[j->token * c->rope + k],
                        second->tau[j->token * c->rope + k]);
    }
    return ASSAY_OK;
}

static assay_status judge_stream(assay_context *ctx, stream_judge *j, const assay_profile *profile, double deviations,
                                 const int32_t *slots, int64_t tokens, assay_fixture_reader *golden,
                                 assay_fixture_reader *candidate)
{
    const assay_cache_stream *s = j->stream;
    OWNED_BY(written_numbers_free) written_numbers first = {0}, second = {0};
    OWNED double *given = NULL;
    int64_t given_count = 0;
    MUST(read_pair(ctx, s->bytes, golden, candidate, &j->bytes));
    MUST(read_pair(ctx, s->scales, golden, candidate, &j->scales));
    assay_fixture_reader *own = j->staged ? candidate : NULL;
    MUST(read_written(ctx, profile, deviations, golden, own, s->numbers, &first));
    MUST(read_written(ctx, profile, deviations, golden, own, s->second, &second));
    const bool apart = assay_cache_page_scales(&s->cache) > 0;
    if (j->bytes.mine == NULL || (apart && j->scales.mine == NULL)) return ASSAY_OK;
    if (first.x == NULL || (s->second != NULL && second.x == NULL)) return ASSAY_OK;
    MUST(read_given_scales(ctx, s, golden, &given, &given_count));
    MUST(keep_written(ctx, &j->bytes, assay_fixture_find(golden, j->bytes.path), &j->codes->written));
    if (apart) MUST(keep_written(ctx, &j->scales, assay_fixture_find(golden, j->scales.path), &j->codes->written));
    MUST(judge_tokens(ctx, j, &first, &second, slots, tokens, given, given_count));
    MUST(hand_over(ctx, candidate, &j->bytes));
    return hand_over(ctx, candidate, &j->scales);
}

/* --- outputs that are rounded to fp8 --- */

/* What x may be as a number of the type; beyond its largest that, or NaN or infinite. */
static bool may_round_to(assay_dtype type, double x, double tau, double found)
{
    const assay_code_range range = {assay_dtype_round(type, x - tau, true), x, assay_dtype_round(type, x + tau, true)};
    if (isfinite(found)) return assay_code_is_within(&range, found);
    return !isfinite(assay_dtype_round(type, fabs(x) + tau, false)) && (isnan(found) || (found > 0) == (x > 0));
}

static void judge_rounded(assay_written_codes *codes, const assay_tensor_spec *spec, const written_numbers *made,
                          int64_t count, double *found)
{
    for (int64_t i = 0; i < count; i++) {
        const double nearest = assay_dtype_round(spec->kept_as, made->x[i], true);
        const bool right = may_round_to(spec->kept_as, made->x[i], made->tau[i], found[i]);
        codes->exact += right && found[i] == nearest;
        codes->admissible += right && found[i] != nearest;
        if (right) {
            found[i] = made->x[i];
        } else if (codes->wrong++ == 0) {
            snprintf(codes->wrong_path, sizeof codes->wrong_path, "%s", spec->path);
            snprintf(codes->message, sizeof codes->message,
                     "%.60s: number %" PRId64 " is %.9g, in %s that of the golden is %.9g", spec->path, i, found[i],
                     assay_dtype_name(spec->kept_as), nearest);
        }
        if (!right && assay_dtype_round(spec->kept_as, found[i], true) != found[i]) found[i] = NAN; /* no such number */
    }
    codes->outputs += count;
}

/* The numbers that the candidate has rounded become those that the golden has not. */
static assay_status adopt_output(assay_context *ctx, const assay_profile *profile, double deviations,
                                 const assay_tensor_spec *spec, assay_fixture_reader *golden,
                                 assay_fixture_reader *candidate, assay_written_codes *codes)
{
    OWNED_BY(written_numbers_free) written_numbers made = {0};
    const assay_tensor_spec *found = assay_fixture_find(candidate, spec->path);
    const int64_t count = assay_shape_count(&spec->shape);
    assay_tensor *own = NULL;
    double *numbers = NULL;
    if (found == NULL || found->type == ASSAY_INT32 || !assay_shape_equal(&found->shape, &spec->shape)) return ASSAY_OK;
    MUST(read_written(ctx, profile, deviations, golden, NULL, spec->path, &made));
    if (made.x == NULL) return ASSAY_OK;
    MUST(assay_tensor_set_add(ctx, &codes->written, spec, &own));
    MUST(assay_fixture_read(ctx, candidate, spec->path, 0, count, own->values));
    own->written = count;
    MUST(assay_alloc_f64(ctx, spec->path, count, &numbers));
    memcpy(numbers, own->values, (size_t)count * sizeof *numbers);
    judge_rounded(codes, spec, &made, count, numbers);
    return assay_fixture_replace(ctx, candidate, spec->path, numbers, NULL);
}

static assay_status adopt_outputs(assay_context *ctx, const assay_profile *profile, double false_alarm,
                                  assay_fixture_reader *golden, assay_fixture_reader *candidate,
                                  assay_written_codes *codes)
{
    int64_t count = 0;
    for (int i = 0; i < assay_fixture_count(golden); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden, i);
        if (assay_is_kept_as_codes(spec)) count += assay_shape_count(&spec->shape);
    }
    const double deviations = assay_thresholds_of(3 * ASSAY_CODES_SHARE * false_alarm, count, 0, 0).element;
    for (int i = 0; count > 0 && i < assay_fixture_count(golden); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden, i);
        if (assay_is_kept_as_codes(spec)) MUST(adopt_output(ctx, profile, deviations, spec, golden, candidate, codes));
    }
    return ASSAY_OK;
}

assay_status assay_written_codes_adopt(assay_context *ctx, const assay_plan *plan, const assay_profile *profile,
                                       double false_alarm, bool staged, assay_fixture_reader *golden,
                                       assay_fixture_reader *candidate, assay_written_codes *codes)
{
    assay_operation_config of;
    const assay_cache_append_config *config = (const void *)&of;
    OWNED int32_t *slots = NULL;
    int64_t count = 0;
    MUST(adopt_outputs(ctx, profile, false_alarm, golden, candidate, codes));
    if (!makes_numbers(plan)) return ASSAY_OK;
    MUST(assay_operation_configure(ctx, plan->operation, plan->c, &of));
    MUST(assay_alloc_i32(ctx, "inputs/slot_mapping", config->tokens, &slots));
    MUST(assay_fixture_read_i32(ctx, golden, "inputs/slot_mapping", 0, config->tokens, slots));
    for (int64_t i = 0; i < config->stream_count; i++) {
        const assay_cache_config *c = &config->streams[i].cache;
        count += config->tokens * c->heads * (2 * c->columns + c->rope); /* codes, and no more scales */
    }
    /* thresholds of elements take a third of what they are given */
    const double deviations = assay_thresholds_of(3 * ASSAY_CODES_SHARE * false_alarm, count, 0, 0).element;
    for (int64_t i = 0; i < config->stream_count; i++) {
        const assay_cache_stream *s = &config->streams[i];
        stream_judge j = {
            .codes = codes, .staged = staged, .stream = s, .rules = s->cache.rules, .block = s->cache.format->block};
        if (j.block.columns == 0) j.block.columns = s->cache.columns;
        j.rules.rows = 1;
        j.rules.columns = s->cache.columns;
        j.rules.format = &j.block;
        const assay_status status =
            judge_stream(ctx, &j, profile, deviations, slots, config->tokens, golden, candidate);
        pair_free(&j.bytes);
        pair_free(&j.scales);
        MUST(status);
    }
    return ASSAY_OK;
}

assay_status assay_written_codes_put_back(assay_context *ctx, assay_fixture_reader *candidate,
                                          assay_written_codes *codes)
{
    for (int i = 0; i < codes->written.count; i++) {
        assay_tensor *tensor = &codes->written.items[i];
        int32_t *own = NULL;
        double *numbers = tensor->values;
        tensor->values = NULL;
        if (numbers == NULL) MUST(assay_alloc_i32(ctx, tensor->spec.path, tensor->count, &own));
        if (numbers == NULL) memcpy(own, tensor->indices, (size_t)tensor->count * sizeof *own);
        MUST(assay_fixture_replace(ctx, candidate, tensor->spec.path, numbers, own));
    }
    return ASSAY_OK;
}
