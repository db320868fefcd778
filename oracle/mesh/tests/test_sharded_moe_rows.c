/* What every shard counts, receives, computes and cuts, against plain lists of choices. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/mesh/tests/sharded_case.h"
#include "tests/support/assay_test.h"

static const struct {
    int64_t batch, mesh[3];
    bool ring;
    int64_t chunks;
    double factor;
} forms[] = {
    {8, {1, 1, 1}, false, 1, -1},  {8, {2, 2, 1}, false, 1, -1},  {8, {1, 1, 8}, false, 1, -1},
    {8, {2, 1, 4}, false, 1, -1},  {4, {1, 1, 4}, false, 1, 1},   {8, {2, 2, 2}, false, 1, 0.7},
    {8, {1, 1, 4}, false, 1, 0.3}, {8, {1, 2, 4}, false, 1, 2.5}, {1, {1, 1, 4}, false, 1, -1},
    {1, {1, 1, 2}, false, 1, 0.5}, {4, {1, 1, 4}, true, 1, -1},   {8, {2, 1, 2}, true, 2, -1},
    {8, {1, 2, 4}, true, 3, -1},   {2, {1, 1, 1}, true, 3, -1},
};
enum { FORMS = sizeof forms / sizeof *forms, EXPERTS = 8, MOST = 8 * 6 * 3 };

static assay_sharding sharding_of(int form)
{
    const int64_t *mesh = forms[form].mesh;
    assay_sharding sharding = sharded_case_mesh(mesh[0], mesh[1], mesh[2]);
    sharding.ring_of_experts = forms[form].ring;
    sharding.token_chunks = forms[form].chunks;
    sharding.ragged_buffer_factor = forms[form].factor;
    return sharding;
}

/* A run with the results of one device beside it. */
typedef struct view {
    moe_case c;
    assay_sharding sharding;
    assay_shard_sizes sizes;
    memory_store whole, actual;
    const int32_t *selected; /* [B,S,K] */
    int64_t per_token, sequence;
} view;

static void open_view(assay_context *ctx, view *v, int form, int variant)
{
    memset(v, 0, sizeof *v);
    v->c = sharded_case(variant, forms[form].batch);
    v->sharding = sharding_of(form);
    v->sizes = assay_shard_sizes_of(&v->c.config, &v->sharding);
    v->per_token = v->c.config.routing.num_experts_per_tok;
    v->sequence = v->c.config.routing.sequence;
    moe_case_run(ctx, &v->c, &v->whole, NULL, 0);
    sharded_case_run(ctx, &v->c, &v->sharding, &v->actual);
    v->selected = moe_case_get(&v->whole, "routing/selected_experts")->indices;
}

static void close_view(view *v)
{
    memory_store_free(&v->whole);
    memory_store_free(&v->actual);
    moe_case_free(&v->c);
}

/* Choices [*count] that a shard routes of a chunk, as places in [B,S,K]. */
static void choices_of(const view *v, int64_t shard, int64_t chunk, int64_t *choices, int64_t *count)
{
    const assay_shard_sizes *s = &v->sizes;
    const int64_t owner = v->sharding.ring_of_experts ? shard / s->expert_shards * s->expert_shards : shard;
    const int64_t first = s->batch_sharded ? owner * s->own_batch : 0;
    *count = 0;
    for (int64_t row = first; row < first + s->batch; row++) {
        for (int64_t i = 0; i < s->sequence * v->per_token; i++)
            choices[(*count)++] = (row * v->sequence + chunk * s->sequence) * v->per_token + i;
    }
}

static int64_t roll_of(const view *v, int64_t shard)
{
    return v->sharding.ring_of_experts ? shard % v->sizes.expert_shards * v->sizes.local_experts : 0;
}

static const int32_t *routing_of(const view *v, const char *name, int64_t shard, int64_t chunk, int64_t count)
{
    char path[ASSAY_PATH_SIZE] = "routing/";
    const memory_tensor *tensor = moe_case_get(&v->actual, strcat(path, name));
    assert_int_equal(tensor->count, v->sizes.shards * v->sizes.chunks * count);
    return tensor->indices + (shard * v->sizes.chunks + chunk) * count;
}

static void check_sorted(const view *v, int64_t shard, int64_t chunk)
{
    const assay_shard_sizes *s = &v->sizes;
    int64_t choices[MOST], count = 0, at = 0;
    choices_of(v, shard, chunk, choices, &count);
    assert_int_equal(count, s->copies);
    const int32_t *sizes = routing_of(v, "group_sizes", shard, chunk, EXPERTS);
    const int32_t *sorted = routing_of(v, "sorted_selected_experts", shard, chunk, count);
    for (int64_t rolled = 0; rolled < EXPERTS; rolled++) {
        int32_t size = 0;
        for (int64_t i = 0; i < count; i++) {
            if (v->selected[choices[i]] != (rolled + roll_of(v, shard)) % EXPERTS) continue;
            assert_int_equal(sorted[at++], i);
            size++;
        }
        assert_int_equal(sizes[rolled], size);
    }
}

/* Rows that reach a shard: choices, sender after sender, each by expert; no more than the buffer holds. */
static int64_t received_by(const view *v, int64_t shard, int64_t chunk, int64_t *received)
{
    const assay_shard_sizes *s = &v->sizes;
    const int64_t local = s->local_experts, index = shard % s->expert_shards;
    const bool split = s->batch_sharded && !v->sharding.ring_of_experts;
    const int64_t first = split ? shard - index : shard, last = split ? first + s->expert_shards : shard + 1;
    int64_t choices[MOST], count = 0, rows = 0;
    for (int64_t sender = first; sender < last; sender++) {
        choices_of(v, sender, chunk, choices, &count);
        for (int64_t e = index * local; e < (index + 1) * local; e++) {
            for (int64_t i = 0; i < count; i++) {
                if (v->selected[choices[i]] == e && rows < s->buffer) received[rows++] = choices[i];
            }
        }
    }
    return rows;
}

/* The place of a choice in one device's sorted rows. */
static int64_t whole_row(const view *v, int64_t choice)
{
    const memory_tensor *sorted = moe_case_get(&v->whole, "routing/sorted_selected_experts");
    for (int64_t row = 0; row < sorted->count; row++) {
        if (sorted->indices[row] == choice) return row;
    }
    fail_msg("choice %lld is nowhere", (long long)choice);
    return -1;
}

static void check_row(const view *v, int64_t at, int64_t choice)
{
    static const char *const paths[] = {"checkpoints/moe_mlpwi_0", "checkpoints/moe_mlpwi_1", "checkpoints/moe_mlpwi",
                                        "checkpoints/moe_mlpwo"};
    const int64_t rows = v->sizes.shards * v->sizes.chunks * v->sizes.buffer;
    int found = 0;
    for (int i = 0; i < 4; i++) {
        const memory_tensor *whole = memory_store_find(&v->whole, paths[i]);
        const memory_tensor *actual = memory_store_find(&v->actual, paths[i]);
        assert_true((whole == NULL) == (actual == NULL));
        if (whole == NULL) continue;
        const int64_t width = actual->count / rows;
        assert_int_equal(actual->count, rows * width);
        for (int64_t j = 0; choice < 0 && j < width; j++) assert_true(actual->values[at * width + j] == 0);
        if (choice >= 0) {
            assert_same_bits(actual->values + at * width, whole->values + whole_row(v, choice) * width, width);
        }
        found++;
    }
    assert_true(found >= 2);
}

/* What a shard computes, and where each row of it came from; marks what is kept. */
static void check_local(const view *v, int64_t shard, int64_t chunk, bool *kept)
{
    const assay_shard_sizes *s = &v->sizes;
    int64_t received[MOST * 8], at = 0;
    const int64_t rows = received_by(v, shard, chunk, received), first = (shard * s->chunks + chunk) * s->buffer;
    const int32_t *sizes = routing_of(v, "local_group_sizes", shard, chunk, s->local_experts);
    const bool sorts = s->expert_shards > 1 && !v->sharding.ring_of_experts;
    /* Where the batch is not split: its copies of earlier shards' experts. */
    int64_t before = 0;
    for (int64_t i = 0; !s->batch_sharded && i < s->copies; i++) before += v->selected[i] / s->local_experts < shard;
    const int32_t *indices = sorts ? routing_of(v, "local_sorted_indices", shard, chunk, s->buffer) : NULL;
    for (int64_t e = 0; e < s->local_experts; e++) {
        int32_t size = 0;
        for (int64_t i = 0; i < rows; i++) {
            if (v->selected[received[i]] != shard % s->expert_shards * s->local_experts + e) continue;
            if (sorts && s->batch_sharded) assert_int_equal(indices[at], i);
            if (sorts && !s->batch_sharded) assert_int_equal(indices[at], before + at);
            check_row(v, first + at, received[i]);
            kept[received[i]] = true;
            at++;
            size++;
        }
        assert_int_equal(sizes[e], size);
    }
    for (int64_t own = at; at < s->buffer; at++) {
        if (sorts && s->batch_sharded) assert_int_equal(indices[at], at);
        if (sorts && !s->batch_sharded) assert_int_equal(indices[at], at < before + own ? at - own : at);
        check_row(v, first + at, -1);
    }
}

static void check_metadata(const view *v, int64_t shard)
{
    const assay_shard_sizes *s = &v->sizes;
    const int64_t peers = s->expert_shards, index = shard % peers;
    const bool ring = v->sharding.ring_of_experts;
    static const char *const paths[] = {"routing/expert_shard_id", "routing/local_sorted_indices",
                                        "routing/reshaped_group_sizes", "routing/all_shards_group_sizes"};
    const bool there[] = {peers > 1, peers > 1 && !ring, peers > 1 && !ring, peers > 1 && !ring && s->batch_sharded};
    for (int i = 0; i < 4; i++) assert_true((memory_store_find(&v->actual, paths[i]) != NULL) == there[i]);
    if (there[0]) {
        assert_int_equal(moe_case_get(&v->actual, paths[0])->count, s->shards);
        assert_int_equal(moe_case_get(&v->actual, paths[0])->indices[shard], index);
    }
    for (int64_t from = 0; there[2] && from < peers; from++) {
        int64_t choices[MOST], count = 0;
        choices_of(v, shard - index + from, 0, choices, &count);
        for (int64_t to = 0; to < peers; to++) {
            int32_t size = 0;
            for (int64_t i = 0; i < count; i++) size += v->selected[choices[i]] / s->local_experts == to;
            if (from == index) assert_int_equal(routing_of(v, "reshaped_group_sizes", shard, 0, peers)[to], size);
            if (!there[3]) continue;
            assert_int_equal(routing_of(v, "all_shards_group_sizes", shard, 0, peers * peers)[from * peers + to], size);
        }
    }
}

/* y of what is kept, in the order of choices; the shared expert is none of these cases'. */
static void check_y(const view *v, const bool *kept)
{
    const double *rows = moe_case_get(&v->whole, "checkpoints/moe_mlpwo")->values;
    const memory_tensor *weights = moe_case_get(&v->whole, "routing/weights");
    const memory_tensor *y = moe_case_get(&v->actual, "outputs/y");
    const int64_t dim = v->c.config.emb_dim, tokens = weights->count / v->per_token;
    assert_int_equal(y->count, tokens * dim);
    for (int64_t t = 0; t < tokens; t++) {
        double sums[16] = {0};
        for (int64_t choice = t * v->per_token; choice < (t + 1) * v->per_token; choice++) {
            const int64_t row = whole_row(v, choice);
            for (int64_t d = 0; kept[choice] && d < dim; d++)
                sums[d] = fma(weights->values[choice], rows[row * dim + d], sums[d]);
        }
        if (v->sharding.ring_of_experts) {
            assert_close(y->values + t * dim, sums, dim, 1e-14, 1e-14);
        } else {
            assert_same_bits(y->values + t * dim, sums, dim);
        }
    }
}

TEST(test_rows_of_shards)
{
    static const int variants[] = {1, 4, 6, 7};
    assay_context ctx = assay_context_default(1);
    for (int form = 0; form < FORMS; form++) {
        view v;
        bool kept[MOST] = {false};
        int64_t lost = 0;
        open_view(&ctx, &v, form, variants[form % 4]);
        for (int64_t shard = 0; shard < v.sizes.shards; shard++) {
            for (int64_t chunk = 0; chunk < v.sizes.chunks; chunk++) {
                check_sorted(&v, shard, chunk);
                check_local(&v, shard, chunk, kept);
            }
            check_metadata(&v, shard);
        }
        check_y(&v, kept);
        for (int64_t i = 0; i < forms[form].batch * 6 * v.per_token; i++) lost += !kept[i];
        /* A factor of 0.7 or less must cut; without one nothing is cut. */
        assert_true(lost == 0 || forms[form].factor > 0);
        assert_true(lost > 0 || forms[form].factor < 0 || forms[form].factor > 1 || forms[form].batch == 1);
        close_view(&v);
    }
}

/* Fused weights have the same rows, gate and up side by side. */
TEST(test_rows_with_fused_weights)
{
    assay_context ctx = assay_context_default(1);
    view v;
    bool kept[MOST] = {false};
    open_view(&ctx, &v, 5, 5);
    for (int64_t shard = 0; shard < v.sizes.shards; shard++) check_local(&v, shard, 0, kept);
    assert_non_null(memory_store_find(&v.actual, "checkpoints/moe_mlpwi"));
    close_view(&v);
}

/* <cotangents, outputs>. */
static double loss_of(assay_context *ctx, moe_case *c, const assay_sharding *sharding)
{
    static const char *const wanted[] = {"outputs/*", NULL};
    static const char *const names[] = {"y", "lb_loss"};
    memory_store out = {.wanted = wanted};
    double loss = 0;
    sharded_case_run(ctx, c, sharding, &out);
    for (int i = 0; i < 2; i++) {
        char output[ASSAY_PATH_SIZE] = "outputs/", cotangent[ASSAY_PATH_SIZE] = "cotangents/";
        const memory_tensor *values = memory_store_find(&out, strcat(output, names[i]));
        const memory_tensor *by = memory_store_find(&c->in, strcat(cotangent, names[i]));
        for (int64_t j = 0; values != NULL && by != NULL && j < values->count; j++)
            loss += values->values[j] * by->values[j];
    }
    memory_store_free(&out);
    return loss;
}

/* Moves an input by `step` in a direction of its own. */
static void move(memory_tensor *tensor, double step, uint64_t seed)
{
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] += step * moe_case_uniform(&seed);
}

/* Each gradient against the slope of the loss, also where rows are cut: those have none. */
TEST(test_gradients_are_slopes)
{
    assay_context ctx = assay_context_default(1);
    for (int form = 0; form < FORMS; form++) {
        const int variant = form % SHARDED_CASES;
        moe_case c = sharded_case(variant, forms[form].batch);
        assay_sharding sharding = sharding_of(form);
        memory_store out = {0};
        int compared = 0;
        sharding.weight_before_wo = form % 2 == 1 && variant != SHARDED_CASE_LLAMA4;
        if (variant != 4) c.config.routing.load_balance_loss_weight = 0.2;
        const int64_t shards = assay_mesh_shards(&sharding.mesh);
        double *d_lb_loss = memory_store_add(&c.in, "cotangents/lb_loss", shards);
        for (int64_t shard = 0; shard < shards; shard++) d_lb_loss[shard] = 2 - 0.4 * (double)shard;
        sharded_case_run(&ctx, &c, &sharding, &out);
        for (int i = 0; i < out.count; i++) {
            const memory_tensor *gradient = &out.items[i];
            if (strncmp(gradient->path, "gradients/", 10) != 0) continue;
            const double step = 1e-5;
            memory_tensor *input = memory_store_find(&c.in, gradient->path + 10);
            assert_non_null(input);
            double expected = 0, size = 0;
            uint64_t seed = 5;
            for (int64_t j = 0; j < gradient->count; j++) {
                const double term = gradient->values[j] * moe_case_uniform(&seed);
                expected += term;
                size += fabs(term);
            }
            const size_t bytes = (size_t)input->count * sizeof(double);
            double *kept = malloc(bytes);
            assert_non_null(kept);
            memcpy(kept, input->values, bytes);
            move(input, step, 5);
            const double above = loss_of(&ctx, &c, &sharding);
            memcpy(input->values, kept, bytes);
            move(input, -step, 5);
            const double slope = (above - loss_of(&ctx, &c, &sharding)) / (2 * step);
            memcpy(input->values, kept, bytes);
            free(kept);
            if (!(fabs(slope - expected) <= 1e-7 * size + 1e-9))
                fail_msg("form %d: '%s' gives %.12g, the slope is %.12g", form, gradient->path, expected, slope);
            compared++;
        }
        assert_true(compared >= 5);
        memory_store_free(&out);
        moe_case_free(&c);
    }
}
