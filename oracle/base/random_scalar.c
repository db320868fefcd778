#include <math.h>
#include <string.h>

#include <Random123/philox.h>
#include <sleef.h>

#include "oracle/base/random_kernels.h"

static void lanes_scalar(uint32_t *lanes, int64_t blocks, const assay_random_stream *stream, uint64_t first_block)
{
    const philox4x32_key_t key = {{stream->key[0], stream->key[1]}};
    for (int64_t i = 0; i < blocks; i++) {
        uint64_t block = first_block + (uint64_t)i;
        philox4x32_ctr_t counter = {{(uint32_t)block, (uint32_t)(block >> 32), stream->purpose, 0}};
        counter = philox4x32(counter, key);
        for (int lane = 0; lane < 4; lane++) lanes[4 * i + lane] = counter.v[lane];
    }
}

static void normals_scalar(double *normals, int64_t count, const uint32_t *lanes)
{
    for (int64_t i = 0; i < count; i += 2) {
        double u = ((double)lanes[i] + 1) * 0x1p-32;        /* (0, 1] */
        double half_turns = (double)lanes[i + 1] * 0x1p-31; /* [0, 2) */
        double radius = sqrt(-2 * Sleef_cinz_logd1_u10purec(u));
        Sleef_double_2 direction = Sleef_cinz_sincospid1_u05purec(half_turns); /* x: sine, y: cosine */
        normals[i] = radius * direction.y;
        normals[i + 1] = radius * direction.x;
    }
}

static void bells_scalar(double *bells, int64_t blocks, const assay_random_stream *stream, uint64_t first_block,
                         float mean, float step, int drop)
{
    const assay_random_rounding r = assay_random_rounding_of(drop);
    for (int64_t i = 0; i < blocks; i++) {
        uint32_t lanes[4];
        lanes_scalar(lanes, 1, stream, first_block + (uint64_t)i);
        for (int lane = 0; lane < 4; lane++) {
            const uint32_t w = lanes[lane], sum = (w & 0xff) + (w >> 8 & 0xff) + (w >> 16 & 0xff) + (w >> 24);
            float bell = mean + step * ((float)sum - 510);
            uint32_t bits;
            memcpy(&bits, &bell, sizeof bits);
            bits = (bits + r.half + (bits >> drop & r.one)) & r.kept;
            memcpy(&bell, &bits, sizeof bell);
            bells[4 * i + lane] = (double)bell;
        }
    }
}

const assay_random_kernels assay_random_scalar = {lanes_scalar, normals_scalar, normals_scalar, bells_scalar};
