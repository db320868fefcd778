/* Attention by a mask, as steps of a graph: keys have an axis of their own. */
#include <math.h>
#include <string.h>

#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"
#include "oracle/program/program_internal.h"

typedef struct expansion {
    graph *g;
    const assay_program *p;
    const assay_program_node *node;
    bool fused;
    char B, N, S, T; /* axes: series, heads, queries, keys */
} expansion;

static int64_t size_of(const expansion *e, char axis)
{
    return e->p->sizes[(unsigned char)axis];
}

static const char *axes_of(const expansion *e, int tensor)
{
    return e->g->tensors[tensor].row.axes;
}

/* A step; what reads whole numbers alone is exact. Sums and softmaxes go along keys. */
static int put(const expansion *e, const graph_kind *kind, int function, const char *axes, int x, int y, int z)
{
    const int in[] = {x, y, z};
    const graph_general with = {
        .function = function, .over = {e->T}, .kink = kind == &graph_kind_reduce ? -1 : 0.5, .passed_over = NAN};
    const int made = graph_step_of(e->g, kind, axes, in, 3, &with);
    bool exact = true;
    for (int i = 0; i < 3; i++) {
        const graph_tensor *t = &e->g->tensors[in[i]];
        exact &= in[i] == 0 || t->constant || t->role == GRAPH_NUMBER || t->role == GRAPH_INDICES;
    }
    e->g->tensors[made].constant = exact;
    e->g->tensors[made].kept = exact ? GRAPH_LEFT : e->fused ? GRAPH_REGISTERS : GRAPH_STORED;
    return made;
}

/* With the axes of both, in the order of scores. */
static int rule(const expansion *e, int function, int x, int y)
{
    char axes[5] = "";
    for (int i = 0; i < 4; i++) {
        const char axis = (char[]){e->B, e->N, e->S, e->T}[i];
        if (strchr(axes_of(e, x), axis) != NULL || strchr(axes_of(e, y), axis) != NULL) axes[strlen(axes)] = axis;
    }
    return put(e, &graph_kind_binary, function, axes, x, y, 0);
}

/* 0: all is seen. */
static int both(const expansion *e, int seen, int other)
{
    return seen == 0 || other == 0 ? seen + other : rule(e, GRAPH_BINARY_mul, seen, other);
}

static int floats(const expansion *e, int indices)
{
    return put(e, &graph_kind_float, 0, axes_of(e, indices), indices, 0, 0);
}

static int places(const expansion *e, char axis)
{
    return floats(e, graph_integers(e->g, &graph_kind_float, (char[]){axis, '\0'}, 0));
}

/* By the places i of queries and j of keys. */
static int seen_by_rule(const expansion *e)
{
    const double window = assay_program_number(e->node, "window"), chunk = assay_program_number(e->node, "chunk"),
                 prefix = assay_program_number(e->node, "prefix");
    const char *mask = assay_program_axes(e->node, "mask");
    const bool full = strcmp(mask, "full") == 0;
    const int64_t before = size_of(e, e->T) - size_of(e, e->S); /* keys, where the last ones stand together */
    if (full && window + chunk == 0) return 0;
    int seen = 0, i = places(e, e->S);
    const int j = places(e, e->T), width = graph_number(e->g, "window", window),
              size = graph_number(e->g, "chunk", chunk);
    if (before != 0 && strcmp(mask, "causal_first") != 0)
        i = rule(e, GRAPH_BINARY_add, i, graph_number(e->g, "keys before", (double)before));
    if (!full) seen = rule(e, GRAPH_BINARY_less, j, rule(e, GRAPH_BINARY_add, i, graph_number(e->g, "one", 1)));
    if (window > 0) seen = both(e, seen, rule(e, GRAPH_BINARY_less, rule(e, GRAPH_BINARY_sub, i, width), j));
    if (window > 0 && full) seen = both(e, seen, rule(e, GRAPH_BINARY_less, j, rule(e, GRAPH_BINARY_add, i, width)));
    if (chunk > 0) {
        const int own = rule(e, GRAPH_BINARY_floor_div, i, size), other = rule(e, GRAPH_BINARY_floor_div, j, size);
        seen = both(e, seen, rule(e, GRAPH_BINARY_equal, own, other));
    }
    if (prefix == 0) return seen;
    return rule(e, GRAPH_BINARY_maximum, seen, rule(e, GRAPH_BINARY_less, j, graph_number(e->g, "prefix", prefix)));
}

/* 0 is padding, which nothing sees. */
static int same_segment(const expansion *e, int of_queries, int of_keys)
{
    const int own = floats(e, of_keys), used = rule(e, GRAPH_BINARY_less, graph_number(e->g, "zero", 0), own);
    return both(e, used, rule(e, GRAPH_BINARY_equal, floats(e, of_queries), own));
}

/* For each head of queries that of keys; 0: they have the same. */
static int shared_heads(const expansion *e, char K)
{
    if (K == e->N) return 0;
    const int shared = graph_number(e->g, "heads of a key", (double)(size_of(e, e->N) / size_of(e, K)));
    const int head = rule(e, GRAPH_BINARY_floor_div, places(e, e->N), shared);
    return graph_integers(e->g, &graph_kind_float, axes_of(e, head), head);
}

/* Keys or values [B,T,K,..] of the head of each query: [N,B,T,..]. */
static int of_heads(const expansion *e, int x, int heads)
{
    const char *own = axes_of(e, x), front[] = {own[2], e->B, e->T, own[3], '\0'},
               made[] = {e->N, e->B, e->T, own[3], '\0'};
    if (heads == 0) return x;
    return put(e, &graph_kind_gather, 0, made, put(e, &graph_kind_order, 0, front, x, 0, 0), heads, 0);
}

static int scores_of(const expansion *e, const char *axes, int query, int keys, int bias)
{
    const double scale = assay_program_number(e->node, "scale"), cap = assay_program_number(e->node, "soft_cap");
    int s = put(e, &graph_kind_product, 0, axes, query, keys, 0);
    s = graph_scale(e->g, s, scale != 0 ? scale : 1 / sqrt((double)graph_last_axis(e->g, query)));
    if (e->fused) graph_fused(e->g, s);
    if (cap != 0) {
        const int number = graph_number(e->g, "soft cap", cap);
        s = put(e, &graph_kind_binary, GRAPH_BINARY_div, axes, s, number, 0);
        s = put(e, &graph_kind_map, GRAPH_MAP_tanh, axes, s, 0, 0);
        s = put(e, &graph_kind_binary, GRAPH_BINARY_mul, axes, s, number, 0);
    }
    return bias != 0 ? put(e, &graph_kind_binary, GRAPH_BINARY_add, axes, s, bias, 0) : s;
}

/* Whether each query sees a key. */
static int any_of(const expansion *e, int seen)
{
    char rows[5] = "";
    for (const char *axis = axes_of(e, seen); *axis != '\0'; axis++)
        if (*axis != e->T) rows[strlen(rows)] = *axis;
    if (strlen(rows) == strlen(axes_of(e, seen))) return seen;
    return put(e, &graph_kind_reduce, GRAPH_REDUCTION_max, rows, seen, 0, 0);
}

/* A query that sees nothing gives 0, whatever the values are, and the logarithm of 0. */
int assay_program_put_masked(graph *g, const assay_program_node *node, const int *in, bool lse)
{
    const char *query = g->tensors[in[0]].row.axes, *key = g->tensors[in[1]].row.axes;
    const assay_program *p = g->config;
    const expansion e = {g, p, node, p->lines[node->line].fused, query[0], query[2], query[1], key[1]};
    const char scores[] = {e.B, e.N, e.S, e.T, '\0'}, rows[] = {e.B, e.N, e.S, '\0'},
               out[] = {e.B, e.S, e.N, axes_of(&e, in[2])[3], '\0'};
    int beside[ASSAY_BESIDE_BIAS + 1];
    for (int i = 0; i <= ASSAY_BESIDE_BIAS; i++) {
        const int place = assay_program_find_beside(p, node, (assay_program_beside)i);
        beside[i] = place > 0 ? in[place] : 0;
    }
    const int segments = beside[ASSAY_BESIDE_SEGMENTS], mask = beside[ASSAY_BESIDE_MASK],
              sinks = lse ? 0 : beside[ASSAY_BESIDE_SINKS], heads = shared_heads(&e, key[2]);
    const bool may_be_blind = segments + mask != 0 || size_of(&e, e.S) > size_of(&e, e.T);
    int seen = seen_by_rule(&e), far = graph_number(g, "far", -1e30);
    if (segments != 0) seen = both(&e, seen, same_segment(&e, segments, beside[ASSAY_BESIDE_KEY_SEGMENTS]));
    seen = both(&e, seen, mask);
    const int any = seen != 0 && may_be_blind ? any_of(&e, seen) : 0;
    if (any != 0) far = put(&e, &graph_kind_where, 0, axes_of(&e, any), any, far, graph_number(g, "zero", 0));
    int s = scores_of(&e, scores, in[0], of_heads(&e, in[1], heads), beside[ASSAY_BESIDE_BIAS]);
    if (seen != 0) s = put(&e, &graph_kind_where, 0, scores, seen, s, far);
    const int sum = lse || sinks != 0 ? put(&e, &graph_kind_logsumexp, 0, rows, s, 0, 0) : 0;
    int y = lse ? sum : put(&e, &graph_kind_softmax, 0, scores, s, 0, 0);
    if (!lse) y = put(&e, &graph_kind_product, 0, out, y, of_heads(&e, in[2], heads), 0);
    if (sinks != 0) {
        const int more = put(&e, &graph_kind_binary, GRAPH_BINARY_sub, rows, sum, sinks, 0),
                  gate = put(&e, &graph_kind_map, GRAPH_MAP_sigmoid, rows, more, 0, 0);
        y = put(&e, &graph_kind_binary, GRAPH_BINARY_mul, out, y, gate, 0);
    }
    const int nothing = graph_number(g, "nothing", lse ? -INFINITY : 0);
    if (any != 0) y = put(&e, &graph_kind_where, 0, lse ? rows : out, any, y, nothing);
    g->tensors[y].kept = GRAPH_STORED;
    return y;
}
