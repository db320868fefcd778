/* Golden fixtures with error scales and null distributions from an ensemble of 8 in float32, against 7 times the same
 * without them: what `assay generate` does, each golden in a process of its own. */
#include <malloc.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "harness/golden/golden.h"
#include "harness/plan/plan_make.h"
#include "harness/scales/ensemble.h"

enum { GOLDENS = 7 };
static const double TARGET = 1.0; /* an ensemble costs no more than 6 goldens */

typedef struct evaluation {
    assay_case *golden_case, *ensemble_case;
    assay_plan golden, ensemble;
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
    return write_golden(ctx, &e->ensemble, e->fixture);
}

static assay_status write_goldens(assay_context *ctx, void *self)
{
    const evaluation *e = self;
    assay_status status = ASSAY_OK;
    for (int i = 0; i < GOLDENS; i++) TRY(write_golden(ctx, &e->golden, e->fixture));
cleanup:
    return status;
}

/* Settings are "key=value" and end with NULL. */
static assay_status plan_case(assay_context *ctx, const char *name, const char *const *settings, const char *profiles,
                              assay_case **c, assay_plan *plan)
{
    assay_status status;
    char *pattern = (char *)name;
    int count = 0;
    TRY(assay_cases_find(ctx, 1, &pattern, c, &count));
    for (; *settings != NULL; settings++) TRY(assay_case_set(ctx, *c, *settings));
    TRY(assay_case_set(ctx, *c, profiles));
    TRY(assay_plan_make(ctx, plan, *c));
cleanup:
    return status;
}

static assay_status start(assay_context *ctx, evaluation *e, const char *name, const char *const *settings)
{
    assay_status status;
    TRY(bench_folder(ctx, e->folder, sizeof e->folder));
    snprintf(e->fixture, sizeof e->fixture, "%s/golden.h5", e->folder);
    TRY(plan_case(ctx, name, settings, "profiles=none", &e->golden_case, &e->golden));
    TRY(plan_case(ctx, name, settings, "profiles=[f32]", &e->ensemble_case, &e->ensemble));
cleanup:
    return status;
}

static void end(evaluation *e)
{
    unlink(e->fixture);
    rmdir(e->folder);
    assay_plan_free(&e->ensemble);
    assay_plan_free(&e->golden);
    assay_cases_free(e->ensemble_case, e->ensemble_case != NULL);
    assay_cases_free(e->golden_case, e->golden_case != NULL);
}

static const struct {
    const char *name, *what;
    const char *settings[16];
} lines[] = {
    {"attention/deepseek", "attention: S 1024, N 2, Dq 192, Dv 128", {"batch=1", "sequence=1024", "dtype=float32"}},
    {"mla/deepseek3-tiny",
     "MLA: S 512, D 512, N 4, latents 256 and 128",
     {"batch=1", "sequence=512", "base_emb_dim=512", "q_lora_rank=256", "kv_lora_rank=128", "dtype=float32"}},
    {"deepseek_layer/moe",
     "layer: S 256, D 512, N 4, E 16 of 256, K 4",
     {"batch=1", "sequence=256", "base_emb_dim=512", "base_moe_mlp_dim=256", "base_num_query_heads=4",
      "q_lora_rank=256", "kv_lora_rank=128", "qk_nope_head_dim=128", "qk_rope_head_dim=64", "v_head_dim=128",
      "num_experts=16", "num_experts_per_tok=4", "dtype=float32"}},
};

assay_status bench_ensemble(assay_context *ctx, bench_report *report)
{
    assay_status status = ASSAY_OK;
    bench_result result;
    evaluation e = {0};
    ctx->threads = 1;
    (void)malloc_trim(0); /* what the sections before have left would be copied for each process */
    bench_heading("Goldens with an ensemble of 8 in float32", "with", "7 without", "1/s");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        TRY(start(ctx, &e, lines[i].name, lines[i].settings));
        TRY(bench_side_by_side(ctx, (bench_work){write_ensemble, &e}, (bench_work){write_goldens, &e}, &result));
        bench_line(report, lines[i].what, ctx->threads, 1, &result, TARGET);
        end(&e);
        e = (evaluation){0};
    }
cleanup:
    end(&e);
    return status;
}
