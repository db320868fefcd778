/* A MoE block and a decoder layer, forward and backward with every gradient, against PyTorch's eager float64 and numpy, which
 * bench/peers.py runs on the same tensors in a process of its own, by Python of the environment of backends/torch. Both keep their
 * results in memory. */
#include <stdio.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/bench_case.h"
#include "harness/backends/server.h"
#include "harness/golden/golden.h"

enum { SECONDS = 600 };

static const struct line {
    const char *what, *name;
    double target; /* against PyTorch, which calls MKL for its products */
} lines[] = {{"MoE block: D 1024, H 512, E 32, K 4, T 1024", "moe", 1.3},
             {"layer: the same, one shared expert, MLA, N 8", "layer", 1.2}};
enum { LINES = sizeof lines / sizeof *lines };

/* One line's case with its golden, and a process that computes the same. Starts zeroed. */
typedef struct problem {
    bench_case own;
    char folder[256], golden[300], log[300];
    assay_backend_server *peer;
} problem;

static assay_status make(assay_context *ctx, const struct line *line, problem *p)
{
    MUST(bench_case_open(ctx, line->name, &p->own));
    MUST(bench_folder(ctx, p->folder, sizeof p->folder));
    snprintf(p->golden, sizeof p->golden, "%s/golden.h5", p->folder);
    snprintf(p->log, sizeof p->log, "%s/log", p->folder);
    return assay_golden_write(ctx, &p->own.plan, p->golden, NULL, true);
}

static void end(problem *p)
{
    unlink(p->golden);
    unlink(p->log);
    rmdir(p->folder);
    bench_case_close(&p->own);
    *p = (problem){0};
}

static assay_status ask(assay_context *ctx, const problem *p, assay_backend_end *answer)
{
    return assay_backend_server_ask(ctx, p->peer, p->golden, "", p->log, SECONDS, answer);
}

static assay_status run_peer(assay_context *ctx, void *self)
{
    assay_backend_end answer = {0};
    const assay_status status = ask(ctx, self, &answer);
    if (status != ASSAY_OK || answer.outcome == ASSAY_OUTCOME_DONE) return status;
    return assay_fail(ctx, ASSAY_INTERNAL, "%s", answer.message);
}

static assay_status against(assay_context *ctx, problem *p, const char *library, const bench_pair *pair,
                            bench_report *report)
{
    assay_status status;
    char command[512];
    assay_backend_end answer = {0};
    snprintf(command, sizeof command, "OMP_NUM_THREADS=%d OPENBLAS_NUM_THREADS=%d exec '%s' '%s' %s %d", ctx->threads,
             ctx->threads, ASSAY_PYTHON, ASSAY_PEERS, library, ctx->threads);
    TRY(assay_backend_server_make(ctx, command, 0, &p->peer));
    TRY(ask(ctx, p, &answer)); /* it reads the golden, and holds its own results against it */
    if (answer.outcome != ASSAY_OUTCOME_DONE) TRY(assay_fail(ctx, ASSAY_INTERNAL, "%s: %s", library, answer.message));
    TRY(bench_line(ctx, report, pair, p));
cleanup:
    assay_backend_server_free(p->peer);
    return status;
}

assay_status bench_torch(assay_context *ctx, bench_report *report)
{
    assay_status status = ASSAY_OK;
    problem p = {0};
    static const char *const libraries[] = {"torch", "numpy"};
    if (access(ASSAY_PYTHON, X_OK) != 0) {
        printf("\nPyTorch and numpy are left out: %s is not here; ci/environment torch makes it\n", ASSAY_PYTHON);
        return ASSAY_OK;
    }
    for (int i = 0; i < LINES; i++) {
        ctx->threads = 2;
        TRY(make(ctx, &lines[i], &p));
        for (int library = 0; library < 2; library++) {
            const bench_pair pair = {lines[i].what, bench_case_run, run_peer, bench_case_gigaflop(&p.own),
                                     library == 0 ? lines[i].target : 0};
            bench_heading("Forward and backward in float64, all gradients kept", "assay", libraries[library],
                          "GFLOP/s");
            for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++)
                TRY(against(ctx, &p, libraries[library], &pair, report));
        }
        end(&p);
    }
cleanup:
    end(&p);
    return status;
}
