/* Makes inputs from their seeds on a device, as a kernel's own tests may, instead of uploading them:
 *
 *     random_inputs < TENSORS
 *
 * Each line names a tensor and the file that is to hold its elements: PATH SEED TYPE COUNT ROW DISTRIBUTION START STEP LOW
 * HIGH FILE, with TYPE and DISTRIBUTION by name, ROW the length of the last axis, START and STEP the
 * fill's mean and scale. docs/random-inputs.md has the recipe. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <assay/random.h>

#include "device.h"

/* In the order of the header's enums. */
static const char *const DISTRIBUTIONS[] = {"normal",       "uniform",    "integers", "constant", "near_ties",
                                            "block_powers", "row_powers", "cancel",   "bell"};
static const struct {
    const char *name;
    int bytes;
} TYPES[] = {{"float64", 8}, {"float32", 4},       {"tfloat32", 4},    {"bfloat16", 2},
             {"float16", 2}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"float4_e2m1fn", 1}};

static void make(device *d, char *line)
{
    char path[256], type[32], distribution[32], file[512];
    uint64_t seed, count, row;
    double start, step, low, high;
    int kind = -1, stored = -1;
    if (sscanf(line, "%255s %" SCNu64 " %31s %" SCNu64 " %" SCNu64 " %31s %lf %lf %lf %lf %511s", path, &seed, type,
               &count, &row, distribution, &start, &step, &low, &high, file) != 11)
        leave(d, 2, "expected 11 words, found: %.200s", line);
    const uint64_t key = assay_draw_key(seed, path);
    for (int i = 0; i < (int)(sizeof TYPES / sizeof *TYPES); i++)
        if (strcmp(type, TYPES[i].name) == 0) stored = i;
    for (int i = 0; i < (int)(sizeof DISTRIBUTIONS / sizeof *DISTRIBUTIONS); i++)
        if (strcmp(distribution, DISTRIBUTIONS[i]) == 0) kind = i;
    if (kind < 0 || stored < 0 || count == 0 || count > INT64_MAX / 8 || row == 0)
        leave(d, 2, "%s: no kernel for %s of %s", path, distribution, type);
    const int64_t size = (int64_t)count * TYPES[stored].bytes;
    cl_mem buffer = room(d, size);
    LAUNCH(d, RANDOM, "random_fill", LINE, (int64_t)(count + 1) / 2, 1, 1, mem(buffer), bytes(&count, 8),
           bytes(&key, 8), num(kind), num(stored), bytes(&start, 8), bytes(&step, 8), bytes(&low, 8), bytes(&high, 8),
           bytes(&row, 8));
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
