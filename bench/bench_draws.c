/* Weights drawn from the seed against a plain writing of the same bytes: what a pass over memory costs is the limit. */
#include "bench/bench.h"
#include "oracle/base/random.h"

static const int64_t ELEMENTS = (int64_t)7168 * 2048; /* an expert of the true size */

typedef struct draw {
    double *weights;
    assay_fill fill;
    assay_dtype type;
} draw;

static assay_status drawn(assay_context *ctx, void *self)
{
    const draw *d = self;
    const assay_shape shape = assay_shape_of(1, ELEMENTS);
    return assay_random_fill(ctx, &d->fill, 1, "weights/wi_0", &shape, d->type, 0, ELEMENTS, d->weights);
}

static assay_status written(assay_context *ctx, void *self)
{
    const draw *d = self;
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
    for (int64_t i = 0; i < ELEMENTS; i++) d->weights[i] = (double)i;
    return ASSAY_OK;
}

static const struct line {
    const char *name;
    assay_distribution distribution;
    assay_dtype type;
    double target;
} lines[] = {
    {"bell, float32", ASSAY_BELL, ASSAY_FLOAT32, 0.8},
    {"bell, bfloat16", ASSAY_BELL, ASSAY_BFLOAT16, 0.8},
    {"normal, float32", ASSAY_NORMAL, ASSAY_FLOAT32, 0},
    {"normal, bfloat16", ASSAY_NORMAL, ASSAY_BFLOAT16, 0},
};
enum { LINES = sizeof lines / sizeof *lines };

assay_status bench_draws(assay_context *ctx, bench_report *report)
{
    draw d = {0};
    const bench_array weights = {&d.weights, ELEMENTS};
    assay_status status;
    TRY(bench_alloc(ctx, &weights, 1));
    bench_heading("Weights from the seed, held as float64", "drawing", "writing", "GB/s");
    for (int i = 0; i < LINES; i++) {
        const bench_pair pair = {lines[i].name, drawn, written, 8e-9 * (double)ELEMENTS, lines[i].target};
        d.fill = (assay_fill){.distribution = lines[i].distribution, .scale = 0.0118};
        d.type = lines[i].type;
        TRY(bench_lines(ctx, report, &pair, &d));
    }
cleanup:
    bench_free(&weights, 1);
    return status;
}
