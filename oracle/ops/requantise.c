#include "oracle/ops/requantise.h"

#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/ops/quantised_deviation.h"

assay_status assay_requantise(assay_context *ctx, double *codes, double *scale, const double *h,
                              const double *deviation, const assay_quantize_config *config)
{
    const assay_block_format *format = config->format;
    const int64_t count = config->rows * config->columns, scales = assay_quantize_scales(config);
    OWNED double *moved = NULL;
    OWNED int32_t *bits = NULL, *scale_bits = NULL;
    int32_t of_tensor = 0;
    MUST(assay_alloc_f64(ctx, "h that is quantised", count, &moved));
    MUST(assay_alloc_i32(ctx, "codes of h", count, &bits));
    MUST(assay_alloc_i32(ctx, "scales of h", scales, &scale_bits));
    assay_deviation_move(ctx, count, h, deviation, moved);
    MUST(assay_quantize(ctx, bits, scale_bits, &of_tensor, moved, config));
    assay_quantised_decode(ctx, format->element, count, bits, codes);
    assay_quantised_decode(ctx, format->scale, scales, scale_bits, scale);
    return ASSAY_OK;
}
