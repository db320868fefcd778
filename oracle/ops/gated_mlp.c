#include "oracle/ops/gated_mlp.h"

#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/glu.h"
#include "oracle/ops/requantise.h"
#include "oracle/ops/vector_sums.h"

/* Columns that one thread takes of a row at a time, so that few long rows are shared out as well. */
enum { PIECE = 512 };

static int64_t piece_size(int64_t first, int64_t total)
{
    return total - first < PIECE ? total - first : PIECE;
}

assay_status assay_gated_mlp_residuals_alloc(assay_context *ctx, assay_gated_mlp_residuals *r,
                                             const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t rows = config->rows, hidden = config->mlp_dim, blocks = assay_hidden_blocks(config);
    int64_t count = 0;
    *r = (assay_gated_mlp_residuals){.ld = config->fused ? 2 * hidden : hidden};
    TRY(assay_checked_count(ctx, "residuals of the gated MLP", 3, (int64_t[]){5, rows, hidden}, &count));
    if (blocks == 0) count = 3 * rows * hidden;
    TRY(assay_alloc_f64(ctx, "residuals of the gated MLP", count, &r->storage));
    r->a = r->storage;
    r->b = r->storage + (config->fused ? hidden : rows * hidden);
    r->h = r->storage + 2 * rows * hidden;
    if (blocks == 0) return ASSAY_OK;
    r->codes = r->storage + 3 * rows * hidden;
    r->scale = r->storage + 4 * rows * hidden; /* blocks are no more than columns */
cleanup:
    return status;
}

void assay_gated_mlp_residuals_free(assay_gated_mlp_residuals *r)
{
    free(r->storage);
    *r = (assay_gated_mlp_residuals){0};
}

assay_gated_mlp_weights assay_gated_mlp_weights_of(double *const weights[ASSAY_MLP_WEIGHTS])
{
    assay_gated_mlp_weights w;
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) w.w[i] = weights[i];
    return w;
}

assay_gated_mlp_gradients assay_gated_mlp_gradients_of(double *dx, double *const gradients[ASSAY_MLP_WEIGHTS])
{
    assay_gated_mlp_gradients g = {.dx = dx};
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) g.g[i] = gradients[i];
    return g;
}

/* sum += term, both of which may be stored before. */
static void add_rows(const assay_context *ctx, double *sum, double *term, int64_t rows, int64_t dim)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, dim, sum + row * dim);
        assay_round(ctx, ASSAY_ROUND_STORAGE, dim, term + row * dim);
        assay_add_scaled(ctx, dim, 1, term + row * dim, sum + row * dim);
    }
}

static int64_t hidden_shards_of(const assay_gated_mlp_config *config)
{
    return config->hidden_shards == 0 ? 1 : config->hidden_shards;
}

static int64_t groups_of(const assay_gated_mlp_config *config)
{
    return config->groups == 0 ? 1 : config->groups;
}

static int64_t group_size(const assay_gated_mlp_config *config, int64_t group)
{
    return config->groups == 0 ? config->rows : config->group_sizes[group];
}

/* What a product with w [k,n] and its two of backward take; without a recipe what is given. */
static assay_status operands_of(assay_context *ctx, assay_recipe_operands *operands, assay_recipe_given given,
                                int64_t k, int64_t n, const assay_gated_mlp_config *config)
{
    const assay_gmm_dims dims = {.m = config->rows, .k = k, .n = n, .groups = groups_of(config)};
    const int32_t all = (int32_t)config->rows;
    given.group_sizes = config->groups == 0 ? &all : config->group_sizes;
    return assay_recipe_quantise(ctx, operands, &given, &dims, &config->recipe);
}

/* Rows of a times their group's b, which has `size` numbers. */
static assay_status product_of_rows(assay_context *ctx, assay_matmul_args args, int64_t size,
                                    const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    for (int64_t group = 0; group < groups_of(config); group++) {
        args.m = group_size(config, group);
        TRY(assay_matmul(ctx, &args));
        args.a += args.m * args.lda;
        args.c += args.m * args.ldc;
        args.b += size;
    }
cleanup:
    return status;
}

static assay_status up_product(assay_context *ctx, double *out, const double *x, const double *w,
                               const assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config)
{
    assay_status status;
    assay_recipe_operands o = {0};
    TRY(operands_of(ctx, &o, (assay_recipe_given){.x = x, .w = w}, config->emb_dim, r->ld, config));
    assay_matmul_args args = assay_product_ab(out, o.x, o.w, config->rows, r->ld, config->emb_dim);
    args.kind = ASSAY_PRODUCT_LINEAR;
    TRY(product_of_rows(ctx, args, config->emb_dim * r->ld, config));
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

/* Rows `ld` apart get the `count` numbers that their group has of the bias; NULL: there is none. */
static void add_bias(const assay_context *ctx, double *values, int64_t ld, const double *bias, int64_t count,
                     const assay_gated_mlp_config *config)
{
    for (int64_t group = 0; bias != NULL && group < groups_of(config); group++) {
        const int64_t rows = group_size(config, group);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = 0; row < rows; row++) assay_add_scaled(ctx, count, 1, bias, values + row * ld);
        values += rows * ld;
        bias += count;
    }
}

static void round_rows(const assay_context *ctx, double *values, int64_t ld, const assay_gated_mlp_config *config)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < config->rows; row++)
        assay_round(ctx, ASSAY_ROUND_STORAGE, config->mlp_dim, values + row * ld);
}

static void finish_branch(const assay_context *ctx, double *branch, const double *bias,
                          const assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config)
{
    if (bias != NULL) round_rows(ctx, branch, r->ld, config); /* a product may be stored before its bias comes */
    add_bias(ctx, branch, r->ld, bias, config->mlp_dim, config);
    round_rows(ctx, branch, r->ld, config);
}

void assay_gated_mlp_add_biases(const assay_context *ctx, assay_gated_mlp_residuals *r, assay_gated_mlp_branch branch,
                                const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config)
{
    if (branch != ASSAY_BRANCH_UP) finish_branch(ctx, r->a, w->w[ASSAY_MLP_WI_0_BIAS], r, config);
    if (branch != ASSAY_BRANCH_GATE) finish_branch(ctx, r->b, w->w[ASSAY_MLP_WI_1_BIAS], r, config);
}

assay_status assay_gated_mlp_up(assay_context *ctx, assay_gated_mlp_residuals *r, assay_gated_mlp_branch branch,
                                const double *x, const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config)
{
    const bool gate = branch != ASSAY_BRANCH_UP, up = branch != ASSAY_BRANCH_GATE;
    assay_status status = ASSAY_OK;
    if (config->fused) TRY(up_product(ctx, r->a, x, w->w[ASSAY_MLP_WI], r, config));
    if (!config->fused && gate) TRY(up_product(ctx, r->a, x, w->w[ASSAY_MLP_WI_0], r, config));
    if (!config->fused && up) TRY(up_product(ctx, r->b, x, w->w[ASSAY_MLP_WI_1], r, config));
    assay_gated_mlp_add_biases(ctx, r, branch, w, config);
cleanup:
    return status;
}

void assay_gated_mlp_gate(const assay_context *ctx, assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config)
{
    const int64_t hidden = config->mlp_dim;
#pragma omp parallel for collapse(2) num_threads(ctx->threads)
    for (int64_t row = 0; row < config->rows; row++) {
        for (int64_t first = 0; first < hidden; first += PIECE) {
            const int64_t count = piece_size(first, hidden), at = row * r->ld + first;
            double *h = r->h + row * hidden + first;
            assay_glu_forward(ctx, h, r->a + at, r->b + at, count, config);
            assay_round(ctx, ASSAY_ROUND_STORAGE, count, h);
        }
    }
}

assay_status assay_gated_mlp_down(assay_context *ctx, double *y, const assay_gated_mlp_residuals *r,
                                  const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim;
    const int64_t shards = hidden_shards_of(config), own = hidden / shards;
    double *part = NULL;
    assay_recipe_operands o = {0};
    const assay_recipe_given given = {.x = r->h, .w = w->w[ASSAY_MLP_WO], .x_spread = r->h_spread};
    TRY(operands_of(ctx, &o, given, hidden, dim, config));
    assay_matmul_args down = assay_product_ab(y, o.x, o.w, rows, dim, hidden);
    down.kind = ASSAY_PRODUCT_LINEAR;
    down.k = own;
    if (shards > 1) TRY(assay_alloc_f64(ctx, "a shard's part of y", rows * dim, &part));
    for (int64_t shard = 0; shard < shards; shard++) {
        down.a = o.x + shard * own;
        down.b = o.w + shard * own * dim;
        TRY(product_of_rows(ctx, down, hidden * dim, config));
        if (shard > 0) add_rows(ctx, y, part, rows, dim);
        down.c = part;
    }
    if (w->w[ASSAY_MLP_WO_BIAS] != NULL) assay_round(ctx, ASSAY_ROUND_STORAGE, rows * dim, y);
    add_bias(ctx, y, dim, w->w[ASSAY_MLP_WO_BIAS], dim, config);
cleanup:
    assay_recipe_operands_free(&o);
    free(part);
    return status;
}

assay_status assay_gated_mlp_forward(assay_context *ctx, double *y, assay_gated_mlp_residuals *r, const double *x,
                                     const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config)
{
    assay_status status = assay_gated_mlp_up(ctx, r, ASSAY_BRANCH_BOTH, x, w, config);
    if (status != ASSAY_OK) return status;
    assay_gated_mlp_gate(ctx, r, config);
    if (config->hidden.format != NULL) {
        status = assay_requantise(ctx, r, NULL, config);
        if (status != ASSAY_OK) return status;
        assay_hidden_numbers(ctx, r, config);
    }
    return assay_gated_mlp_down(ctx, y, r, w, config);
}

/* out [groups,n_x,n_dy] = x^T dy over the rows of each group; NULL: skipped. */
static assay_status weight_gradient(assay_context *ctx, double *out, const double *x, int64_t n_x, const double *dy,
                                    int64_t n_dy, int64_t ld_dy, const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    assay_matmul_args args = assay_product_atb(out, x, dy, n_x, n_dy, 0);
    args.ldb = ld_dy;
    args.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
    for (int64_t group = 0; out != NULL && group < groups_of(config); group++) {
        args.k = group_size(config, group);
        TRY(assay_matmul(ctx, &args));
        args.a += args.k * n_x;
        args.b += args.k * ld_dy;
        args.c += n_x * n_dy;
    }
cleanup:
    return status;
}

/* out [groups,columns]; NULL: skipped. */
static void bias_gradient(const assay_context *ctx, double *out, int64_t columns, int64_t ld, const double *dy,
                          const assay_gated_mlp_config *config)
{
    for (int64_t group = 0; out != NULL && group < groups_of(config); group++) {
        const int64_t rows = group_size(config, group);
        assay_column_sums(ctx, out, rows, columns, ld, dy);
        out += columns;
        dy += rows * ld;
    }
}

/* dy wo^T, with rows `ld` apart. */
static assay_status hidden_gradient(assay_context *ctx, double *dh, int64_t ld, const assay_recipe_operands *down,
                                    const assay_gated_mlp_config *config)
{
    assay_matmul_args args =
        assay_product_abt(dh, down->dx_dy, down->dx_w, config->rows, config->mlp_dim, config->emb_dim);
    args.ldc = ld;
    args.kind = ASSAY_PRODUCT_LINEAR;
    return product_of_rows(ctx, args, config->mlp_dim * config->emb_dim, config);
}

/* dx = da wi_0^T + db wi_1^T: two chains and an addition also where wi is one matrix, for the same bits. Of each shard of
 * H, then the sum over these. */
static assay_status input_gradient(assay_context *ctx, double *dx, const assay_recipe_operands up[2],
                                   const assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim;
    const int64_t shards = hidden_shards_of(config), own = hidden / shards;
    const double *da = up[0].dx_dy, *db = config->fused ? da + hidden : up[1].dx_dy;
    const double *wi_0 = up[0].dx_w, *wi_1 = config->fused ? wi_0 + hidden : up[1].dx_w;
    double *through_b = NULL, *part = NULL;
    assay_matmul_args args = assay_product_abt(dx, da, wi_0, rows, dim, own);
    args.lda = r->ld;
    args.ldb = r->ld;
    args.kind = ASSAY_PRODUCT_LINEAR;
    TRY(assay_alloc_f64(ctx, "scratch of the gated MLP", rows * dim, &through_b));
    if (shards > 1) TRY(assay_alloc_f64(ctx, "a shard's part of dx", rows * dim, &part));
    for (int64_t shard = 0; shard < shards; shard++) {
        double *sum = shard == 0 ? dx : part;
        args.c = sum;
        args.a = da + shard * own;
        args.b = wi_0 + shard * own;
        TRY(product_of_rows(ctx, args, dim * r->ld, config));
        args.c = through_b;
        args.a = db + shard * own;
        args.b = wi_1 + shard * own;
        TRY(product_of_rows(ctx, args, dim * r->ld, config));
        add_rows(ctx, sum, through_b, rows, dim);
        if (shard > 0) add_rows(ctx, dx, part, rows, dim);
    }
cleanup:
    free(through_b);
    free(part);
    return status;
}

/* da and db lie as a and b do; dh may lie where da comes. */
static void gate_gradient(const assay_context *ctx, double *da, double *db, const double *dh, int64_t ld_dh,
                          const assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config)
{
#pragma omp parallel for collapse(2) num_threads(ctx->threads)
    for (int64_t row = 0; row < config->rows; row++) {
        for (int64_t first = 0; first < config->mlp_dim; first += PIECE) {
            const int64_t at = row * r->ld + first;
            assay_glu_backward(ctx, da + at, db + at, dh + row * ld_dh + first, r->a + at, r->b + at,
                               piece_size(first, config->mlp_dim), config);
        }
    }
}

static bool wants_beyond_gate(const assay_gated_mlp_gradients *g)
{
    bool wants = g->dx != NULL || g->take_d_up != NULL;
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++)
        wants |= g->g[weight] != NULL && weight != ASSAY_MLP_WO && weight != ASSAY_MLP_WO_BIAS;
    return wants;
}

/* Everything that comes from da and db. */
static assay_status backward_beyond_gate(assay_context *ctx, const assay_gated_mlp_gradients *g,
                                         const assay_recipe_operands *down, const assay_gated_mlp_residuals *r,
                                         const double *x, const assay_gated_mlp_weights *w,
                                         const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim;
    const double *const wi[2] = {w->w[config->fused ? ASSAY_MLP_WI : ASSAY_MLP_WI_0], w->w[ASSAY_MLP_WI_1]};
    double *da = NULL;
    assay_recipe_operands up[2] = {0};
    TRY(assay_alloc_f64(ctx, "gradient of the gate", 2 * rows * hidden, &da));
    double *db = da + (config->fused ? hidden : rows * hidden); /* residuals may have room for more rows */
    if (g->dh == NULL) {
        TRY(hidden_gradient(ctx, da, r->ld, down, config));
        round_rows(ctx, da, r->ld, config);
    }
    gate_gradient(ctx, da, db, g->dh != NULL ? g->dh : da, g->dh != NULL ? hidden : r->ld, r, config);
    round_rows(ctx, da, r->ld, config);
    round_rows(ctx, db, r->ld, config);
    if (g->take_d_up != NULL) TRY(g->take_d_up(ctx, g->self, da, db));
    for (int i = 0; i < (config->fused ? 1 : 2); i++) {
        const int64_t first = i * rows * hidden;
        const double *spread = r->d_up_spread != NULL ? r->d_up_spread + first : NULL;
        const assay_recipe_given given = {.x = x, .w = wi[i], .dy = da + first, .dy_spread = spread};
        TRY(operands_of(ctx, &up[i], given, dim, r->ld, config));
    }
    TRY(weight_gradient(ctx, g->g[ASSAY_MLP_WI], up[0].dw_x, dim, up[0].dw_dy, 2 * hidden, r->ld, config));
    TRY(weight_gradient(ctx, g->g[ASSAY_MLP_WI_0], up[0].dw_x, dim, up[0].dw_dy, hidden, r->ld, config));
    TRY(weight_gradient(ctx, g->g[ASSAY_MLP_WI_1], up[1].dw_x, dim, up[1].dw_dy, hidden, r->ld, config));
    bias_gradient(ctx, g->g[ASSAY_MLP_WI_0_BIAS], hidden, r->ld, da, config);
    bias_gradient(ctx, g->g[ASSAY_MLP_WI_1_BIAS], hidden, r->ld, db, config);
    if (g->dx != NULL) TRY(input_gradient(ctx, g->dx, up, r, config));
cleanup:
    for (int i = 0; i < 2; i++) assay_recipe_operands_free(&up[i]);
    free(da);
    return status;
}

assay_status assay_gated_mlp_backward(assay_context *ctx, const assay_gated_mlp_gradients *g, const double *dy,
                                      const assay_gated_mlp_residuals *r, const double *x,
                                      const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = config->emb_dim, hidden = config->mlp_dim;
    assay_recipe_operands down = {0};
    const assay_recipe_given given = {
        .x = r->h, .w = w->w[ASSAY_MLP_WO], .dy = dy, .x_spread = r->h_spread, .dy_spread = r->dy_spread};
    TRY(operands_of(ctx, &down, given, hidden, dim, config));
    TRY(weight_gradient(ctx, g->g[ASSAY_MLP_WO], down.dw_x, hidden, down.dw_dy, dim, dim, config));
    bias_gradient(ctx, g->g[ASSAY_MLP_WO_BIAS], dim, dim, dy, config);
    if (g->dh != NULL) {
        TRY(hidden_gradient(ctx, g->dh, hidden, &down, config));
        round_rows(ctx, g->dh, hidden, config);
    }
    if (wants_beyond_gate(g)) TRY(backward_beyond_gate(ctx, g, &down, r, x, w, config));
cleanup:
    assay_recipe_operands_free(&down);
    return status;
}
