/* Golden fixtures with error scales and null distributions from an ensemble of 8 in float32, against 7 times the same
 * without them: what `assay generate` does, each golden in a process of its own. */
#include <malloc.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/bench_case.h"
#include "harness/golden/golden.h"

enum { GOLDENS = 7 };
static const double TARGET = 0.85; /* an ensemble costs at most 8.2 goldens */

typedef struct evaluation {
    bench_case golden, ensemble;
    char folder[256], fixture[300];
} evaluation;

static assay_status write_golden(assay_context *ctx, const assay_plan *plan, const char *fixture)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) _exit(assay_golden_write(ctx, plan, fixture, NULL, true) == ASSAY_OK ? 0 : 1);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s: the process that writes it failed", fixture);
    }
    return ASSAY_OK;
}

static assay_status write_ensemble(assay_context *ctx, void *self)
{
    const evaluation *e = self;
    return write_golden(ctx, &e->ensemble.plan, e->fixture);
}

static assay_status write_goldens(assay_context *ctx, void *self)
{
    const evaluation *e = self;
    for (int i = 0; i < GOLDENS; i++) MUST(write_golden(ctx, &e->golden.plan, e->fixture));
    return ASSAY_OK;
}

static assay_status start(assay_context *ctx, evaluation *e, const char *name)
{
    MUST(bench_folder(ctx, e->folder, sizeof e->folder));
    snprintf(e->fixture, sizeof e->fixture, "%s/golden.h5", e->folder);
    MUST(bench_case_plan(ctx, name, "profiles=none", &e->golden));
    return bench_case_plan(ctx, name, "profiles=[f32]", &e->ensemble);
}

static void end(evaluation *e)
{
    unlink(e->fixture);
    rmdir(e->folder);
    bench_case_close(&e->ensemble);
    bench_case_close(&e->golden);
}

static const struct {
    const char *what, *name;
} lines[] = {{"attention: S 1024, N 2, Dq 192, Dv 128", "small-attention"},
             {"MLA: S 512, D 512, N 4, latents 256 and 128", "small-mla"},
             {"layer: S 256, D 512, N 4, E 16 of 256, K 4", "small-layer"}};

assay_status bench_ensemble(assay_context *ctx, bench_report *report)
{
    assay_status status = ASSAY_OK;
    evaluation e = {0};
    ctx->threads = 1;
    (void)malloc_trim(0); /* what the sections before have left would be copied for each process */
    bench_heading("Goldens with an ensemble of 8 in float32", "with", "7 without", "1/s");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const bench_pair pair = {lines[i].what, write_ensemble, write_goldens, 1, TARGET};
        TRY(start(ctx, &e, lines[i].name));
        TRY(bench_line(ctx, report, &pair, &e));
        end(&e);
        e = (evaluation){0};
    }
cleanup:
    end(&e);
    return status;
}
