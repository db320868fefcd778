#include "compare/compare_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/base/random.h"

/* The RMS of error / sigma: of a correct implementation about 1 or less; a hypothesis that leaves no more explains the
 * tensor, and there must have been something to explain. */
#define EXPLAINED 1.5
#define UNEXPLAINED 3.0

#define TIMES "the golden times"

/* Of slices with fewer elements some other is always near: numbers sorted by size fit any numbers. */
enum { LEAST_SLICE = 4 };

/* The tensor as [outer, size, inner] along one axis. */
typedef struct axis_view {
    int64_t outer, size, inner;
} axis_view;

static axis_view view_of(const assay_shape *shape, int axis)
{
    axis_view v = {1, shape->dims[axis], 1};
    for (int i = 0; i < axis; i++) v.outer *= shape->dims[i];
    for (int i = axis + 1; i < shape->rank; i++) v.inner *= shape->dims[i];
    return v;
}

/* Sums over elements, of squares of (candidate - factor golden) / sigma. */
typedef struct residual {
    double sum;
    int64_t count;
} residual;

static void add(residual *r, double golden, double candidate, double sigma, double factor)
{
    const double error = candidate - factor * golden, scale = sigma * fmax(fabs(factor), 0x1p-60);
    r->count++;
    if (error != 0) r->sum += scale > 0 ? error * error / (scale * scale) : INFINITY;
}

static double rms(residual r)
{
    return r.count > 0 ? sqrt(r.sum / (double)r.count) : INFINITY;
}

static double plain_residual(const assay_wrong_tensor *t, double factor)
{
    residual r = {0};
    for (int64_t i = 0; i < t->count; i++) add(&r, t->golden[i], t->candidate[i], t->sigma[i], factor);
    return rms(r);
}

/* Least squares, each element by its sigma. */
static double best_factor(const assay_wrong_tensor *t)
{
    double above = 0, below = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const double weight = t->sigma[i] > 0 ? 1 / (t->sigma[i] * t->sigma[i]) : 0;
        above += weight * t->golden[i] * t->candidate[i];
        below += weight * t->golden[i] * t->golden[i];
    }
    return below > 0 ? above / below : 0;
}

static bool all_zero(const assay_wrong_tensor *t)
{
    for (int64_t i = 0; i < t->count; i++)
        if (t->candidate[i] != 0) return false;
    return true;
}

static bool look_scaled(const assay_wrong_tensor *t, double before, char *text, size_t size)
{
    const double factor = best_factor(t), left = plain_residual(t, factor);
    if (all_zero(t)) {
        snprintf(text, size, "zero everywhere");
        return true;
    }
    if (!(left <= EXPLAINED)) return false;
    if (fabs(factor + 1) < 1e-2) {
        snprintf(text, size, "the golden negated (%.2g standard deviations are left of %.3g)", left, before);
    } else {
        snprintf(text, size, TIMES " %.6g (%.2g standard deviations are left of %.3g)", factor, left, before);
    }
    return true;
}

static const char *axis_name(const assay_wrong_tensor *t, int axis, char name[48])
{
    const char *label = t->labels[axis];
    if (label != NULL && label[0] != '\0') {
        snprintf(name, 48, "axis %d (%.16s)", axis, label);
    } else {
        snprintf(name, 48, "axis %d", axis);
    }
    return name;
}

/* candidate[i] = golden[from[i]] along an axis; from[i] < 0: not counted. */
static double moved_residual(const assay_wrong_tensor *t, int axis, const int64_t *from)
{
    const axis_view v = view_of(&t->shape, axis);
    residual r = {0};
    for (int64_t o = 0; o < v.outer; o++) {
        for (int64_t i = 0; i < v.size; i++) {
            for (int64_t k = 0; from[i] >= 0 && k < v.inner; k++) {
                const int64_t to = (o * v.size + i) * v.inner + k, source = (o * v.size + from[i]) * v.inner + k;
                add(&r, t->golden[source], t->candidate[to], t->sigma[source], 1);
            }
        }
    }
    return rms(r);
}

static bool look_shifted(const assay_wrong_tensor *t, int axis, int64_t *from, double before, char *text, size_t size)
{
    const int64_t length = t->shape.dims[axis];
    char name[48];
    for (int64_t by = -1; by <= 1; by += 2) {
        for (int wrapped = 0; wrapped < 2; wrapped++) {
            for (int64_t i = 0; i < length; i++) {
                const int64_t source = i - by;
                from[i] = source >= 0 && source < length ? source : wrapped ? (source + length) % length : -1;
            }
            const double left = length > 2 ? moved_residual(t, axis, from) : INFINITY;
            if (!(left <= EXPLAINED)) continue;
            snprintf(text, size, "shifted by %+d along %s (%.2g standard deviations are left of %.3g)", (int)by,
                     axis_name(t, axis, name), left, before);
            return true;
        }
    }
    return false;
}

/* A slice seen as one number: its product with fixed random ones. */
typedef struct mark {
    double value;
    int64_t index;
} mark;

static int by_value(const void *a, const void *b)
{
    const mark *x = a, *y = b;
    return x->value < y->value ? -1 : x->value > y->value ? 1 : x->index < y->index ? -1 : x->index > y->index;
}

static void mark_slices(const double *values, const axis_view *v, mark *marks)
{
    for (int64_t i = 0; i < v->size; i++) {
        marks[i] = (mark){0, i};
        for (int64_t o = 0; o < v->outer; o++) {
            for (int64_t k = 0; k < v->inner; k++) {
                const uint64_t bits = assay_random_bits(1, "diagnosis", (uint64_t)(o * v->inner + k));
                const double weight = ldexp((double)(bits >> 11), -52) - 1;
                marks[i].value += weight * values[(o * v->size + i) * v->inner + k];
            }
        }
    }
    qsort(marks, (size_t)v->size, sizeof *marks, by_value);
}

/* Slices in another order: those of candidate and golden belong together whose marks have the same rank. */
static assay_status look_permuted(assay_context *ctx, const assay_wrong_tensor *t, int axis, int64_t *from,
                                  double before, bool *found, char *text, size_t size)
{
    const axis_view v = view_of(&t->shape, axis);
    OWNED mark *golden = NULL, *candidate = NULL;
    char name[48];
    int64_t first = -1;
    *found = false;
    if (v.outer * v.inner < LEAST_SLICE) return ASSAY_OK;
    MUST(assay_alloc(ctx, "slices", v.size, sizeof(mark), &golden));
    MUST(assay_alloc(ctx, "slices", v.size, sizeof(mark), &candidate));
    mark_slices(t->golden, &v, golden);
    mark_slices(t->candidate, &v, candidate);
    for (int64_t i = 0; i < v.size; i++) from[candidate[i].index] = golden[i].index;
    for (int64_t i = v.size - 1; i >= 0; i--)
        if (from[i] != i) first = i;
    const double left = first >= 0 ? moved_residual(t, axis, from) : INFINITY;
    *found = left <= EXPLAINED;
    if (*found) {
        snprintf(text, size,
                 "in another order along %s: at %" PRId64 " is what belongs at %" PRId64
                 " (%.2g standard deviations are left of %.3g)",
                 axis_name(t, axis, name), first, from[first], left, before);
    }
    return ASSAY_OK;
}

static bool look_transposed(const assay_wrong_tensor *t, double before, char *text, size_t size)
{
    const int rank = t->shape.rank;
    if (rank < 2 || t->shape.dims[rank - 1] != t->shape.dims[rank - 2] || t->shape.dims[rank - 1] < 2) return false;
    const int64_t n = t->shape.dims[rank - 1];
    residual r = {0};
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t matrix = i / (n * n), row = i / n % n, column = i % n, source = (matrix * n + column) * n + row;
        add(&r, t->golden[source], t->candidate[i], t->sigma[source], 1);
    }
    if (!(rms(r) <= EXPLAINED)) return false;
    snprintf(text, size, "transposed in its last two axes (%.2g standard deviations are left of %.3g)", rms(r), before);
    return true;
}

/* "3, 5 to 7" of those that are wrong; false where it is no short list. */
static bool list_slices(const bool *wrong, int64_t count, char *text, size_t size)
{
    size_t length = 0;
    int parts = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t end = i;
        if (!wrong[i]) continue;
        while (end + 1 < count && wrong[end + 1]) end++;
        if (++parts > 4 || length + 48 > size) return false;
        length += (size_t)snprintf(text + length, size - length, "%s%" PRId64, parts > 1 ? ", " : "", i);
        if (end > i) length += (size_t)snprintf(text + length, size - length, " to %" PRId64, end);
        i = end;
    }
    return parts > 0;
}

/* Right but for some slices along an axis. */
static assay_status look_in_part(assay_context *ctx, const assay_wrong_tensor *t, int axis, bool *found, char *text,
                                 size_t size)
{
    const axis_view v = view_of(&t->shape, axis);
    OWNED bool *wrong = NULL;
    residual right = {0};
    char list[160], name[48];
    int64_t wrongs = 0;
    bool zero = true;
    *found = false;
    if (v.size < 2) return ASSAY_OK;
    MUST(assay_alloc(ctx, "slices", v.size, sizeof(bool), &wrong));
    for (int64_t i = 0; i < v.size; i++) {
        residual r = {0};
        bool slice_zero = true;
        for (int64_t o = 0; o < v.outer; o++) {
            for (int64_t k = 0; k < v.inner; k++) {
                const int64_t at = (o * v.size + i) * v.inner + k;
                add(&r, t->golden[at], t->candidate[at], t->sigma[at], 1);
                slice_zero &= t->candidate[at] == 0;
            }
        }
        wrong[i] = !(rms(r) <= UNEXPLAINED);
        wrongs += wrong[i];
        if (wrong[i]) zero &= slice_zero;
        if (!wrong[i]) right.sum += r.sum, right.count += r.count;
    }
    *found =
        wrongs > 0 && 2 * wrongs <= v.size && rms(right) <= EXPLAINED && list_slices(wrong, v.size, list, sizeof list);
    if (*found) {
        snprintf(text, size, "wrong only at %s of %s%s; right elsewhere", list, axis_name(t, axis, name),
                 zero ? ", where it is zero" : "");
    }
    return ASSAY_OK;
}

/* Errors that all point towards zero, none by more than what cutting a number off does. */
static bool look_truncated(const assay_wrong_tensor *t, char *text, size_t size)
{
    int64_t inwards = 0, outwards = 0;
    for (int64_t i = 0; i < t->count; i++) {
        const double error = t->candidate[i] - t->golden[i];
        if (error == 0 || t->golden[i] == 0) continue;
        if ((error < 0) == (t->golden[i] > 0)) {
            inwards++;
        } else {
            outwards++;
        }
    }
    if (inwards + outwards < 64 || outwards * 20 > inwards) return false;
    snprintf(text, size, "cut off instead of rounded: %.0f %% of the errors point towards zero",
             100.0 * (double)inwards / (double)(inwards + outwards));
    return true;
}

assay_status assay_diagnose_tensor(assay_context *ctx, const assay_wrong_tensor *t, char *text, size_t size)
{
    OWNED void *memory = NULL;
    bool found = false;
    int64_t most = 1;
    const double before = plain_residual(t, 1);
    text[0] = '\0';
    for (int64_t i = 0; i < t->count; i++)
        if (!isfinite(t->candidate[i]) || !isfinite(t->golden[i])) return ASSAY_OK;
    for (int axis = 0; axis < t->shape.rank; axis++) {
        if (t->shape.dims[axis] > most) most = t->shape.dims[axis];
    }
    MUST(assay_alloc(ctx, "slices", most, sizeof(int64_t), &memory));
    if (!(before > UNEXPLAINED)) {
        for (int axis = 0; !found && axis < t->shape.rank; axis++) MUST(look_in_part(ctx, t, axis, &found, text, size));
        if (!found) look_truncated(t, text, size);
        return ASSAY_OK;
    }
    found = look_scaled(t, before, text, size) || look_transposed(t, before, text, size);
    for (int axis = 0; !found && axis < t->shape.rank; axis++) {
        found = look_shifted(t, axis, memory, before, text, size);
    }
    for (int axis = 0; !found && axis < t->shape.rank; axis++) {
        MUST(look_permuted(ctx, t, axis, memory, before, &found, text, size));
    }
    for (int axis = 0; !found && axis < t->shape.rank; axis++) MUST(look_in_part(ctx, t, axis, &found, text, size));
    return ASSAY_OK;
}

/* Whether the candidate's tensor is the golden's of another name: gate and up, query and key exchanged. */
static assay_status look_exchanged(assay_context *ctx, assay_fixture_reader *golden, const assay_wrong_tensor *t,
                                   const char *path, char *text, size_t size)
{
    OWNED double *other = NULL;
    MUST(assay_alloc_f64(ctx, "another tensor", t->count, &other));
    for (int i = 0; text[0] == '\0' && i < assay_fixture_count(golden); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden, i);
        if (!assay_has_error_scale(spec) || strcmp(spec->path, path) == 0) continue;
        if (!assay_shape_equal(&spec->shape, &t->shape)) continue;
        MUST(assay_fixture_read(ctx, golden, spec->path, 0, t->count, other));
        residual r = {0};
        for (int64_t k = 0; k < t->count; k++) add(&r, other[k], t->candidate[k], t->sigma[k], 1);
        if (rms(r) <= EXPLAINED) snprintf(text, size, "what belongs in %.100s", spec->path);
    }
    return ASSAY_OK;
}

static const assay_tensor_result *first_wrong(const assay_report *report)
{
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->verdict == ASSAY_FAIL) return r;
    }
    return NULL;
}

static assay_status read_sigma(assay_context *ctx, assay_fixture_reader *golden, const char *scale,
                               const assay_profile *profile, assay_dtype type, const double *values, int64_t count,
                               double *sigma)
{
    const double unit = assay_dtype_unit_roundoff(profile->storage);
    const double tiny = 0.5 * fmax(assay_dtype_least_subnormal(profile->storage), assay_dtype_least_subnormal(type));
    assay_status status = assay_fixture_read(ctx, golden, scale, 0, count, sigma);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) {
        const double rounding = unit * fabs(values[i]) + tiny;
        sigma[i] = sqrt(sigma[i] * sigma[i] + rounding * rounding / 3);
    }
    return status;
}

assay_status assay_diagnose(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                            const assay_profile *profile, assay_report *report)
{
    assay_status status = ASSAY_OK;
    const assay_tensor_result *r = first_wrong(report);
    double *values[3] = {NULL};
    char scale[ASSAY_PATH_SIZE], text[sizeof report->diagnosis - ASSAY_PATH_SIZE - 8];
    report->diagnosis[0] = '\0';
    report->factor = 0;
    if (r == NULL || r->elements < 1 || r->elements > ASSAY_DIAGNOSIS_MOST) return ASSAY_OK;
    if (r->finding != ASSAY_FINDING_ELEMENTS && r->finding != ASSAY_FINDING_ROWS) return ASSAY_OK;
    const assay_tensor_spec *spec = assay_fixture_find(golden, r->spec.path);
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile->precision.name, r->spec.path, scale);
    if (spec == NULL || assay_fixture_find(golden, scale) == NULL) return ASSAY_OK;
    for (int i = 0; i < 3; i++) TRY(assay_alloc_f64(ctx, "values for the diagnosis", r->elements, &values[i]));
    TRY(assay_fixture_read(ctx, golden, r->spec.path, 0, r->elements, values[0]));
    TRY(assay_fixture_read(ctx, candidate, r->spec.path, 0, r->elements, values[1]));
    TRY(read_sigma(ctx, golden, scale, profile, r->candidate_type, values[0], r->elements, values[2]));
    assay_wrong_tensor t = {values[0], values[1], values[2], r->elements, r->spec.shape, {NULL}};
    memcpy(t.labels, spec->labels, sizeof t.labels);
    TRY(assay_diagnose_tensor(ctx, &t, text, sizeof text));
    if (strncmp(text, TIMES, strlen(TIMES)) == 0) report->factor = best_factor(&t);
    if (text[0] == '\0') TRY(look_exchanged(ctx, golden, &t, r->spec.path, text, sizeof text));
    if (text[0] != '\0') snprintf(report->diagnosis, sizeof report->diagnosis, "%s is %s", r->spec.path, text);
cleanup:
    for (int i = 0; i < 3; i++) free(values[i]);
    return status;
}
