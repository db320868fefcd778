/* The functions of the batch-split module one by one, naively, shard after shard; a NAME_bwd is the central difference of
 * NAME by every number that it is differentiated by. */
#include <math.h>
#include <quadmath.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/spec/spec_internal.h"

/* One forward function with its tensors: weights as each shard has them, [M,...]. */
typedef struct call {
    assay_context *ctx;
    const assay_function_view *view;
    const assay_function_config *config;
    assay_batch_split_sizes s;
    int64_t factor;
    spec_tensors in, out; /* its own */
    spec_quad *scratch;   /* its own: a few rows */
} call;

static spec_quad *given(const call *c, const char *path)
{
    const spec_tensor *tensor = spec_tensors_find(&c->in, path);
    return tensor == NULL ? NULL : tensor->values;
}

static const int32_t *given_indices(const call *c, const char *path)
{
    return spec_tensors_find(&c->in, path)->indices;
}

/* values [count] of a shard's microbatch, plus how far the residual that was given lies from that of the forward
 * function: a _bwd is taken where its residuals are. */
static void add_offset(const call *c, const char *name, int64_t shard, int64_t i, int64_t count, spec_quad *values);

/* Of one shard, or of one of `parts` in it. */
static spec_quad *part_of(const call *c, const spec_tensor *tensor, int64_t shard, int64_t part, int64_t parts)
{
    return tensor->values + (shard * parts + part) * (assay_shape_count(&tensor->shape) / (c->s.shards * parts));
}

static const spec_quad *in_part(const call *c, const char *path, int64_t shard, int64_t part, int64_t parts)
{
    return part_of(c, spec_tensors_find(&c->in, path), shard, part, parts);
}

static const spec_quad *in_shard(const call *c, const char *path, int64_t shard)
{
    return in_part(c, path, shard, 0, 1);
}

static spec_quad *out_part(const call *c, const char *path, int64_t shard, int64_t part, int64_t parts)
{
    return part_of(c, spec_tensors_find(&c->out, path), shard, part, parts);
}

static spec_quad *out_shard(const call *c, const char *path, int64_t shard)
{
    return out_part(c, path, shard, 0, 1);
}

static int32_t *out_indices(const call *c, const char *path, int64_t shard)
{
    const spec_tensor *tensor = spec_tensors_find(&c->out, path);
    return tensor->indices + shard * (assay_shape_count(&tensor->shape) / c->s.shards);
}

static const assay_mla_config *mla_of(const call *c)
{
    return &c->config->stack.mla;
}

static void add_offset(const call *c, const char *name, int64_t shard, int64_t i, int64_t count, spec_quad *values)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "offsets/%s", name);
    const spec_tensor *offset = spec_tensors_find(&c->in, path);
    for (int64_t k = 0; offset != NULL && k < count; k++)
        values[k] +=
            offset->values[(shard * (assay_shape_count(&offset->shape) / (c->s.shards * count)) + i) * count + k];
}

/* --- microbatches and weights --- */

static assay_status split(call *c)
{
    const int64_t width = mla_of(c)->sequence * mla_of(c)->emb_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const spec_quad *x = in_shard(c, "inputs/x", shard);
        for (int64_t row = 0; row < c->factor * c->s.rows; row++) {
            spec_quad *to = out_part(c, "outputs/microbatches", shard, row % c->factor, c->factor);
            memcpy(to + row / c->factor * width, x + row * width, (size_t)width * sizeof *x);
        }
    }
    return ASSAY_OK;
}

static assay_status merge(call *c)
{
    const int64_t width = mla_of(c)->sequence * mla_of(c)->emb_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        for (int64_t row = 0; row < c->factor * c->s.rows; row++) {
            const spec_quad *from = in_part(c, "inputs/microbatches", shard, row % c->factor, c->factor);
            memcpy(out_shard(c, "outputs/x", shard) + row * width, from + row / c->factor * width,
                   (size_t)width * sizeof *from);
        }
    }
    return ASSAY_OK;
}

/* Where a shard's number of a weight lies in the whole one: split over fsdp along the axis labelled D, or else the first
 * one of a kernel, and over expert along the first one of a weight of experts. */
static int64_t whole_index(const call *c, const assay_function_tensor *whole, const assay_function_tensor *local,
                           int64_t shard, int64_t index)
{
    const int64_t *mesh = c->config->stack.sharding.mesh.size;
    const int64_t expert = shard % mesh[ASSAY_AXIS_EXPERT],
                  fsdp = shard / mesh[ASSAY_AXIS_EXPERT] % mesh[ASSAY_AXIS_FSDP];
    int64_t at = 0, stride = 1;
    for (int axis = whole->shape.rank - 1; axis >= 0; axis--) {
        const int64_t size = local->shape.dims[axis + 1], place = index % size;
        const bool experts = whole->by_expert && axis == 0;
        at += (place + (size == whole->shape.dims[axis] ? 0 : (experts ? expert : fsdp) * size)) * stride;
        index /= size;
        stride *= whole->shape.dims[axis];
    }
    return at;
}

static const assay_function_tensor *find(const assay_function_tensors *tensors, const char *folder, int weight)
{
    for (int i = 0; i < tensors->count; i++) {
        const assay_function_tensor *t = &tensors->items[i];
        if (t->weight == weight && strncmp(t->path, folder, strlen(folder)) == 0) return t;
    }
    return NULL;
}

typedef void weight_step(call *c, const assay_function_tensor *whole, const assay_function_tensor *result);

static assay_status each_weight(call *c, weight_step *step)
{
    const assay_function_tensors *own = &c->view->own;
    for (int i = 0; i < own->count; i++) {
        if (strncmp(own->items[i].path, "outputs/", 8) != 0) continue;
        step(c, find(&c->view->whole, "inputs/", own->items[i].weight), &own->items[i]);
    }
    return ASSAY_OK;
}

static const spec_quad *bundle_in(const call *c, const char *group, const assay_function_tensor *result)
{
    char path[2 * ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s%s", group, strrchr(result->path, '/'));
    return given(c, path);
}

static spec_quad *bundle_out(const call *c, const assay_function_tensor *result)
{
    return spec_tensors_find(&c->out, result->path)->values;
}

static void fetch_weight(call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    memcpy(bundle_out(c, result), bundle_in(c, "params", result),
           (size_t)assay_shape_count(&whole->shape) * sizeof(spec_quad));
}

/* The stacked index of a layer's number. */
static int64_t stacked_index(const call *c, const assay_function_tensor *whole, int64_t layer, int64_t index)
{
    int64_t inner = 1;
    for (int axis = (int)c->config->layer_axis; axis < whole->shape.rank; axis++) inner *= whole->shape.dims[axis];
    return (index / inner * c->config->layers + layer) * inner + index % inner;
}

static void extract_weight(call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const int64_t layer = given_indices(c, "inputs/layer_idx")[0];
    const int64_t count = assay_shape_count(&result->shape) / c->s.shards;
    const spec_quad *from = bundle_in(c, "all_weights", result);
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        const int64_t at = whole_index(c, whole, result, i / count, i % count);
        bundle_out(c, result)[i] = from[stacked_index(c, whole, layer, at)];
    }
}

static void insert_weight(call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const assay_function_tensor *local = find(&c->view->scattered, "outputs/", whole->weight);
    const int64_t layer = given_indices(c, "inputs/layer_idx")[0];
    const int64_t count = assay_shape_count(&local->shape) / c->s.shards;
    const spec_quad *from = bundle_in(c, "ws_grad", result);
    memcpy(bundle_out(c, result), bundle_in(c, "all_ws_grad", result),
           (size_t)assay_shape_count(&result->shape) * sizeof *from);
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        const int64_t at = whole_index(c, whole, local, i / count, i % count);
        bundle_out(c, result)[stacked_index(c, whole, layer, at)] = from[i];
    }
}

/* Places of shards: along `axis` `index`, else those of `shard`. */
static int64_t peer(const call *c, int64_t shard, assay_mesh_axis axis, int64_t index)
{
    const int64_t *size = c->config->stack.sharding.mesh.size;
    int64_t place[ASSAY_MESH_AXES] = {shard / size[2] / size[1], shard / size[2] % size[1], shard % size[2]};
    place[axis] = index;
    return (place[0] * size[1] + place[1]) * size[2] + place[2];
}

/* The weight of a shard's experts as one shard sees it whole, from numbers that lie scattered. */
static void gather_weight(call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const assay_function_tensor *local = find(&c->view->scattered, "outputs/", whole->weight);
    const int64_t count = assay_shape_count(&local->shape) / c->s.shards;
    const int64_t all = assay_shape_count(&result->shape) / c->s.shards;
    const int64_t parts = whole->by_expert ? c->s.expert_shards : 1;
    const spec_quad *from = bundle_in(c, "weights", result);
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int64_t first = parts == 1 ? 0 : shard % c->s.expert_shards * all;
        for (int64_t f = 0; f < c->config->stack.sharding.mesh.size[ASSAY_AXIS_FSDP]; f++) {
            const int64_t other = peer(c, shard, ASSAY_AXIS_FSDP, f);
            for (int64_t i = 0; i < count; i++)
                bundle_out(c, result)[shard * all + whole_index(c, whole, local, other, i) - first] =
                    from[other * count + i];
        }
    }
}

/* Scales and biases are sums already. */
static bool is_kernel(const assay_function_tensor *whole)
{
    return whole->holds == ASSAY_HOLDS_KERNEL;
}

static void reduce_scatter_weight(call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const int64_t *mesh = c->config->stack.sharding.mesh.size;
    const int64_t count = assay_shape_count(&result->shape) / c->s.shards;
    const int64_t parts = whole->by_expert ? c->s.expert_shards : 1, all = assay_shape_count(&whole->shape) / parts;
    const spec_quad *from = bundle_in(c, "ws_grad", result);
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        const int64_t shard = i / count, at = whole_index(c, whole, result, shard, i % count) % all;
        spec_quad sum = 0;
        if (!is_kernel(whole)) {
            bundle_out(c, result)[i] = from[i];
            continue;
        }
        for (int64_t e = 0; e < (whole->by_expert ? 1 : mesh[ASSAY_AXIS_EXPERT]); e++) {
            const int64_t of = whole->by_expert ? shard : peer(c, shard, ASSAY_AXIS_EXPERT, e);
            for (int64_t f = 0; f < mesh[ASSAY_AXIS_FSDP]; f++) sum += from[peer(c, of, ASSAY_AXIS_FSDP, f) * all + at];
        }
        bundle_out(c, result)[i] = sum;
    }
}

static void all_reduce_weight(call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const int64_t count = assay_shape_count(&result->shape) / c->s.shards;
    const spec_quad *from = bundle_in(c, "ws_grad", result);
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        spec_quad sum = 0;
        for (int64_t d = 0; is_kernel(whole) && d < c->config->stack.sharding.mesh.size[ASSAY_AXIS_DATA]; d++)
            sum += from[peer(c, i / count, ASSAY_AXIS_DATA, d) * count + i % count];
        bundle_out(c, result)[i] = is_kernel(whole) ? sum : from[i];
    }
}

static assay_status fetch_weights(call *c)
{
    return each_weight(c, fetch_weight);
}

static assay_status extract_layer_weights(call *c)
{
    return each_weight(c, extract_weight);
}

static assay_status insert_layer_ws_grad(call *c)
{
    return each_weight(c, insert_weight);
}

static assay_status gather_weights(call *c)
{
    return each_weight(c, gather_weight);
}

static assay_status reduce_scatter_ws_grad(call *c)
{
    return each_weight(c, reduce_scatter_weight);
}

static assay_status all_reduce_ws_grad_dcn(call *c)
{
    return each_weight(c, all_reduce_weight);
}

/* --- norm and rotation --- */

static void normalise(const call *c, const char *scale, int64_t shard, const spec_quad *x, spec_quad *y)
{
    const int64_t dim = mla_of(c)->emb_dim;
    spec_rms_norm_rows(c->s.tokens, dim, c->config->stack.epsilon, x, dim, in_shard(c, scale, shard), y);
}

static assay_status rms_norm(call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        normalise(c, "weights/scale", shard, in_shard(c, "inputs/x", shard), out_shard(c, "outputs/y", shard));
    return ASSAY_OK;
}

static assay_status initialize_yarn_mask(call *c)
{
    const int64_t dim = mla_of(c)->rope.dim;
    spec_quad *mask = spec_tensors_find(&c->out, "outputs/mask")->values;
    for (int64_t i = 0; i < dim; i++) {
        for (int64_t j = 0; j < dim; j++) {
            const int64_t swapped = i % 2 == 0 ? i + 1 : i - 1;
            mask[i * dim + j] = swapped == j ? (j % 2 == 0 ? -1 : 1) : 0;
        }
    }
    return ASSAY_OK;
}

/* SPEC 2, and the module's divisor of the ramp. */
static spec_quad frequency(const assay_rope_config *rope, int64_t i)
{
    const spec_quad theta = rope->rope_max_timescale, dim = rope->dim, base = powq(theta, -2 * (spec_quad)i / dim);
    if (!rope->yarn) return base;
    spec_quad ends[2] = {rope->beta_fast, rope->beta_slow};
    for (int k = 0; k < 2; k++)
        ends[k] = dim * logq(rope->original_max_position_embeddings / (ends[k] * 2 * M_PIq)) / (2 * logq(theta));
    if (rope->truncate) {
        ends[0] = floorq(ends[0]);
        ends[1] = ceilq(ends[1]);
    }
    const spec_quad low = fmaxq(ends[0], 0), high = fminq(ends[1], dim - 1);
    const spec_quad ramp = (i - low) / (high > low ? high - low : (spec_quad)0.001Q);
    const spec_quad smooth = 1 - fminq(fmaxq(ramp, 0), 1);
    return base / rope->rope_factor * (1 - smooth) + base * smooth;
}

static assay_status initialize_yarn_freqs(call *c)
{
    const assay_rope_config *rope = &mla_of(c)->rope;
    const int32_t *positions = given_indices(c, "inputs/positions");
    spec_quad *freqs = spec_tensors_find(&c->out, "outputs/yarn_freqs")->values;
    for (int64_t i = 0; i < c->s.shards * c->s.tokens * rope->dim; i++)
        freqs[i] = positions[i / rope->dim] * frequency(rope, i % rope->dim / 2);
    return ASSAY_OK;
}

/* y = x cos + (x mask) sin of one row. */
static void rotate(const call *c, const spec_quad *angles, const spec_quad *x, spec_quad *y)
{
    for (int64_t i = 0; i < mla_of(c)->rope.dim; i += 2) {
        const spec_quad cosine = cosq(angles[i]), sine = sinq(angles[i]), first = x[i], second = x[i + 1];
        y[i] = first * cosine - second * sine;
        y[i + 1] = second * cosine + first * sine;
    }
}

static assay_status yarn(call *c)
{
    const int64_t dim = mla_of(c)->rope.dim, heads = mla_of(c)->heads;
    for (int64_t row = 0; row < c->s.shards * c->s.tokens * heads; row++) {
        rotate(c, given(c, "inputs/freqs") + row / heads * dim, given(c, "inputs/inputs") + row * dim,
               spec_tensors_find(&c->out, "outputs/output")->values + row * dim);
    }
    return ASSAY_OK;
}

/* --- attention of one shard's microbatch --- */

static spec_quad softmax_scale(const call *c)
{
    const assay_mla_config *config = mla_of(c);
    const spec_quad scale = 1 / sqrtq(config->qk_nope_head_dim + config->rope.dim);
    if (config->rope.max_position_embeddings <= config->rope.original_max_position_embeddings) return scale;
    const spec_quad m = logq(config->rope.rope_factor) * config->mscale / 10 + 1;
    return scale * m * m;
}

static void make_query(const call *c, int64_t shard, const spec_quad *x, const spec_quad *angles, spec_quad *query)
{
    const assay_mla_config *m = mla_of(c);
    const int64_t rank = m->q_lora_rank, dim = m->emb_dim, rope = m->rope.dim, width = m->qk_nope_head_dim + rope;
    const spec_quad *scale = in_shard(c, "weights/q_norm_scale_weights", shard), factor = softmax_scale(c);
    for (int64_t t = 0; t < c->s.tokens; t++) {
        spec_quad *low = c->scratch, *normed = low + rank, *q = query + t * m->heads * width;
        spec_vector_matrix(dim, rank, x + t * dim, in_shard(c, "weights/wq_a_weights", shard), rank, low);
        spec_rms_norm_rows(1, rank, m->epsilon, low, rank, scale, normed);
        spec_vector_matrix(rank, m->heads * width, normed, in_shard(c, "weights/wq_b_weights", shard), m->heads * width,
                           q);
        for (int64_t head = 0; head < m->heads; head++) {
            spec_quad *row = q + head * width;
            rotate(c, angles + t * rope, row + m->qk_nope_head_dim, row + m->qk_nope_head_dim);
            for (int64_t i = 0; i < width; i++) row[i] *= factor;
        }
    }
}

/* Of one token, from the latent and the rotated part that all heads share. */
static void key_value_of(const call *c, int64_t shard, const spec_quad *latent, const spec_quad *rope, spec_quad *key,
                         spec_quad *value, spec_quad *row)
{
    const assay_mla_config *m = mla_of(c);
    const int64_t nope = m->qk_nope_head_dim, both = nope + m->v_head_dim, width = nope + m->rope.dim;
    spec_vector_matrix(m->kv_lora_rank, m->heads * both, latent, in_shard(c, "weights/wkv_b_weights", shard),
                       m->heads * both, row);
    for (int64_t head = 0; head < m->heads; head++) {
        memcpy(key + head * width, row + head * both, (size_t)nope * sizeof *row);
        memcpy(key + head * width + nope, rope, (size_t)m->rope.dim * sizeof *row);
        memcpy(value + head * m->v_head_dim, row + head * both + nope, (size_t)m->v_head_dim * sizeof *row);
    }
}

static void make_key_value(const call *c, int64_t shard, const spec_quad *x, const spec_quad *angles, spec_quad *key,
                           spec_quad *value)
{
    const assay_mla_config *m = mla_of(c);
    const int64_t rank = m->kv_lora_rank, rope = m->rope.dim, dim = m->emb_dim;
    for (int64_t t = 0; t < c->s.tokens; t++) {
        spec_quad *low = c->scratch, *normed = low + rank + rope, *row = normed + rank;
        spec_vector_matrix(dim, rank + rope, x + t * dim, in_shard(c, "weights/wkv_a_weights", shard), rank + rope,
                           low);
        spec_rms_norm_rows(1, rank, m->epsilon, low, rank, in_shard(c, "weights/kv_norm_scale_weights", shard), normed);
        rotate(c, angles + t * rope, low + rank, low + rank);
        key_value_of(c, shard, normed, low + rank, key + t * m->heads * (m->qk_nope_head_dim + rope),
                     value + t * m->heads * m->v_head_dim, row);
    }
}

static assay_status attend(const call *c, const spec_quad *query, const spec_quad *key, const spec_quad *value,
                           spec_quad *out, spec_quad *lse)
{
    const assay_mla_config *m = mla_of(c);
    const assay_attention_config config = {.batch = c->s.rows,
                                           .sequence = m->sequence,
                                           .heads = m->heads,
                                           .qk_dim = m->qk_nope_head_dim + m->rope.dim,
                                           .v_dim = m->v_head_dim};
    return spec_attend(
        c->ctx, &(spec_attention_problem){
                    .config = &config, .query = query, .key = key, .value = value, .attention_out = out, .lse = lse});
}

static assay_status query_projection(call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        make_query(c, shard, in_shard(c, "inputs/inputs_q", shard), in_shard(c, "inputs/yarn_freqs", shard),
                   out_shard(c, "outputs/query", shard));
    }
    return ASSAY_OK;
}

static assay_status kv_projection(call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        make_key_value(c, shard, in_shard(c, "inputs/inputs", shard), in_shard(c, "inputs/yarn_freqs", shard),
                       out_shard(c, "outputs/key", shard), out_shard(c, "outputs/value", shard));
    }
    return ASSAY_OK;
}

static assay_status get_key_value(call *c)
{
    const assay_mla_config *m = mla_of(c);
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        for (int64_t t = 0; t < c->s.tokens; t++) {
            key_value_of(c, shard, in_shard(c, "inputs/low_rank_main", shard) + t * m->kv_lora_rank,
                         in_shard(c, "inputs/key_rope", shard) + t * m->rope.dim,
                         out_shard(c, "outputs/key", shard) + t * m->heads * (m->qk_nope_head_dim + m->rope.dim),
                         out_shard(c, "outputs/value", shard) + t * m->heads * m->v_head_dim, c->scratch);
        }
    }
    return ASSAY_OK;
}

static assay_status tpu_flash_attention(call *c)
{
    assay_status status = ASSAY_OK;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        TRY(attend(c, in_shard(c, "inputs/query", shard), in_shard(c, "inputs/key", shard),
                   in_shard(c, "inputs/value", shard), out_shard(c, "outputs/attention_output", shard),
                   out_shard(c, "outputs/logsumexp", shard)));
    }
cleanup:
    return status;
}

/* What there is to write of attention; NULL: nobody asks. */
typedef struct attention_results {
    spec_quad *query, *key, *value, *attn_out, *lse, *out;
} attention_results;

/* Of one shard's microbatch, whose input is normalised. */
static assay_status mla_rows(call *c, int64_t shard, int64_t i, const spec_quad *x, const spec_quad *angles,
                             const attention_results *r)
{
    assay_status status = ASSAY_OK;
    const assay_mla_config *m = mla_of(c);
    const int64_t tokens = c->s.tokens, heads = m->heads, width = m->qk_nope_head_dim + m->rope.dim;
    spec_quad *query = NULL;
    TRY(spec_alloc(c->ctx, tokens * heads * (2 * width + m->v_head_dim), &query));
    spec_quad *key = query + tokens * heads * width, *value = key + tokens * heads * width;
    make_query(c, shard, x, angles, query);
    make_key_value(c, shard, x, angles, key, value);
    if (r->query != NULL) memcpy(r->query, query, (size_t)(tokens * heads * width) * sizeof *query);
    if (r->key != NULL) memcpy(r->key, key, (size_t)(tokens * heads * width) * sizeof *query);
    if (r->value != NULL) memcpy(r->value, value, (size_t)(tokens * heads * m->v_head_dim) * sizeof *query);
    if (r->out == NULL) goto cleanup;
    TRY(attend(c, query, key, value, r->attn_out, r->lse));
    add_offset(c, "attn_out", shard, i, tokens * heads * m->v_head_dim, r->attn_out);
    for (int64_t t = 0; t < tokens; t++) {
        spec_vector_matrix(heads * m->v_head_dim, m->emb_dim, r->attn_out + t * heads * m->v_head_dim,
                           in_shard(c, "weights/out_weights", shard), m->emb_dim, r->out + t * m->emb_dim);
    }
cleanup:
    free(query);
    return status;
}

static assay_status mla(call *c)
{
    assay_status status = ASSAY_OK;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const attention_results r = {.attn_out = out_shard(c, "outputs/attn_out", shard),
                                     .lse = out_shard(c, "outputs/lse", shard),
                                     .out = out_shard(c, "outputs/out", shard)};
        TRY(mla_rows(c, shard, 0, in_shard(c, "inputs/inputs", shard), in_shard(c, "inputs/yarn_freqs", shard), &r));
    }
cleanup:
    return status;
}

static assay_status mla_remat(call *c)
{
    assay_status status = ASSAY_OK;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const attention_results r = {.query = out_shard(c, "outputs/query", shard),
                                     .key = out_shard(c, "outputs/key", shard),
                                     .value = out_shard(c, "outputs/value", shard)};
        TRY(mla_rows(c, shard, 0, in_shard(c, "inputs/inputs", shard), in_shard(c, "inputs/yarn_freqs", shard), &r));
    }
cleanup:
    return status;
}

/* x of microbatch i; r->out becomes x + mla(rms_norm(x)). */
static assay_status normed_mla_rows(call *c, int64_t shard, int64_t i, const spec_quad *x, const attention_results *r)
{
    assay_status status = ASSAY_OK;
    const int64_t count = c->s.tokens * mla_of(c)->emb_dim;
    spec_quad *normed = NULL;
    TRY(spec_alloc(c->ctx, count, &normed));
    normalise(c, "weights/pre_attn_scale", shard, x, normed);
    TRY(mla_rows(c, shard, i, normed, in_part(c, "inputs/yarn_freqs", shard, i, c->factor), r));
    for (int64_t k = 0; r->out != NULL && k < count; k++) r->out[k] += x[k];
cleanup:
    free(normed);
    return status;
}

static assay_status mla_with_norms(call *c)
{
    assay_status status = ASSAY_OK;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        for (int64_t i = 0; i < c->factor; i++) {
            const attention_results r = {.attn_out = out_part(c, "outputs/attn_out", shard, i, c->factor),
                                         .lse = out_part(c, "outputs/lse", shard, i, c->factor),
                                         .out = out_part(c, "outputs/mla_out", shard, i, c->factor)};
            TRY(normed_mla_rows(c, shard, i, in_part(c, "inputs/inputs", shard, i, c->factor), &r));
            add_offset(c, "mla_out", shard, i, c->s.tokens * mla_of(c)->emb_dim, r.out);
        }
    }
cleanup:
    return status;
}

static assay_status mla_with_norms_remat(call *c)
{
    assay_status status = ASSAY_OK;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        for (int64_t i = 0; i < c->factor; i++) {
            const attention_results r = {.query = out_part(c, "outputs/query", shard, i, c->factor),
                                         .key = out_part(c, "outputs/key", shard, i, c->factor),
                                         .value = out_part(c, "outputs/value", shard, i, c->factor)};
            TRY(normed_mla_rows(c, shard, i, in_part(c, "inputs/layer_inputs", shard, i, c->factor), &r));
        }
    }
cleanup:
    return status;
}

/* --- choosing --- */

static const assay_routing_config *routing_of(const call *c)
{
    return &c->config->stack.moe.routing;
}

static assay_status expert_group_mask(call *c)
{
    assay_status status = ASSAY_OK;
    assay_routing_config config = *routing_of(c);
    const int64_t experts = config.num_experts, tokens = c->s.shards * c->s.tokens;
    const int64_t groups = config.n_routing_groups > 0 ? config.n_routing_groups : 1;
    bool *allowed = malloc((size_t)experts * sizeof *allowed);
    int32_t *selected = malloc((size_t)experts * sizeof *selected);
    spec_quad margin, *mask = spec_tensors_find(&c->out, "outputs/mask")->values;
    /* every allowed expert is chosen */
    config.num_experts_per_tok = experts / groups * (config.n_routing_groups > 0 ? config.topk_routing_group : 1);
    if (allowed == NULL || selected == NULL) status = assay_fail(c->ctx, ASSAY_NO_MEMORY, "no memory for a mask");
    for (int64_t t = 0; status == ASSAY_OK && t < tokens; t++) {
        status = spec_select(c->ctx, &config, given(c, "inputs/gate_logits") + t * experts, allowed, selected, &margin);
        for (int64_t e = 0; status == ASSAY_OK && e < experts; e++) mask[t * experts + e] = allowed[e] ? 1 : 0;
    }
    free(allowed);
    free(selected);
    return status;
}

/* The experts of each token by `biased` [T,E], and their weights from `scores`. */
static assay_status choose(call *c, int64_t tokens, const spec_quad *biased, const spec_quad *scores, int32_t *selected,
                           spec_quad *weights)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config *config = routing_of(c);
    const int64_t experts = config->num_experts, chosen = config->num_experts_per_tok;
    spec_quad margin;
    bool *allowed = malloc((size_t)experts * sizeof *allowed);
    if (allowed == NULL) return assay_fail(c->ctx, ASSAY_NO_MEMORY, "no memory for a choice");
    for (int64_t t = 0; t < tokens; t++) {
        spec_quad sum = 0;
        TRY(spec_select(c->ctx, config, biased + t * experts, allowed, selected + t * chosen, &margin));
        for (int64_t k = 0; k < chosen; k++) sum += scores[t * experts + selected[t * chosen + k]];
        for (int64_t k = 0; k < chosen; k++)
            weights[t * chosen + k] =
                config->routed_scaling_factor * (scores[t * experts + selected[t * chosen + k]] / sum);
    }
cleanup:
    free(allowed);
    return status;
}

static assay_status expert_indices_and_weights(call *c)
{
    return choose(c, c->s.shards * c->s.tokens, given(c, "inputs/gate_logits"), given(c, "inputs/pre_bias_logits"),
                  out_indices(c, "outputs/indices", 0), out_shard(c, "outputs/weights", 0));
}

/* Of one shard's x [T,D]; `kernel` and `bias` name the router. */
static assay_status select_rows(call *c, int64_t shard, const char *kernel, const char *bias, const spec_quad *x,
                                int32_t *selected, spec_quad *weights)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = routing_of(c)->num_experts, dim = mla_of(c)->emb_dim, tokens = c->s.tokens;
    spec_quad *scores = NULL;
    TRY(spec_alloc(c->ctx, 2 * tokens * experts, &scores));
    for (int64_t t = 0; t < tokens; t++) {
        spec_quad *row = scores + t * experts;
        spec_vector_matrix(dim, experts, x + t * dim, in_shard(c, kernel, shard), experts, row);
        for (int64_t e = 0; e < experts; e++) {
            row[e] = spec_sigmoid(row[e]);
            row[tokens * experts + e] = row[e] + in_shard(c, bias, shard)[e];
        }
    }
    TRY(choose(c, tokens, scores + tokens * experts, scores, selected, weights));
cleanup:
    free(scores);
    return status;
}

static assay_status expert_selection(call *c)
{
    assay_status status = ASSAY_OK;
    const int64_t chosen = c->s.tokens * routing_of(c)->num_experts_per_tok, experts = routing_of(c)->num_experts;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        int32_t *selected = out_indices(c, "outputs/selected_experts", shard);
        int32_t *sizes = out_indices(c, "outputs/group_sizes", shard);
        TRY(select_rows(c, shard, "weights/routing_kernel", "weights/routing_bias", in_shard(c, "inputs/x", shard),
                        selected, out_shard(c, "outputs/weights", shard)));
        for (int64_t e = 0; e < experts; e++) sizes[e] = 0;
        for (int64_t i = 0; i < chosen; i++) sizes[selected[i]]++;
    }
cleanup:
    return status;
}

/* --- sorting by expert, and back --- */

/* What a shard sorts: of choice i of those gathered over its expert axis, the shard whose it is and its place there. */
static void owner(const call *c, int64_t shard, int64_t i, int64_t *of, int64_t *place)
{
    const int64_t own = c->s.copies / c->s.expert_shards;
    *of = shard / c->s.expert_shards * c->s.expert_shards + i / own;
    *place = i % own;
}

/* rolled [R] of a shard from all shards' own choices [M,T*K]. */
static void roll(const call *c, int64_t shard, const int32_t *choices, int32_t *rolled)
{
    const int64_t own = c->s.copies / c->s.expert_shards, experts = routing_of(c)->num_experts;
    const int64_t first = shard % c->s.expert_shards * c->s.local_experts;
    for (int64_t i = 0; i < c->s.copies; i++) {
        int64_t of, place;
        owner(c, shard, i, &of, &place);
        rolled[i] = (int32_t)((choices[of * own + place] + experts - first) % experts);
    }
}

/* order [R] of a shard's rolled ids; sizes [E]. */
static void sort(const call *c, const int32_t *rolled, int32_t *order, int32_t *sizes)
{
    spec_sort_by_expert(c->s.copies, rolled, routing_of(c)->num_experts, order, sizes);
}

/* sorted [R,D] of one shard from all shards' rows [M,T,D]. */
static assay_status sort_rows(call *c, int64_t shard, const int32_t *rolled, const spec_quad *rows, int64_t width,
                              int64_t each, spec_quad *sorted)
{
    const int64_t own = c->s.copies / c->s.expert_shards;
    int32_t *order = malloc((size_t)(c->s.copies + routing_of(c)->num_experts) * sizeof *order);
    if (order == NULL) return assay_fail(c->ctx, ASSAY_NO_MEMORY, "no memory for an order");
    sort(c, rolled, order, order + c->s.copies);
    for (int64_t j = 0; j < c->s.copies; j++) {
        int64_t of, place;
        owner(c, shard, order[j], &of, &place);
        memcpy(sorted + j * width, rows + (of * (own / each) + place / each) * width, (size_t)width * sizeof *rows);
    }
    free(order);
    return ASSAY_OK;
}

/* rows [M,T,D]: every copy of a token on every shard, added. */
static assay_status unsort_rows(call *c, const int32_t *rolled, const spec_quad *sorted, spec_quad *rows)
{
    const int64_t width = mla_of(c)->emb_dim, chosen = routing_of(c)->num_experts_per_tok;
    int32_t *order = malloc((size_t)(c->s.copies + routing_of(c)->num_experts) * sizeof *order);
    if (order == NULL) return assay_fail(c->ctx, ASSAY_NO_MEMORY, "no memory for an order");
    memset(rows, 0, (size_t)(c->s.shards * c->s.tokens * width) * sizeof *rows);
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        sort(c, rolled + shard * c->s.copies, order, order + c->s.copies);
        for (int64_t j = 0; j < c->s.copies; j++) {
            int64_t of, place;
            owner(c, shard, order[j], &of, &place);
            spec_quad *to = rows + (of * c->s.tokens + place / chosen) * width;
            for (int64_t d = 0; d < width; d++) to[d] += sorted[(shard * c->s.copies + j) * width + d];
        }
    }
    free(order);
    return ASSAY_OK;
}

/* What route gives of all shards' rows, choices and weights. */
typedef struct routed {
    spec_quad *x, *weights;
    int32_t *rolled, *sizes;
} routed;

static assay_status route_all(call *c, const spec_quad *rows, const int32_t *choices, const spec_quad *weights,
                              const routed *to)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = mla_of(c)->emb_dim, chosen = routing_of(c)->num_experts_per_tok, copies = c->s.copies;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        int32_t *rolled = to->rolled + shard * copies, *sizes = to->sizes + shard * c->s.local_experts;
        roll(c, shard, choices, rolled);
        TRY(sort_rows(c, shard, rolled, rows, dim, chosen, to->x + shard * copies * dim));
        TRY(sort_rows(c, shard, rolled, weights, 1, 1, to->weights + shard * copies));
        for (int64_t e = 0; e < c->s.local_experts; e++) sizes[e] = 0;
        for (int64_t i = 0; i < copies; i++) {
            if (rolled[i] < c->s.local_experts) sizes[rolled[i]]++;
        }
    }
cleanup:
    return status;
}

static assay_status route(call *c)
{
    const routed to = {out_shard(c, "outputs/x", 0), out_shard(c, "outputs/weights", 0),
                       out_indices(c, "outputs/selected_experts", 0), out_indices(c, "outputs/group_sizes", 0)};
    const assay_status status = route_all(c, given(c, "inputs/x"), given_indices(c, "inputs/selected_experts"),
                                          given(c, "inputs/weights"), &to);
    if (status != ASSAY_OK || spec_tensors_find(&c->in, "inputs/group_sizes") == NULL) return status;
    /* the sizes are those that the argument has, added over the expert axis */
    const int32_t *counts = given_indices(c, "inputs/group_sizes");
    for (int64_t i = 0; i < c->s.shards * c->s.local_experts; i++) {
        const int64_t shard = i / c->s.local_experts, place = shard % c->s.expert_shards;
        const int64_t e = place * c->s.local_experts + i % c->s.local_experts;
        to.sizes[i] = 0;
        for (int64_t p = 0; p < c->s.expert_shards; p++)
            to.sizes[i] += counts[(shard - place + p) * routing_of(c)->num_experts + e];
    }
    return ASSAY_OK;
}

static assay_status route_impl(call *c)
{
    assay_status status = ASSAY_OK;
    const int32_t *rolled = given_indices(c, "inputs/selected_experts");
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        TRY(sort_rows(c, shard, rolled + shard * c->s.copies, given(c, "inputs/x"), mla_of(c)->emb_dim,
                      routing_of(c)->num_experts_per_tok, out_shard(c, "outputs/x", shard)));
    }
cleanup:
    return status;
}

static assay_status unroute(call *c)
{
    return unsort_rows(c, given_indices(c, "inputs/selected_experts"), given(c, "inputs/x"),
                       out_shard(c, "outputs/x", 0));
}

static assay_status unroute_ubatch_fn(call *c)
{
    spec_quad *out = out_shard(c, "outputs/outputs", 0);
    const int32_t *rolled = given_indices(c, "inputs/selected_experts");
    assay_status status = unsort_rows(c, rolled, given(c, "inputs/routed_expert_out"), out);
    if (status != ASSAY_OK) return status;
    for (int64_t i = 0; i < c->s.shards * c->s.tokens * mla_of(c)->emb_dim; i++)
        out[i] = given(c, "inputs/moe_inputs")[i] + (out[i] + given(c, "inputs/shared_expert_out")[i]);
    memcpy(out_indices(c, "outputs/selected_experts", 0), rolled, (size_t)(c->s.shards * c->s.copies) * sizeof *rolled);
    return ASSAY_OK;
}

/* --- experts --- */

/* y [rows,n] = x [rows,k] times the kernel of each row's group; 0 behind the groups. */
static void grouped(const call *c, const int32_t *sizes, const spec_quad *x, int64_t k, const spec_quad *kernels,
                    int64_t n, spec_quad *y)
{
    int64_t row = 0;
    for (int64_t e = 0; e < c->s.local_experts; e++) {
        for (int64_t end = row + sizes[e]; row < end; row++)
            spec_vector_matrix(k, n, x + row * k, kernels + e * k * n, n, y + row * n);
    }
    for (int64_t i = row * n; i < c->s.copies * n; i++) y[i] = 0;
}

static void linear_rows(const call *c, const int32_t *sizes, const spec_quad *w0, const spec_quad *w1,
                        const spec_quad *weights, const spec_quad *wo, spec_quad *hidden, spec_quad *y)
{
    const int64_t width = c->config->stack.moe.moe_mlp_dim;
    for (int64_t i = 0; i < c->s.copies * width; i++)
        hidden[i] = w0[i] * spec_sigmoid(w0[i]) * w1[i] * weights[i / width];
    grouped(c, sizes, hidden, width, wo, mla_of(c)->emb_dim, y);
}

static assay_status gmm(call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        grouped(c, given_indices(c, "inputs/group_sizes") + shard * c->s.local_experts,
                in_shard(c, "inputs/inputs", shard), mla_of(c)->emb_dim, in_shard(c, "weights/kernel", shard),
                c->config->stack.moe.moe_mlp_dim, out_shard(c, "outputs/output", shard));
    }
    return ASSAY_OK;
}

static assay_status compute_gating(call *c)
{
    const int64_t dim = mla_of(c)->emb_dim, width = c->config->stack.moe.moe_mlp_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int32_t *sizes = given_indices(c, "inputs/group_sizes") + shard * c->s.local_experts;
        const spec_quad *x = in_shard(c, "inputs/x", shard);
        grouped(c, sizes, x, dim, in_shard(c, "weights/w0", shard), width, out_shard(c, "outputs/layer_w0", shard));
        grouped(c, sizes, x, dim, in_shard(c, "weights/w1", shard), width, out_shard(c, "outputs/layer_w1", shard));
    }
    return ASSAY_OK;
}

static assay_status compute_linear(call *c)
{
    assay_status status = ASSAY_OK;
    spec_quad *hidden = NULL;
    TRY(spec_alloc(c->ctx, c->s.copies * c->config->stack.moe.moe_mlp_dim, &hidden));
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        linear_rows(c, given_indices(c, "inputs/group_sizes") + shard * c->s.local_experts,
                    in_shard(c, "inputs/layer_w0", shard), in_shard(c, "inputs/layer_w1", shard),
                    in_shard(c, "inputs/weights", shard), in_shard(c, "weights/wo", shard), hidden,
                    out_shard(c, "outputs/layer_wo", shard));
    }
cleanup:
    free(hidden);
    return status;
}

static void shared_rows(const call *c, int64_t shard, const spec_quad *x, spec_quad *y)
{
    const int64_t dim = mla_of(c)->emb_dim, width = c->config->stack.moe.shared_mlp_dim;
    spec_quad *a = c->scratch, *b = a + width;
    for (int64_t t = 0; t < c->s.tokens; t++) {
        spec_vector_matrix(dim, width, x + t * dim, in_shard(c, "weights/shared_w0", shard), width, a);
        spec_vector_matrix(dim, width, x + t * dim, in_shard(c, "weights/shared_w1", shard), width, b);
        for (int64_t i = 0; i < width; i++) a[i] *= spec_sigmoid(a[i]) * b[i];
        spec_vector_matrix(width, dim, a, in_shard(c, "weights/shared_wo", shard), dim, y + t * dim);
    }
}

static assay_status shared_expert(call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        shared_rows(c, shard, in_shard(c, "inputs/inputs", shard), out_shard(c, "outputs/y", shard));
    return ASSAY_OK;
}

/* --- stages --- */

/* Of all shards' moe_inputs [M,T,D]; shared_out may be NULL. */
static assay_status route_stage(call *c, const spec_quad *inputs, spec_quad *shared_out, const routed *to)
{
    assay_status status = ASSAY_OK;
    const int64_t count = c->s.tokens * mla_of(c)->emb_dim, chosen = c->s.tokens * routing_of(c)->num_experts_per_tok;
    spec_quad *normed = NULL;
    int32_t *choices = malloc((size_t)(c->s.shards * chosen) * sizeof *choices);
    if (choices == NULL) return assay_fail(c->ctx, ASSAY_NO_MEMORY, "no memory for choices");
    TRY(spec_alloc(c->ctx, c->s.shards * (count + chosen), &normed));
    spec_quad *weights = normed + c->s.shards * count;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        normalise(c, "weights/post_attn_scale", shard, inputs + shard * count, normed + shard * count);
        if (shared_out != NULL) shared_rows(c, shard, normed + shard * count, shared_out + shard * count);
        TRY(select_rows(c, shard, "weights/gate_kernel", "weights/gate_bias", normed + shard * count,
                        choices + shard * chosen, weights + shard * chosen));
    }
    TRY(route_all(c, normed, choices, weights, to));
cleanup:
    free(normed);
    free(choices);
    return status;
}

static assay_status shared_expert_and_route(call *c)
{
    const routed to = {out_shard(c, "outputs/x", 0), out_shard(c, "outputs/weights", 0),
                       out_indices(c, "outputs/selected_experts", 0), out_indices(c, "outputs/group_sizes", 0)};
    const bool shared = spec_tensors_find(&c->out, "outputs/y") != NULL;
    return route_stage(c, given(c, "inputs/inputs"), shared ? out_shard(c, "outputs/y", 0) : NULL, &to);
}

/* One microbatch's arrays of the MoE half. */
typedef struct half {
    routed r;
    spec_quad *inputs, *shared, *w0, *w1, *hidden, *y;
} half;

static void half_free(half *h)
{
    spec_quad *all[] = {h->r.x, h->r.weights, h->inputs, h->shared, h->w0, h->w1, h->hidden, h->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(h->r.rolled);
    free(h->r.sizes);
}

static assay_status half_open(call *c, half *h)
{
    assay_status status = ASSAY_OK;
    const int64_t shards = c->s.shards, dim = mla_of(c)->emb_dim, copies = shards * c->s.copies;
    const int64_t width = c->config->stack.moe.moe_mlp_dim;
    TRY(spec_alloc(c->ctx, copies * dim, &h->r.x));
    TRY(spec_alloc(c->ctx, copies, &h->r.weights));
    TRY(spec_alloc(c->ctx, shards * c->s.tokens * dim, &h->inputs));
    TRY(spec_alloc(c->ctx, shards * c->s.tokens * dim, &h->shared));
    TRY(spec_alloc(c->ctx, copies * width, &h->w0));
    TRY(spec_alloc(c->ctx, copies * width, &h->w1));
    TRY(spec_alloc(c->ctx, c->s.copies * width, &h->hidden));
    TRY(spec_alloc(c->ctx, copies * dim, &h->y));
    TRY(assay_alloc_i32(c->ctx, "choices", copies, &h->r.rolled));
    TRY(assay_alloc_i32(c->ctx, "sizes", shards * c->s.local_experts, &h->r.sizes));
cleanup:
    return status;
}

static void compute_stage(call *c, const half *h, int64_t i)
{
    const int64_t dim = mla_of(c)->emb_dim, width = c->config->stack.moe.moe_mlp_dim, copies = c->s.copies;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int32_t *sizes = h->r.sizes + shard * c->s.local_experts;
        spec_quad *w0 = h->w0 + shard * copies * width, *w1 = h->w1 + shard * copies * width;
        grouped(c, sizes, h->r.x + shard * copies * dim, dim, in_shard(c, "weights/routed_w0", shard), width, w0);
        grouped(c, sizes, h->r.x + shard * copies * dim, dim, in_shard(c, "weights/routed_w1", shard), width, w1);
        int64_t rows = 0;
        for (int64_t e = 0; e < c->s.local_experts; e++) rows += sizes[e];
        if (rows <= c->s.capacity) { /* else both are computed again */
            add_offset(c, "mlpwi_0", shard, i, c->s.capacity * width, w0);
            add_offset(c, "mlpwi_1", shard, i, c->s.capacity * width, w1);
        }
        linear_rows(c, sizes, w0, w1, h->r.weights + shard * copies, in_shard(c, "weights/routed_wo", shard), h->hidden,
                    h->y + shard * copies * dim);
    }
}

/* What the half leaves of microbatch i: its output, or of the last one what is deferred; and the residuals. */
static assay_status leave(call *c, const half *h, int64_t i)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = mla_of(c)->emb_dim, width = c->config->stack.moe.moe_mlp_dim, count = c->s.tokens * dim;
    const int64_t kept = c->s.capacity * width;
    spec_quad *sums = NULL;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        memcpy(out_part(c, "outputs/mlpwi_0", shard, i, c->factor), h->w0 + shard * c->s.copies * width,
               (size_t)kept * sizeof *sums);
        memcpy(out_part(c, "outputs/mlpwi_1", shard, i, c->factor), h->w1 + shard * c->s.copies * width,
               (size_t)kept * sizeof *sums);
    }
    if (i == c->factor - 1) {
        memcpy(out_shard(c, "outputs/moe_inputs", 0), h->inputs, (size_t)(c->s.shards * count) * sizeof *sums);
        memcpy(out_shard(c, "outputs/shared_expert_out", 0), h->shared, (size_t)(c->s.shards * count) * sizeof *sums);
        memcpy(out_shard(c, "outputs/routed_expert_out", 0), h->y,
               (size_t)(c->s.shards * c->s.copies * dim) * sizeof *sums);
        memcpy(out_indices(c, "outputs/selected_experts", 0), h->r.rolled,
               (size_t)(c->s.shards * c->s.copies) * sizeof *h->r.rolled);
        return ASSAY_OK;
    }
    TRY(spec_alloc(c->ctx, c->s.shards * count, &sums));
    TRY(unsort_rows(c, h->r.rolled, h->y, sums));
    for (int64_t k = 0; k < c->s.shards * count; k++)
        out_part(c, "outputs/xs", k / count, i, c->factor - 1)[k % count] = h->inputs[k] + (sums[k] + h->shared[k]);
cleanup:
    free(sums);
    return status;
}

/* The microbatches' inputs are a tensor [M,f,...] of one of the two lists. */
static assay_status moe_half(call *c, const spec_tensor *inputs)
{
    assay_status status = ASSAY_OK;
    const int64_t count = c->s.tokens * mla_of(c)->emb_dim;
    half h = {0};
    TRY(half_open(c, &h));
    for (int64_t i = 0; i < c->factor; i++) {
        for (int64_t shard = 0; shard < c->s.shards; shard++) {
            memcpy(h.inputs + shard * count, part_of(c, inputs, shard, i, c->factor), (size_t)count * sizeof *h.inputs);
        }
        TRY(route_stage(c, h.inputs, h.shared, &h.r));
        compute_stage(c, &h, i);
        TRY(leave(c, &h, i));
    }
cleanup:
    half_free(&h);
    return status;
}

static assay_status route_compute_unroute(call *c)
{
    return moe_half(c, spec_tensors_find(&c->in, "inputs/xs"));
}

static assay_status batch_split_schedule(call *c)
{
    const assay_status status = mla_with_norms(c);
    return status != ASSAY_OK ? status : moe_half(c, spec_tensors_find(&c->out, "outputs/mla_out"));
}

static const struct {
    const char *name;
    assay_status (*evaluate)(call *c);
} functions[] = {
#define F(name)                                                                                                        \
    {                                                                                                                  \
#name, name                                                                                                    \
    }
    F(fetch_weights),
    F(split),
    F(merge),
    F(extract_layer_weights),
    F(insert_layer_ws_grad),
    F(gather_weights),
    F(reduce_scatter_ws_grad),
    F(all_reduce_ws_grad_dcn),
    F(rms_norm),
    F(initialize_yarn_mask),
    F(initialize_yarn_freqs),
    F(yarn),
    F(query_projection),
    F(kv_projection),
    F(get_key_value),
    F(tpu_flash_attention),
    F(mla),
    F(mla_remat),
    F(mla_with_norms),
    F(mla_with_norms_remat),
    F(shared_expert),
    F(expert_group_mask),
    F(expert_indices_and_weights),
    F(expert_selection),
    F(route),
    F(route_impl),
    F(unroute),
    F(gmm),
    F(compute_gating),
    F(compute_linear),
    F(shared_expert_and_route),
    {"shared_expert_and_route_remat", shared_expert_and_route},
    F(unroute_ubatch_fn),
    F(route_compute_unroute),
    F(batch_split_schedule),
#undef F
};

static assay_status evaluate(call *c)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(functions[i].name, c->view->name) == 0) return functions[i].evaluate(c);
    }
    return assay_fail(c->ctx, ASSAY_INTERNAL, "%s has no second form", c->view->name);
}

/* --- a call --- */

static void call_close(call *c)
{
    spec_tensors_free(&c->in);
    spec_tensors_free(&c->out);
    free(c->scratch);
}

/* A copy as each shard has it: of a weight, its experts. */
static assay_status expand(call *c, const assay_function_tensor *tensor, const spec_tensor *from)
{
    assay_status status;
    const bool weight = strncmp(tensor->path, "weights/", 8) == 0;
    const int64_t count = assay_shape_count(&tensor->shape);
    if (tensor->integers) return spec_tensors_copy_i32(c->ctx, &c->in, tensor->path, &tensor->shape, from->indices);
    const int64_t parts = tensor->by_expert ? c->s.expert_shards : 1, local = count / (weight ? parts : 1);
    const assay_shape shape = weight ? assay_shape_of(2, c->s.shards, local) : tensor->shape;
    spec_quad *values = NULL;
    TRY(spec_tensors_add(c->ctx, &c->in, tensor->path, &shape, &values));
    if (from == NULL) {
        for (int64_t i = 0; i < assay_shape_count(&shape); i++) values[i] = 0;
    } else if (!weight) {
        memcpy(values, from->values, (size_t)count * sizeof *values);
    } else {
        for (int64_t i = 0; i < c->s.shards * local; i++)
            values[i] = from->values[i / local % parts * local + i % local];
    }
cleanup:
    return status;
}

/* The choices that were gathered and rolled, as each shard had them. */
static assay_status unroll(call *c, const spec_tensor *rolled)
{
    assay_status status;
    const int64_t own = c->s.copies / c->s.expert_shards, experts = routing_of(c)->num_experts;
    const assay_shape shape = assay_shape_of(2, c->s.shards, own);
    int32_t *choices = NULL;
    TRY(spec_tensors_add_indices(c->ctx, &c->in, "inputs/selected_experts", &shape, &choices));
    for (int64_t i = 0; i < c->s.shards * own; i++) {
        const int64_t shard = i / own, place = shard % c->s.expert_shards;
        const int32_t id = rolled->indices[shard * c->s.copies + place * own + i % own];
        choices[i] = (int32_t)((id + place * c->s.local_experts) % experts);
    }
cleanup:
    return status;
}

/* Of what was given the tensor that stands for this one of the forward function; NULL: a _bwd does without. */
static const spec_tensor *standing_for(const assay_function_view *view, const spec_tensors *in, const char *path)
{
    for (int i = 0; i < view->own.count; i++) {
        const char *own = view->own.items[i].path;
        if (strncmp(own, "outputs/", 8) != 0 && strcmp(view->counterparts[i], path) == 0)
            return spec_tensors_find(in, own);
    }
    return NULL;
}

/* What a _bwd does without is zero. */
static assay_status take(call *c, const spec_tensors *in)
{
    assay_status status = ASSAY_OK;
    const assay_function_tensors *tensors = &c->view->forward;
    for (int i = 0; i < tensors->count; i++) {
        const assay_function_tensor *tensor = &tensors->items[i];
        if (strncmp(tensor->path, "outputs/", 8) == 0) continue;
        const spec_tensor *from = standing_for(c->view, in, tensor->path);
        if (from != NULL || !tensor->integers) {
            TRY(expand(c, tensor, from));
        } else if (tensor->holds == ASSAY_HOLDS_CHOICES) {
            TRY(unroll(c, spec_tensors_find(in, "inputs/selected_experts")));
        }
    }
cleanup:
    return status;
}

static assay_status open_call(call *c, const spec_tensors *in)
{
    assay_status status;
    const assay_function_tensors *tensors = &c->view->forward;
    const assay_stack_config *stack = &c->config->stack;
    const assay_mla_config *m = &stack->mla;
    c->s = c->view->sizes;
    c->factor = stack->batch_split_factor;
    TRY(spec_alloc(c->ctx,
                   2 * (m->q_lora_rank + m->kv_lora_rank + m->rope.dim + stack->moe.shared_mlp_dim) +
                       m->heads * (m->qk_nope_head_dim + m->v_head_dim),
                   &c->scratch));
    TRY(take(c, in));
    for (int i = 0; i < tensors->count; i++) {
        const assay_function_tensor *tensor = &tensors->items[i];
        spec_quad *values = NULL;
        int32_t *indices = NULL;
        if (strncmp(tensor->path, "outputs/", 8) != 0) continue;
        TRY(tensor->integers ? spec_tensors_add_indices(c->ctx, &c->out, tensor->path, &tensor->shape, &indices)
                             : spec_tensors_add(c->ctx, &c->out, tensor->path, &tensor->shape, &values));
    }
cleanup:
    return status;
}

/* The sum over results of upstream gradients times them. */
static assay_status loss_of(call *c, const spec_quad *const *cotangents, spec_quad *loss)
{
    const assay_status status = evaluate(c);
    *loss = 0;
    for (int i = 0; status == ASSAY_OK && i < c->out.count; i++) {
        for (int64_t k = 0; cotangents[i] != NULL && k < assay_shape_count(&c->out.items[i].shape); k++)
            *loss += cotangents[i][k] * c->out.items[i].values[k];
    }
    return status;
}

/* dL by every number of a tensor, in place of them: what the difference leaves out is of the order of 1e-20. */
static assay_status differentiate(call *c, const spec_quad *const *cotangents, const spec_tensor *by,
                                  spec_quad *gradient)
{
    assay_status status = ASSAY_OK;
    const int64_t count = assay_shape_count(&by->shape);
    spec_quad size = 0;
    for (int64_t i = 0; i < count; i++) size = fmaxq(size, fabsq(by->values[i]));
    const spec_quad step = (size > 0 ? size : 1) * 1e-10Q;
    for (int64_t i = 0; i < count; i++) {
        const spec_quad value = by->values[i];
        spec_quad above = 0, below = 0;
        by->values[i] = value + step;
        TRY(loss_of(c, cotangents, &above));
        by->values[i] = value - step;
        TRY(loss_of(c, cotangents, &below));
        by->values[i] = value;
        gradient[i] = (above - below) / (2 * step);
    }
cleanup:
    return status;
}

/* Y_grad of each result; NULL: the result is not differentiated. */
static void find_cotangents(const call *c, const spec_tensors *in, const spec_quad **cotangents)
{
    const assay_function_tensors *own = &c->view->own;
    for (int i = 0; i < c->out.count; i++) {
        cotangents[i] = NULL;
        for (int k = 0; k < own->count; k++) {
            const bool given = strncmp(own->items[k].path, "inputs/", 7) == 0;
            if (!given || own->items[k].holds == ASSAY_HOLDS_RESIDUAL || own->items[k].integers) continue;
            if (strcmp(c->view->counterparts[k], c->out.items[i].path) == 0)
                cotangents[i] = spec_tensors_find(in, own->items[k].path)->values;
        }
    }
}

/* One result after the other: what comes later is computed from where the earlier ones are. */
static assay_status find_offsets(call *c, const spec_tensors *in)
{
    assay_status status = ASSAY_OK;
    const assay_function_tensors *own = &c->view->own;
    for (int i = 0; i < c->out.count; i++) {
        const spec_tensor *there = &c->out.items[i];
        for (int k = 0; k < own->count; k++) {
            char offset[2 * ASSAY_PATH_SIZE];
            spec_quad *values = NULL;
            if (own->items[k].holds != ASSAY_HOLDS_RESIDUAL || strcmp(c->view->counterparts[k], there->path) != 0)
                continue;
            const spec_tensor *here = spec_tensors_find(in, own->items[k].path);
            TRY(evaluate(c));
            snprintf(offset, sizeof offset, "offsets/%s", strchr(there->path, '/') + 1);
            TRY(spec_tensors_add(c->ctx, &c->in, offset, &there->shape, &values));
            for (int64_t n = 0; n < assay_shape_count(&there->shape); n++)
                values[n] = here->values[n] - there->values[n];
        }
    }
cleanup:
    return status;
}

static assay_status backward(call *c, const spec_tensors *in, spec_tensors *out)
{
    assay_status status;
    const assay_function_tensors *own = &c->view->own;
    const spec_quad *cotangents[ASSAY_FUNCTION_TENSORS];
    spec_quad *gradient = NULL, *result = NULL;
    TRY(find_offsets(c, in));
    find_cotangents(c, in, cotangents);
    for (int i = 0; i < own->count; i++) {
        const assay_shape *shape = &own->items[i].shape;
        if (strncmp(own->items[i].path, "outputs/", 8) != 0) continue;
        const spec_tensor *by = spec_tensors_find(&c->in, c->view->counterparts[i]);
        const int64_t count = assay_shape_count(shape), all = assay_shape_count(&by->shape);
        TRY(spec_alloc(c->ctx, all, &gradient));
        TRY(differentiate(c, cotangents, by, gradient));
        TRY(spec_tensors_add(c->ctx, out, own->items[i].path, shape, &result));
        for (int64_t k = 0; k < count; k++) result[k] = 0;
        for (int64_t k = 0; k < all; k++) result[k % count] += gradient[k]; /* of scales: over all shards */
        free(gradient);
        gradient = NULL;
    }
cleanup:
    free(gradient);
    return status;
}

assay_status spec_batch_split_function(assay_context *ctx, const assay_function_view *view, const spec_tensors *in,
                                       spec_tensors *out)
{
    assay_status status;
    call c = {.ctx = ctx, .view = view, .config = view->config};
    TRY(open_call(&c, in));
    if (view->backward) {
        TRY(backward(&c, in, out));
    } else {
        TRY(evaluate(&c));
        for (int i = 0; i < c.out.count; i++) TRY(spec_tensors_move(ctx, &c.out, c.out.items[i].path, out));
    }
cleanup:
    call_close(&c);
    return status;
}
