/* Numbers that a writer of caches computes before it quantises them: RMS norm of latents or keys, rotation of the part that
 * has positions (rms_norm.h, yarn_rope.h). Latents lie apart from their rope, [tokens,columns] and [tokens,second]; keys have
 * heads, [tokens,heads,columns], of which the first numbers are rotated.
 *
 * Sources: vLLM, csrc/cache_kernels_fused.cu (rope of latents, then the cache); ROCm/aiter, fused_qk_norm_rope_cache_quant
 * (keys, a part of them rotated); DeepSeek-V4's inference/model.py (one norm over latent and rope). */
#pragma once

#include "oracle/ops/yarn_rope.h"

/* Of the latent alone, or of the row: the latent with its rope, a head's key. */
typedef enum assay_cache_norm { ASSAY_CACHE_NORM_NONE, ASSAY_CACHE_NORM_LATENT, ASSAY_CACHE_NORM_ROW } assay_cache_norm;

typedef struct assay_cache_numbers_config {
    int64_t tokens, heads, columns, second; /* second 0: keys */
    assay_cache_norm norm;                  /* what has weights */
    bool norm_of_row; /* and what it is over: of latents their rope, too; weights that are not there are 1 */
    bool norm_last;   /* behind the rotation */
    double epsilon;
    bool rotates;
    assay_rope_config rope;
    int64_t rope_at; /* the first number of a row that is rotated */
} assay_cache_numbers_config;

typedef struct assay_cache_numbers {
    double *numbers, *second; /* what is given, and then what is written */
    const double *scale;      /* of the norm, as wide as what it is of */
    const int32_t *positions;
} assay_cache_numbers;

/* How many numbers the norm is over. */
int64_t assay_cache_norm_width(const assay_cache_numbers_config *config);

assay_status assay_cache_make_numbers(assay_context *ctx, const assay_cache_numbers *n,
                                      const assay_cache_numbers_config *config);
