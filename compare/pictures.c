#include "compare/pictures.h"

#include <math.h>
#include <stdlib.h>

#include "compare/compare_internal.h"
#include "oracle/base/memory.h"

typedef struct buffers {
    double *golden, *candidate, *scale; /* [ASSAY_CHUNK] */
} buffers;

static int least(int64_t a, int b)
{
    return a < b ? (int)a : b;
}

/* In standard deviations; infinite where no error is allowed, or a number is no number on the candidate's side alone.
 */
static double deviations(double golden, double candidate, double scale, double unit, double tiny)
{
    const double rounding = unit * fabs(golden) + tiny;
    const double sigma = sqrt(scale * scale + rounding * rounding / 3);
    if (golden == candidate || isnan(golden)) return 0;
    if (!isfinite(candidate) || !isfinite(golden)) return INFINITY;
    return sigma > 0 ? (candidate - golden) / sigma : INFINITY;
}

static void put(assay_picture *p, int64_t row, int64_t rows, int64_t column, int64_t columns, double z)
{
    const int64_t cell = row * p->rows / rows * p->columns + column * p->columns / columns;
    const double width = 2 * ASSAY_PICTURE_LIMIT / ASSAY_PICTURE_BINS;
    if (fabs(z) > p->cells[cell]) p->cells[cell] = (float)fabs(z);
    if (!isfinite(z)) return;
    const double bin = floor((z + ASSAY_PICTURE_LIMIT) / width);
    p->bins[bin < 0 ? 0 : bin >= ASSAY_PICTURE_BINS ? ASSAY_PICTURE_BINS - 1 : (int)bin]++;
    p->counted++;
}

static assay_status draw(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                         const char *scale, const assay_profile *profile, const assay_tensor_result *r,
                         const buffers *b, assay_picture *p)
{
    const int64_t columns = assay_row_length(&r->spec.shape), rows = r->elements / columns;
    const double unit = assay_dtype_unit_roundoff(profile->storage);
    const double tiny =
        0.5 * fmax(assay_dtype_least_subnormal(profile->storage), assay_dtype_least_subnormal(r->candidate_type));
    *p = (assay_picture){.rows = least(rows, ASSAY_PICTURE_ROWS), .columns = least(columns, ASSAY_PICTURE_COLUMNS)};
    for (int64_t first = 0; first < r->elements; first += ASSAY_CHUNK) {
        const int64_t count = r->elements - first < ASSAY_CHUNK ? r->elements - first : ASSAY_CHUNK;
        MUST(assay_fixture_read(ctx, golden, r->spec.path, first, count, b->golden));
        MUST(assay_fixture_read(ctx, golden, scale, first, count, b->scale));
        MUST(assay_fixture_read(ctx, candidate, r->spec.path, first, count, b->candidate));
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = first + i;
            put(p, at / columns, rows, at % columns, columns,
                deviations(b->golden[i], b->candidate[i], b->scale[i], unit, tiny));
        }
    }
    return ASSAY_OK;
}

static assay_status draw_tensor(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                                const assay_profile *profile, const assay_tensor_result *r, const buffers *b,
                                assay_picture **picture)
{
    char scale[ASSAY_PATH_SIZE];
    void *memory = NULL;
    *picture = NULL;
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile->precision.name, r->spec.path, scale);
    if (!r->compared || r->spec.type == ASSAY_INT32 || r->elements < 1) return ASSAY_OK;
    if (assay_fixture_find(golden, scale) == NULL || assay_fixture_find(candidate, r->spec.path) == NULL)
        return ASSAY_OK;
    MUST(assay_alloc(ctx, "picture", 1, sizeof **picture, &memory));
    assay_status status = draw(ctx, golden, candidate, scale, profile, r, b, memory);
    if (status == ASSAY_OK) {
        *picture = memory;
        return ASSAY_OK;
    }
    free(memory);
    if (status == ASSAY_BAD_INPUT) { /* the verdict says what cannot be read */
        ctx->message[0] = '\0';
        status = ASSAY_OK;
    }
    return status;
}

assay_status assay_pictures_draw(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                                 const assay_profile *profile, assay_report *report)
{
    assay_status status = ASSAY_OK;
    buffers b = {0};
    int drawn = 0;
    MUST(assay_alloc_list(ctx, "pictures", report->count + 1, sizeof *report->pictures, &report->pictures));
    TRY(assay_alloc_f64(ctx, "values of the golden", ASSAY_CHUNK, &b.golden));
    TRY(assay_alloc_f64(ctx, "values of the candidate", ASSAY_CHUNK, &b.candidate));
    TRY(assay_alloc_f64(ctx, "error scales", ASSAY_CHUNK, &b.scale));
    for (int passing = 0; passing < 2; passing++) {
        for (int i = 0; i < report->count && drawn < ASSAY_PICTURES_MOST; i++) {
            const assay_tensor_result *r = &report->tensors[i];
            if ((r->verdict == ASSAY_PASS) != passing) continue;
            TRY(draw_tensor(ctx, golden, candidate, profile, r, &b, &report->pictures[i]));
            drawn += report->pictures[i] != NULL;
        }
    }
cleanup:
    free(b.golden);
    free(b.candidate);
    free(b.scale);
    return status;
}
