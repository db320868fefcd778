/* The sparse MoE block, forward and backward with every gradient, against the bare products in it by OpenBLAS. */
#include "bench/bench.h"
#include "bench/bench_case.h"

enum { EMB_DIM = 1024, MLP_DIM = 512, EXPERTS = 32, PER_TOKEN = 4, TOKENS = 1024 }; /* of bench/moe */
static const int64_t ROWS = (int64_t)TOKENS * PER_TOKEN, KERNEL = (int64_t)EMB_DIM * MLP_DIM;
static const double TARGET = 0.8;

/* The case, which is run first, and what its bare products need besides. */
typedef struct problem {
    bench_case own;
    double *rows, *more_rows; /* [ROWS,EMB_DIM] */
    double *a, *b, *h;        /* [ROWS,MLP_DIM] */
    double *gradient;         /* [EMB_DIM,MLP_DIM] */
} problem;

static const assay_tensor *tensor(const problem *m, const char *path)
{
    return assay_tensor_set_find(&m->own.tensors, path);
}

/* The nine products of an expert, with its rows at `first`. */
static assay_status multiply_expert(assay_context *ctx, const problem *m, int64_t expert, int64_t first)
{
    const int64_t rows = tensor(m, "routing/group_sizes")->indices[expert];
    const double *wi_0 = tensor(m, "weights/wi_0")->values + expert * KERNEL;
    const double *wi_1 = tensor(m, "weights/wi_1")->values + expert * KERNEL;
    const double *wo = tensor(m, "weights/wo")->values + expert * KERNEL;
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
    return bench_multiply(ctx, products, sizeof products / sizeof *products);
}

static assay_status run_products(assay_context *ctx, void *self)
{
    const problem *m = self;
    const double *x = tensor(m, "inputs/x")->values, *kernel = tensor(m, "weights/gate/kernel")->values;
    const int32_t *group_sizes = tensor(m, "routing/group_sizes")->indices;
    const assay_matmul_args gate[] = {assay_product_ab(m->a, x, kernel, TOKENS, EXPERTS, EMB_DIM),
                                      assay_product_atb(m->gradient, x, m->a, EMB_DIM, EXPERTS, TOKENS),
                                      assay_product_abt(m->more_rows, m->a, kernel, TOKENS, EMB_DIM, EXPERTS)};
    MUST(bench_multiply(ctx, gate, 3));
    for (int64_t expert = 0, first = 0; expert < EXPERTS; first += group_sizes[expert], expert++)
        MUST(multiply_expert(ctx, m, expert, first));
    return ASSAY_OK;
}

assay_status bench_moe(assay_context *ctx, bench_report *report)
{
    assay_status status;
    problem m = {0};
    const bench_array arrays[] = {{&m.rows, ROWS * EMB_DIM}, {&m.more_rows, ROWS * EMB_DIM}, {&m.a, ROWS * MLP_DIM},
                                  {&m.b, ROWS * MLP_DIM},    {&m.h, ROWS * MLP_DIM},         {&m.gradient, KERNEL}};
    enum { ARRAYS = sizeof arrays / sizeof *arrays };
    TRY(bench_case_open(ctx, "moe", &m.own));
    TRY(bench_alloc(ctx, arrays, ARRAYS));
    TRY(bench_case_run(ctx, &m.own)); /* for the sizes of groups */
    const bench_pair pair = {"sparse: D 1024, H 512, E 32, K 4, T 1024", bench_case_run_bare, run_products,
                             bench_case_gigaflop(&m.own), TARGET};
    bench_heading("MoE block, forward and backward, against its bare products", "block", "OpenBLAS", "GFLOP/s");
    TRY(bench_lines(ctx, report, &pair, &m));
cleanup:
    bench_case_close(&m.own);
    bench_free(arrays, ARRAYS);
    return status;
}
