/* Causal attention, forward and backward, against the bare products of a flash implementation by OpenBLAS. */
#include "bench/bench.h"
#include "bench/bench_case.h"

enum { LENGTH = 4096, HEADS = 2, QK_DIM = 192, V_DIM = 128, BLOCK = 128 };
static const int64_t QK = (int64_t)LENGTH * HEADS * QK_DIM, V = (int64_t)LENGTH * HEADS * V_DIM;
static const double TARGET = 0.5;

/* The case, and operands of its bare products, head by head. */
typedef struct problem {
    bench_case own;
    double *query, *key, *dquery, *dkey; /* [HEADS,LENGTH,QK_DIM] */
    double *value, *out, *dvalue, *dout; /* [HEADS,LENGTH,V_DIM] */
    double *p, *ds;                      /* [BLOCK,LENGTH] */
} problem;

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
static assay_status multiply_block(assay_context *ctx, const problem *t, int64_t head, int64_t first)
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
    return bench_multiply(ctx, products, sizeof products / sizeof *products);
}

static assay_status run_products(assay_context *ctx, void *self)
{
    for (int64_t head = 0; head < HEADS; head++) {
        for (int64_t first = 0; first < LENGTH; first += BLOCK) {
            MUST(multiply_block(ctx, self, head, first));
        }
    }
    return ASSAY_OK;
}

assay_status bench_attention(assay_context *ctx, bench_report *report)
{
    const int64_t scores_of_block = (int64_t)BLOCK * LENGTH;
    assay_status status;
    problem t = {0};
    const bench_array arrays[] = {
        {&t.query, QK}, {&t.key, QK},   {&t.dquery, QK}, {&t.dkey, QK},           {&t.value, V},
        {&t.out, V},    {&t.dvalue, V}, {&t.dout, V},    {&t.p, scores_of_block}, {&t.ds, scores_of_block}};
    enum { ARRAYS = sizeof arrays / sizeof *arrays };
    TRY(bench_case_open(ctx, "attention", &t.own));
    TRY(bench_alloc(ctx, arrays, ARRAYS));
    const bench_pair pair = {"causal: S 4096, N 2, Dq 192, Dv 128", bench_case_run_bare, run_products,
                             bench_case_gigaflop(&t.own), TARGET};
    bench_heading("Attention, forward and backward, against its bare products", "attention", "OpenBLAS", "GFLOP/s");
    TRY(bench_lines(ctx, report, &pair, &t));
cleanup:
    bench_case_close(&t.own);
    bench_free(arrays, ARRAYS);
    return status;
}
