/* Steps of attention: rotations and rope, keys and values of a latent, attention itself. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/vector_sums.h"

/* --- angles of positions, their cosines and sines --- */

static assay_status angles_forward(assay_context *ctx, const graph_call *c)
{
    assay_rope_config config = c->step->with.rope.config;
    const int64_t tokens = graph_in_size(c->graph, c->step, 0);
    const assay_status status = assay_rope_check_positions(ctx, c->indices[0], tokens, &config);
    config.frequencies = c->x[1];
    if (status == ASSAY_OK) assay_rope_angles(ctx, c->y[0], c->indices[0], tokens, &config);
    return status;
}

static assay_rope_table table_of(int64_t size, const assay_rope_config *config, const double *cosine,
                                 const double *sine)
{
    const int64_t half = config->dim / 2;
    return (assay_rope_table){.tokens = size / half, .half = half, .cosine = (double *)cosine, .sine = (double *)sine};
}

static assay_status rotations_forward(assay_context *ctx, const graph_call *c)
{
    const assay_rope_config *config = &c->step->with.rope.config;
    const assay_rope_table table = table_of(graph_in_size(c->graph, c->step, 0), config, c->y[0], c->y[1]);
    assay_rope_table_fill(ctx, &table, c->x[0], config);
    return ASSAY_OK;
}

const graph_kind graph_kind_angles = {.name = "angles", .forward = angles_forward};
const graph_kind graph_kind_rotations = {.name = "rotations", .forward = rotations_forward};

/* --- y = x with some columns of each head turned --- */

static assay_rope_rows rows_of(const graph_call *c, const assay_rope_table *table, double *y, const double *x)
{
    const int64_t width = graph_last_axis(c->graph, c->step->in[0]), first = c->step->with.rope.first;
    const int64_t token = graph_in_size(c->graph, c->step, 0) / table->tokens;
    return (assay_rope_rows){.y = y + first,
                             .y_token_stride = token,
                             .y_head_stride = width,
                             .x = x + first,
                             .x_token_stride = token,
                             .x_head_stride = width,
                             .heads = token / width};
}

static void turn_columns(assay_context *ctx, const graph_call *c, double *y, const double *x, const double *cosines,
                         const double *sines, bool back)
{
    const assay_rope_config *config = &c->step->with.rope.config;
    const assay_rope_table table = table_of(graph_in_size(c->graph, c->step, 1), config, cosines, sines);
    const assay_rope_rows rows = rows_of(c, &table, y, x);
    (back ? assay_rope_backward : assay_rope_forward)(ctx, &rows, &table, config);
}

/* Frameworks store the cosines and sines, and the products with each. */
static assay_status turn_in_parts(assay_context *ctx, const graph_call *c, double *y, const double *x, bool back)
{
    const int64_t size = graph_in_size(c->graph, c->step, 0), angles = graph_in_size(c->graph, c->step, 1);
    OWNED double *cosines = NULL;
    OWNED double *sines = NULL;
    OWNED double *zeros = NULL;
    OWNED double *other = NULL;
    MUST(assay_alloc_f64(ctx, "stored cosines", angles, &cosines));
    MUST(assay_alloc_f64(ctx, "stored sines", angles, &sines));
    MUST(assay_alloc_zeros(ctx, "no sines", angles, &zeros));
    MUST(assay_alloc_zeros(ctx, "products with sines", size, &other));
    memcpy(cosines, c->x[1], (size_t)angles * sizeof *cosines);
    memcpy(sines, c->x[2], (size_t)angles * sizeof *sines);
    assay_round(ctx, ASSAY_ROUND_STORAGE, angles, cosines);
    assay_round(ctx, ASSAY_ROUND_STORAGE, angles, sines);
    turn_columns(ctx, c, y, x, cosines, zeros, back);
    turn_columns(ctx, c, other, x, zeros, sines, back);
    graph_join(ctx, size, y, other);
    return ASSAY_OK;
}

static assay_status turn(assay_context *ctx, const graph_call *c, double *y, const double *x, bool back)
{
    const bool whole = c->step->with.rope.config.dim == graph_last_axis(c->graph, c->step->in[0]);
    if (!whole) memcpy(y, x, (size_t)graph_in_size(c->graph, c->step, 0) * sizeof *y);
    if (graph_in_parts(ctx, c)) return turn_in_parts(ctx, c, y, x, back);
    turn_columns(ctx, c, y, x, c->x[1], c->x[2], back);
    return ASSAY_OK;
}

static assay_status rope_forward(assay_context *ctx, const graph_call *c)
{
    return turn(ctx, c, c->y[0], c->x[0], false);
}

static assay_status rope_backward(assay_context *ctx, const graph_call *c)
{
    const assay_status status = turn(ctx, c, c->dx[0], c->dy[0], true);
    graph_round_gradient(ctx, c, 0);
    return status;
}

const graph_kind graph_kind_rope = {
    .name = "rope", .reads = 1u << 1 | 1u << 2, .forward = rope_forward, .backward = rope_backward};

/* --- key and value of every head from what they share --- */

enum { LATENT, UP, KEY_ROPE, KEY = 0, VALUE };

typedef struct expansion {
    int64_t tokens, heads, nope, rope, value, rank;
} expansion;

static expansion expansion_of(const graph *g, const graph_step *step)
{
    const assay_shape *value = &g->tensors[step->out[VALUE]].row.shape;
    const int64_t rope = graph_last_axis(g, step->in[KEY_ROPE]);
    return (expansion){.tokens = value->dims[0] * value->dims[1],
                       .heads = value->dims[2],
                       .nope = graph_last_axis(g, step->out[KEY]) - rope,
                       .rope = rope,
                       .value = value->dims[3],
                       .rank = graph_last_axis(g, step->in[LATENT])};
}

/* All heads' keys and values beside each other. */
static graph_linear_size product_of(const graph_step *step, const expansion *s)
{
    const int64_t shards = step->with.product.partition.shards;
    return (graph_linear_size){.m = s->tokens,
                               .n = s->heads * (s->nope + s->value),
                               .k = s->rank,
                               .branches = 1,
                               .partition = {.slices = 1, .chunks = 1, .shards = shards > 1 ? shards : 1}};
}

/* `columns` of every head from its column `first`, into rows of `width`: a product for each head, straight to its place, so
 * that the key can be had without the value, and the other way round. */
static assay_status expand_heads(assay_context *ctx, const expansion *s, const assay_quant_recipe_operands *o,
                                 double *out, int64_t first, int64_t columns, int64_t width)
{
    const int64_t all = s->nope + s->value;
    for (int64_t head = 0; head < s->heads; head++) {
        assay_matmul_args args =
            assay_product_ab(out + head * width, o->x, o->w + head * all + first, s->tokens, columns, s->rank);
        args.ldc = s->heads * width;
        args.ldb = s->heads * all;
        args.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &args));
    }
    return ASSAY_OK;
}

static assay_status expand_forward(assay_context *ctx, const graph_call *c)
{
    const expansion s = expansion_of(c->graph, c->step);
    const int64_t width = s.nope + s.rope;
    const graph_linear_size size = product_of(c->step, &s);
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o = {0};
    MUST(graph_linear_operands(ctx, &o, c, NULL, &size));
    if (!c->made[VALUE]) MUST(expand_heads(ctx, &s, &o, c->y[VALUE], s.nope, s.value, s.value));
    if (c->made[KEY]) return ASSAY_OK;
    MUST(expand_heads(ctx, &s, &o, c->y[KEY], 0, s.nope, width));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < s.tokens * s.heads; row++)
        memcpy(c->y[KEY] + row * width + s.nope, c->x[KEY_ROPE] + row / s.heads * s.rope,
               (size_t)s.rope * sizeof(double));
    return ASSAY_OK;
}

/* What every head got is one: its gradients add up, heads ascending. */
static void sum_heads(const assay_context *ctx, const expansion *s, double *dkey_rope, const double *dkey)
{
    const int64_t width = s->nope + s->rope;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < s->tokens; t++) {
        double *sum = dkey_rope + t * s->rope;
        const double *key = dkey + t * s->heads * width + s->nope;
        memcpy(sum, key, (size_t)s->rope * sizeof *sum);
        for (int64_t head = 1; head < s->heads; head++) assay_add_scaled(ctx, s->rope, 1, key + head * width, sum);
        assay_round(ctx, ASSAY_ROUND_STORAGE, s->rope, sum);
    }
}

/* The gradients of a head's own key and of its value side by side, as the weight has them. */
static void join_heads(const assay_context *ctx, const expansion *s, double *kv, const double *dkey,
                       const double *dvalue)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < s->tokens * s->heads; row++) {
        double *to = kv + row * (s->nope + s->value);
        memcpy(to, dkey + row * (s->nope + s->rope), (size_t)s->nope * sizeof *to);
        memcpy(to + s->nope, dvalue + row * s->value, (size_t)s->value * sizeof *to);
    }
}

/* One product with the whole weight. */
static assay_status expand_backward(assay_context *ctx, const graph_call *c)
{
    const expansion s = expansion_of(c->graph, c->step);
    const graph_linear_size size = product_of(c->step, &s);
    double *kv = NULL;
    assay_status status = assay_alloc_f64(ctx, "gradient of k_nope and value", size.m * size.n, &kv);
    if (status != ASSAY_OK) return status;
    if (c->dx[KEY_ROPE] != NULL) sum_heads(ctx, &s, c->dx[KEY_ROPE], c->dy[KEY]);
    join_heads(ctx, &s, kv, c->dy[KEY], c->dy[VALUE]);
    TRY(graph_show_gradient(ctx, c, 0, kv));
    TRY(graph_linear_backward(ctx, c, kv, &size));
cleanup:
    free(kv);
    return status;
}

static double expand_operations(const graph *g, const graph_step *step, int out)
{
    const expansion s = expansion_of(g, step);
    return 2 * (double)s.tokens * (double)s.rank * (double)s.heads * (double)(out == KEY ? s.nope : s.value);
}

static double expand_backward_operations(const graph *g, const graph_step *step)
{
    return 2 * (expand_operations(g, step, KEY) + expand_operations(g, step, VALUE));
}

const graph_kind graph_kind_expand = {.name = "expand",
                                      .reads = 1u << LATENT | 1u << UP,
                                      .forward = expand_forward,
                                      .backward = expand_backward,
                                      .operations = expand_operations,
                                      .backward_operations = expand_backward_operations};

/* --- attention --- */

enum { QUERY, KEYS, VALUES, SEGMENTS, SINKS, ATTENTION_OUT = 0, LSE };

static assay_attention_inputs inputs_of(const graph_call *c)
{
    return (assay_attention_inputs){.query = c->x[QUERY],
                                    .key = c->x[KEYS],
                                    .value = c->x[VALUES],
                                    .segment_ids = c->indices[SEGMENTS],
                                    .sinks = c->x[SINKS]};
}

static assay_status make(assay_context *ctx, const graph_call *c, double *out, double *lse);

/* Both outputs come at once: what is there already is made a second time, and left alone. */
static assay_status forward(assay_context *ctx, const graph_call *c)
{
    assay_status status = ASSAY_OK;
    double *y[GRAPH_OUT] = {c->y[ATTENTION_OUT], c->y[LSE]}, *again[GRAPH_OUT] = {NULL};
    for (int i = 0; i < GRAPH_OUT; i++) {
        if (!c->made[i]) continue;
        TRY(assay_alloc_f64(ctx, "attention again", graph_out_size(c->graph, c->step, i), &again[i]));
        y[i] = again[i];
    }
    TRY(make(ctx, c, y[ATTENTION_OUT], y[LSE]));
cleanup:
    for (int i = 0; i < GRAPH_OUT; i++) free(again[i]);
    return status;
}

/* What has come back through the output, zeros where all came through lse; *zeros is the caller's. */
static assay_status gradient_of_out(assay_context *ctx, const graph_call *c, double **zeros, const double **dout)
{
    if (c->dy[ATTENTION_OUT] == NULL)
        MUST(assay_alloc_zeros(ctx, "gradient of attention_out", graph_out_size(c->graph, c->step, ATTENTION_OUT),
                               zeros));
    *dout = *zeros != NULL ? *zeros : c->dy[ATTENTION_OUT];
    return ASSAY_OK;
}

static assay_status make_attention(assay_context *ctx, const graph_call *c, double *out, double *lse)
{
    const assay_attention_inputs in = inputs_of(c);
    return assay_attention_forward(ctx, out, lse, &in, &c->step->with.attention);
}

static assay_status attention_backward(assay_context *ctx, const graph_call *c)
{
    const assay_attention_inputs in = inputs_of(c);
    const assay_attention_gradients g = {c->dx[QUERY], c->dx[KEYS], c->dx[VALUES], c->dx[SINKS]};
    const double *dout = NULL;
    OWNED double *zeros = NULL;
    MUST(gradient_of_out(ctx, c, &zeros, &dout));
    MUST(assay_attention_backward(ctx, &g, dout, c->dy[LSE], c->y[ATTENTION_OUT], c->y[LSE], &in,
                                  &c->step->with.attention));
    for (int i = QUERY; i <= VALUES; i++) graph_round_gradient(ctx, c, i);
    return ASSAY_OK;
}

static double attention_operations(const graph *g, const graph_step *step, int out)
{
    (void)g;
    return out == ATTENTION_OUT ? assay_attention_flops(&step->with.attention, false) : 0;
}

static double attention_backward_operations(const graph *g, const graph_step *step)
{
    (void)g;
    return assay_attention_flops(&step->with.attention, true);
}

/* Of every thread, of up to 16. */
static double attention_scratch(const graph *g, const graph_step *step)
{
    (void)g;
    const assay_attention_config *a = &step->with.attention;
    return 16 * (double)a->sequence * (4 * (double)a->qk_dim + 3 * (double)a->v_dim + 258);
}

const graph_kind graph_kind_attention = {.name = "attention",
                                         .reads = 1u << QUERY | 1u << KEYS | 1u << VALUES | 1u << SINKS |
                                                  3u << GRAPH_READS_OUT,
                                         .makes = 1u << QUERY | 1u << KEYS | 1u << VALUES,
                                         .forward = forward,
                                         .backward = attention_backward,
                                         .operations = attention_operations,
                                         .backward_operations = attention_backward_operations,
                                         .scratch = attention_scratch};

/* --- attention over a cache --- */

enum { LENGTHS = SEGMENTS, PLACES, CACHED_SINKS, CACHED_KERNEL };

static assay_decode_inputs cached_inputs(const graph_call *c)
{
    return (assay_decode_inputs){.query = c->x[QUERY],
                                 .key_cache = c->x[KEYS],
                                 .value_cache = c->x[VALUES],
                                 .lengths = c->indices[LENGTHS],
                                 .places = c->indices[PLACES],
                                 .kernel = c->x[CACHED_KERNEL],
                                 .sinks = c->x[CACHED_SINKS]};
}

static assay_status make_cached(assay_context *ctx, const graph_call *c, double *out, double *lse)
{
    const assay_decode_config *config = &c->step->with.decode;
    const assay_decode_inputs in = cached_inputs(c);
    OWNED_BY(assay_decode_plan_free) assay_decode_plan plan = {0};
    MUST(assay_decode_plan_make(ctx, config, &in, &plan));
    for (int i = KEYS; i <= VALUES; i++) {
        char path[ASSAY_PATH_SIZE];
        int given = c->step->in[i];
        if (c->x[i] == NULL || ctx->change != NULL) continue; /* a mutant may read others */
        while (c->graph->tensors[given].step >= 0) given = c->graph->steps[c->graph->tensors[given].step].in[0];
        assay_tensor_path("", "", &c->graph->tensors[given].row, path);
        MUST(assay_decode_check_cached(ctx, config, &plan, path, c->x[i], graph_last_axis(c->graph, c->step->in[i])));
    }
    return assay_decode_attend(ctx, config, &in, &plan, out, lse);
}

static assay_status cached_backward(assay_context *ctx, const graph_call *c)
{
    const assay_decode_inputs in = cached_inputs(c);
    const assay_decode_gradients g = {c->dx[QUERY], c->dx[KEYS], c->dx[VALUES], c->dx[CACHED_SINKS],
                                      c->dx[CACHED_KERNEL]};
    assay_decode_call call = {.out = c->y[ATTENTION_OUT], .lse = c->y[LSE], .dlse = c->dy[LSE]};
    OWNED double *zeros = NULL;
    OWNED_BY(assay_decode_plan_free) assay_decode_plan plan = {0};
    MUST(gradient_of_out(ctx, c, &zeros, &call.dout));
    MUST(assay_decode_plan_make(ctx, &c->step->with.decode, &in, &plan));
    MUST(assay_decode_backward(ctx, &c->step->with.decode, &in, &plan, &call, &g));
    for (int i = QUERY; i <= VALUES; i++)
        if (c->step->in[i] != 0) graph_round_gradient(ctx, c, i);
    return ASSAY_OK;
}

/* Of as many keys as there may be. */
static double cached_operations(const graph *g, const graph_step *step, int out)
{
    const assay_decode_config *c = &step->with.decode;
    const double rows = (double)c->batch * (double)c->sequence * (double)c->heads;
    const double keys = (double)(c->topk > 0 ? c->topk : assay_decode_most_keys(c));
    const double kernel = (double)c->v_dim * (double)(c->nope + c->out_dim);
    (void)g;
    return out == LSE ? 0 : 2 * rows * (keys * (double)(c->width + c->v_dim) + kernel);
}

static double cached_backward_operations(const graph *g, const graph_step *step)
{
    return step->with.decode.gradients ? 2.5 * cached_operations(g, step, ATTENTION_OUT) : 0;
}

const graph_kind graph_kind_decode_attention = {.name = "decode_attention",
                                                .reads = 1u << QUERY | 1u << KEYS | 1u << VALUES | 1u << CACHED_SINKS |
                                                         1u << CACHED_KERNEL | 3u << GRAPH_READS_OUT,
                                                .makes = 1u << QUERY | 1u << KEYS | 1u << VALUES | 1u << CACHED_KERNEL,
                                                .forward = forward,
                                                .backward = cached_backward,
                                                .operations = cached_operations,
                                                .backward_operations = cached_backward_operations};

/* --- the merge of its splits --- */

enum { PARTIAL_OUT, PARTIAL_LSE, MERGE_SINKS };

static assay_status make_merged(assay_context *ctx, const graph_call *c, double *out, double *lse)
{
    const assay_merge_states_inputs in = {c->x[PARTIAL_OUT], c->x[PARTIAL_LSE], c->x[MERGE_SINKS]};
    return assay_merge_states_forward(ctx, out, lse, &in, &c->step->with.merge);
}

static assay_status merge_backward(assay_context *ctx, const graph_call *c)
{
    const assay_merge_states_inputs in = {c->x[PARTIAL_OUT], c->x[PARTIAL_LSE], c->x[MERGE_SINKS]};
    assay_merge_states_call call = {.config = &c->step->with.merge,
                                    .in = &in,
                                    .attention_out = c->y[ATTENTION_OUT],
                                    .lse = c->y[LSE],
                                    .dlse = c->dy[LSE]};
    OWNED double *zeros = NULL;
    MUST(gradient_of_out(ctx, c, &zeros, &call.dout));
    return assay_merge_states_backward(
        ctx, &(assay_merge_states_gradients){c->dx[PARTIAL_OUT], c->dx[PARTIAL_LSE], c->dx[MERGE_SINKS]}, &call);
}

const graph_kind graph_kind_merge_states = {.name = "merge_states",
                                            .reads = 1u << PARTIAL_OUT | 1u << PARTIAL_LSE | 1u << MERGE_SINKS |
                                                     3u << GRAPH_READS_OUT,
                                            .forward = forward,
                                            .backward = merge_backward};

static assay_status make(assay_context *ctx, const graph_call *c, double *out, double *lse)
{
    if (c->step->kind == &graph_kind_attention) return make_attention(ctx, c, out, lse);
    return (c->step->kind == &graph_kind_merge_states ? make_merged : make_cached)(ctx, c, out, lse);
}

/* --- numbers of a cache of bytes --- */

enum { BYTES, SCALES, SCALE };

static assay_status cache_numbers_forward(assay_context *ctx, const graph_call *c)
{
    const assay_cache_config *config = &c->step->with.cache;
    MUST(assay_cache_check_scale(ctx, c->graph->tensors[c->step->in[SCALE]].row.name, c->x[SCALE], config));
    assay_cache_read(ctx, c->y[0], graph_last_axis(c->graph, c->step->out[0]), c->indices[BYTES], c->indices[SCALES],
                     c->x[SCALE], config);
    return ASSAY_OK;
}

static double cache_numbers_scratch(const graph *g, const graph_step *step)
{
    return (double)graph_out_size(g, step, 0);
}

const graph_kind graph_kind_cache_numbers = {
    .name = "cache_numbers", .forward = cache_numbers_forward, .scratch = cache_numbers_scratch};
