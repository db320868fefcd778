/* A MoE block and a decoder layer, forward and backward with every gradient, against PyTorch's eager float64 and numpy, which
 * bench/peers.py runs on the same tensors in a process of its own. Both keep their results in memory. A peer whose library is
 * not here is left out. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "harness/backends/server.h"
#include "harness/golden/golden.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "harness/plan/results.h"

enum { SETTINGS = 24, SECONDS = 600 };

static const struct line {
    const char *name, *what;
    double target;                  /* against PyTorch, which calls OpenBLAS for its products */
    const char *settings[SETTINGS]; /* ends with NULL */
} lines[] = {
    {"moe/deepseek3-tiny-sparse",
     "MoE block: D 1024, H 512, E 32, K 4, T 1024",
     0.9,
     {"batch=1", "sequence=1024", "base_emb_dim=1024", "base_moe_mlp_dim=512", "num_experts=32",
      "num_experts_per_tok=4", "shared_experts=0", "n_routing_groups=-1", "topk_routing_group=-1"}},
    {"deepseek_layer/moe",
     "layer: the same, one shared expert, MLA, N 8",
     0.9,
     {"batch=1", "sequence=1024", "base_emb_dim=1024", "base_moe_mlp_dim=512", "num_experts=32",
      "num_experts_per_tok=4", "base_num_query_heads=8", "q_lora_rank=512", "kv_lora_rank=256", "qk_nope_head_dim=128",
      "qk_rope_head_dim=64", "v_head_dim=128",
      /* autograd keeps what backward needs: so do we */
      "remat_policy=custom", "query_wa_proj=device", "mla_q=device", "kv_wa_proj=device", "mla_kv=device",
      "query_proj=device", "key_proj=device", "value_proj=device", "attention_out=device", "mlpwi_0=device",
      "mlpwi_1=device"}},
};
enum { LINES = sizeof lines / sizeof *lines };

/* One line's case with its tensors. Starts zeroed. */
typedef struct problem {
    assay_case *c;
    int count;
    assay_plan plan;
    assay_tensor_set tensors;
    char folder[256], golden[300], log[300];
} problem;

/* A process that computes the same. */
typedef struct peer {
    const problem *problem;
    assay_backend_server *server;
} peer;

static assay_status make(assay_context *ctx, const struct line *line, problem *p)
{
    assay_status status;
    assay_inputs inputs = {0};
    char *pattern = (char *)line->name;
    TRY(assay_cases_find(ctx, 1, &pattern, &p->c, &p->count));
    for (const char *const *setting = line->settings; *setting != NULL; setting++) {
        TRY(assay_case_set(ctx, p->c, *setting));
    }
    TRY(assay_case_set(ctx, p->c, "dtype=float32"));
    TRY(assay_case_set(ctx, p->c, "profiles=none"));
    TRY(assay_plan_make(ctx, &p->plan, p->c));
    TRY(bench_folder(ctx, p->folder, sizeof p->folder));
    snprintf(p->golden, sizeof p->golden, "%s/golden.h5", p->folder);
    snprintf(p->log, sizeof p->log, "%s/log", p->folder);
    TRY(assay_golden_write(ctx, &p->plan, p->golden, NULL, true));
    TRY(assay_inputs_open_plan(ctx, &inputs, &p->plan, NULL));
    const assay_source source = assay_inputs_source(&inputs);
    TRY(assay_plan_tensors(ctx, &p->tensors, &p->plan, &source));
cleanup:
    assay_inputs_close(&inputs);
    return status;
}

static void end(problem *p)
{
    unlink(p->golden);
    unlink(p->log);
    rmdir(p->folder);
    assay_tensor_set_free(&p->tensors);
    assay_plan_free(&p->plan);
    assay_cases_free(p->c, p->count);
    *p = (problem){0};
}

static assay_status run_ours(assay_context *ctx, void *self)
{
    problem *p = self;
    assay_tensor_set *tensors = &p->tensors;
    for (int i = 0; i < tensors->count; i++) {
        if (!assay_role_is_given(tensors->items[i].spec.role)) tensors->items[i].written = 0;
    }
    const assay_source source = assay_given_source(tensors);
    const assay_sink sink = assay_results_sink(tensors);
    return assay_operation_run(ctx, p->plan.operation, p->c, &source, &sink, NULL, 0);
}

static assay_status ask(assay_context *ctx, const peer *own, assay_backend_end *answer)
{
    const problem *p = own->problem;
    return assay_backend_server_ask(ctx, own->server, p->golden, "", p->log, SECONDS, answer);
}

static assay_status run_peer(assay_context *ctx, void *self)
{
    assay_backend_end answer = {0};
    const assay_status status = ask(ctx, self, &answer);
    RETURN_IF(status != ASSAY_OK || answer.outcome == ASSAY_OUTCOME_DONE, status);
    return assay_fail(ctx, ASSAY_INTERNAL, "%s", answer.message);
}

static assay_status against(assay_context *ctx, problem *p, const char *library, const char *what, double target,
                            bench_report *report)
{
    assay_status status;
    char command[512];
    bench_result result;
    assay_backend_end answer = {0};
    peer other = {.problem = p};
    snprintf(command, sizeof command, "OMP_NUM_THREADS=%d OPENBLAS_NUM_THREADS=%d exec '%s' '%s' %s %d", ctx->threads,
             ctx->threads, ASSAY_PYTHON, ASSAY_PEERS, library, ctx->threads);
    TRY(assay_backend_server_make(ctx, command, 0, &other.server));
    TRY(ask(ctx, &other, &answer)); /* it reads the golden, and holds its own results against it */
    if (answer.outcome == ASSAY_OUTCOME_UNSUPPORTED) {
        printf("%-44s %7d not here: %s\n", what, ctx->threads, answer.message);
        goto cleanup;
    }
    if (answer.outcome != ASSAY_OUTCOME_DONE) TRY(assay_fail(ctx, ASSAY_INTERNAL, "%s: %s", library, answer.message));
    TRY(bench_side_by_side(ctx, (bench_work){run_ours, p}, (bench_work){run_peer, &other}, &result));
    bench_line(report, what, ctx->threads, 1e-9 * p->plan.operation->flops(p->c, true), &result, target);
cleanup:
    assay_backend_server_free(other.server);
    return status;
}

assay_status bench_torch(assay_context *ctx, bench_report *report)
{
    assay_status status = ASSAY_OK;
    problem p = {0};
    static const char *const libraries[] = {"torch", "numpy"};
    for (int i = 0; i < LINES; i++) {
        ctx->threads = 2;
        TRY(make(ctx, &lines[i], &p));
        for (int library = 0; library < 2; library++) {
            bench_heading("Forward and backward in float64, all gradients kept", "assay", libraries[library],
                          "GFLOP/s");
            for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) {
                const double target = library == 0 ? lines[i].target : 0;
                TRY(against(ctx, &p, libraries[library], lines[i].what, target, report));
            }
        }
        end(&p);
    }
cleanup:
    end(&p);
    return status;
}
