#include "oracle/layer/batch_split_made.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

/* Those of routed rows have an axis of microbatches. */
static int64_t rows_of(const bs_parts *p, const char *path)
{
    static const char *const routed[] = {"intermediate_layer", "layer_w0_gradient", "layer_w1_gradient"};
    bool parted = false;
    for (size_t i = 0; i < sizeof routed / sizeof *routed; i++)
        parted |= strcmp(strrchr(path, '/') + 1, routed[i]) == 0;
    return parted ? 1 : p->rows;
}

/* Where row i of a part begins in the tensor. */
static int64_t place(const bs_parts *p, int64_t part, int64_t rows, int64_t i, int64_t width)
{
    return ((part % p->shards * rows + i) * p->factor + part / p->shards) * width;
}

static bool part_has(void *self, const char *path)
{
    const bs_parts *p = self;
    return p->in->has(p->in->self, path);
}

static assay_status part_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                              double *out)
{
    const bs_parts *p = self;
    const int64_t rows = rows_of(p, path), width = count / rows;
    for (int64_t i = 0; i < rows; i++)
        MUST(p->in->read(ctx, p->in->self, path, place(p, first / count, rows, i, width), width, out + i * width));
    return ASSAY_OK;
}

static bool part_wanted(void *self, const char *path)
{
    const bs_parts *p = self;
    return assay_wants(p->out, path);
}

static bs_parted *find(bs_parts *p, const char *path)
{
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->tensors[i].path, path) == 0) return &p->tensors[i];
    assert(p->count < BS_MOST_PARTED);
    snprintf(p->tensors[p->count].path, ASSAY_PATH_SIZE, "%s", path);
    return &p->tensors[p->count++];
}

static assay_status part_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    bs_parts *p = self;
    bs_parted *t = find(p, path);
    const int64_t rows = rows_of(p, path), width = count / rows, parts = p->shards * p->factor;
    if (t->values == NULL) MUST(assay_alloc_f64(ctx, path, parts * count, &t->values));
    for (int64_t i = 0; i < rows; i++)
        memcpy(t->values + place(p, t->parts, rows, i, width), values + i * width, (size_t)width * sizeof *values);
    if (++t->parts < parts) return ASSAY_OK;
    MUST(p->out->write(ctx, p->out->self, path, parts * count, t->values));
    free(t->values);
    t->values = NULL;
    return ASSAY_OK;
}

void bs_parts_open(bs_parts *p, const assay_source *in, const assay_sink *out, int64_t shards, int64_t factor,
                   int64_t rows)
{
    *p = (bs_parts){.in = in,
                    .out = out,
                    .shards = shards,
                    .factor = factor,
                    .rows = rows,
                    .source = {.self = p, .has = part_has, .read = part_read},
                    .sink = {.self = p, .wants = part_wanted, .write = part_write}};
}

void bs_parts_close(bs_parts *p)
{
    for (int i = 0; i < p->count; i++) free(p->tensors[i].values);
    p->count = 0;
}
