/* Makes inputs from their seeds on a device, as a kernel's own tests may, instead of uploading them:
 *
 *     random_inputs < TENSORS
 *
 * Each line names a tensor and the file that is to hold its elements: PATH SEED TYPE COUNT ROW DISTRIBUTION START STEP LOW
 * HIGH FILE, with TYPE and DISTRIBUTION as in kernels/random.cl's enums, ROW the length of the last axis, START and STEP the
 * fill's mean and scale. docs/random-inputs.md has the recipe. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

enum { POWER_BLOCK = 128 };

static const char *const DISTRIBUTIONS[] = {"normal", "uniform", "integers", "constant", "block_powers", "cancel"};
static const struct {
    const char *name;
    int bytes;
} TYPES[] = {{"float64", 8}, {"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1}};

/* FNV-1a-64 of the path xor the first output of splitmix64 at the seed */
static uint64_t key_of(uint64_t seed, const char *path)
{
    uint64_t hash = 0xcbf29ce484222325, x = seed + 0x9e3779b97f4a7c15;
    for (; *path != '\0'; path++) hash = (hash ^ (unsigned char)*path) * 0x100000001b3;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return hash ^ x ^ x >> 31;
}

static void make(device *d, char *line)
{
    char path[256], type[32], distribution[32], file[512];
    uint64_t seed, count, row;
    double start, step, low, high;
    int kind = -1, stored = -1;
    if (sscanf(line, "%255s %" SCNu64 " %31s %" SCNu64 " %" SCNu64 " %31s %lf %lf %lf %lf %511s", path, &seed, type,
               &count, &row, distribution, &start, &step, &low, &high, file) != 11)
        leave(d, 2, "expected 11 words, found: %.200s", line);
    const bool row_powers = strcmp(distribution, "row_powers") == 0;
    const uint64_t block = row_powers ? row : POWER_BLOCK, key = key_of(seed, path);
    const cl_uint2 words = {{(cl_uint)key, (cl_uint)(key >> 32)}};
    for (int i = 0; i < (int)(sizeof TYPES / sizeof *TYPES); i++)
        if (strcmp(type, TYPES[i].name) == 0) stored = i;
    for (int i = 0; i < (int)(sizeof DISTRIBUTIONS / sizeof *DISTRIBUTIONS); i++)
        if (strcmp(row_powers ? "block_powers" : distribution, DISTRIBUTIONS[i]) == 0) kind = i;
    if (kind < 0 || stored < 0 || count == 0 || count > INT64_MAX / 8 || row == 0)
        leave(d, 2, "%s: no kernel for %s of %s", path, distribution, type);
    const int64_t size = (int64_t)count * TYPES[stored].bytes;
    cl_mem buffer = room(d, size);
    LAUNCH(d, RANDOM, "random_fill", LINE, (int64_t)(count + 1) / 2, 1, 1, mem(buffer), bytes(&count, 8),
           bytes(&words, 8), num(kind), num(stored), bytes(&start, 8), bytes(&step, 8), bytes(&low, 8), bytes(&high, 8),
           bytes(&row, 8), bytes(&block, 8));
    void *made = malloc((size_t)size);
    if (made == NULL) leave(d, 2, "%s: no memory for %" PRId64 " bytes", path, size);
    read_back(d, made, buffer, size);
    FILE *out = fopen(file, "wb");
    const bool written = out != NULL && fwrite(made, 1, (size_t)size, out) == (size_t)size;
    const bool closed = out != NULL && fclose(out) == 0;
    free(made);
    clReleaseMemObject(d->buffers[--d->count]);
    if (!written || !closed) leave(d, 2, "%s: cannot be written", file);
}

int main(void)
{
    static char line[2048], message[512];
    static device d = {.message = message, .message_size = sizeof message};
    if (setjmp(d.failed) == 0) {
        device_open(&d);
        while (fgets(line, sizeof line, stdin) != NULL) make(&d, line);
    } else {
        fprintf(stderr, "random_inputs: %s\n", message);
    }
    device_close(&d);
    return d.code;
}
