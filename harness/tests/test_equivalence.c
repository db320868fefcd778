/* Two forms of the same thing agree; with an error planted in one of them they do not. */

#include "harness/equivalences/equivalence.h"
#include "harness/equivalences/free_axes.h"
#include "harness/operations/op_support.h"
#include "harness/tests/harness_test.h"

TEST_LABELS(slow);

#define MOE_MODEL                                                                                                      \
    "model_name: deepseek3-x, decoder_block: deepseek, base_emb_dim: 12, base_moe_mlp_dim: 7, num_experts: 6, "        \
    "num_experts_per_tok: 2, routed_score_func: sigmoid, shared_experts: 1"
#define MLA_MODEL                                                                                                      \
    "base_num_query_heads: 2, q_lora_rank: 6, kv_lora_rank: 6, qk_nope_head_dim: 4, qk_rope_head_dim: 2, "             \
    "v_head_dim: 4, rope_type: yarn"
#define HEAD "batch: 4, sequence: 4, seed: 5, dtype: float32, profiles: none"

static const char moe[] = "{case: moe/x, op: moe, " HEAD ", model: {" MOE_MODEL "}}";
static const char mesh[] = "{case: moe/x, op: moe, " HEAD ", mesh: {data: 2, expert: 2}, model: {" MOE_MODEL "}}";
#define FUSED_MODEL                                                                                                    \
    "decoder_block: mixtral, base_emb_dim: 12, base_moe_mlp_dim: 6, num_experts: 6, num_experts_per_tok: 2, "          \
    "prefuse_moe_weights: true"
static const char prefused[] = "{case: moe/x, op: moe, " HEAD ", model: {" FUSED_MODEL "}}";
static const char prefused_shards[] = "{case: moe/x, op: moe, " HEAD ", mesh: {expert: 2}, checkpoints: all, model: "
                                      "{" FUSED_MODEL ", w13_reorder_size: 3}}";
static const char fused_mesh[] =
    "{case: moe/x, op: moe, " HEAD ", mesh: {data: 2, expert: 2}, checkpoints: all, model: {" FUSED_MODEL
    ", fused_moe_func: true}}";
static const char fused_tensor[] =
    "{case: moe/x, op: moe, " HEAD ", mesh: {mlp_tensor: 3}, checkpoints: all, model: {" FUSED_MODEL
    ", fused_moe_func: true, w13_reorder_size: 6}}";
static const char one_row[] =
    "{case: moe/x, op: moe, batch: 1, sequence: 5, seed: 6, dtype: float32, profiles: none, mesh: {expert: 3}, model: "
    "{" MOE_MODEL "}}";
static const char ring[] =
    "{case: moe/x, op: moe, " HEAD ", mesh: {fsdp: 2, expert: 2}, model: {" MOE_MODEL ", use_ring_of_experts: true}}";
static const char emb_chunks[] = "{case: moe/x, op: moe, " HEAD ", mesh: {expert: 2}, model: {" MOE_MODEL
                                 ", use_ring_of_experts: true, num_moe_emb_chunks: 3}}";
static const char token_chunks[] = "{case: moe/x, op: moe, " HEAD ", mesh: {expert: 2}, model: {" MOE_MODEL
                                   ", use_ring_of_experts: true, num_moe_token_chunks: 2}}";
static const char hidden[] = "{case: moe/x, op: moe, " HEAD ", mesh: {expert: 2, mlp_tensor: 3}, model: {" MOE_MODEL
                             "}, config: {base_moe_mlp_dim: 9, mlp_bias: true}}";
static const char mla[] =
    "{case: mla/x, op: mla, " HEAD ", positions: {start: 9000}, model: {base_emb_dim: 12, " MLA_MODEL "}}";
static const char mesh_mla[] = "{case: mla/x, op: mla, " HEAD ", positions: {start: 9000}, mesh: {fsdp: 2, expert: 2}, "
                               "checkpoints: all, model: {base_emb_dim: 12, " MLA_MODEL "}}";
static const char shared[] =
    "{case: attention/x, op: attention, " HEAD ", model: {base_num_query_heads: 6, base_num_kv_heads: 2, head_dim: 4}}";
#define PAGES "pagedattn_num_pages: 14, pagedattn_tokens_per_page: 4, pagedattn_max_pages_per_group: 4"
static const char decode[] =
    "{case: gqa_decode/x, op: gqa_decode, batch: 3, sequence: 3, seed: 5, dtype: float32, profiles: none, model: "
    "{base_num_query_heads: 6, base_num_kv_heads: 2, head_dim: 8, attention_sink: true, lse_base: '2', " PAGES
    "}, inputs: {cache_seqlens: {values: [13, 2, 8]}, key_cache: {unused_nan: true}}}";
static const char decode_splits[] =
    "{case: gqa_decode/x, op: gqa_decode, batch: 2, sequence: 2, seed: 5, dtype: float32, profiles: none, model: "
    "{base_num_query_heads: 4, base_num_kv_heads: 4, head_dim: 4, query_pre_attn_scalar: 0.0625, num_kv_splits: 4, "
    "empty_row: inf, kv_layout: HND, " PAGES "}, inputs: {cache_seqlens: {values: [14, 9]}, query: {scale: 4}}}";
static const char decode_naive[] =
    "{case: mla_decode/x, op: mla_decode, batch: 2, sequence: 3, seed: 5, dtype: float32, profiles: none, model: "
    "{attn_impl: naive, cache_length: 11, " MLA_MODEL "}, inputs: {cache_seqlens: {values: [10, 2]}, kv_cache: "
    "{unused_nan: true}}}";
static const char decode_sparse[] =
    "{case: mla_decode/x, op: mla_decode, batch: 2, sequence: 2, seed: 5, dtype: float32, profiles: none, model: "
    "{use_indexer: true, indexer_topk: 7, " PAGES ", " MLA_MODEL "}, inputs: {topk_length: {values: [7, 4]}, kv_cache: "
    "{unused_nan: true}}}";
static const char gqa[] =
    "{case: gqa/x, op: gqa, " HEAD
    ", checkpoints: all, model: {base_emb_dim: 12, base_num_query_heads: 6, base_num_kv_heads: 3, "
    "head_dim: 4, use_qk_norm: true, attention_bias: true, attention_sink: true}}";
static const char stack[] = "{case: deepseek_stack/x, op: deepseek_stack, " HEAD ", model: {" MOE_MODEL ", " MLA_MODEL
                            ", base_mlp_dim: 9, base_num_decoder_layers: 2, first_num_dense_layers: 1}}";
static const char mesh_stack[] =
    "{case: deepseek_stack/x, op: deepseek_stack, " HEAD ", mesh: {data: 2, expert: 2}, model: {" MOE_MODEL
    ", " MLA_MODEL ", base_mlp_dim: 9, base_num_decoder_layers: 2, first_num_dense_layers: 1}}";
static const char on_shards[] =
    "{case: moe/x, op: moe, " HEAD ", mesh: {fsdp: 2, expert: 2, mlp_tensor: 3}, model: {" MOE_MODEL
    "}, config: {base_moe_mlp_dim: 6, num_experts: 8, weights_on_shards: true, shard_exp_on_fsdp: true}}";
static const char fused_on_shards[] =
    "{case: moe/x, op: moe, " HEAD ", mesh: {fsdp: 2, fsdp_transpose: 2, mlp_tensor: 2}, model: {" MOE_MODEL
    "}, config: {base_moe_mlp_dim: 8, weights_on_shards: true, prefuse_moe_weights: true}}";
static const char wide[] = "{case: moe/x, op: moe, " HEAD ", model: {" MOE_MODEL
                           "}, config: {base_moe_mlp_dim: 8, prefuse_moe_weights: true}}";
static const char wide_stack[] =
    "{case: deepseek_stack/x, op: deepseek_stack, " HEAD ", mesh: {data: 2, expert: 2}, model: {" MOE_MODEL
    ", " MLA_MODEL ", base_mlp_dim: 9, base_num_decoder_layers: 2, first_num_dense_layers: 1}, config: "
    "{base_moe_mlp_dim: 6, use_ring_of_experts: true}}";
static const char long_stack[] =
    "{case: deepseek_stack/x, op: deepseek_stack, " HEAD ", model: {" MOE_MODEL ", " MLA_MODEL
    ", rope_pairwise: true, routed_bias: true, base_mlp_dim: 9, base_num_decoder_layers: 5, "
    "first_num_dense_layers: 1}}";
static const char schedule[] =
    "{case: deepseek_stack/x, op: deepseek_stack, " HEAD ", mesh: {fsdp: 1, expert: 2}, model: {" MOE_MODEL
    ", " MLA_MODEL ", rope_pairwise: true, routed_bias: true, base_mlp_dim: 9, base_num_decoder_layers: 4, "
    "use_batch_split_schedule: true, batch_split_factor: 2}}";

static const char replicas[] =
    "{case: moe/x, op: moe, " HEAD ", model: {" MOE_MODEL "}, config: {num_redundant_experts: 4}, "
    "inputs: {physical_to_logical_map: {values: [3, 0, 1, 2, 3, 4, 5, 0, 3, 2]}}}";
static const char quantized[] =
    "{case: moe/x, op: moe, " HEAD ", model: {" MOE_MODEL
    "}, quant_formats: {inputs/x: mxfp8_e4m3, weights/wi_0: nvfp4, weights/wo: fp8_e4m3_128x128}}";
static const char gpt_oss[] =
    "{case: decoder_stack/x, op: decoder_stack, " HEAD ", model: {decoder_block: gpt_oss, base_emb_dim: 12, "
    "base_moe_mlp_dim: 7, num_experts: 6, num_experts_per_tok: 2, base_num_query_heads: 4, base_num_kv_heads: 2, "
    "head_dim: 4, sliding_window_size: 2, attention_sink: true, attention_bias: true, routed_bias: true, mlp_bias: "
    "true, "
    "mlp_activations: [sigmoid, linear], mlp_activations_limit: 7.0, base_num_decoder_layers: 2}}";
static const char slot[] = "{case: moe/x, op: moe, " HEAD ", model: {" MOE_MODEL ", num_fused_shared_experts: 1}}";
static const char fused_slot[] =
    "{case: moe/x, op: moe, " HEAD ", model: {" MOE_MODEL ", num_fused_shared_experts: 1, prefuse_moe_weights: true}}";
static const char on_input[] =
    "{case: moe/x, op: moe, " HEAD ", model: {" MOE_MODEL ", apply_router_weight_on_input: true}}";
static const char losses[] =
    "{case: moe/x, op: moe, " HEAD ", mesh: {data: 2, expert: 2}, model: {" MOE_MODEL
    ", load_balance_loss_weight: 1, load_balance_loss_scope: global, router_z_loss_weight: 1}}";
static const char function[] =
    "{case: batch_split/x, op: batch_split, " HEAD ", mesh: {data: 2, expert: 2}, model: {" MOE_MODEL ", " MLA_MODEL
    ", rope_pairwise: true, routed_bias: true, base_num_decoder_layers: 1}, config: {function: mla_with_norms}}";
/* Training recipes: with fixed ranges no scale is of several rows or experts. */
#define FUNCTION_RECIPE(function)                                                                                      \
    "{case: batch_split/x, op: batch_split, " HEAD ", mesh: {expert: 2}, model: {" MOE_MODEL ", " MLA_MODEL            \
    ", rope_pairwise: true, routed_bias: true, base_num_decoder_layers: 1}, config: {function: " function              \
    ", quant_recipe: fp8_full}}"
static const char expert_recipe[] = FUNCTION_RECIPE("shared_expert");
static const char backward_recipe[] = FUNCTION_RECIPE("shared_expert_bwd");
static const char moe_recipe[] = "{case: moe/x, op: moe, " HEAD ", model: {" FUSED_MODEL
                                 "}, config: {quant_recipe: fp8_full, weight_quantization_calibration_method: "
                                 "\"fixed,0.6\", bwd_quantization_calibration_method: \"fixed,9\"}}";
static const char block_recipe[] =
    "{case: moe/x, op: moe, " HEAD ", model: {" FUSED_MODEL "}, config: {quant_recipe: deepseek_v3}}";

static const char program[] = "{case: program/x, op: program, checkpoints: all, sizes: {T: 5, D: 8, E: 4, K: 2, H: 6, "
                              "B: 3}, inputs: {x: [B, T, D]}, "
                              "weights: {scale: [D], w: [D, H], gate: [D, E]}, steps: {n: 'rms_norm(x, scale)', "
                              "g: 'product(\"BTD,DE->BTE\", n, gate)', ids: 'top_k(g, \"E->K\")', "
                              "s: 'cumsum(softmax(pick(g, ids), over=\"K\"), over=\"T\")'}, outputs: "
                              "{y: 'mul(product(\"BTD,DH->BTH\", n, w), max(s, over=\"K\"))'}}";

/* An error in the other form alone: one key of its configuration is changed as well. */
static const assay_equivalence *planted_in;
static const char *planted;

static bool other_with_key(const assay_case *c, assay_other_form *form)
{
    assay_context ctx = assay_context_default(1);
    if (!planted_in->other(c, form)) return false;
    return assay_case_set(&ctx, &form->c, planted) == ASSAY_OK;
}

static const struct {
    const char *name, *yaml, *error; /* NULL: no key makes another result */
} rows[] = {
    {"fused-unfused", moe, "mlp_activations=gelu"},
    {"fused-unfused", mesh, "mlp_activations=gelu"},
    {"fused-unfused", stack, "mlp_activations=gelu"},
    {"fused-unfused", prefused_shards, "mlp_activations=gelu"},
    {"prefused-layouts", prefused, "mlp_activations=gelu"},
    {"prefused-layouts", prefused_shards, "mlp_activations=gelu"},
    {"prefused-layouts", fused_tensor, "mlp_activations=gelu"},
    {"dense-sparse", moe, "routed_scaling_factor=1.0000001"},
    {"dense-sparse", mesh, "routed_scaling_factor=1.0000001"},
    {"dense-sparse", stack, "routed_scaling_factor=1.0000001"},
    {"sparse-fused_moe", moe, "mlp_activations=relu"},
    {"sparse-fused_moe", mesh, "mlp_activations=relu"},
    {"capacity-dropless", moe, "capacity_factor=0.5"},
    {"capacity-dropless", mesh, "capacity_factor=0.5"},
    {"shared-fused", slot, "routed_scaling_factor=1.0000001"},
    {"shared-fused", fused_slot, "routed_scaling_factor=1.0000001"},
    {"sharded-whole", on_input, "apply_router_weight_on_input=false"},
    {"sharded-whole", losses, "router_z_loss_weight=1.0000001"},
    {"sharded-whole", losses, "load_balance_loss_weight=1.0000001"},
    {"sharded-whole", moe, "routed_scaling_factor=1.0000001"},
    {"sharded-whole", mesh, "routed_scaling_factor=1.0000001"},
    {"sharded-whole", fused_mesh, "mlp_activations=gelu"},
    {"sharded-whole", fused_tensor, "mlp_activations=gelu"},
    {"sharded-whole", one_row, "mlp_activations=gelu"},
    {"sharded-whole", ring, "routed_scaling_factor=1.0000001"},
    {"sharded-whole", mla, "mscale=1.000001"},
    {"sharded-whole", mesh_mla, "mscale=1.000001"},
    {"sharded-whole", stack, "mscale=1.0000001"},
    {"sharded-whole", mesh_stack, "mscale=1.0000001"},
    {"sharded-whole", hidden, "routed_scaling_factor=1.0000001"},
    {"tensor-whole", hidden, "routed_scaling_factor=1.0000001"},
    {"tensor-whole", wide, "mlp_activations=gelu"},
    {"tensor-whole", wide_stack, "mscale=1.0000001"},
    {"sharded-whole", on_shards, "routed_scaling_factor=1.0000001"},
    {"tensor-whole", on_shards, "mlp_activations=gelu"},
    {"gathered-whole", on_shards, "routed_scaling_factor=1.0000000000000002"},
    {"gathered-whole", fused_on_shards, "routed_scaling_factor=1.0000000000000002"},
    {"fused-unfused", fused_on_shards, "mlp_activations=gelu"},
    {"dense-sparse", on_shards, "routed_scaling_factor=1.0000001"},
    {"ring-alltoall", mesh, "routed_scaling_factor=1.0000001"},
    {"ring-alltoall", ring, "routed_scaling_factor=1.0000001"},
    {"ring-alltoall", mesh_stack, "mscale=1.0000001"},
    {"chunked-whole", ring, "routed_scaling_factor=1.0000000000000002"},
    {"chunked-whole", emb_chunks, "routed_scaling_factor=1.0000000000000002"},
    {"chunked-whole", token_chunks, "routed_scaling_factor=1.0000001"},
    {"window-whole", shared, "sliding_window_size=3"},
    {"window-whole", gqa, "rope_max_timescale=10000.000000001"},
    {"paged-contiguous", decode, "query_pre_attn_scalar=0.35355339059327386"},
    {"pages-other", decode, "query_pre_attn_scalar=0.35355339059327386"},
    {"pages-other", decode_naive, "mscale=1.0000001"},
    {"splits-whole", decode, "query_pre_attn_scalar=0.3535534"},
    {"splits-whole", decode_splits, "query_pre_attn_scalar=0.0625001"},
    {"splits-whole", decode_naive, "mscale=1.00001"},
    {"prefill-chunked", decode, "query_pre_attn_scalar=0.3535534"},
    {"prefill-chunked", decode_naive, "mscale=1.00001"},
    {"tokens-stepwise", decode, "query_pre_attn_scalar=0.35355339059327386"},
    {"tokens-stepwise", decode_naive, "mscale=1.0000001"},
    {"remat-kept", stack, "normalization_layer_epsilon=1.0000001e-5"},
    {"remat-kept", mesh_stack, "normalization_layer_epsilon=1.0000001e-5"},
    {"remat-kept", gpt_oss, "sliding_window_size=3"},
    {"sharded-whole", gpt_oss, "rope_max_timescale=10001"},
    {"batchsplit-plain", long_stack, "mscale=1.0000001"},
    {"batchsplit-plain", schedule, "mscale=1.0000001"},
    {"replicas-one", replicas, "routed_scaling_factor=1.0000001"},
    {"fused-unfused", quantized, "mlp_activations=gelu"},
    {"sharded-whole", moe_recipe, "mlp_activations=gelu"},
    {"sharded-whole", block_recipe, "mlp_activations=gelu"},
    {"function-mesh", function, "mscale=1.0000001"},
    {"axes-reversed", program, NULL},
};
enum { ROWS = sizeof rows / sizeof *rows };

static void evaluate(assay_context *ctx, const assay_case *c, assay_form *one)
{
    *one = (assay_form){0};
    assert_ok(ctx, assay_form_evaluate(ctx, c, assay_profile_by_name("f64"), one));
}

static void assert_found(assay_context *ctx, const assay_form *one,
                         bool (*other)(const assay_case *, assay_other_form *))
{
    assay_equivalence wrong = *planted_in;
    assay_equivalence_result result;
    wrong.other = other;
    assert_ok(ctx, assay_equivalence_check(ctx, one, &wrong, &result));
    if (!result.applies || result.holds) fail_msg("%s %s: %s is not seen", wrong.name, one->c.name, planted);
    assert_true(result.path[0] != '\0' && result.worst > 0);
}

TEST(forms_agree_and_errors_are_found)
{
    bool tried[64] = {false};
    for (size_t i = 0; i < ROWS; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_form_free) assay_form one;
        assay_equivalence_result result;
        OWNED_BY(free_case) assay_case *c = case_from(rows[i].yaml);
        planted_in = assay_equivalence_by_name(rows[i].name);
        assert_non_null(planted_in);
        tried[planted_in - assay_equivalences] = true;
        evaluate(&ctx, c, &one);
        assert_ok(&ctx, assay_equivalence_check(&ctx, &one, planted_in, &result));
        if (!result.applies || !result.holds) {
            fail_msg("%s, row %d: %g at %s", rows[i].name, (int)i, result.worst, result.path);
        }
        assert_true(result.tensors > 0);
        planted = rows[i].error;
        if (planted != NULL) assert_found(&ctx, &one, other_with_key);
    }
    for (int e = 0; assay_equivalences[e].name != NULL; e++) {
        if (!tried[e]) fail_msg("%s has no planted error", assay_equivalences[e].name);
    }
}

/* In its last places where bits must be the same. */
static double altered(const assay_tensor *tensor, assay_holding holding)
{
    double most = 0x1p-500; /* where all is 0 */
    for (int64_t i = 0; i < tensor->count; i++) most = fmax(most, fabs(tensor->values[i]));
    return tensor->values[tensor->count / 2] + (holding == ASSAY_HOLDS_BITS ? 0x1p-52 : 1e-7) * most;
}

/* No output and no gradient goes uncompared: one element of it is another in the first form. */
TEST(an_error_in_any_result_is_found)
{
    for (size_t i = 0; i < ROWS; i++) {
        assay_context ctx = assay_context_default(1);
        assay_form one;
        assay_other_form how;
        int found = 0;
        OWNED_BY(free_case) assay_case *c = case_from(rows[i].yaml);
        planted_in = assay_equivalence_by_name(rows[i].name);
        evaluate(&ctx, c, &one);
        assert_true(assay_other_form_of(&one.c, planted_in, &how));
        for (int t = 0; t < one.results.count; t++) {
            assay_tensor *tensor = &one.results.items[t];
            planted = tensor->spec.path;
            const bool result = strncmp(planted, "outputs/", 8) == 0 || strncmp(planted, "gradients/", 10) == 0;
            if (!result || tensor->values == NULL || tensor->count == 0) continue;
            double *element = &tensor->values[tensor->count / 2];
            const double right = *element;
            *element = altered(tensor, how.holding);
            assert_found(&ctx, &one, planted_in->other);
            *element = right;
            found++;
        }
        const bool decodes = strstr(c->op, "_decode") != NULL; /* which has no gradients */
        assert_true(found > (decodes ? 1 : 4));
        assay_form_free(&one);
    }
}

/* Where the two forms are not the same by their definitions, nothing is compared. */
TEST(cases_without_another_form_are_passed_over)
{
    static const struct {
        const char *name, *yaml, *set;
    } none[] = {
        {"sharded-whole", mesh, "ragged_buffer_factor=0.5"},
        {"sharded-whole", mesh, "load_balance_loss_weight=0.1"},
        {"sharded-whole", mesh, "sparse_matmul=false"},
        {"sharded-whole", schedule, "seed=1"},
        {"ring-alltoall", mla, "seed=1"},
        {"tensor-whole", wide, "load_balance_loss_weight=0.1"},
        {"tensor-whole", wide, "router_z_loss_weight=0.1"},
        {"tensor-whole", wide, "base_emb_dim=11"},
        {"tensor-whole", wide, "sparse_matmul=false"},
        {"tensor-whole", schedule, "seed=1"},
        {"gathered-whole", mesh, "shard_exp_on_fsdp=true"},
        {"dense-sparse", mesh, "ragged_buffer_factor=0.5"},
        {"dense-sparse", mesh, "load_balance_loss_weight=0.1"},
        {"dense-sparse", schedule, "seed=1"},
        {"capacity-dropless", mesh, "ragged_buffer_factor=0.5"},
        {"fused-unfused", schedule, "seed=1"},
        {"window-whole", gqa, "sliding_window_size=3"},
        {"window-whole", mla, "seed=1"},
        {"window-whole", decode, "seed=1"},
        {"paged-contiguous", decode, "pagedattn_num_pages=0"},
        {"paged-contiguous", decode_splits, "seed=1"},
        {"tokens-stepwise", decode, "sequence=1"},
        {"prefill-chunked", decode_splits, "seed=1"},
        {"prefill-chunked", decode_sparse, "seed=1"},
        {"tokens-stepwise", decode_sparse, "seed=1"},
        {"ring-alltoall", moe, "seed=1"},
        {"ring-alltoall", mesh, "ragged_buffer_factor=0.5"},
        {"ring-alltoall", mesh, "load_balance_loss_weight=0.1"},
        {"ring-alltoall", emb_chunks, "seed=1"},
        {"ring-alltoall", schedule, "seed=1"},
        {"chunked-whole", mesh, "seed=1"},
        {"chunked-whole", ring, "base_emb_dim=11"},
        {"chunked-whole", token_chunks, "load_balance_loss_weight=0.1"},
        {"remat-kept", schedule, "seed=1"},
        {"batchsplit-plain", stack, "seed=1"}, /* too few layers */
        {"batchsplit-plain", long_stack, "routed_bias=false"},
        {"batchsplit-plain", long_stack, "num_experts_per_tok=1"},
        {"batchsplit-plain", moe, "use_batch_split_schedule=true"},
        {"function-mesh", expert_recipe, "seed=1"},
        {"axes-reversed", moe, "seed=1"},
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assay_context ctx = assay_context_default(1);
        assay_other_form form;
        OWNED_BY(free_case) assay_case *c = case_from(none[i].yaml);
        const assay_equivalence *e = assay_equivalence_by_name(none[i].name);
        assert_ok(&ctx, assay_case_set(&ctx, c, none[i].set));
        if (assay_other_form_of(c, e, &form)) fail_msg("%s, row %d: %s", e->name, (int)i, none[i].set);
    }
}

static const char *bound_axis;

static bool other_of_bound_axis(const assay_case *c, assay_other_form *form)
{
    (void)c;
    snprintf(form->reversed, sizeof form->reversed, "%s", bound_axis);
    return true;
}

/* Axes along which a step goes, or counts, are left as they are: in another order they lead to other results. */
TEST(axes_are_reversed_where_no_step_tells_their_indices_apart)
{
    static const struct {
        const char *name, *free, *bound; /* each of the latter would be seen */
        char rows;
    } table[] = {{"program/every-map", "DT", "", 'T'},        {"program/every-reduction", "DE", "T", '\0'},
                 {"program/every-move", "", "DTH", '\0'},     {"program/norm-rope", "DNT", "R", 'T'},
                 {"program/causal-conv", "BC", "TK", 'B'},    {"program/grouped-product", "DF", "TE", '\0'},
                 {"program/top-k-softmax", "DFT", "EK", 'T'}, {"program/gated-delta-net", "BKNV", "T", 'B'},
                 {"program/linear-scan", "BC", "T", 'B'},     {"program/transformer-layer", "BDF", "SH", 'B'},
                 {"program/batched-product", "BHN", "", 'B'}, {"program/swiglu-quantise", "DET", "", 'T'},
                 {"program/quantise-blocks", "", "N", '\0'}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_form_free) assay_form one;
        char axes[ASSAY_PROGRAM_LETTERS], letter[2] = "";
        OWNED_BY(free_case) assay_case *c = case_named(table[i].name, "");
        assay_program_free_axes(c->program, axes);
        assert_string_equal(axes, table[i].free);
        assert_int_equal(assay_program_row_axis(c->program), table[i].rows);
        evaluate(&ctx, c, &one);
        for (const char *at = table[i].bound; *at != '\0'; at++) {
            const assay_equivalence wrong = {
                .name = "wrong", .holding = ASSAY_HOLDS_SCALES, .other = other_of_bound_axis};
            assay_equivalence_result result;
            letter[0] = *at;
            bound_axis = letter;
            const assay_status status = assay_equivalence_check(&ctx, &one, &wrong, &result);
            if (status == ASSAY_OK && result.holds) fail_msg("%s: %s is not seen", table[i].name, letter);
        }
    }
}

/* A recipe's scales are of the rows of a shard: of its weight gradients alone, and unless their range is fixed. */
TEST(functions_by_a_recipe_agree_where_no_scale_is_of_all_rows)
{
    static const struct {
        const char *yaml, *set;
    } cases[] = {{expert_recipe, "bwd_quantization_calibration_method=fixed,9"}, {backward_recipe, "seed=2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_form_free) assay_form one;
        assay_equivalence_result result;
        OWNED_BY(free_case) assay_case *c = case_from(cases[i].yaml);
        assert_ok(&ctx, assay_case_set(&ctx, c, cases[i].set));
        evaluate(&ctx, c, &one);
        assert_ok(&ctx, assay_equivalence_check(&ctx, &one, assay_equivalence_by_name("function-mesh"), &result));
        if (!result.applies || !result.holds) fail_msg("row %d: %g at %s", (int)i, result.worst, result.path);
        assert_true(result.tensors > 0);
    }
}

/* Chunks of the embedding leave every sum as it is; chunks of tokens do not. */
TEST(what_must_hold_may_depend_on_the_case)
{
    const struct {
        const char *yaml;
        assay_holding holding;
    } cases[] = {{ring, ASSAY_HOLDS_BITS}, {emb_chunks, ASSAY_HOLDS_BITS}, {token_chunks, ASSAY_HOLDS_SCALES}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assay_other_form form;
        OWNED_BY(free_case) assay_case *c = case_from(cases[i].yaml);
        assert_true(assay_other_form_of(c, assay_equivalence_by_name("chunked-whole"), &form));
        assert_int_equal(form.holding, cases[i].holding);
    }
}

TEST_WITH_CONTEXT(forms_with_nothing_in_common_are_refused)
{
    OWNED_BY(assay_form_free) assay_form one;
    assay_equivalence_result result;
    OWNED_BY(free_case) assay_case *c = case_from(mla);
    evaluate(&ctx, c, &one);
    for (int i = 0; i < one.results.count; i++) {
        if (assay_role_is_result(one.results.items[i].spec.role)) one.results.items[i].written = 0;
    }
    assert_int_equal(assay_equivalence_check(&ctx, &one, assay_equivalence_by_name("sharded-whole"), &result),
                     ASSAY_INTERNAL);
    assert_message(&ctx, "no tensor in common");
}

TEST_WITH_CONTEXT(no_memory_is_reported)
{
    OWNED_BY(free_case) assay_case *c = case_from(moe);
    const assay_equivalence *e = assay_equivalence_by_name("fused-unfused");
    for (int64_t n = 0;; n++) {
        assay_form one = {0};
        assay_equivalence_result result = {0};
        assay_fail_allocation(n);
        assay_status status = assay_form_evaluate(&ctx, c, assay_profile_by_name("f64"), &one);
        if (status == ASSAY_OK) status = assay_equivalence_check(&ctx, &one, e, &result);
        assay_form_free(&one);
        if (had_memory(&ctx, status)) {
            assert_true(result.applies && result.holds);
            break;
        }
    }
}
