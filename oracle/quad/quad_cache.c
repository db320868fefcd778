/* Numbers that a writer of caches norms and rotates, then as bytes. */
#include <stdio.h>

#include "oracle/quad/quad_blocks.h"
#include "oracle/quad/tape.h"

/* The first tensor of the streams in rows of its heads, the second beside it where they are latents. */
typedef struct quad_written {
    quad_node numbers[2];
} quad_written;

static quad_node given_numbers(quad_tape *t, const char *name, int64_t rows, int64_t columns)
{
    char path[ASSAY_PATH_SIZE];
    if (name == NULL) return 0;
    snprintf(path, sizeof path, "inputs/%s", name);
    return quad_view(t, quad_input(t, path, rows, columns), columns);
}

/* Of latents with their rope the norm is over both, or over the first alone. */
static quad_written normed(quad_tape *t, const assay_cache_numbers_config *m, quad_written x)
{
    const int64_t width = m->columns + (m->norm == ASSAY_CACHE_NORM_ROW ? m->second : 0);
    const quad_node scale = quad_input(t, m->second > 0 ? "weights/kv_norm/scale" : "weights/key_norm/scale", 1, width);
    const bool both = width > m->columns;
    quad_node rows = both ? quad_beside(t, x.numbers[0], x.numbers[1]) : quad_view(t, x.numbers[0], m->columns);
    rows = quad_normalise(t, rows, scale, m->epsilon);
    x.numbers[0] = both ? quad_columns_of(t, rows, 0, m->columns) : rows;
    if (both) x.numbers[1] = quad_columns_of(t, rows, m->columns, m->second);
    return x;
}

static quad_written turned(quad_tape *t, const assay_cache_numbers_config *m, quad_written x)
{
    const int64_t dim = m->rope.dim, rest = m->columns - dim;
    const quad *turns = quad_turns(t, &m->rope, m->tokens, quad_input_indices(t, "inputs/positions", m->tokens));
    if (m->second > 0) {
        x.numbers[1] = quad_rotate(t, x.numbers[1], &m->rope, turns);
        return x;
    }
    const quad_node heads = quad_view(t, x.numbers[0], m->heads * m->columns);
    if (rest == 0) {
        x.numbers[0] = quad_rotate(t, heads, &m->rope, turns);
        return x;
    }
    const quad_node first = quad_rotate(t, quad_of_heads(t, heads, m->heads, 0, dim), &m->rope, turns);
    x.numbers[0] = quad_heads_beside(t, first, quad_of_heads(t, heads, m->heads, dim, rest), m->heads);
    return x;
}

void quad_cache_append(quad_tape *t, const void *config)
{
    const assay_cache_append_config *c = config;
    const assay_cache_numbers_config *m = &c->numbers;
    const assay_cache_stream *s = c->streams;
    const bool keys = m->second == 0, two = c->stream_count == 2;
    const char *names[2] = {s->numbers, two ? s[1].numbers : s->second};
    const int64_t heads = m->heads, widths[2] = {heads * m->columns, keys ? heads * m->columns : m->second};
    const quad *written[2] = {NULL, NULL};
    quad_written x = {{0, 0}};
    for (int i = 0; i < 2; i++) x.numbers[i] = given_numbers(t, names[i], c->tokens, widths[i]);
    if (m->norm != ASSAY_CACHE_NORM_NONE) x = normed(t, m, x);
    if (m->rotates) x = turned(t, m, x);
    for (int i = 0; i < 2 && t->status == ASSAY_OK; i++) {
        char path[ASSAY_PATH_SIZE];
        if (x.numbers[i] == 0) continue;
        snprintf(path, sizeof path, "checkpoints/%s", names[i]);
        const assay_shape shape =
            keys ? assay_shape_of(3, c->tokens, heads, m->columns) : assay_shape_of(2, c->tokens, widths[i]);
        if (m->norm != ASSAY_CACHE_NORM_NONE || m->rotates) quad_put(t, path, shape, x.numbers[i]);
        written[i] = quad_values(t, x.numbers[i]);
    }
    for (int i = 0; i < c->stream_count; i++)
        quad_append_stream(t, &s[i], c->tokens, written[i], s[i].second != NULL ? written[1] : NULL);
}
