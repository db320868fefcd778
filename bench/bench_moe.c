/* The sparse MoE block, forward and backward with every gradient, against the bare products in it by OpenBLAS. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/moe/moe.h"

enum { EMB_DIM = 1024, MLP_DIM = 512, EXPERTS = 32, PER_TOKEN = 4, TOKENS = 1024 };
static const int64_t ROWS = (int64_t)TOKENS * PER_TOKEN, KERNEL = (int64_t)EMB_DIM * MLP_DIM;
static const double TARGET = 0.8;

static const assay_moe_config config = {
    .routing = {.batch = 1,
                .sequence = TOKENS,
                .num_experts = EXPERTS,
                .num_experts_per_tok = PER_TOKEN,
                .family = ASSAY_ROUTER_DEEPSEEK3,
                .score_func = ASSAY_SCORE_SIGMOID,
                .n_routing_groups = -1,
                .topk_routing_group = -1,
                .routed_scaling_factor = 2.5},
    .emb_dim = EMB_DIM,
    .moe_mlp_dim = MLP_DIM,
    .path = ASSAY_MOE_SPARSE,
    .activation = ASSAY_SILU,
};

/* The tensors that the block asks for. */
enum { X, GATE, WI_0, WI_1, WO, DY, TENSORS };
static const struct tensor {
    const char *path;
    int64_t count;
    double scale;
} tensors[TENSORS] = {
    [X] = {"inputs/x", (int64_t)TOKENS *EMB_DIM, 1},
    [GATE] = {"weights/gate/kernel", (int64_t)EMB_DIM *EXPERTS, 0.05},
    [WI_0] = {"weights/wi_0", EXPERTS *(int64_t)EMB_DIM *MLP_DIM, 0.05},
    [WI_1] = {"weights/wi_1", EXPERTS *(int64_t)EMB_DIM *MLP_DIM, 0.05},
    [WO] = {"weights/wo", EXPERTS *(int64_t)EMB_DIM *MLP_DIM, 0.05},
    [DY] = {"cotangents/y", (int64_t)TOKENS *EMB_DIM, 1},
};

typedef struct moe {
    double *values[TENSORS];
    int32_t group_sizes[EXPERTS]; /* as the block routed */
    double *rows, *more_rows;     /* [ROWS,EMB_DIM] */
    double *a, *b, *h;            /* [ROWS,MLP_DIM] */
    double *gradient;             /* [EMB_DIM,MLP_DIM] */
} moe;

static int tensor_at(const char *path)
{
    for (int i = 0; i < TENSORS; i++) {
        if (strcmp(tensors[i].path, path) == 0) return i;
    }
    return -1;
}

static bool has(void *self, const char *path)
{
    (void)self;
    return tensor_at(path) >= 0;
}

static assay_status read_values(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const moe *m = self;
    int tensor = tensor_at(path);
    if (tensor < 0) return assay_fail(ctx, ASSAY_INTERNAL, "no tensor '%s'", path);
    memcpy(out, m->values[tensor] + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *out)
{
    (void)self, (void)first, (void)count, (void)out;
    return assay_fail(ctx, ASSAY_INTERNAL, "no tensor '%s'", path);
}

static bool wants(void *self, const char *path)
{
    (void)self;
    return strcmp(path, "outputs/y") == 0 || strcmp(path, "routing/group_sizes") == 0 ||
           strncmp(path, "gradients/", strlen("gradients/")) == 0;
}

/* What becomes of the results is not the block's time. */
static assay_status drop_values(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    (void)ctx, (void)self, (void)path, (void)count, (void)values;
    return ASSAY_OK;
}

static assay_status write_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    moe *m = self;
    (void)ctx, (void)path;
    memcpy(m->group_sizes, values, (size_t)count * sizeof *values);
    return ASSAY_OK;
}

static assay_status run_block(assay_context *ctx, void *self)
{
    const assay_source source = {.self = self, .has = has, .read = read_values, .read_i32 = read_i32};
    const assay_sink sink = {.self = self, .wants = wants, .write = drop_values, .write_i32 = write_i32};
    return assay_moe_run(ctx, &config, &source, &sink, NULL);
}

/* The nine products of an expert, with its rows at `first`. */
static assay_status multiply_expert(assay_context *ctx, const moe *m, int64_t expert, int64_t first)
{
    const int64_t rows = m->group_sizes[expert];
    const double *wi_0 = m->values[WI_0] + expert * KERNEL, *wi_1 = m->values[WI_1] + expert * KERNEL;
    const double *wo = m->values[WO] + expert * KERNEL;
    double *x = m->rows + first * EMB_DIM, *y = m->more_rows + first * EMB_DIM;
    double *a = m->a + first * MLP_DIM, *b = m->b + first * MLP_DIM, *h = m->h + first * MLP_DIM;
    const assay_matmul_args products[] = {
        assay_product_ab(a, x, wi_0, rows, MLP_DIM, EMB_DIM),
        assay_product_ab(b, x, wi_1, rows, MLP_DIM, EMB_DIM),
        assay_product_ab(y, h, wo, rows, EMB_DIM, MLP_DIM),
        assay_product_atb(m->gradient, h, y, MLP_DIM, EMB_DIM, rows),
        assay_product_abt(h, y, wo, rows, MLP_DIM, EMB_DIM),
        assay_product_atb(m->gradient, x, a, EMB_DIM, MLP_DIM, rows),
        assay_product_atb(m->gradient, x, b, EMB_DIM, MLP_DIM, rows),
        assay_product_abt(y, a, wi_0, rows, EMB_DIM, MLP_DIM),
        assay_product_abt(y, b, wi_1, rows, EMB_DIM, MLP_DIM),
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        assay_status status = assay_arithmetic_blas.matmul(ctx, &products[i]);
        RETURN_IF(status != ASSAY_OK, status);
    }
    return ASSAY_OK;
}

static assay_status run_products(assay_context *ctx, void *self)
{
    const moe *m = self;
    const assay_matmul_args gate[] = {
        assay_product_ab(m->a, m->values[X], m->values[GATE], TOKENS, EXPERTS, EMB_DIM),
        assay_product_atb(m->gradient, m->values[X], m->a, EMB_DIM, EXPERTS, TOKENS),
        assay_product_abt(m->more_rows, m->a, m->values[GATE], TOKENS, EMB_DIM, EXPERTS),
    };
    assay_status status = ASSAY_OK;
    for (size_t i = 0; i < sizeof gate / sizeof *gate; i++) TRY(assay_arithmetic_blas.matmul(ctx, &gate[i]));
    for (int64_t expert = 0, first = 0; expert < EXPERTS; first += m->group_sizes[expert], expert++) {
        TRY(multiply_expert(ctx, m, expert, first));
    }
cleanup:
    return status;
}

static assay_status fill(assay_context *ctx, moe *m)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < TENSORS; i++) {
        TRY(assay_alloc_f64(ctx, tensors[i].path, tensors[i].count, &m->values[i]));
        bench_fill(m->values[i], tensors[i].count);
        for (int64_t j = 0; j < tensors[i].count; j++) m->values[i][j] *= tensors[i].scale;
    }
    const struct {
        double **to;
        int64_t count;
    } buffers[] = {{&m->rows, ROWS * EMB_DIM}, {&m->more_rows, ROWS * EMB_DIM}, {&m->a, ROWS * MLP_DIM},
                   {&m->b, ROWS * MLP_DIM},    {&m->h, ROWS * MLP_DIM},         {&m->gradient, KERNEL}};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        TRY(assay_alloc_f64(ctx, "rows", buffers[i].count, buffers[i].to));
        bench_fill(*buffers[i].to, buffers[i].count);
    }
cleanup:
    return status;
}

assay_status bench_moe(assay_context *ctx, bench_report *report)
{
    const double gigaflop = 1e-9 * (assay_moe_flops(&config, false) + assay_moe_flops(&config, true));
    assay_status status;
    bench_result result;
    moe m = {0};
    TRY(fill(ctx, &m));
    bench_heading("MoE block, forward and backward, against its bare products", "block", "OpenBLAS", "GFLOP/s");
    for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) {
        TRY(bench_side_by_side(ctx, (bench_work){run_block, &m}, (bench_work){run_products, &m}, &result));
        bench_line(report, "sparse: D 1024, H 512, E 32, K 4, T 1024", ctx->threads, gigaflop, &result, TARGET);
    }
cleanup:
    for (int i = 0; i < TENSORS; i++) free(m.values[i]);
    free(m.rows);
    free(m.more_rows);
    free(m.a);
    free(m.b);
    free(m.h);
    free(m.gradient);
    return status;
}
