#include "oracle/ops/quantised_deviation.h"

#include <stdio.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/base/random.h"

/* Draws come from the value's own bits: the same in every piece of the rows and for any number of threads. */
void assay_deviation_move(const assay_context *ctx, int64_t count, const double *x, const double *deviation,
                          double *moved)
{
    const assay_emulation *emulation = ctx->emulation;
    const bool moves = deviation != NULL && emulation != NULL && !emulation->nearest;
#pragma omp parallel for num_threads(ctx->threads) if (count > 4096)
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &x[i], sizeof bits);
        moved[i] = x[i];
        if (!moves || x[i] == 0) continue;
        const double uniform = (double)(assay_random_bits(emulation->seed, "hidden", bits) >> 11) * 0x1p-52 - 1;
        moved[i] += ASSAY_DEVIATION_REACH * deviation[i] * uniform;
    }
}

void assay_deviation_path(const char *of, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "spread/%.*s", ASSAY_PATH_SIZE - (int)sizeof "spread/", of);
}
