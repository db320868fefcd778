/* The second form of shared keys, windows, sinks and grouped-query attention: cases worked out by hand. */
#include <math.h>

#include "oracle/quad/tests/quad_case.h"

/* Queries of zero: every key that is seen weighs the same. 4 heads on 2 of values that tell head and token. */
static void flat(quad_case *c, const assay_attention_config *config)
{
    const int64_t s = config->sequence;
    case_start(c, 1);
    case_values(c, "inputs/query", (double[16]){0}, DIMS(1, s, 4, 1));
    case_values(c, "inputs/key", (double[]){5, 6, 7, 8, 9, 1, 2, 3}, DIMS(1, s, 2, 1));
    case_values(c, "inputs/value", (double[]){0, 10, 1, 11, 2, 12, 3, 13}, DIMS(1, s, 2, 1));
}

static assay_attention_config shared(int64_t window)
{
    return (assay_attention_config){
        .batch = 1, .sequence = 4, .heads = 4, .qk_dim = 1, .v_dim = 1, .kv_heads = 2, .window = window};
}

TEST(test_windows_and_shared_keys)
{
    static const double FIRST[][4] = {/* of head 0: no window, 1, 2, 3, as long as the sequence */
                                      {0, .5, 1, 1.5},
                                      {0, 1, 2, 3},
                                      {0, .5, 1.5, 2.5},
                                      {0, .5, 1, 2},
                                      {0, .5, 1, 1.5}};
    for (int64_t window = 0; window < 5; window++) {
        const assay_attention_config config = shared(window);
        double out[16], lse[16];
        quad_case c;
        flat(&c, &config);
        assert_ok(&c.ctx, case_evaluate(&c, quad_attention, &config));
        for (int i = 0; i < 16; i++) {
            const int64_t seen = window > 0 && i % 4 + 1 > window ? window : i % 4 + 1;
            out[i] = FIRST[window][i / 4] + (i % 4 < 2 ? 0 : 10); /* heads 0 and 1, 2 and 3 */
            lse[i] = log((double)seen);
        }
        assert_result(&c, "outputs/attention_out", 16, out, 1e-15);
        assert_result(&c, "outputs/lse", 16, lse, 1e-15);
        case_end(&c);
    }
}

/* A sink of ln n is n more keys whose values are zero; lse does not know it. */
TEST(test_sinks)
{
    const assay_attention_config config = shared(0);
    static const double SINKS[] = {-INFINITY, 0, 0.69314718055994531, 1.0986122886681098}, MEAN[] = {0, .5, 1, 1.5};
    double out[16], lse[16];
    quad_case c;
    flat(&c, &config);
    case_values(&c, "weights/sinks", SINKS, DIMS(4));
    assert_ok(&c.ctx, case_evaluate(&c, quad_attention, &config));
    for (int i = 0; i < 16; i++) {
        const double seen = i / 4 + 1, head = i % 4;
        out[i] = (MEAN[i / 4] + (i % 4 < 2 ? 0 : 10)) * seen / (seen + head);
        lse[i] = log(i % 4 + 1.0);
    }
    assert_result(&c, "outputs/attention_out", 16, out, 1e-15);
    assert_result(&c, "outputs/lse", 16, lse, 1e-15);
    case_end(&c);
}

/* One token at position 0, heads of two numbers, D = 1: query (2 + 1, 4 - 2) times the scale, and so on. */
static void one_token(quad_case *c, const assay_gqa_config *config)
{
    case_start(c, 1);
    case_values(c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_indices(c, "inputs/positions", (int32_t[]){0}, DIMS(1, 1));
    if (config->fused_qkv) {
        case_values(c, "weights/qkv_proj/kernel", (double[]){1, 2, 3, 1, 2, 0, .5, 3}, DIMS(1, 4, 2));
        case_values(c, "weights/qkv_proj/bias", (double[]){1, -2, 0, 0, 0, 3, 1, 2}, DIMS(4, 2));
    } else {
        case_values(c, "weights/query/kernel", (double[]){1, 2, 3, 1}, DIMS(1, 2, 2));
        case_values(c, "weights/query/bias", (double[]){1, -2, 0, 0}, DIMS(2, 2));
        case_values(c, "weights/key/kernel", (double[]){2, 0}, DIMS(1, 1, 2));
        case_values(c, "weights/key/bias", (double[]){0, 3}, DIMS(1, 2));
        case_values(c, "weights/value/kernel", (double[]){.5, 3}, DIMS(1, 1, 2));
        case_values(c, "weights/value/bias", (double[]){1, 2}, DIMS(1, 2));
    }
    case_values(c, "weights/query_norm/scale", (double[]){1, 10}, DIMS(2));
    case_values(c, "weights/key_norm/scale", (double[]){2, 1}, DIMS(2));
    case_values(c, "weights/sinks", (double[]){-INFINITY, 100}, DIMS(2));
    case_values(c, "weights/out/kernel", (double[]){1, 10, 100, 1000}, DIMS(2, 2, 1));
    case_values(c, "weights/out/bias", (double[]){.25}, DIMS(1));
    assert_ok(&c->ctx, case_evaluate(c, quad_gqa, &(quad_gqa_config){.gqa = *config}));
}

TEST(test_gqa_by_hand)
{
    for (int i = 0; i < 4; i++) {
        const bool fused = i % 2 == 1, normed = i >= 2;
        const assay_gqa_config config = {.batch = 1,
                                         .sequence = 1,
                                         .emb_dim = 1,
                                         .heads = 2,
                                         .kv_heads = 1,
                                         .head_dim = 2,
                                         .query_scale = .5,
                                         .fused_qkv = fused,
                                         .bias = true,
                                         .qk_norm = normed,
                                         .sinks = true,
                                         .rope = {.dim = 2,
                                                  .rope_max_timescale = 10000,
                                                  .max_position_embeddings = 8,
                                                  .original_max_position_embeddings = 8}};
        /* before their norm: query (3, 2) and (6, 2), key (4, 3) */
        const double a = normed ? 1 / sqrt(6.5) : 1, b = normed ? 1 / sqrt(20) : 1, k = normed ? 1 / sqrt(12.5) : 1;
        const double q1 = normed ? 10 : 1, k0 = normed ? 2 : 1;
        const double query[] = {1.5 * a, q1 * a, 3 * b, q1 * b}, key[] = {4 * k0 * k, 3 * k};
        const double lse[] = {query[0] * key[0] + query[1] * key[1], query[2] * key[0] + query[3] * key[1]};
        const double left = exp(lse[1] - 100) / (1 + exp(lse[1] - 100)); /* of the second head */
        quad_case c;
        one_token(&c, &config);
        assert_result(&c, "checkpoints/query_proj", 4, query, 1e-15);
        assert_result(&c, "checkpoints/key_proj", 2, key, 1e-15);
        assert_result(&c, "checkpoints/value_proj", 2, (double[]){2, 8}, 0);
        assert_result(&c, "checkpoints/lse", 2, lse, 1e-15);
        assert_result(&c, "checkpoints/attention_out", 4, (double[]){2, 8, 2 * left, 8 * left}, 1e-13);
        assert_result(&c, "outputs/y", 1, (double[]){2 + 80 + 8200 * left + .25}, 1e-15);
        if (fused)
            assert_result(&c, "checkpoints/qkv_proj", 8, (double[]){3, 2, 6, 2, 4, 3, 2, 8}, 0);
        else
            assert_null(quad_tensors_find(&c.out, "checkpoints/qkv_proj"));
        case_end(&c);
    }
}
