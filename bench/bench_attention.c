/* Causal attention, forward and backward, against the bare products of a flash implementation by OpenBLAS. */
#include <stdlib.h>

#include "bench/bench.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/attention.h"

enum { LENGTH = 4096, HEADS = 2, QK_DIM = 192, V_DIM = 128, BLOCK = 128 };
static const int64_t QK = (int64_t)LENGTH * HEADS * QK_DIM, V = (int64_t)LENGTH * HEADS * V_DIM;
static const double TARGET = 0.5;

static const assay_attention_config config = {
    .batch = 1, .sequence = LENGTH, .heads = HEADS, .qk_dim = QK_DIM, .v_dim = V_DIM};

typedef struct tensors {
    double *query, *key, *dquery, *dkey;       /* [LENGTH,HEADS,QK_DIM] */
    double *value, *out, *dvalue, *dout, *lse; /* [LENGTH,HEADS,V_DIM], lse [HEADS,LENGTH] */
    double *p, *ds;                            /* [BLOCK,LENGTH] */
} tensors;

static assay_status run_attention(assay_context *ctx, void *self)
{
    const tensors *t = self;
    const assay_attention_inputs in = {.query = t->query, .key = t->key, .value = t->value};
    const assay_attention_gradients gradients = {.dquery = t->dquery, .dkey = t->dkey, .dvalue = t->dvalue};
    assay_status status;
    TRY(assay_attention_forward(ctx, t->out, t->lse, &in, &config));
    TRY(assay_attention_backward(ctx, &gradients, t->dout, NULL, t->out, t->lse, &in, &config));
cleanup:
    return status;
}

/* c [BLOCK,keys] = a [BLOCK,width] b [keys,width]^T */
static assay_matmul_args scores(double *c, const double *a, const double *b, int64_t keys, int64_t width)
{
    assay_matmul_args args = assay_product_abt(c, a, b, BLOCK, keys, width);
    args.ldc = LENGTH;
    return args;
}

/* c [BLOCK,width] = weights [BLOCK,keys] b [keys,width] */
static assay_matmul_args to_queries(double *c, const double *weights, const double *b, int64_t keys, int64_t width)
{
    assay_matmul_args args = assay_product_ab(c, weights, b, BLOCK, width, keys);
    args.lda = LENGTH;
    return args;
}

/* c [keys,width] += weights [BLOCK,keys]^T b [BLOCK,width] */
static assay_matmul_args to_keys(double *c, const double *weights, const double *b, int64_t keys, int64_t width)
{
    assay_matmul_args args = assay_product_atb(c, weights, b, keys, width, BLOCK);
    args.lda = LENGTH;
    args.accumulate = true;
    return args;
}

/* The two products of forward and the five of backward, for the queries [first, first + BLOCK) of a head. */
static assay_status multiply_block(assay_context *ctx, const tensors *t, int64_t head, int64_t first)
{
    const int64_t keys = first + BLOCK, qk = head * LENGTH * QK_DIM, v = head * LENGTH * V_DIM;
    const double *q = t->query + qk + first * QK_DIM, *dout = t->dout + v + first * V_DIM;
    const assay_matmul_args products[] = {
        scores(t->p, q, t->key + qk, keys, QK_DIM),
        to_queries(t->out + v + first * V_DIM, t->p, t->value + v, keys, V_DIM),
        scores(t->p, q, t->key + qk, keys, QK_DIM),
        scores(t->ds, dout, t->value + v, keys, V_DIM),
        to_queries(t->dquery + qk + first * QK_DIM, t->ds, t->key + qk, keys, QK_DIM),
        to_keys(t->dkey + qk, t->ds, q, keys, QK_DIM),
        to_keys(t->dvalue + v, t->p, dout, keys, V_DIM),
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        assay_status status = assay_arithmetic_blas.matmul(ctx, &products[i]);
        RETURN_IF(status != ASSAY_OK, status);
    }
    return ASSAY_OK;
}

static assay_status run_products(assay_context *ctx, void *self)
{
    for (int64_t head = 0; head < HEADS; head++) {
        for (int64_t first = 0; first < LENGTH; first += BLOCK) {
            assay_status status = multiply_block(ctx, self, head, first);
            RETURN_IF(status != ASSAY_OK, status);
        }
    }
    return ASSAY_OK;
}

assay_status bench_attention(assay_context *ctx, bench_report *report)
{
    const double gigaflop = 1e-9 * (assay_attention_flops(&config, false) + assay_attention_flops(&config, true));
    assay_status status = ASSAY_OK;
    bench_result result;
    tensors t = {0};
    const struct {
        double **to;
        int64_t count;
    } buffers[] = {{&t.query, QK},
                   {&t.key, QK},
                   {&t.dquery, QK},
                   {&t.dkey, QK},
                   {&t.value, V},
                   {&t.dvalue, V},
                   {&t.out, V},
                   {&t.dout, V},
                   {&t.lse, (int64_t)LENGTH * HEADS},
                   {&t.p, (int64_t)BLOCK * LENGTH},
                   {&t.ds, (int64_t)BLOCK * LENGTH}};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        TRY(assay_alloc_f64(ctx, "attention", buffers[i].count, buffers[i].to));
        bench_fill(*buffers[i].to, buffers[i].count);
    }
    bench_heading("Attention, forward and backward, against its bare products", "attention", "OpenBLAS", "GFLOP/s");
    for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) {
        TRY(bench_side_by_side(ctx, (bench_work){run_attention, &t}, (bench_work){run_products, &t}, &result));
        bench_line(report, "causal: S 4096, N 2, Dq 192, Dv 128", ctx->threads, gigaflop, &result, TARGET);
    }
cleanup:
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(*buffers[i].to);
    return status;
}
