/* Makes inputs from their seeds with <assay/random.h>, by C, C++ or CUDA C. random_header < TENSORS; each line is PATH SEED TYPE COUNT ROW DISTRIBUTION MEAN SCALE LOW HIGH FILE. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <assay/random.h>

static const char *const DISTRIBUTIONS[] = {"normal",       "uniform",    "integers", "constant", "near_ties",
                                            "block_powers", "row_powers", "cancel",   "bell",     "ramp"};
static const char *const TYPES[] = {"float64",       "float32",     "tfloat32",      "bfloat16", "float16",
                                    "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int32"};
static const size_t BYTES[] = {8, 4, 4, 2, 2, 1, 1, 1, 4};
enum { INT32 = 8 };

static int place_of(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0) return i;
    }
    return -1;
}

static int fill_whole(uint64_t key, const char *distribution, int64_t count, int64_t row, int32_t high, int32_t *out)
{
    if (strcmp(distribution, "experts") == 0) {
        assay_draw_experts(key, count / row, row, high, out);
    } else if (strcmp(distribution, "group_sizes") == 0) {
        assay_draw_group_sizes(key, count, high, out);
    } else if (strcmp(distribution, "permutation") == 0) {
        assay_draw_permutation(key, count, out);
    } else {
        return 0;
    }
    return 1;
}

#ifdef __CUDACC__ /* compiled, and run where there is a device */
__global__ void fill(const assay_draw t, int64_t count, double *out)
{
    const uint64_t j = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    double x[2];
    if (2 * j >= (uint64_t)count) return;
    assay_draw_pair(&t, j, x);
    out[2 * j] = x[0];
    if (2 * j + 1 < (uint64_t)count) out[2 * j + 1] = x[1];
}
#endif

int main(void)
{
    static char line[2048];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char path[256], type[32], distribution[32], file[512];
        uint64_t seed;
        int64_t count;
        assay_draw t;
        memset(&t, 0, sizeof t);
        if (sscanf(line, "%255s %" SCNu64 " %31s %" SCNd64 " %" SCNu64 " %31s %lf %lf %lf %lf %511s", path, &seed, type,
                   &count, &t.row, distribution, &t.mean, &t.scale, &t.low, &t.high, file) != 11) {
            return 2;
        }
        const int stored = place_of(type, TYPES, INT32 + 1), kind = place_of(distribution, DISTRIBUTIONS, 10);
        unsigned char *out = (unsigned char *)calloc((size_t)count + 1, 8);
        if (stored < 0 || out == NULL) return 2;
        t.key = assay_draw_key(seed, path);
        t.distribution = (assay_draw_distribution)kind;
        t.type = stored == INT32 ? ASSAY_DRAW_FLOAT64 : (assay_draw_type)stored;
        if (stored != INT32 ||
            !fill_whole(t.key, distribution, count, (int64_t)t.row, (int32_t)t.high, (int32_t *)(void *)out)) {
            if (kind < 0) return 2;
            for (int64_t i = 0; i < count; i++) {
                double x[2];
                assay_draw_pair(&t, (uint64_t)i / 2, x);
                const int32_t whole = (int32_t)x[i % 2];
                const uint64_t code = stored == INT32 ? (uint32_t)whole : assay_draw_code(t.type, x[i % 2]);
                memcpy(out + (size_t)i * BYTES[stored], &code, BYTES[stored]);
            }
        }
        FILE *to = fopen(file, "wb");
        if (to == NULL || fwrite(out, BYTES[stored], (size_t)count, to) != (size_t)count || fclose(to) != 0) return 2;
        free(out);
    }
    return 0;
}
