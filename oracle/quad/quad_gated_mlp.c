#include "oracle/quad/quad_internal.h"
#include "oracle/quad/quad_product.h"

enum { WORTH_THREADS = 1024 }; /* numbers that a function is taken of */

static int64_t shards_of(const quad_mlp *mlp)
{
    return mlp->w13_shards > 1 ? mlp->w13_shards : 1;
}

void quad_mlp_values_free(quad_mlp_values *values)
{
    free(values->a);
    free(values->b);
    free(values->h);
    free(values->y);
}

assay_status quad_mlp_values_alloc(assay_context *ctx, const assay_gated_mlp_config *config, int64_t rows,
                                   quad_mlp_values *values)
{
    assay_status status;
    TRY(quad_alloc(ctx, rows * config->mlp_dim, &values->a));
    TRY(quad_alloc(ctx, rows * config->mlp_dim, &values->b));
    TRY(quad_alloc(ctx, rows * config->mlp_dim, &values->h));
    TRY(quad_alloc(ctx, rows * config->emb_dim, &values->y));
cleanup:
    return status;
}

/* y [rows,columns], whose rows are ldy apart, of x [rows,k]. */
static assay_status multiply(assay_context *ctx, int64_t rows, int64_t k, int64_t columns, const quad *x,
                             const quad *w, int64_t ldw, quad *y, int64_t ldy)
{
    quad_product product = quad_product_xw(y, x, w, rows, columns, k);
    product.ldw = ldw;
    product.ldy = ldy;
    return quad_multiply(ctx, &product);
}

static void add_bias(int64_t rows, int64_t columns, const quad *bias, quad *y)
{
    for (int64_t i = 0; bias != NULL && i < rows * columns; i++) y[i] += bias[i % columns];
}

/* What is multiplied with wo: h, or what is quantised of it. */
static assay_status second_operand(assay_context *ctx, const assay_gated_mlp_config *config, int64_t rows,
                                   const quad_mlp_values *to, quad **quantised)
{
    const int64_t width = config->mlp_dim;
    *quantised = NULL;
    if (config->hidden.format == NULL) return ASSAY_OK;
    const assay_status status = quad_alloc(ctx, rows * width, quantised);
    RETURN_IF(status != ASSAY_OK, status);
    for (int64_t i = 0; i < rows; i++) {
        const quad *h = to->h + i * width, *held = to->held != NULL && to->held[i] != NULL ? to->held[i] : h;
        quad *row = *quantised + i * width;
        quad_requantise_row(&config->hidden, width, held, NULL, NULL, row);
        for (int64_t j = 0; j < width; j++) row[j] += h[j] - held[j];
    }
    return ASSAY_OK;
}

assay_status quad_mlp_rows(assay_context *ctx, const quad_mlp *mlp, int64_t rows, const quad *x,
                           const quad_mlp_values *to)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_config *config = &mlp->config;
    const int64_t dim = config->emb_dim, width = config->mlp_dim, ld = config->fused ? 2 * width : width;
    const int64_t shards = shards_of(mlp), part = width / shards;
    const quad *wi_0 = mlp->w[config->fused ? ASSAY_MLP_WI : ASSAY_MLP_WI_0];
    const quad *wi_1 = config->fused ? wi_0 + part : mlp->w[ASSAY_MLP_WI_1];
    quad *quantised = NULL;
    for (int64_t shard = 0; shard < shards; shard++) {
        const int64_t before = 2 * shard * part; /* gate and up of the shards before */
        TRY(multiply(ctx, rows, dim, part, x, wi_0 + before, ld, to->a + shard * part, width));
        TRY(multiply(ctx, rows, dim, part, x, wi_1 + before, ld, to->b + shard * part, width));
    }
    add_bias(rows, width, mlp->w[ASSAY_MLP_WI_0_BIAS], to->a);
    add_bias(rows, width, mlp->w[ASSAY_MLP_WI_1_BIAS], to->b);
#pragma omp parallel for num_threads(ctx->threads) schedule(static) if (rows * width >= WORTH_THREADS)
    for (int64_t i = 0; i < rows * width; i++) {
        to->h[i] = quad_glu(config->activation, config->glu, config->limit, to->a[i], to->b[i]);
    }
    TRY(second_operand(ctx, config, rows, to, &quantised));
    const quad *operand = quantised != NULL ? quantised : to->h;
    TRY(multiply(ctx, rows, width, dim, operand, mlp->w[ASSAY_MLP_WO], dim, to->y, dim));
    add_bias(rows, dim, mlp->w[ASSAY_MLP_WO_BIAS], to->y);
cleanup:
    free(quantised);
    return status;
}

static void keep_codes(const quad_mlp_checkpoints *to, const assay_gated_mlp_config *config, int64_t row,
                       const quad *h)
{
    const int64_t width = config->mlp_dim;
    if (to->values[ASSAY_MLP_CODES] == NULL) return;
    const int64_t blocks = assay_block_count(width, config->hidden.format->columns);
    quad_requantise_row(&config->hidden, width, h, to->values[ASSAY_MLP_CODES] + row * width,
                        to->values[ASSAY_MLP_SCALE] + row * blocks, NULL);
}

assay_status quad_add_mlp_checkpoints(assay_context *ctx, quad_tensors *out, const assay_gated_mlp_config *config,
                                      assay_mlp_place place, const assay_shape *rows, quad_mlp_checkpoints *added)
{
    assay_status status = ASSAY_OK;
    assay_gated_mlp_config split = *config;
    split.fused = false;
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++) {
        const bool whole = i == ASSAY_MLPWI || i == ASSAY_MLPWI_GRADIENT;
        const assay_tensor_row row = assay_mlp_checkpoint_row(whole ? config : &split, place, i);
        char path[ASSAY_PATH_SIZE];
        assay_shape shape = *rows;
        added->values[i] = NULL;
        if (row.name == NULL) continue;
        shape.dims[shape.rank++] = row.shape.dims[0];
        assay_tensor_path("checkpoints/", "", &row, path);
        TRY(quad_tensors_add(ctx, out, path, &shape, &added->values[i]));
    }
cleanup:
    return status;
}

void quad_keep_mlp(const quad_mlp_checkpoints *to, const quad_mlp *mlp, int64_t row, const quad *a,
                   const quad *b, const quad *h, const quad *y)
{
    const int64_t width = mlp->config.mlp_dim, dim = mlp->config.emb_dim, part = width / shards_of(mlp);
    quad *both = to->values[ASSAY_MLPWI];
    for (int64_t j = 0; j < width; j++) {
        to->values[ASSAY_MLPWI_0][row * width + j] = a[j];
        to->values[ASSAY_MLPWI_1][row * width + j] = b[j];
        to->values[ASSAY_MLP_INTERMEDIATE][row * width + j] = h[j];
        if (both == NULL) continue;
        const int64_t at = row * 2 * width + j / part * 2 * part + j % part;
        both[at] = a[j];
        both[at + part] = b[j];
    }
    keep_codes(to, &mlp->config, row, h);
    for (int64_t d = 0; d < dim; d++) to->values[ASSAY_MLPWO][row * dim + d] = y[d];
}

assay_status quad_gated_mlp(assay_context *ctx, const assay_gated_mlp_config *config, const quad_tensors *in,
                            quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const quad_tensor *x = NULL;
    quad_mlp mlp = {.config = *config};
    const assay_tensor_table weights = assay_mlp_weight_table(config, ASSAY_MLP_DENSE);
    quad_mlp_checkpoints kept;
    quad *y = NULL;
    const quad *held = NULL, **held_rows = NULL;
    int64_t rows = 0, emb_dim = 0;
    const int64_t mlp_dim = config->mlp_dim;
    TRY(quad_read_rows(ctx, in, "inputs/x", &x, &rows, &emb_dim));
    if (emb_dim != config->emb_dim) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "the last axis of 'inputs/x' is %lld, expected %lld",
                            (long long)emb_dim, (long long)config->emb_dim);
        goto cleanup;
    }
    TRY(quad_read_weights(ctx, &weights, in, 1, mlp.w, NULL));
    assay_shape shape = x->shape;
    shape.rank--;
    TRY(quad_tensors_add(ctx, out, "outputs/y", &x->shape, &y));
    TRY(quad_add_mlp_checkpoints(ctx, out, config, ASSAY_MLP_DENSE, &shape, &kept));
    if (config->hidden.format != NULL)
        TRY(quad_read_optional(ctx, in, "checkpoints/mlp_intermediate", rows * mlp_dim, &held));
    if (held != NULL) {
        void *pointers = NULL;
        TRY(assay_alloc(ctx, "rows of h", rows, sizeof *held_rows, &pointers));
        held_rows = pointers;
        for (int64_t row = 0; row < rows; row++) held_rows[row] = held + row * mlp_dim;
    }
    const quad_mlp_values to = {.a = kept.values[ASSAY_MLPWI_0],
                                .b = kept.values[ASSAY_MLPWI_1],
                                .h = kept.values[ASSAY_MLP_INTERMEDIATE],
                                .y = y,
                                .held = held_rows};
    TRY(quad_mlp_rows(ctx, &mlp, rows, x->values, &to));
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * mlp_dim;
        quad_keep_mlp(&kept, &mlp, row, to.a + at, to.b + at, to.h + at, y + row * emb_dim);
    }
cleanup:
    free(held_rows);
    return status;
}
