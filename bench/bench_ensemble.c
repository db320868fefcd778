/* Error scales from an ensemble of 8 in float32, the golden included, against the golden run 7 times. */
#include <stdlib.h>

#include "bench/bench.h"
#include "harness/ensemble.h"
#include "harness/equivalence_results.h"
#include "oracle/base/memory.h"

enum { GOLDENS = 7 };
static const double TARGET = 1.0; /* an ensemble costs no more than 6 goldens */

typedef struct evaluation {
    assay_case *c;
    assay_plan golden, ensemble;
    assay_results given;
} evaluation;

/* Null distributions have an ensemble of their own. */
static bool wants(void *self, const char *path)
{
    (void)self;
    return !assay_path_in(path, "null");
}

static assay_status discard(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    (void)ctx, (void)self, (void)path, (void)count, (void)values;
    return ASSAY_OK;
}

static assay_status discard_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    (void)ctx, (void)self, (void)path, (void)count, (void)values;
    return ASSAY_OK;
}

static assay_status evaluate(assay_context *ctx, evaluation *e, const assay_plan *plan)
{
    const assay_source in = assay_results_source(&e->given);
    const assay_sink out = {.wants = wants, .write = discard, .write_i32 = discard_i32};
    return assay_evaluate(ctx, plan, &in, &out);
}

static assay_status run_ensemble(assay_context *ctx, void *self)
{
    evaluation *e = self;
    return evaluate(ctx, e, &e->ensemble);
}

static assay_status run_goldens(assay_context *ctx, void *self)
{
    evaluation *e = self;
    assay_status status = ASSAY_OK;
    for (int i = 0; i < GOLDENS; i++) TRY(evaluate(ctx, e, &e->golden));
cleanup:
    return status;
}

/* Settings are "key=value" and end with NULL. */
static assay_status start(assay_context *ctx, evaluation *e, const char *name, const char *const *settings)
{
    assay_status status;
    assay_inputs inputs = {0};
    char *pattern = (char *)name;
    int count = 0;
    TRY(assay_cases_find(ctx, 1, &pattern, &e->c, &count));
    for (; *settings != NULL; settings++) TRY(assay_case_set(ctx, e->c, *settings));
    TRY(assay_case_set(ctx, e->c, "profiles=none"));
    TRY(assay_plan_make(ctx, &e->golden, e->c));
    TRY(assay_inputs_open(ctx, &inputs, e->c, &e->golden.list, NULL));
    const assay_source drawn = assay_inputs_source(&inputs);
    TRY(assay_results_open(ctx, &e->given, &e->golden, &drawn));
    TRY(assay_case_set(ctx, e->c, "profiles=[f32]"));
    TRY(assay_plan_make(ctx, &e->ensemble, e->c));
cleanup:
    assay_inputs_close(&inputs);
    return status;
}

static void end(evaluation *e)
{
    assay_results_free(&e->given);
    assay_plan_free(&e->ensemble);
    assay_plan_free(&e->golden);
    assay_cases_free(e->c, e->c != NULL);
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
    bench_heading("Error scales from an ensemble of 8 in float32, golden included", "ensemble", "7 goldens", "1/s");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        TRY(start(ctx, &e, lines[i].name, lines[i].settings));
        TRY(bench_side_by_side(ctx, (bench_work){run_ensemble, &e}, (bench_work){run_goldens, &e}, &result));
        bench_line(report, lines[i].what, ctx->threads, 1, &result, TARGET);
        end(&e);
        e = (evaluation){0};
    }
cleanup:
    end(&e);
    return status;
}
