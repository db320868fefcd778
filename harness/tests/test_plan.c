/* Plans: every case of the catalogue has one, and what is no case is refused before anything is computed. */

#include "harness/sketch/sketch.h"
#include "harness/tests/harness_test.h"

static void check_entry(const assay_tensor_entry *entry)
{
    const assay_tensor_spec *spec = &entry->spec;
    assert_true(spec->role > ASSAY_ROLE_NONE && spec->role <= ASSAY_ROLE_REMAT);
    assert_true(spec->shape.rank >= 0 && spec->shape.rank <= ASSAY_MAX_RANK);
    for (int axis = 0; axis < spec->shape.rank; axis++) {
        if (spec->labels[axis] == NULL || spec->labels[axis][0] == '\0') {
            print_error("%s: axis %d has no label\n", spec->path, axis);
        }
        assert_non_null(spec->labels[axis]);
        assert_true(spec->labels[axis][0] != '\0');
        assert_true(spec->shape.dims[axis] > 0);
    }
    bool result = !assay_role_is_input(spec->role);
    if (result) assert_true(spec->type == ASSAY_FLOAT64 || spec->type == ASSAY_INT32);
}

/* Cotangents and gradients repeat the shape of what they belong to. */
static void check_partner(const assay_tensor_list *list, const assay_tensor_spec *spec)
{
    char partner[ASSAY_PATH_SIZE + 16];
    if (spec->role == ASSAY_ROLE_COTANGENT) {
        snprintf(partner, sizeof partner, "outputs/%s", strchr(spec->path, '/') + 1);
    } else if (spec->role == ASSAY_ROLE_GRADIENT) {
        snprintf(partner, sizeof partner, "%s", strchr(spec->path, '/') + 1);
    } else {
        return;
    }
    char whole[ASSAY_PATH_SIZE];
    assay_sketch_tensor_path(spec->path, whole, NULL);
    for (int i = 0; i < list->sketched_count && whole[0] != '\0'; i++) {
        if (strcmp(list->sketched[i].path, whole) != 0) continue;
        check_partner(list, &list->sketched[i]);
        return;
    }
    const assay_tensor_entry *own = assay_tensor_list_find(list, spec->path);
    const assay_tensor_entry *other = assay_tensor_list_find(list, partner);
    if (own != NULL && own->part != ASSAY_OPERAND_CODES) return; /* a scale of a cotangent that is codes */
    if (other == NULL) print_error("%s without %s\n", spec->path, partner);
    assert_non_null(other);
    assert_true(assay_shape_equal(&spec->shape, &other->spec.shape));
}

static void check_plan(const assay_plan *plan)
{
    int scales = 0;
    for (int i = 0; i < plan->list.count; i++) {
        check_entry(&plan->list.entries[i]);
        check_partner(&plan->list, &plan->list.entries[i].spec);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(plan->list.entries[i].spec.path, plan->list.entries[j].spec.path);
        }
    }
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (spec->role != ASSAY_ROLE_ERROR_SCALE) continue;
        const char *of = strchr(strchr(spec->path, '/') + 1, '/') + 1; /* behind the profile: the path in full */
        assert_non_null(assay_tensor_list_find(&plan->list, of));
        assert_int_equal(spec->type, ASSAY_FLOAT32);
        scales++;
    }
    bool of_bits =
        (plan->operation->components & (ASSAY_USES_QUANTIZE | ASSAY_USES_CACHE)) != 0; /* which have no errors */
    for (int i = 0; i < plan->list.count; i++) of_bits &= !plan->list.entries[i].always_stored; /* or go by such */
    assert_true(of_bits ? scales == 0 : plan->precision_count == 0 || scales >= plan->precision_count);
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (spec->role != ASSAY_ROLE_INPUT && spec->role != ASSAY_ROLE_OUTPUT) continue;
        if (assay_operation_memory(plan->operation, plan->c) >= 8 * assay_shape_count(&spec->shape)) continue;
        fail_msg("%s: memory of %s is less than %s takes in float64", plan->c->name, plan->c->op, spec->path);
    }
    assert_true(plan->memory > 0 && plan->file_bytes > 0 && plan->elements > 0);
    double forward = assay_operation_flops(plan->operation, plan->c, false),
           both = assay_operation_flops(plan->operation, plan->c, true);
    bool gradients = false;
    for (int i = 0; i < plan->list.count; i++) gradients |= plan->list.entries[i].spec.role == ASSAY_ROLE_GRADIENT;
    assert_true(forward >= 0 && both >= (gradients ? 2 : 1) * forward && isfinite(both));
}

TEST_WITH_CONTEXT(every_case_can_be_planned)
{
    int count = 0;
    assay_case *cases = all_cases(&count);
    for (int i = 0; i < count; i++) {
        OWNED_BY(assay_plan_free) assay_plan plan = {0};
        assay_status status = assay_plan_make(&ctx, &plan, &cases[i]);
        /* a case of true size may be larger than this machine, which is said and not tried */
        if (has_tag(&cases[i], "true-size") && status == ASSAY_NO_MEMORY) continue;
        assert_ok(&ctx, status);
        check_plan(&plan);
    }
    assay_cases_free(cases, count);
}

/* What is refused before anything is computed, and what the message must name. */
static const struct bad_case {
    const char *name, *set, *part;
} bad_cases[] = {
    {"moe/small", "num_experts_per_tok=7", "num_experts_per_tok"},
    {"cache_append/rope", "partial_rotary_factor=0.5", "expected 1: the rope of latents is rotated whole"},
    {"cache_append/rope", "max_position_embeddings=1022", "expected 0 to 1021 (max_position_embeddings)"},
    {"cache_append/key-norm-rope", "cache_norm=latent", "expected none or row: keys have heads, and no latent"},
    {"cache_append/key-norm-partial-rope", "partial_rotary_factor=0.3",
     "partial_rotary_factor is 0.3, expected an even number"},
    {"moe/small", "num_experts_per_tok=0", "num_experts_per_tok"},
    {"moe/small", "n_routing_groups=4", "n_routing_groups"},
    {"moe/small", "base_emb_dim=0", "base_emb_dim is 0, expected 1 or more"},
    {"moe/small", "base_moe_mlp_dim=0", "base_moe_mlp_dim is 0, expected 1 or more"},
    {"mlp/silu", "mesh.expert=2", "mesh is data 1, fsdp 1, expert 2, tensor 1"},
    {"attention/batch", "use_ring_of_experts=true", "use_ring_of_experts needs experts on a mesh"},
    {"moe/mesh-expert4", "num_experts=6", "num_experts is 6"},
    {"moe/mesh-expert4", "batch=6", "batch is 6"},
    {"moe/mesh-expert4", "num_moe_emb_chunks=2", "num_moe_emb_chunks"},
    {"moe/mesh-ring-expert4", "ragged_buffer_factor=1.0", "ragged_buffer_factor"},
    {"moe/mesh-ring-expert4", "sparse_matmul=false", "use_ring_of_experts needs sparse_matmul=true"},
    {"moe/mesh-emb-chunks2", "num_moe_emb_chunks=3", "num_moe_emb_chunks"},
    {"moe/mesh-token-chunks2", "num_moe_token_chunks=3", "num_moe_token_chunks"},
    {"deepseek_stack/batch-split", "batch=3", "batch is 3, expected a multiple of 1 shards (mesh) times 2"},
    {"deepseek_stack/batch-split", "base_num_decoder_layers=3", "needs 4 MoE layers or more, found 3"},
    {"deepseek_stack/batch-split", "mesh.expert=3", "mesh"},
    {"deepseek_stack/batch-split", "mlp_bias=true", "use_batch_split_schedule needs mlp_bias=false"},
    {"deepseek_stack/batch-split", "routed_bias=false", "use_batch_split_schedule needs routed_bias=true"},
    {"moe/small", "routed_score_func=sigmoidal", "routed_score_func"},
    {"moe/small", "group_score=mean", "group_score"},
    {"moe/small", "mlp_activations=[swish, linear]", "mlp_activations[0] is \"swish\""},
    {"moe/small", "gradients=[inputs/z]", "gradients has \"inputs/z\", which matches no tensor"},
    {"moe/small", "gradients=[none, inputs/x]", "gradients has \"none\", which matches no tensor"},
    {"moe/small", "checkpoints=[mlpwi_9]", "checkpoints has \"mlpwi_9\""},
    {"moe/small", "profiles=[bf17]",
     "profiles has \"bf17\", expected f64, f32, bf16, bf16_router, bf16_sums, f16, tf32, tpu_default or "
     "fp8_e4m3_block128"},
    {"moe/small", "inputs.z={scale: 1}", "inputs.z is no tensor of op moe"},
    {"moe/small", "inputs.y={scale: 1}", "inputs.y is no tensor of op moe"},
    {"moe/small", "dtypes.gate/bais=float32",
     "moe/small: dtypes has \"gate/bais\", which matches no input, weight or cotangent of op moe that holds "
     "floats"},
    {"moe/small", "dtypes.outputs/y=float32", "dtypes has \"outputs/y\", which matches no input"},
    {"mla/small", "dtypes.inputs/positions=float32", "dtypes has \"inputs/positions\", which matches no input"},
    {"moe/small", "inputs.outputs/y={scale: 1}", "inputs.outputs/y is no tensor"},
    {"moe/deepseek3-tiny-fused-weights", "sparse_matmul=false", "prefuse_moe_weights needs sparse_matmul=true"},
    {"moe/fused-softmax", "sequence=7", "multiple of 16"},
    {"moe/gpt-oss", "mlp_activations_limit=0", "mlp_activations_limit is 0"},
    {"moe/small", "sequence=500000000", "bytes of memory"},
    {"moe/mixtral-capacity", "capacity_factor=1e30", ""},
    {"routing/mixtral", "num_experts=2147483647", "bytes of memory"},
    {"rms_norm/deepseek", "base_emb_dim=2147483647", "bytes of memory"},
    {"rms_norm/deepseek", "normalization_layer_epsilon=-1", "normalization_layer_epsilon"},
    {"mlp/silu", "base_mlp_dim=2147483647", "bytes of memory"},
    {"permute/deepseek3-tiny", "num_experts_per_tok=17", "num_experts_per_tok is 17"},
    {"yarn_rope/deepseek", "qk_rope_head_dim=7", "qk_rope_head_dim is 7, expected an even number"},
    {"yarn_rope/deepseek", "rope_type=llama3.1", "rope_type is \"llama3.1\", expected default or yarn"},
    {"yarn_rope/half-split", "rope_pairwise=true", "rope_pairwise needs rope_interleave=true"},
    {"yarn_rope/deepseek", "base_num_query_heads=0", "base_num_query_heads is 0, expected 1 or more"},
    {"yarn_rope/deepseek", "max_position_embeddings=15", "positions go from 0 to 15, expected 0 to 14"},
    {"yarn_rope/deepseek", "positions.step=2147483647", "positions go from 0 to 32212254705"},
    {"yarn_rope/deepseek", "inputs.positions={values: [1, 2]}", "inputs.positions has 2 values, expected 16"},
    {"yarn_rope/deepseek", "inputs.segment_ids={values: [1]}", "inputs.segment_ids is no tensor of op yarn_rope"},
    {"deepseek_stack/three-layers", "local_num_experts=2", "0 where a layer follows one of experts"},
    {"moe/replicas", "num_redundant_experts=0;local_num_experts=2", "0 with local_num_experts: a sum over ranks"},
    {"moe/replicas-mesh",
     "num_redundant_experts=3;inputs.physical_to_logical_map={values: [3, 0, 1, 2, 3, 4, 5, 0, 3]}",
     "num_experts plus num_redundant_experts is 9, expected a multiple of mesh.expert"},
    {"moe/replicas-mesh", "ragged_buffer_factor=0.5", "depends on the choice of replicas"},
    {"moe/replicas-mesh", "weights_on_shards=true", "weights_on_shards has every expert once"},
    {"moe/local-experts-mesh", "mesh.expert=2", "expected 1 with local_num_experts"},
    {"attention/deepseek", "base_num_query_heads=0", "base_num_query_heads is 0, expected 1 or more"},
    {"attention/deepseek", "inputs.inputs/segment_ids={values: [1, 2, 3]}",
     "inputs.inputs/segment_ids has 3 values, expected 16 (sequence) or 32 (batch * sequence)"},
    {"attention/deepseek", "sequence=500000000", "bytes of memory"},
    {"mla/small", "qk_rope_head_dim=3", "qk_rope_head_dim is 3, expected an even number"},
    {"mla/small", "base_emb_dim=0", "emb_dim"},
    {"mla/small", "rope_factor=0", "rope_factor is 0"},
    {"mla/small", "normalization_layer_epsilon=-1", "normalization_layer_epsilon"},
    {"deepseek_layer/dense", "base_mlp_dim=0", "base_mlp_dim is 0, expected 1 or more"},
    {"deepseek_layer/moe", "num_experts_per_tok=5", "num_experts_per_tok"},
    {"deepseek_layer/moe", "first_num_hash_layers=1", "first_num_hash_layers is 1, expected 0"},
    {"deepseek_layer/moe", "decoder_layer_input=remat", "decoder_layer_input"},
    {"deepseek_layer/moe", "remat_policy=most", "remat_policy is \"most\""},
    {"deepseek_layer/moe-fused-weights", "sparse_matmul=false", "prefuse_moe_weights needs sparse_matmul=true"},
    {"deepseek_stack/two-dense", "base_num_decoder_layers=0", "base_num_decoder_layers is 0, expected 1 to 1000"},
    {"deepseek_stack/two-dense", "base_num_decoder_layers=1001", "base_num_decoder_layers is 1001, expected 1 to"},
    {"deepseek_stack/two-dense", "checkpoints=[layers/2/mla_q]", "checkpoints has \"layers/2/mla_q\""},
    {"mla/small", "base_num_query_heads=0", "base_num_query_heads is 0, expected 1 or more"},
    {"mla/small", "rope_interleave=false;rope_pairwise=true", "rope_pairwise needs rope_interleave=true"},
    {"gqa/qwen3", "base_num_kv_heads=4", "base_num_kv_heads is 4, expected a divisor of base_num_query_heads (6)"},
    {"gqa/qwen3", "head_dim=0", "head_dim is 0, expected 1 or more"},
    {"gqa/qwen3", "normalization_layer_epsilon=-1", "normalization_layer_epsilon is -1, expected 0 or more"},
    {"yarn_rope/deepseek", "qk_rope_head_dim=1026", "qk_rope_head_dim is 1026, expected an even number from 2 to 1024"},
    {"yarn_rope/deepseek", "rope_max_timescale=1", "rope_max_timescale is 1, expected a number above 1"},
    {"yarn_rope/deepseek", "rope_factor=0", "rope_factor is 0, expected a number above 0"},
    {"yarn_rope/deepseek", "beta_slow=33", "beta_fast is 32 and beta_slow 33, expected beta_fast >= beta_slow > 0"},
    {"yarn_rope/deepseek", "beta_slow=0", "beta_fast is 32 and beta_slow 0"},
    {"routing/deepseek3-groups", "n_routing_groups=5", "n_routing_groups=5, expected -1 (no groups) or a divisor"},
    {"routing/deepseek3-groups", "n_routing_groups=0", "n_routing_groups=0"},
    {"routing/deepseek3-groups", "topk_routing_group=5", "topk_routing_group=5, expected 1 to n_routing_groups=4"},
    {"routing/deepseek3-groups", "topk_routing_group=0", "topk_routing_group=0"},
    {"routing/deepseek3-groups", "topk_routing_group=1;num_experts_per_tok=6", "fewer than num_experts_per_tok=6"},
    {"routing/llama4", "num_experts_per_tok=2", "llama4 with num_experts_per_tok=2 and norm_topk_prob=false"},
    {"routing/llama4", "norm_topk_prob=true", "norm_topk_prob=true, expected 1 and false"},
    {"routing/gemma4", "routed_score_func=sigmoid", "decoder_block gemma4 has no score function"},
    {"routing/balance", "load_balance_loss_weight=-0.5", "load_balance_loss_weight=-0.5"},
    {"routing/balance", "num_experts=0", "num_experts is 0, expected 1 or more"},
    {"routing/balance", "batch=1048576;sequence=4096", "positions are int32"},
    {"moe/fused-softmax", "use_random_routing=true", "fused_moe_func with use_random_routing"},
    {"moe/mixtral-capacity", "prefuse_moe_weights=true", "prefuse_moe_weights needs sparse_matmul=true"},
    {"moe/llama4", "sparse_matmul=false;capacity_factor=1", "llama4 has no token dropping"},
    /* what a mesh cannot split */
    {"moe/mesh-expert4", "num_moe_token_chunks=2", "num_moe_token_chunks is 2, which needs use_ring_of_experts=true"},
    {"moe/mesh-ring-expert4", "mesh.expert=1;ragged_buffer_factor=1.5", "which needs mesh.expert of 2 or more"},
    {"moe/mesh-expert4", "mesh.expert=1;ragged_buffer_factor=1", "mesh.expert=1 and use_ring_of_experts=false"},
    {"moe/mesh-expert4", "ragged_buffer_factor=0.001", "makes a buffer of 0 rows for 6 copies"},
    {"moe/mesh-expert4", "ragged_buffer_factor=1e300", "expected 1 to 2147483647"},
    {"moe/mesh-expert4", "mesh.data=3", "batch is 4, expected a multiple of the mesh's 12 shards"},
    {"moe/mesh-expert4", "mesh.tensor=5", "emb_dim is 16, expected a multiple of mesh.tensor, which is 5"},
    {"moe/mesh-expert4", "mesh.mlp_tensor=5", "moe_mlp_dim is 12, expected a multiple of mesh.mlp_tensor, which is 5"},
    {"moe/mesh-expert4", "mesh.mlp_tensor=3", "emb_dim (psum_scatter) is 16, expected a multiple of mesh.mlp_tensor"},
    {"moe/mesh-ring-expert4", "num_moe_emb_chunks=5", "num_moe_emb_chunks, which is 5"},
    {"moe/mesh-ring-expert4", "num_moe_token_chunks=2", "sequence is 3, expected a multiple of num_moe_token_chunks"},
    {"moe/mesh-ring-expert4", "mesh.tensor=2;num_moe_emb_chunks=3", "emb_dim is 16 (mesh.tensor 2)"},
    {"moe/mesh-ring-expert4", "batch=1", "batch is 1, expected a multiple of the mesh's 4 shards"},
    {"moe/fused-sigmoid", "mesh.expert=3", "num_experts is 16, expected a multiple of mesh.expert, which is 3"},
    {"moe/fused-sigmoid", "mesh.data=3", "batch is 2, expected a multiple of the 3 shards of data and fsdp"},
    {"moe/fused-sigmoid", "mesh.expert=2;mesh.mlp_tensor=5", "is parallel over mesh.expert or over mesh.mlp_tensor"},
    {"moe/fused-sigmoid", "mesh.mlp_tensor=7", "moe_mlp_dim is 64, expected a multiple of mesh.mlp_tensor, which is 7"},
    {"moe/fused-sigmoid", "mesh.expert=2;mesh.tensor=2", "goes without mesh.tensor, found it"},
    {"moe/fused-sigmoid", "mesh.expert=2;use_ring_of_experts=true", "goes without use_ring_of_experts, found it"},
    {"moe/fused-sigmoid", "mesh.expert=2;ragged_buffer_factor=1", "goes without ragged_buffer_factor, found it"},
    {"moe/fused-sigmoid", "mesh.expert=2;num_moe_emb_chunks=2", "goes without num_moe_emb_chunks, found it"},
    {"moe/fused-sigmoid", "mesh.expert=2;num_moe_token_chunks=2", "goes without num_moe_token_chunks, found it"},
    /* what the batch-split schedule has not */
    {"deepseek_stack/batch-split", "batch_split_factor=17", "batch_split_factor is 17, expected 1 to 16"},
    {"deepseek_stack/batch-split", "mesh.data=3", "batch is 2, expected a multiple of 3 shards (mesh) times 2"},
    {"deepseek_stack/batch-split", "num_moe_token_chunks=2", "no chunks"},
    {"deepseek_stack/batch-split", "num_moe_emb_chunks=2", "no chunks"},
    {"deepseek_stack/batch-split", "mesh.expert=2;num_experts=5", "num_experts is 5, expected a multiple of"},
    {"deepseek_stack/batch-split", "mesh.fsdp=2;base_emb_dim=7;batch=8", "base_emb_dim is 7, expected a multiple of"},
    {"deepseek_stack/batch-split", "mesh.fsdp=2;q_lora_rank=5;batch=8", "q_lora_rank is 5, expected a multiple of"},
    {"deepseek_stack/batch-split", "mesh.fsdp=2;kv_lora_rank=5;batch=8", "kv_lora_rank is 5, expected a multiple of"},
    {"deepseek_stack/batch-split", "q_lora_rank=0", "q_lora_rank above 0"},
    {"deepseek_stack/batch-split", "rope_pairwise=false", "rope_pairwise=true"},
    {"deepseek_stack/batch-split", "rope_attention_scaling=true", "rope_attention_scaling=false"},
    {"deepseek_stack/batch-split", "routed_score_func=softmax", "routed_score_func=sigmoid"},
    {"deepseek_stack/batch-split", "n_routing_groups=2;topk_routing_group=1;group_score=max", "group_score=top2_sum"},
    {"deepseek_stack/batch-split", "load_balance_loss_weight=1", "load_balance_loss_weight=0"},
    {"deepseek_stack/batch-split", "routed_bias_update_rate=1", "routed_bias_update_rate=0"},
    {"deepseek_stack/batch-split", "sparse_matmul=false", "sparse_matmul=true"},
    {"deepseek_stack/batch-split", "prefuse_moe_weights=true", "experts that are not fused"},
    {"deepseek_stack/batch-split", "mlp_activations_limit=1", "mlp_activations=[silu, linear], not clamped"},
    {"deepseek_stack/batch-split", "mlp_activations=[gelu, linear]", "mlp_activations=[silu, linear], not clamped"},
    {"deepseek_stack/batch-split", "shared_experts=0", "shared_experts above 0"},
    {"deepseek_stack/batch-split", "use_ring_of_experts=true", "use_ring_of_experts=false"},
    {"deepseek_stack/batch-split", "ragged_buffer_factor=1", "no ragged_buffer_factor"},
    {"deepseek_stack/batch-split", "mesh.tensor=2", "mesh.tensor=1"},
    {"deepseek_stack/batch-split", "weights_on_shards=true", "weights_on_shards=false"},
    {"deepseek_stack/batch-split", "mesh.fsdp_transpose=2", "mesh.fsdp_transpose=1"},
    {"deepseek_stack/batch-split", "mesh.mlp_tensor=2", "mesh.mlp_tensor=1"},
    /* one layer of a stack */
    {"deepseek_stack/three-layers", "only_layer=3", "only_layer is 3, expected 0 to 2"},
    {"moe/small", "only_layer=0", "op moe is no stack of layers"},
    {"deepseek_layer/moe", "only_layer=0", "op deepseek_layer is no stack of layers"},
    {"deepseek_stack/batch-split", "only_layer=0", "only_layer has no use with use_batch_split_schedule"},
    {"deepseek_layer/moe", "gradients=['checkpoints/*']", "matches no tensor"},
    {"deepseek_stack/batch-split", "gradients=['checkpoints/*']", "matches no tensor"},
    /* how h is quantised */
    {"mlp/silu", "quant_hidden_format=fp7", "quant_hidden_format: expected one of"},
    {"mlp/silu", "quant_hidden_format=fp8_e4m3_128x128", "expected one whose blocks have one row"},
    {"mlp/silu", "quant_hidden_format=mxfp8_e4m3", "quant_scale_rounding is nearest, expected up or down"},
    {"mlp/silu", "quant_hidden_format=nvfp4;quant_scale=invert",
     "quant_hidden_tensor_scale is 0, expected a number above 0"},
    {"mlp/silu", "quant_hidden_format=fp8_e4m3_1x128;quant_hidden_tensor_scale=0.5",
     "quant_hidden_tensor_scale is 0.5, expected 0"},
    {"mlp/silu", "quant_hidden_tensor_scale=0.5", "quant_hidden_tensor_scale is 0.5, expected 0.0"},
    {"mlp/silu", "quant_hidden_format=nvfp4;quant_hidden_tensor_scale=0.5", "quant_scale is divide, expected invert"},
    {"mlp/silu", "quant_hidden_format=fp8_e4m3_1x128;quant_format=mxfp4", "quant_format is mxfp4, expected none"},
    {"mlp/silu", "quant_hidden_format=fp8_e4m3_1x128;quant_scale_layout=swizzled_128x4",
     "quant_scale_layout is swizzled_128x4, expected row_major"},
    {"gmm/primes", "quant_hidden_format=fp8_e4m3_1x128", "op gmm has"},
    {"mla/small", "quant_hidden_format=fp8_e4m3_1x128", "op mla has"},
    {"moe/mesh-expert2", "quant_hidden_format=fp8_e4m3_1x128", "expected none on a mesh"},
    {"deepseek_layer/mesh-expert4", "quant_hidden_format=fp8_e4m3_1x128", "expected none on a mesh"},
    {"deepseek_layer/batch-split", "quant_hidden_format=fp8_e4m3_1x128", "expected none with use_batch_split_schedule"},
    {"moe/small", "quant_hidden_format=fp8_e4m3_1x128;sparse_matmul=false;capacity_factor=1.5",
     "expected none with capacity_factor"},
};

TEST(bad_cases_are_refused)
{
    for (size_t i = 0; i < sizeof bad_cases / sizeof *bad_cases; i++) {
        const struct bad_case *bad = &bad_cases[i];
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_plan_free) assay_plan plan = {0};
        char sets[256];
        OWNED_BY(free_case) assay_case *c = case_named(bad->name, NULL);
        assay_status status = ASSAY_OK;
        snprintf(sets, sizeof sets, "%s", bad->set);
        for (char *rest = sets, *one; status == ASSAY_OK && (one = strsep(&rest, ";")) != NULL;)
            status = assay_case_set(&ctx, c, one);
        const bool set = status == ASSAY_OK;
        if (set) status = assay_plan_make(&ctx, &plan, c);
        const assay_status expected = strcmp(bad->part, "bytes of memory") == 0 ? ASSAY_NO_MEMORY : ASSAY_BAD_INPUT;
        if (status != expected || strstr(ctx.message, bad->part) == NULL) {
            fail_msg("%s with %s: status %d, message \"%s\"", bad->name, bad->set, (int)status, ctx.message);
        }
        assert_null(strchr(ctx.message, '\n'));
        assert_int_equal(strncmp(ctx.message, set ? c->name : "--set ", set ? strlen(c->name) : 6), 0);
    }
}

TEST_WITH_CONTEXT(unknown_operations_are_refused)
{
    assay_plan plan = {0};
    OWNED_BY(free_case) assay_case *c = case_from("case: a\nop: moo\n");
    assert_bad_input(&ctx, assay_plan_make(&ctx, &plan, c), "a: op is \"moo\", expected one of rms_norm, ");
}

/* Plans the operation with each combination of the keys at its largest, and the batch and, or not, the sequence. */
static void refuse_largest(const char *op, const char *const *keys, int count, const char *rest)
{
    for (unsigned large = 0; large < 2u << count; large++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_plan_free) assay_plan plan = {0};
        char yaml[640];
        int used =
            snprintf(yaml, sizeof yaml, "case: a\nop: %s\nsequence: 64\nbatch: 2147483647\nconfig: {%s", op, rest);
        for (int k = 0; k < count; k++) {
            used += snprintf(yaml + used, sizeof yaml - (size_t)used, "%s: %d, ", keys[k],
                             (large >> k & 1) != 0 ? INT32_MAX : 64);
        }
        snprintf(yaml + used, sizeof yaml - (size_t)used, "}\n");
        OWNED_BY(free_case) assay_case *c = case_from(yaml);
        if ((large >> count) != 0) c->sequence = INT32_MAX;
        const assay_status status = assay_plan_make(&ctx, &plan, c);
        if (status != ASSAY_NO_MEMORY && status != ASSAY_BAD_INPUT) fail_msg("%s: status %d", yaml, (int)status);
    }
}

/* Every product of sizes at its largest: refused, with no overflow on the way. */
TEST(largest_sizes_are_refused)
{
    static const char *const keys[] = {"base_emb_dim",   "base_mlp_dim",        "num_experts", "base_moe_mlp_dim",
                                       "shared_experts", "num_experts_per_tok", "vocab_size"};
    static const char *const of_attention[] = {"base_emb_dim", "base_num_query_heads", "qk_nope_head_dim", "v_head_dim",
                                               "q_lora_rank",  "kv_lora_rank",         "base_mlp_dim"};
    static const char *const names[] = {"yarn_rope", "attention", "mla", "deepseek_layer", "deepseek_stack"};
    for (int i = 0; assay_operations[i] != NULL; i++) /* a program has no keys: test_programs */
        if (strcmp(assay_operations[i]->name, "program") != 0) refuse_largest(assay_operations[i]->name, keys, 7, "");
    for (int i = 0; i < 5; i++) {
        refuse_largest(names[i], of_attention, 7,
                       "base_num_decoder_layers: 2, first_num_dense_layers: 2, max_position_embeddings: 2147483647, ");
    }
}
