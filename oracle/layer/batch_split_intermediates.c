/* What a layer computes and then quantises, in parts. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_internal.h"

/* Those of routed rows have an axis of microbatches. */
static int64_t rows_of(const bs_shown *p, const char *path)
{
    static const char *const routed[] = {"intermediate_layer", "layer_w0_gradient", "layer_w1_gradient"};
    bool parted = false;
    for (size_t i = 0; i < sizeof routed / sizeof *routed; i++)
        parted |= strcmp(strrchr(path, '/') + 1, routed[i]) == 0;
    return parted ? 1 : p->run->sizes.rows;
}

/* Where row i of a part begins in the tensor. */
static int64_t place(const bs_shown *p, int64_t part, int64_t rows, int64_t i, int64_t width)
{
    return ((part % p->run->sizes.shards * rows + i) * p->run->factor + part / p->run->sizes.shards) * width;
}

static assay_status part_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                              double *out)
{
    const bs_shown *p = self;
    const assay_source *in = p->wrapped.in;
    const int64_t rows = rows_of(p, path), width = count / rows;
    for (int64_t i = 0; i < rows; i++)
        MUST(in->read(ctx, in->self, path, place(p, first / count, rows, i, width), width, out + i * width));
    return ASSAY_OK;
}

static bs_gathered *find(bs_shown *p, const char *path)
{
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->tensors[i].path, path) == 0) return &p->tensors[i];
    assert(p->count < BS_MOST_GATHERED);
    snprintf(p->tensors[p->count].path, ASSAY_PATH_SIZE, "%s", path);
    return &p->tensors[p->count++];
}

static assay_status part_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    bs_shown *p = self;
    bs_gathered *t = find(p, path);
    const int64_t rows = rows_of(p, path), width = count / rows, parts = p->run->sizes.shards * p->run->factor;
    if (t->values == NULL) MUST(assay_alloc_f64(ctx, path, parts * count, &t->values));
    for (int64_t i = 0; i < rows; i++)
        memcpy(t->values + place(p, t->parts, rows, i, width), values + i * width, (size_t)width * sizeof *values);
    if (++t->parts < parts) return ASSAY_OK;
    MUST(p->wrapped.out->write(ctx, p->wrapped.out->self, path, parts * count, t->values));
    free(t->values);
    t->values = NULL;
    return ASSAY_OK;
}

const bs_intermediates *bs_shown_open(bs_shown *s, const bs_run *run, int64_t layer, bool backward)
{
    *s = (bs_shown){.wrapped = {run->stack->in, run->stack->out},
                    .run = run,
                    .source = {.self = s, .has = assay_wrapped_has, .read = part_read},
                    .sink = {.self = s, .wants = assay_wrapped_wants, .write = part_write}};
    if (bs_recipe_of(run)->recipe == NULL) return NULL;
    assay_layer_prefix(run->stack->config, layer, s->prefix);
    s->made = (bs_intermediates){.in = &s->source, .out = &s->sink, .prefix = s->prefix, .after_forward = backward};
    return &s->made;
}

void bs_shown_close(bs_shown *s)
{
    for (int i = 0; i < s->count; i++) free(s->tensors[i].values);
    s->count = 0;
}
