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
static const double TARGET = 1.0; /* an ensemble costs no more than 6 goldens */

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

static assay_status start(assay_context *ctx, evaluation *e, const bench_settings *settings)
{
    MUST(bench_folder(ctx, e->folder, sizeof e->folder));
    snprintf(e->fixture, sizeof e->fixture, "%s/golden.h5", e->folder);
    MUST(bench_case_plan(ctx, settings, "profiles=none", &e->golden));
    return bench_case_plan(ctx, settings, "profiles=[f32]", &e->ensemble);
}

static void end(evaluation *e)
{
    unlink(e->fixture);
    rmdir(e->folder);
    bench_case_close(&e->ensemble);
    bench_case_close(&e->golden);
}

static const struct {
    const char *what;
    bench_settings settings;
} lines[] = {
    {"attention: S 1024, N 2, Dq 192, Dv 128", {"attention/deepseek", {"batch=1", "sequence=1024"}}},
    {"MLA: S 512, D 512, N 4, latents 256 and 128",
     {"mla/deepseek3-tiny", {"batch=1", "sequence=512", "base_emb_dim=512", "q_lora_rank=256", "kv_lora_rank=128"}}},
    {"layer: S 256, D 512, N 4, E 16 of 256, K 4",
     {"deepseek_layer/moe",
      {"batch=1", "sequence=256", "base_emb_dim=512", "base_moe_mlp_dim=256", "base_num_query_heads=4",
       "q_lora_rank=256", "kv_lora_rank=128", "qk_nope_head_dim=128", "qk_rope_head_dim=64", "v_head_dim=128",
       "num_experts=16", "num_experts_per_tok=4"}}},
};

assay_status bench_ensemble(assay_context *ctx, bench_report *report)
{
    assay_status status = ASSAY_OK;
    evaluation e = {0};
    ctx->threads = 1;
    (void)malloc_trim(0); /* what the sections before have left would be copied for each process */
    bench_heading("Goldens with an ensemble of 8 in float32", "with", "7 without", "1/s");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const bench_pair pair = {lines[i].what, write_ensemble, write_goldens, 1, TARGET};
        TRY(start(ctx, &e, &lines[i].settings));
        TRY(bench_line(ctx, report, &pair, &e));
        end(&e);
        e = (evaluation){0};
    }
cleanup:
    end(&e);
    return status;
}
