/* y = x w + bias, by a recipe if there is one: x [..., k], w [k..., n...]; or two such layers of one x, each with a y of its
 * own; in the parts that graph_partition tells of, and with weights of rows on x. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/vector_sums.h"

enum { X, W = GRAPH_W, BIAS, SECOND_BIAS, SECOND_W = GRAPH_SECOND_W, ROW_WEIGHTS = GRAPH_ROW_WEIGHTS, GROUP_SIZES };

static const int w_places[GRAPH_OUT] = {W, SECOND_W};

static bool is_two(const graph_step *step)
{
    return step->in[SECOND_W] != 0;
}

static int64_t at_least_one(int64_t parts)
{
    return parts == 0 ? 1 : parts;
}

static graph_linear_size size_of(const graph *g, const graph_step *step)
{
    const graph_partition *partition = &step->with.product.partition;
    const int64_t groups = step->in[GROUP_SIZES] == 0 ? partition->groups : graph_in_size(g, step, GROUP_SIZES);
    const assay_tensor_row *w = &g->tensors[step->in[W]].row;
    graph_linear_size size = {.k = 1,
                              .branches = step->with.product.branches,
                              .computed = g->tensors[step->in[W]].step >= 0,
                              .partition = {.groups = groups,
                                            .slices = at_least_one(partition->slices),
                                            .chunks = at_least_one(partition->chunks),
                                            .shards = at_least_one(partition->shards)}};
    for (int i = w->below; i < w->below + w->inputs; i++) size.k *= w->shape.dims[i];
    if (step->in[GROUP_SIZES] != 0) size.k = graph_in_size(g, step, X) / g->tensors[step->in[X]].row.shape.dims[0];
    size.m = graph_in_size(g, step, X) / size.k;
    size.n = graph_in_size(g, step, W) / size.k / at_least_one(groups);
    const assay_quant_recipe *recipe = step->with.product.recipe.recipe;
    size.partition.apart = partition->apart && recipe != NULL && !recipe->joins_slices &&
                           size.partition.slices * size.partition.chunks * size.partition.shards > 1;
    return size;
}

static graph_linear_size size_of_call(const graph_call *c)
{
    graph_linear_size size = size_of(c->graph, c->step);
    size.group_sizes = c->step->in[GROUP_SIZES] == 0 ? c->run->group_sizes : c->indices[GROUP_SIZES];
    return size;
}

/* --- groups of rows --- */

static int64_t groups_of(const graph_linear_size *size)
{
    return at_least_one(size->partition.groups);
}

static int64_t rows_of(const graph_linear_size *size, int64_t group)
{
    return size->partition.groups == 0 ? size->m : size->group_sizes[group];
}

/* What the step is given; a run's own are right. */
static assay_status check_groups(assay_context *ctx, const graph_call *c, const graph_linear_size *size)
{
    const int32_t *rows = size->group_sizes;
    const char *name = c->graph->tensors[c->step->in[GROUP_SIZES]].row.name;
    int64_t sum = 0;
    if (c->step->in[GROUP_SIZES] == 0) return ASSAY_OK;
    for (int64_t i = 0; i < size->partition.groups; i++) {
        sum += rows[i];
        if (rows[i] < 0) return assay_refuse(ctx, "%s[%" PRId64 "] is %d, expected 0 or more", name, i, rows[i]);
    }
    if (sum <= size->m) return ASSAY_OK;
    return assay_refuse(ctx, "%s has %" PRId64 " rows in all, expected at most %" PRId64, name, sum, size->m);
}

/* Rows of a times the b of their group; those beyond are 0. */
static assay_status product_of_rows(assay_context *ctx, assay_matmul_args args, const graph_linear_size *size)
{
    int64_t beyond = size->m;
    args.kind = size->computed ? ASSAY_PRODUCT_OTHER : ASSAY_PRODUCT_LINEAR;
    for (int64_t group = 0; group < groups_of(size); group++) {
        args.m = rows_of(size, group);
        MUST(assay_matmul(ctx, &args));
        args.a += args.m * args.lda;
        args.c += args.m * args.ldc;
        args.b += size->k * size->n;
        beyond -= args.m;
    }
    memset(args.c, 0, (size_t)(beyond * args.ldc) * sizeof *args.c);
    return ASSAY_OK;
}

/* dw = x^T dy of each group; of one group the sum of its owners'. */
static assay_status weight_gradient(assay_context *ctx, const graph *g, double *dw,
                                    const assay_quant_recipe_operands *o, const graph_linear_size *size)
{
    const int64_t owners = graph_owners(g), count = size->k * size->n;
    assay_matmul_args args = assay_product_atb(dw, o->dw_x, o->dw_dy, size->k, size->n, 0);
    OWNED double *term = NULL;
    args.kind = size->computed ? ASSAY_PRODUCT_OTHER : ASSAY_PRODUCT_LINEAR_GRADIENT;
    if (dw != NULL && owners > 1) MUST(assay_alloc_f64(ctx, "weight gradient of an owner", count, &term));
    for (int64_t i = 0; dw != NULL && i < groups_of(size) * owners; i++) {
        double *sum = dw + i / owners * count;
        args.k = rows_of(size, i / owners) / owners;
        args.c = i % owners > 0 ? term : sum;
        MUST(assay_matmul(ctx, &args));
        if (i % owners > 0) graph_join(ctx, count, sum, term);
        args.a += args.k * size->k;
        args.b += args.k * size->n;
    }
    return ASSAY_OK;
}

/* Of one branch, whose columns of dy are the next `width`. */
static assay_status bias_gradient(assay_context *ctx, const graph *g, double *d_bias, const double *dy, int64_t width,
                                  const graph_linear_size *size)
{
    const int64_t owners = graph_owners(g);
    double *term = NULL;
    if (d_bias != NULL && owners > 1) MUST(assay_alloc_f64(ctx, "gradient of a bias of an owner", width, &term));
    for (int64_t i = 0; d_bias != NULL && i < groups_of(size) * owners; i++) {
        const int64_t rows = rows_of(size, i / owners) / owners;
        double *sum = d_bias + i / owners * width;
        assay_column_sums(ctx, i % owners > 0 ? term : sum, rows, width, size->n, dy);
        if (i % owners > 0) graph_join(ctx, width, sum, term);
        dy += rows * size->n;
    }
    free(term);
    return ASSAY_OK;
}

/* --- forward --- */

static assay_status operands_of(assay_context *ctx, assay_quant_recipe_operands *o, const graph_call *c,
                                const double *x, int number, const double *dy, const graph_linear_size *size)
{
    const assay_gmm_dims dims = {.m = size->m, .k = size->k, .n = size->n, .groups = groups_of(size)};
    const int32_t all = (int32_t)size->m;
    const assay_quant_recipe_inputs in = {.x = x,
                                          .w = c->x[w_places[number]],
                                          .dy = dy,
                                          .x_deviation = c->deviation,
                                          .dy_deviation = c->gradient_deviation[number],
                                          .group_sizes = size->partition.groups == 0 ? &all : size->group_sizes};
    return assay_quant_recipe_quantise(ctx, o, &in, &dims, &c->step->with.product.recipe);
}

assay_status graph_linear_operands(assay_context *ctx, assay_quant_recipe_operands *o, const graph_call *c,
                                   const double *dy, const graph_linear_size *size)
{
    return operands_of(ctx, o, c, c->x[X], 0, dy, size);
}

/* *weighed: values [m,width] times the weights of rows, allocated; NULL: there are none. */
static assay_status weigh(assay_context *ctx, const graph_call *c, const double *values, int64_t width,
                          const graph_linear_size *size, double **weighed)
{
    if (c->x[ROW_WEIGHTS] == NULL) return ASSAY_OK;
    const assay_status status = assay_alloc_f64(ctx, "weighed rows", size->m * width, weighed);
    if (status == ASSAY_OK) assay_weigh_rows(ctx, *weighed, c->x[ROW_WEIGHTS], values, size->m, width);
    return status;
}

/* Slices are sums of their own, which chunks continue. */
static assay_status product(assay_context *ctx, double *y, const assay_quant_recipe_operands *o,
                            const graph_linear_size *size)
{
    const int64_t chunks = size->partition.chunks, slices = size->partition.slices, count = size->m * size->n;
    const int64_t width = size->k / slices / chunks;
    OWNED double *part = NULL;
    if (slices > 1) MUST(assay_alloc_f64(ctx, "product of a slice", count, &part));
    for (int64_t i = 0; i < slices * chunks; i++) {
        const bool first = i % chunks == 0, last = i % chunks == chunks - 1;
        assay_matmul_args args = assay_product_ab(i < chunks ? y : part, o->x + i * width, o->w + i * width * size->n,
                                                  size->m, size->n, width);
        args.lda = size->k;
        args.accumulate = !first;
        if (!first) assay_round(ctx, ASSAY_ROUND_STORAGE, count, args.c);
        MUST(product_of_rows(ctx, args, size));
        if (last && i >= chunks) graph_join(ctx, count, y, part);
    }
    return ASSAY_OK;
}

/* A product may be stored before its bias comes; y is what is weighed where there are weights of rows. */
static void add_bias(const assay_context *ctx, const graph_call *c, double *y, const double *bias, int64_t width,
                     const graph_linear_size *size)
{
    const double *weights = c->x[ROW_WEIGHTS];
    for (int64_t group = 0, first = 0; bias != NULL && group < groups_of(size); group++) {
        const int64_t end = first + rows_of(size, group);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = first; row < end; row++) {
            double *sum = y + row * size->n;
            if (weights == NULL) assay_round(ctx, ASSAY_ROUND_STORAGE, width, sum);
            assay_add_scaled(ctx, width, weights == NULL ? 1 : weights[row], bias, sum);
        }
        first = end;
        bias += width;
    }
}

/* One of the layers, without its bias. */
static assay_status multiply(assay_context *ctx, const graph_call *c, double *y, const double *x, int number,
                             const graph_linear_size *size)
{
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o = {0};
    MUST(operands_of(ctx, &o, c, x, number, NULL, size));
    return product(ctx, y, &o, size);
}

/* --- parts with scales of their own --- */

/* A slice or chunk of x's columns with a shard of w's, as a layer. */
typedef struct linear_slice {
    graph_call c;
    graph_linear_size size;
    int64_t column, shard; /* which of each */
    double *x, *w, *x_deviation, *y, *dy, *dy_deviation, *dx, *dw, *sum;
} linear_slice;

/* The columns that one of `parts` has of each branch of a matrix [rows,columns], beside each other. */
static void copy_columns(double *own, double *whole, int64_t rows, int64_t columns, int branches, int64_t parts,
                         int64_t number, bool back)
{
    const int64_t width = columns / branches / parts;
    for (int64_t i = 0; i < rows * branches; i++) {
        double *at = whole + i * parts * width + number * width;
        memcpy(back ? at : own + i * width, back ? own + i * width : at, (size_t)width * sizeof *own);
    }
}

static void copy_weights(const linear_slice *p, const graph_linear_size *size, double *own, double *whole, bool back)
{
    for (int64_t group = 0; group < groups_of(size); group++)
        copy_columns(own + group * p->size.k * p->size.n, whole + (group * size->k + p->column * p->size.k) * size->n,
                     p->size.k, size->n, size->branches, size->partition.shards, p->shard, back);
}

static int64_t parts_of_sum(const graph_linear_size *size)
{
    return size->partition.slices * size->partition.chunks;
}

/* *own: the part's columns of a matrix, allocated; NULL: there is none. */
static assay_status slice_columns(assay_context *ctx, const double *whole, int64_t rows, int64_t columns, int branches,
                                  int64_t parts, int64_t number, double **own)
{
    if (whole == NULL) return ASSAY_OK;
    if (*own == NULL) MUST(assay_alloc_f64(ctx, "columns of a part", rows * columns / parts, own));
    copy_columns(*own, (double *)whole, rows, columns, branches, parts, number, false);
    return ASSAY_OK;
}

static assay_status cut_slice(assay_context *ctx, linear_slice *p, const graph_call *c, const double *x,
                              const double *dy, const graph_linear_size *size, int64_t number)
{
    const int64_t sums = parts_of_sum(size), shards = size->partition.shards;
    p->column = number / shards;
    p->shard = number % shards;
    p->size = (graph_linear_size){.m = size->m,
                                  .n = size->n / shards,
                                  .k = size->k / sums,
                                  .branches = size->branches,
                                  .group_sizes = size->group_sizes,
                                  .partition = {size->partition.groups, .slices = 1, .chunks = 1, .shards = 1}};
    const int64_t weights = groups_of(size) * p->size.k * p->size.n;
    if (p->w == NULL) MUST(assay_alloc_f64(ctx, "weights of a part", weights, &p->w));
    copy_weights(p, size, p->w, (double *)c->x[W], false);
    MUST(slice_columns(ctx, x, size->m, size->k, 1, sums, p->column, &p->x));
    MUST(slice_columns(ctx, c->deviation, size->m, size->k, 1, sums, p->column, &p->x_deviation));
    MUST(slice_columns(ctx, dy, size->m, size->n, size->branches, shards, p->shard, &p->dy));
    MUST(slice_columns(ctx, c->gradient_deviation[0], size->m, size->n, size->branches, shards, p->shard,
                       &p->dy_deviation));
    p->c = *c;
    p->c.x[X] = p->x;
    p->c.x[W] = p->w;
    p->c.deviation = p->x_deviation;
    p->c.gradient_deviation[0] = p->dy_deviation;
    return ASSAY_OK;
}

static void free_slice(linear_slice *p)
{
    double *const all[] = {p->x, p->w, p->x_deviation, p->y, p->dy, p->dy_deviation, p->dx, p->dw, p->sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* The part's term of a matrix: its columns are that of the first part, and then a sum. */
static void join_columns(const assay_context *ctx, linear_slice *p, double *whole, double *term, int64_t columns,
                         int branches, int64_t parts, int64_t number, bool first)
{
    const int64_t rows = p->size.m;
    if (!first) {
        copy_columns(p->sum, whole, rows, columns, branches, parts, number, false);
        graph_join(ctx, rows * columns / parts, p->sum, term);
    }
    copy_columns(first ? term : p->sum, whole, rows, columns, branches, parts, number, true);
}

static assay_status multiply_apart(assay_context *ctx, const graph_call *c, double *y, const double *x,
                                   const graph_linear_size *size)
{
    const int64_t shards = size->partition.shards, own = size->m * size->n / shards;
    OWNED_BY(free_slice) linear_slice p = {0};
    MUST(assay_alloc_f64(ctx, "product of a part", own, &p.y));
    MUST(assay_alloc_f64(ctx, "sum of products", own, &p.sum));
    for (int64_t i = 0; i < parts_of_sum(size) * shards; i++) {
        MUST(cut_slice(ctx, &p, c, x, NULL, size, i));
        MUST(multiply(ctx, &p.c, p.y, p.x, 0, &p.size));
        join_columns(ctx, &p, y, p.y, size->n, size->branches, shards, p.shard, p.column == 0);
    }
    return ASSAY_OK;
}

static assay_status backward_apart(assay_context *ctx, const graph_call *c, const double *dy,
                                   const graph_linear_size *size)
{
    const int64_t sums = parts_of_sum(size), shards = size->partition.shards, own = size->m * size->k / sums;
    OWNED_BY(free_slice) linear_slice p = {0};
    if (c->dx[X] != NULL) MUST(assay_alloc_f64(ctx, "gradient of a part", own, &p.dx));
    if (c->dx[X] != NULL) MUST(assay_alloc_f64(ctx, "sum of gradients", own, &p.sum));
    if (c->dx[W] != NULL)
        MUST(assay_alloc_f64(ctx, "weight gradient of a part", groups_of(size) * size->k * size->n / sums / shards,
                             &p.dw));
    for (int64_t i = 0; i < sums * shards; i++) {
        MUST(cut_slice(ctx, &p, c, c->x[X], dy, size, i));
        p.c.dx[X] = p.dx;
        p.c.dx[W] = p.dw;
        MUST(graph_linear_backward(ctx, &p.c, p.dy, &p.size));
        if (p.dx != NULL) join_columns(ctx, &p, c->dx[X], p.dx, size->k, 1, sums, p.column, p.shard == 0);
        if (p.dw != NULL) copy_weights(&p, size, p.dw, c->dx[W], true);
    }
    if (p.dx != NULL && shards > 1) assay_round(ctx, ASSAY_ROUND_STORAGE, size->m * size->k, c->dx[X]);
    return ASSAY_OK;
}

/* --- groups whose weights are read when their turn comes --- */

static bool streams(const graph_call *c)
{
    return c->run->streams[c->step->in[W]];
}

/* Forward, or the gradient of x; of each group the gradient of its w, where that is wanted. */
static assay_status stream(assay_context *ctx, const graph_call *c, const graph_linear_size *size, bool back)
{
    const int w = c->step->in[W];
    const bool of_w = back && c->run->gradient_streams[w];
    const double *x = c->x[X], *dy = c->dy[0];
    double *to = back ? c->dx[X] : c->y[0];
    int64_t beyond = size->m;
    OWNED double *room = NULL, *gradient = NULL;
    MUST(assay_alloc_f64(ctx, "weights of a group", size->k * size->n, &room));
    if (of_w) MUST(assay_alloc_f64(ctx, "weight gradient of a group", size->k * size->n, &gradient));
    for (int64_t group = 0; group < groups_of(size); group++) {
        const int64_t rows = rows_of(size, group), width = back ? size->k : size->n;
        if (rows > 0 && to != NULL) {
            const double *values = NULL;
            MUST(graph_read_group(ctx, c->run, w, group, room, &values));
            assay_matmul_args args = back ? assay_product_abt(to, dy, values, rows, size->k, size->n)
                                          : assay_product_ab(to, x, values, rows, size->n, size->k);
            args.kind = ASSAY_PRODUCT_LINEAR;
            MUST(assay_matmul(ctx, &args));
            to += rows * width;
        }
        if (of_w) {
            assay_matmul_args args = assay_product_atb(gradient, x, dy, size->k, size->n, rows);
            args.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
            MUST(assay_matmul(ctx, &args));
            MUST(graph_write_group(ctx, c->run, w, gradient));
        }
        x += rows * size->k;
        if (back) dy += rows * size->n;
        beyond -= rows;
    }
    if (to != NULL) memset(to, 0, (size_t)(beyond * (back ? size->k : size->n)) * sizeof *to);
    if (back && c->dx[X] != NULL) graph_round_gradient(ctx, c, X);
    return ASSAY_OK;
}

static assay_status forward(assay_context *ctx, const graph_call *c)
{
    const graph_linear_size size = size_of_call(c);
    const int64_t width = size.n / size.branches;
    OWNED double *weighed = NULL;
    MUST(check_groups(ctx, c, &size));
    if (streams(c)) return stream(ctx, c, &size, false);
    MUST(weigh(ctx, c, c->x[X], size.k, &size, &weighed));
    const double *x = weighed != NULL ? weighed : c->x[X];
    for (int i = 0; i < (is_two(c->step) ? 2 : 1); i++) {
        if (c->made[i]) continue;
        if (size.partition.apart) MUST(multiply_apart(ctx, c, c->y[i], x, &size));
        if (!size.partition.apart) MUST(multiply(ctx, c, c->y[i], x, i, &size));
        for (int branch = 0; branch < size.branches; branch++)
            add_bias(ctx, c, c->y[i] + branch * width, c->x[BIAS + i + branch], width, &size);
    }
    return ASSAY_OK;
}

/* --- backward --- */

/* Columns of a gradient, and those of w that they were made with. */
typedef struct columns {
    const double *dy, *w;
} columns;

/* Those that are left stand first; returns how many. */
static int attached(columns *branches, int count, unsigned detached)
{
    int left = 0;
    for (int i = 0; i < count; i++)
        if (!(detached >> i & 1)) branches[left++] = branches[i];
    return left;
}

/* dx = dy w^T: of each branch of each shard a chain and then a sum, also where branches are one matrix, for the same bits as
 * apart. `rounds`: also what is one product. */
static assay_status input_gradient(assay_context *ctx, const graph *g, double *dx, const columns *branches, int count,
                                   int64_t width, bool rounds, const graph_linear_size *size)
{
    const int64_t shards = size->partition.shards, own = width / shards, numbers = size->m * size->k;
    OWNED double *shard_sum = NULL, *part = NULL;
    if (count == 0) memset(dx, 0, (size_t)numbers * sizeof *dx);
    if (shards > 1) MUST(assay_alloc_f64(ctx, "gradient of a shard", numbers, &shard_sum));
    if (count > 1) MUST(assay_alloc_f64(ctx, "gradient through a branch", numbers, &part));
    for (int64_t shard = 0; shard < shards; shard++) {
        double *sum = shard == 0 ? dx : shard_sum;
        for (int i = 0; i < count; i++) {
            assay_matmul_args args = assay_product_abt(i == 0 ? sum : part, branches[i].dy + shard * own,
                                                       branches[i].w + shard * own, size->m, size->k, own);
            args.lda = args.ldb = size->n;
            MUST(product_of_rows(ctx, args, size));
            if (rounds || count * shards > 1) assay_round(ctx, ASSAY_ROUND_STORAGE, numbers, args.c);
            if (i > 0) graph_add_term(ctx, g, numbers, part, sum);
        }
        if (shard > 0 && count > 0) graph_join(ctx, numbers, dx, sum);
    }
    if (count * shards > 1) assay_round(ctx, ASSAY_ROUND_STORAGE, numbers, dx);
    return ASSAY_OK;
}

/* Of one w. */
assay_status graph_linear_backward(assay_context *ctx, const graph_call *c, const double *dy,
                                   const graph_linear_size *size)
{
    const int64_t width = size->n / size->branches;
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o = {0};
    if (c->dx[X] == NULL && c->dx[W] == NULL) return ASSAY_OK;
    if (size->partition.apart) return backward_apart(ctx, c, dy, size);
    MUST(graph_linear_operands(ctx, &o, c, dy, size));
    columns branches[] = {{o.dx_dy, o.dx_w}, {o.dx_dy + width, o.dx_w + width}};
    const int count = attached(branches, size->branches, c->step->with.product.detached);
    MUST(weight_gradient(ctx, c->graph, c->dx[W], &o, size));
    if (c->dx[W] != NULL && size->computed) graph_round_gradient(ctx, c, W);
    if (c->dx[X] != NULL)
        MUST(input_gradient(ctx, c->graph, c->dx[X], branches, count, width, graph_rounds_gradient(c, X), size));
    return ASSAY_OK;
}

/* a and b [rows,n] beside each other, allocated; NULL: there are none. */
static assay_status join(assay_context *ctx, const double *const parts[2], int64_t rows, int64_t n, double **both)
{
    if (parts[0] == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "two beside each other", 2 * rows * n, both));
    for (int i = 0; i < 2; i++) copy_columns((double *)parts[i], *both, rows, 2 * n, 1, 2, i, true);
    return ASSAY_OK;
}

/* One product with both w. */
static assay_status joined_input_gradient(assay_context *ctx, const graph_call *c, const graph_linear_size *size)
{
    const double *const w[] = {c->x[W], c->x[SECOND_W]}, *const gradients[] = {c->dy[0], c->dy[1]};
    graph_step step = *c->step;
    graph_call one = *c;
    graph_linear_size both = *size;
    OWNED double *kernel = NULL, *dy = NULL, *deviation = NULL;
    MUST(join(ctx, w, groups_of(size) * size->k, size->n, &kernel));
    MUST(join(ctx, gradients, size->m, size->n, &dy));
    MUST(join(ctx, c->gradient_deviation, size->m, size->n, &deviation));
    for (int64_t i = 0; i < 2 * size->m; i++)
        if (step.with.product.detached >> i % 2 & 1) memset(dy + i * size->n, 0, (size_t)size->n * sizeof *dy);
    step.with.product.detached = 0;
    both.n *= 2;
    one.step = &step;
    one.x[W] = kernel;
    one.dx[W] = NULL;
    one.gradient_deviation[0] = deviation;
    return graph_linear_backward(ctx, &one, dy, &both);
}

/* Of two w. */
static assay_status two_backward(assay_context *ctx, const graph_call *c, const graph_linear_size *size)
{
    columns both[] = {{c->dy[0], c->x[W]}, {c->dy[1], c->x[SECOND_W]}};
    const int count = attached(both, 2, c->step->with.product.detached);
    for (int i = 0; i < 2; i++) {
        graph_call one = *c;
        one.x[W] = c->x[w_places[i]];
        one.dx[X] = NULL;
        one.dx[W] = c->dx[w_places[i]];
        one.gradient_deviation[0] = c->gradient_deviation[i];
        MUST(graph_show_gradient(ctx, c, i, c->dy[i]));
        MUST(graph_linear_backward(ctx, &one, c->dy[i], size));
        MUST(bias_gradient(ctx, c->graph, c->dx[BIAS + i], c->dy[i], size->n, size));
    }
    if (c->dx[X] == NULL) return ASSAY_OK;
    if (c->step->with.product.joined) return joined_input_gradient(ctx, c, size);
    return input_gradient(ctx, c->graph, c->dx[X], both, count, size->n, true, size);
}

/* d_weights of rows: <x, dy w^T> + <bias, dy>. */
static assay_status row_weight_gradients(assay_context *ctx, const graph_call *c, const graph_linear_size *size)
{
    const double *bias = c->x[BIAS];
    const columns all = {c->dy[0], c->x[W]};
    OWNED double *dx = NULL;
    if (c->dx[ROW_WEIGHTS] == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "gradient of weighed rows", size->m * size->k, &dx));
    MUST(input_gradient(ctx, c->graph, dx, &all, 1, size->n, true, size));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < size->m; row++) {
        const double of_bias = bias == NULL ? 0 : assay_dot(ctx, size->n, bias, c->dy[0] + row * size->n);
        double *d_weight = &c->dx[ROW_WEIGHTS][row];
        *d_weight = assay_dot(ctx, size->k, c->x[X] + row * size->k, dx + row * size->k);
        assay_add_scaled(ctx, 1, 1, &of_bias, d_weight);
    }
    return ASSAY_OK;
}

static assay_status backward(assay_context *ctx, const graph_call *c)
{
    const graph_linear_size size = size_of_call(c);
    const int64_t width = size.n / size.branches;
    OWNED double *weighed = NULL;
    if (streams(c)) return stream(ctx, c, &size, true);
    if (is_two(c->step)) return two_backward(ctx, c, &size);
    MUST(graph_show_gradient(ctx, c, 0, c->dy[0]));
    MUST(row_weight_gradients(ctx, c, &size));
    /* A weight on x is a weight on dy: (weight x)^T dy = x^T (weight dy). */
    MUST(weigh(ctx, c, c->dy[0], size.n, &size, &weighed));
    const double *dy = weighed != NULL ? weighed : c->dy[0];
    MUST(graph_linear_backward(ctx, c, dy, &size));
    for (int i = 0; i < size.branches; i++)
        MUST(bias_gradient(ctx, c->graph, c->dx[BIAS + i], dy + i * width, width, &size));
    return ASSAY_OK;
}

/* --- counts --- */

static double operations(const graph *g, const graph_step *step, int out)
{
    const graph_linear_size size = size_of(g, step);
    (void)out;
    return 2 * (double)size.m * (double)size.n * (double)size.k;
}

static double backward_operations(const graph *g, const graph_step *step)
{
    return (is_two(step) ? 4 : 2) * operations(g, step, 0);
}

const graph_kind graph_kind_linear = {.name = "linear",
                                      .reads = 1u << X | 1u << W | 1u << SECOND_W,
                                      .forward = forward,
                                      .backward = backward,
                                      .operations = operations,
                                      .backward_operations = backward_operations};

bool graph_can_stream(const graph *g, int tensor)
{
    int readers = 0, in_groups = 0;
    for (int i = 0; i < g->step_count; i++) {
        const graph_step *step = &g->steps[i];
        for (int k = 0; k < GRAPH_IN; k++) readers += step->in[k] == tensor;
        in_groups += step->in[GRAPH_W] == tensor && step->in[GRAPH_GROUP_SIZES] != 0 &&
                     step->kind == &graph_kind_linear && step->with.product.recipe.recipe == NULL;
    }
    return g->tensors[tensor].step < 0 && readers == 1 && in_groups == 1;
}
