#include "oracle/ops/requantise.h"

#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/ops/quantised_spread.h"

assay_status assay_requantise(assay_context *ctx, double *codes, double *scale, const double *h, const double *spread,
                              const assay_gated_mlp_config *config)
{
    assay_quantize_config q = config->hidden;
    const int64_t count = config->rows * config->mlp_dim,
                  scales = config->rows * assay_block_count(config->mlp_dim, q.format->columns);
    OWNED double *moved = NULL;
    OWNED int32_t *bits = NULL, *scale_bits = NULL;
    int32_t of_tensor = 0;
    q.rows = config->rows;
    q.columns = config->mlp_dim;
    MUST(assay_alloc_f64(ctx, "h that is quantised", count, &moved));
    MUST(assay_alloc_i32(ctx, "codes of h", count, &bits));
    MUST(assay_alloc_i32(ctx, "scales of h", scales, &scale_bits));
    assay_spread_move(ctx, count, h, spread, moved);
    MUST(assay_quantize(ctx, bits, scale_bits, &of_tensor, moved, &q));
    assay_quantised_decode(ctx, q.format->element, count, bits, codes);
    assay_quantised_decode(ctx, q.format->scale, scales, scale_bits, scale);
    return ASSAY_OK;
}

void assay_hidden_numbers(const assay_context *ctx, double *numbers, const double *codes, const double *scale,
                          const assay_gated_mlp_config *config)
{
    assay_quantize_config q = config->hidden;
    q.rows = config->rows;
    q.columns = config->mlp_dim;
    assay_dequantize(ctx, numbers, codes, scale, q.format->tensor_scale ? &config->hidden.tensor_scale : NULL, &q);
}
