/* Every operation in float64, forward and backward, held against the second form in binary128: on every case of the
 * catalogue that is not too large for it, and on the combinations and shapes that no case is made of. */

#include "harness/certify/certificate.h"
#include "harness/tests/golden_trial.h"

TEST_LABELS(catalogue);

/* Above the rounding of a few dozen operations. A margin is a difference, of scores that may be far larger. */
#define OUTPUT_LIMIT 1e-14
#define MARGIN_LIMIT 1e-13

/* Operations in binary128 that a case may take for its differences: about a second. */
#define MOST_OPERATIONS 1.5e7

/* A case with what the float64 form makes of it. */
typedef struct subject {
    trial t;
    assay_certificate_inputs inputs;
} subject;

/* A choice of experts: of token t those from t on. */
static assay_tensor_set choices_of(subject *s, const assay_case *c)
{
    assay_tensor_set choices = {0};
    const int64_t experts = c->config.num_experts, per_token = c->config.num_experts_per_tok;
    for (int i = 0; i < s->t.plan.list.count; i++) {
        const assay_tensor_spec *spec = &s->t.plan.list.entries[i].spec;
        assay_tensor *choice = NULL;
        if (!assay_path_is_choice(spec->path)) continue;
        assert_ok(&s->t.ctx, assay_tensor_set_add(&s->t.ctx, &choices, spec, &choice));
        for (; choice->written < choice->count; choice->written++) {
            const int64_t token = choice->written / per_token, k = choice->written % per_token;
            choice->indices[choice->written] = (int32_t)((token + k) % experts);
        }
    }
    return choices;
}

/* Error scales of float64 alone: of all others nothing is certified. `chosen`: the choice of experts is given. */
static void subject_start(subject *s, assay_case *c, bool chosen)
{
    assay_context ctx = assay_context_default(1);
    *s = (subject){0};
    assert_ok(&ctx, assay_case_set(&ctx, c, "profiles=none"));
    assert_ok(&ctx, assay_case_set(&ctx, c, "checkpoints=all"));
    trial_plan(&s->t, c);
    assay_tensor_set choices = {0};
    if (chosen) choices = choices_of(s, c);
    assay_overlay with_choice = {assay_tensor_set_source(&choices), s->t.source};
    const assay_source source = chosen ? assay_overlay_source(&with_choice) : with_choice.under;
    assert_ok(&s->t.ctx, assay_certificate_inputs_collect(&s->t.ctx, &s->inputs, &s->t.plan, &source, NULL));
    assay_tensor_set_free(&choices);
    s->t.ctx.threads = 2;
}

static void subject_end(subject *s)
{
    assay_certificate_inputs_free(&s->inputs);
    assay_inputs_close(&s->t.inputs); /* the case may be one of a list */
    assay_plan_free(&s->t.plan);
}

static const quad_certificate *certificate_at(const quad_certificates *found, const char *path)
{
    for (int i = 0; i < found->count; i++) {
        if (strcmp(found->items[i].path, path) == 0) return &found->items[i];
    }
    return NULL;
}

/* Near a tie the two forms may choose apart, which the certifier counts among the kinks. */
static void check(subject *s, const quad_certificates *found)
{
    const char *name = s->t.plan.c->name;
    int expected = 0;
    for (int i = 0; i < s->t.plan.spec_count; i++) {
        const char *path = s->t.plan.specs[i].path;
        const bool gradient = assay_role_of(path) == ASSAY_ROLE_GRADIENT;
        if (!assay_role_is_result(assay_role_of(path))) continue;
        const quad_certificate *c = certificate_at(found, path);
        if (c == NULL) fail_msg("%s: no certificate of %s", name, path);
        const bool margin = strlen(path) > 6 && strcmp(path + strlen(path) - 6, "margin") == 0;
        const double limit = margin ? MARGIN_LIMIT : OUTPUT_LIMIT;
        if (!gradient && !(c->relative <= limit)) fail_msg("%s: %s is off by %g of its size", name, path, c->relative);
        if (c->checked + c->kinks == 0 && assay_shape_count(&s->t.plan.specs[i].shape) > 0) {
            fail_msg("%s: nothing of %s was checked", name, path);
        }
        if (c->kinks > 0 && !gradient && !assay_path_is_choice(path))
            fail_msg("%s: %s has %d kinks", name, path, (int)c->kinks);
        expected++;
    }
    assert_int_equal(found->count, expected);
    if (assay_certificates_check(&s->t.ctx, found) != ASSAY_OK) fail_msg("%s: %s", name, s->t.ctx.message);
}

/* Whether gradients were held against differences too. */
static bool certify(assay_case *c)
{
    OWNED_BY(subject_end) subject s;
    OWNED_BY(quad_certificates_free) quad_certificates found = {0};
    subject_start(&s, c, false);
    assay_certificate_scope scope = assay_certificate_scope_of(&s.t.ctx, &s.t.plan, 1);
    assert_true(scope.outputs);
    const bool fits =
        2 * (double)scope.directions * assay_operation_flops(s.t.plan.operation, c, false) <= MOST_OPERATIONS;
    if (!fits) scope.budget.directions = 0;
    assert_ok(&s.t.ctx, assay_certify(&s.t.ctx, &s.inputs, &scope, true, &found));
    check(&s, &found);
    return fits;
}

TEST(the_catalogue)
{
    int count = 0, certified = 0, differences = 0;
    assay_case *cases = all_cases(&count);
    for (int i = 0; i < count; i++) {
        if (has_tag(&cases[i], "true-size")) continue;
        differences += certify(&cases[i]);
        certified++;
    }
    if (certified < 824 || differences < 572) fail_msg("only %d cases, %d with differences", certified, differences);
    assay_cases_free(cases, count);
}

/* A case that is changed in every way: one setting of each list, whose alternatives lie between bars; an alternative is
 * settings between semicolons, or nothing. */
enum { MOST_LISTS = 4 };
typedef struct variants {
    const char *name;
    const char *lists[MOST_LISTS];
} variants;

#define TINY_MOE "base_emb_dim=5;base_moe_mlp_dim=7;num_experts=6;num_experts_per_tok=2;batch=2;sequence=4"
#define TINY_LAYER                                                                                                     \
    "base_emb_dim=8;base_num_query_heads=2;qk_nope_head_dim=3;v_head_dim=2;q_lora_rank=3;kv_lora_rank=4;"              \
    "base_mlp_dim=7;base_moe_mlp_dim=5;load_balance_loss_weight=0.7;routed_bias_update_rate=0.001;positions.step=900"
#define PATHS "sparse_matmul=true|sparse_matmul=false|sparse_matmul=false;capacity_factor=1"
#define BALANCE "load_balance_loss_weight=0.7;routed_bias_update_rate=0.001"
#define RECIPES "quant_recipe=fp8_full|quant_recipe=deepseek_v3"
#define EXCHANGES "ragged_buffer_factor=0.75|use_ring_of_experts=true"
#define GATES                                                                                                          \
    "mlp_activations=[silu, linear]|mlp_activations=[gelu, linear]|mlp_activations=[gelu_exact, linear]|"              \
    "mlp_activations=[relu, linear]|mlp_activations=[sigmoid, linear]|mlp_activations=[linear, linear]"
#define ACTIVATIONS                                                                                                    \
    GATES "|mlp_activations=[silu, gelu]|mlp_activations=[relu, sigmoid]|mlp_activations=[linear, gelu_exact]|"        \
          "mlp_activations=[sigmoid, silu]|mlp_activations=[gelu, relu]"
#define SEGMENTS                                                                                                       \
    "|inputs.segment_ids={values: [1, 1, 2, 1, 0, 2, 0]}|inputs.segment_ids={values: [1, 1, 1, 2, 2, 0, 0]}|"          \
    "inputs.segment_ids={values: [0, 0, 0, 0, 0, 0, 0]}"

static const variants tables[] = {
    {"rms_norm/prime-width",
     {"base_emb_dim=1|base_emb_dim=13|base_emb_dim=64",
      "normalization_layer_epsilon=0.5|normalization_layer_epsilon=0"}},
    {"gmm/recipe-fp8-full",
     {"base_emb_dim=7;base_moe_mlp_dim=5", RECIPES, "dtype=float16|dtype=float32",
      "bwd_quantization_calibration_method=absmax"}},
    {"batch_split/split-mesh2", {"q_lora_rank=0"}},
    {"batch_split/merge-mesh2", {"q_lora_rank=0"}},
    {"batch_split/quantized-psum-scatter-expert4",
     {"batch=4|batch=8", "base_emb_dim=1|base_emb_dim=9", "dtype=float16|dtype=bfloat16"}},
    {"batch_split/compute-linear-recipe-mesh2",
     {"dtype=bfloat16|dtype=float16", "base_emb_dim=1|base_moe_mlp_dim=1",
      "act_quantization_calibration_method=fixed,2|act_quantization_calibration_method=absmax,0.5"}},
    {"batch_split/shared-expert-recipe-mesh2", {"dtype=bfloat16|dtype=float16", "base_emb_dim=1|base_moe_mlp_dim=1"}},
    {"batch_split/expert-selection-recipe", {"dtype=float32|dtype=float16", "base_emb_dim=1|base_emb_dim=9"}},
    {"batch_split/compute-gating-recipe-mesh2",
     {"merge_gating_gmm=true|merge_gating_gmm=false", "base_emb_dim=1|base_emb_dim=9", "dtype=float32|dtype=float16",
      "bwd_quantization_calibration_method=absmax,0.5|weight_quantization_calibration_method=fixed,-4,4"}},
    {"gmm/empty-run",
     {"batch=1;sequence=5;num_experts_per_tok=1;num_experts=2;base_emb_dim=7", "base_moe_mlp_dim=1|base_moe_mlp_dim=3",
      "inputs.group_sizes={values: [0, 0]}|inputs.group_sizes={values: [0, 5]}|inputs.group_sizes={values: [3, 0]}"}},
    {"permute/stable", {"num_experts_per_tok=1|num_experts_per_tok=3", "base_emb_dim=1|base_emb_dim=5"}},
    {"mlp/primes",
     {"base_emb_dim=4;base_mlp_dim=3;sequence=2;batch=1",
      "fused_mlp=false;mlp_bias=true|fused_mlp=true;inputs.x={scale: 8}|fused_mlp=true;mlp_bias=true", ACTIVATIONS}},
    {"mlp/primes",
     {"base_emb_dim=4;base_mlp_dim=3;sequence=2;batch=1;mlp_activations_limit=0.7",
      "fused_mlp=false;mlp_bias=true|fused_mlp=true;inputs.x={scale: 8}|fused_mlp=true;mlp_bias=true", GATES}},
    {"mlp/gpt-oss", {"base_emb_dim=4;base_mlp_dim=3;mlp_activations_limit=0.7", "fused_mlp=true|", "mlp_bias=true|"}},
    {"yarn_rope/ten-dimensions",
     {"qk_rope_head_dim=2|qk_rope_head_dim=6|qk_rope_head_dim=64", "rope_type=default|rope_type=yarn",
      "rope_interleave=false|rope_interleave=true|rope_interleave=true;rope_pairwise=true",
      "rope_truncate=true|rope_truncate=false;rope_attention_scaling=true"}},
    {"yarn_rope/ten-dimensions",
     {"beta_fast=1|original_max_position_embeddings=4|original_max_position_embeddings=1;beta_slow=4|"
      "beta_slow=1.0e-9|rope_factor=0.5|rope_factor=1;rope_max_timescale=1.5|rope_max_timescale=5.0e+6",
      "rope_pairwise=false|rope_pairwise=true;rope_truncate=false"}},
    {"attention/primes", {"sequence=7", SEGMENTS, "mask_padding=true|mask_padding=false"}},
    {"attention/one-token", {"inputs.segment_ids={values: [0]}", "mask_padding=true|mask_padding=false"}},
    {"attention/grouped-primes",
     {"sequence=7;batch=1;base_num_query_heads=6;head_dim=3", SEGMENTS,
      "sliding_window_size=1|sliding_window_size=2|sliding_window_size=6|sliding_window_size=7|sliding_window_size=8",
      "base_num_kv_heads=1|base_num_kv_heads=3;attention_sink=true|base_num_kv_heads=6;attention_sink=true"}},
    {"gqa/primes",
     {"sequence=7;batch=2;base_num_query_heads=4;head_dim=4;base_emb_dim=3", SEGMENTS,
      "sliding_window_size=0|sliding_window_size=2|sliding_window_size=7;rope_type=yarn",
      "base_num_kv_heads=1;use_qk_norm=true|base_num_kv_heads=2;fused_qkv=true;use_qk_norm=true|"
      "base_num_kv_heads=4;attention_bias=false;attention_sink=false|base_num_kv_heads=2;query_pre_attn_scalar=1"}},
    {"gqa/one-token", {"base_emb_dim=1;head_dim=2", "base_num_query_heads=1;base_num_kv_heads=1|fused_qkv=true"}},
    {"mla/primes",
     {"sequence=7;batch=2", SEGMENTS, "mask_padding=true|mask_padding=false", "q_lora_rank=0|rope_pairwise=true"}},
    {"mla/recipe-fp8-full",
     {"sequence=1|sequence=5;batch=2", "quant_recipe=fp8_full|quant_recipe=deepseek_v3", "dtype=float16|q_lora_rank=0",
      "bwd_quantization_calibration_method=absmax"}},
    {"mla/small",
     {"sequence=1|sequence=5;base_num_query_heads=1;qk_nope_head_dim=1;qk_rope_head_dim=2;v_head_dim=1;q_lora_rank=1;"
      "kv_lora_rank=1;normalization_layer_epsilon=0.25|latent_norm_epsilon=0.5"}},
    {"routing/balance",
     {"num_experts=6|num_experts=6;n_routing_groups=3;topk_routing_group=2;num_experts_per_tok=3",
      "group_score=max|group_score=top2_sum",
      "routed_bias=true|routed_bias=true;inputs.gate/bias={mean: -2}|routed_bias=false",
      "routed_score_func=|routed_score_func=sigmoid|routed_score_func=softmax|routed_score_func=sqrtsoftplus"}},
    {"routing/deepseek2-236b",
     {"routed_bias=true", "routed_score_func=softmax|routed_score_func=sigmoid",
      "group_score=max|group_score=top2_sum"}},
    {"moe/small",
     {PATHS "|prefuse_moe_weights=true",
      "batch=1;sequence=1;num_experts=1;num_experts_per_tok=1;base_emb_dim=1;base_moe_mlp_dim=1|"
      "batch=1;sequence=1;num_experts=5;num_experts_per_tok=1;base_emb_dim=3;base_moe_mlp_dim=2|"
      "batch=1;sequence=3;num_experts=4;num_experts_per_tok=4;base_emb_dim=5;base_moe_mlp_dim=3|"
      "batch=2;sequence=3;num_experts=7;num_experts_per_tok=3;base_emb_dim=11;base_moe_mlp_dim=13|"
      "batch=2;sequence=1;num_experts=3;num_experts_per_tok=2;base_emb_dim=1;base_moe_mlp_dim=19",
      "shared_experts=0|shared_experts=2", "n_routing_groups=-1;topk_routing_group=-1"}},
    {"moe/small",
     {TINY_MOE, PATHS "|sparse_matmul=false;capacity_factor=0.5",
      "inputs.gate/bias={values: [0, 4, 0, 5, 0, 0]}|inputs.gate/bias={values: [-4, -4, -4, -4, 0, 0]}|" BALANCE}},
    {"moe/deepseek2-236b", {TINY_MOE, PATHS, "n_routing_groups=2;topk_routing_group=1"}},
    {"moe/deepseek4", {TINY_MOE ";mlp_activations_limit=0.4", PATHS}},
    {"moe/deepseek4-hash", {TINY_MOE, PATHS, "inputs.weights/tid2eid={distribution: experts, high: 5}"}},
    {"moe/gpt-oss",
     {TINY_MOE ";mlp_activations_limit=0.5", PATHS, BALANCE ";router_z_loss_weight=0.3|prefuse_moe_weights=false"}},
    {"moe/mixtral", {TINY_MOE, PATHS, "mlp_activations=gelu_exact|mlp_activations=relu", "mlp_bias=true|"}},
    {"moe/qwen3", {TINY_MOE, PATHS}},
    {"moe/small",
     {RECIPES "|quant_recipe=fp8_full;bwd_quantization_calibration_method=fixed,2",
      "batch=1;sequence=1;num_experts=1;num_experts_per_tok=1;base_emb_dim=1;base_moe_mlp_dim=1|"
      "batch=1;sequence=1;num_experts=5;num_experts_per_tok=2;base_emb_dim=3;base_moe_mlp_dim=2|"
      "batch=2;sequence=3;num_experts=7;num_experts_per_tok=3;base_emb_dim=11;base_moe_mlp_dim=13",
      "shared_experts=0|shared_experts=2;prefuse_moe_weights=true", "n_routing_groups=-1;topk_routing_group=-1"}},
    {"moe/gpt-oss", {TINY_MOE ";mlp_activations_limit=0.5", RECIPES, "prefuse_moe_weights=true|" BALANCE}},
    {"moe/recipe-fp8-full-mesh-ring",
     {RECIPES ";bwd_quantization_calibration_method=absmax", "prefuse_moe_weights=true|prefuse_moe_weights=false",
      "mesh.data=1|mesh.tensor=2;use_ring_of_experts=false;num_moe_emb_chunks=0;num_moe_token_chunks=1"}},
    {"moe/given-none", {RECIPES}},
    {"moe/given-ids-none", {RECIPES}},
    {"moe/given-mixtral", {RECIPES}},
    {"moe/gemma4", {TINY_MOE ";base_mlp_dim=9", PATHS, BALANCE "|norm_topk_prob=false"}},
    {"moe/near-ties", {TINY_MOE, PATHS}},
    {"moe/llama4", {TINY_MOE ";num_experts_per_tok=1", "sparse_matmul=true|sparse_matmul=false"}},
    {"moe/fused-sigmoid", {TINY_MOE ";gradients=all", "shared_experts=0|shared_experts=1"}},
    {"moe/fused-softmax", {TINY_MOE ";gradients=all"}},
    {"moe/shared-slot",
     {TINY_MOE, "num_fused_shared_experts=1|shared_experts=3;num_fused_shared_experts=3",
      "apply_routed_scaling_factor_on_output=false|apply_router_weight_on_input=true",
      "prefuse_moe_weights=true|" BALANCE}},
    {"moe/weight-on-input", {TINY_MOE, "mlp_activations=gelu|prefuse_moe_weights=true", "shared_experts=2|" BALANCE}},
    {"moe/mesh-weight-on-input", {EXCHANGES ";num_moe_token_chunks=3"}},
    {"moe/shared-gate", {TINY_MOE, PATHS "|fused_moe_func=true;prefuse_moe_weights=true", BALANCE}},
    {"moe/losses", {TINY_MOE, PATHS, "load_balance_loss_scope=sequence|load_balance_loss_scope=global"}},
    {"moe/mesh-losses-global", {EXCHANGES, "load_balance_loss_scope=sequence|load_balance_loss_scope=batch"}},
    {"moe/mesh-primes",
     {"ragged_buffer_factor=0.17|ragged_buffer_factor=1.25|use_ring_of_experts=true;num_moe_token_chunks=5",
      "inputs.gate/bias={values: [5, 5, 0, 0, 0, 0]}|" BALANCE}},
    {"moe/mesh-one-row", {"ragged_buffer_factor=0.5"}},
    {"moe/mesh-buffer-data2",
     {"mesh.expert=2|mesh.data=1;mesh.fsdp=2|mesh.data=1;mesh.expert=4;batch=8",
      "ragged_buffer_factor=0.3|ragged_buffer_factor=0.7|ragged_buffer_factor=2.5"}},
    {"moe/mesh-token-chunks3-balance", {"mesh.data=1;mesh.fsdp=2|mesh.data=1;mesh.expert=1"}},
    {"moe/mesh-hash", {EXCHANGES}},
    {"moe/mesh-gpt-oss", {EXCHANGES, BALANCE ";router_z_loss_weight=0.3"}},
    {"moe/mesh-gemma4", {EXCHANGES, BALANCE ";router_z_loss_weight=0.3"}},
    {"moe/mesh-llama4", {EXCHANGES}},
    {"moe/mesh-mixtral", {EXCHANGES}},
    {"deepseek_stack/dense-then-moe",
     {TINY_LAYER, SEGMENTS, "sequence=7",
      "q_lora_rank=0|fused_mlp=true;prefuse_moe_weights=true|shared_experts=0;rope_pairwise=true|mask_padding=false|"
      "first_num_dense_layers=0|first_num_dense_layers=2"}},
    {"deepseek_stack/batch-split",
     {TINY_LAYER ";load_balance_loss_weight=0;routed_bias_update_rate=0", "num_experts=4;batch=4;mesh.expert=2"}},
    {"deepseek_layer/batch-split",
     {"sequence=1", "mesh.expert=2|mesh.fsdp=2;mesh.expert=2|mesh.data=2;mesh.fsdp=2",
      "batch=8;batch_split_factor=1|batch=8;batch_split_factor=2"}},
};

/* How many alternatives a list has; where the one of this number begins, and how long it is. */
static int count_alternatives(const char *list)
{
    int count = 1;
    for (; *list != '\0'; list++) count += *list == '|';
    return count;
}

static const char *alternative(const char *list, int number, size_t *length)
{
    for (; number > 0; number--) list = strchr(list, '|') + 1;
    *length = strcspn(list, "|");
    return list;
}

/* The settings of one alternative; `told` has what was set. */
static void set_all(assay_case *c, const char *settings, size_t length, char *told, size_t size)
{
    assay_context ctx = assay_context_default(1);
    for (const char *end = settings + length; settings < end;) {
        char setting[256];
        size_t one = strcspn(settings, ";|");
        snprintf(setting, sizeof setting, "%.*s", (int)one, settings);
        if (assay_case_set(&ctx, c, setting) != ASSAY_OK) fail_msg("%s %s: %s", c->name, setting, ctx.message);
        snprintf(told + strlen(told), size - strlen(told), " %s", setting);
        settings += one + 1;
    }
}

/* Row `number` of a table in which each alternative of each list stands once; with ASSAY_NIGHTLY of all combinations. */
static int alternative_of(const variants *table, int list, int number, bool nightly)
{
    if (!nightly) return (number + list) % count_alternatives(table->lists[list]);
    for (int j = 0; j < list; j++) number /= count_alternatives(table->lists[j]);
    return number % count_alternatives(table->lists[list]);
}

TEST(what_no_case_is_made_of)
{
    const bool nightly = getenv("ASSAY_NIGHTLY") != NULL;
    int certified = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        int lists = 0, count = 1;
        for (; lists < MOST_LISTS && tables[i].lists[lists] != NULL; lists++) {
            const int alternatives = count_alternatives(tables[i].lists[lists]);
            count = nightly ? count * alternatives : alternatives > count ? alternatives : count;
        }
        for (int number = 0; number < count; number++) {
            OWNED_BY(free_case) assay_case *c = case_named(tables[i].name, NULL);
            char told[1024] = "";
            for (int j = 0; j < lists; j++) {
                size_t length = 0;
                const char *settings =
                    alternative(tables[i].lists[j], alternative_of(&tables[i], j, number, nightly), &length);
                set_all(c, settings, length, told, sizeof told);
            }
            snprintf(c->name, sizeof c->name, "%.40s%.80s", tables[i].name, told);
            if (!certify(c)) fail_msg("%s%s: too large", tables[i].name, told);
            certified++;
        }
    }
    assert_true(certified > (nightly ? 500 : 150));
}

/* Zeros, negated, turned by one place, all of it or the largest element alone a little too large. */
enum { TAMPERINGS = 5 };

static void tamper(int way, int64_t count, const quad *right, quad *wrong)
{
    int64_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (fabs((double)right[i]) > fabs((double)right[largest]) && isfinite((double)right[i])) largest = i;
        wrong[i] = way == 0   ? 0
                   : way == 1 ? -right[i]
                   : way == 2 ? right[(i + 1) % count]
                   : way == 3 ? right[i] * (1 + 0x1p-8)
                              : right[i];
    }
    if (way == 4) wrong[largest] *= 1 + 1e-10;
}

static bool is_certified(subject *s, const quad_tensor *tensor)
{
    const quad_operation *form = &s->t.plan.operation->second_form;
    const quad_tensors one = {(quad_tensor *)tensor, 1};
    OWNED_BY(quad_certificates_free) quad_certificates found = {0};
    assay_operation_config config;
    assert_ok(&s->t.ctx, assay_operation_configure(&s->t.ctx, s->t.plan.operation, s->t.plan.c, &config));
    assert_ok(&s->t.ctx, quad_certify(&s->t.ctx, form, &config, &s->inputs.in, &one, &(quad_budget){0}, &found));
    const bool certified = assay_certificates_check(&s->t.ctx, &found) == ASSAY_OK;
    return certified;
}

/* What follows from a choice that the scores would not make. */
TEST(at_a_given_choice)
{
    static const char *const table[][2] = {
        {"routing/balance", "seed=1"},
        {"moe/small", "seed=1"},
        {"moe/small", "sparse_matmul=false"},
        {"moe/mixtral-capacity-tight", "base_emb_dim=5"},
        {"moe/gpt-oss", "base_emb_dim=4"},
        {"moe/gemma4", "base_emb_dim=4"},
        {"moe/fused-sigmoid", "gradients=all"},
        {"moe/mesh-primes", "ragged_buffer_factor=0.75"},
        {"moe/mesh-ring-expert2", "seed=1"},
        {"deepseek_layer/moe", "seed=1"},
        {"deepseek_layer/batch-split", "sequence=1"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        subject s;
        OWNED_BY(free_case) assay_case *c = case_named(table[i][0], table[i][1]);
        subject_start(&s, c, true);
        for (int j = 0; j < s.inputs.results.count; j++) {
            const quad_tensor *tensor = &s.inputs.results.items[j];
            if (assay_path_is_choice(tensor->path)) assert_int_equal(tensor->indices[c->config.num_experts_per_tok], 1);
            if (!assay_role_is_result(assay_role_of(tensor->path)) || assay_path_is_choice(tensor->path)) continue;
            if (!is_certified(&s, tensor)) fail_msg("%s: %s: %s", c->name, tensor->path, s.t.ctx.message);
        }
        subject_end(&s);
    }
}

static int tampered_numbers(subject *s, const quad_tensor *right)
{
    const int64_t count = assay_shape_count(&right->shape);
    const size_t bytes = (size_t)count * sizeof *right->values;
    quad_tensor wrong = *right;
    int changed = 0;
    wrong.values = malloc(bytes);
    assert_non_null(wrong.values);
    for (int way = 0; way < TAMPERINGS; way++) {
        bool same = true;
        tamper(way, count, right->values, wrong.values);
        for (int64_t i = 0; i < count; i++) same &= wrong.values[i] == right->values[i];
        if (same) continue;
        if (is_certified(s, &wrong)) fail_msg("%s: %s is certified, tampering %d", s->t.plan.c->name, right->path, way);
        changed++;
    }
    free(wrong.values);
    return changed;
}

static int tampered_indices(subject *s, const quad_tensor *tensor)
{
    for (int64_t i = 0; i < assay_shape_count(&tensor->shape); i++) {
        tensor->indices[i]++;
        if (is_certified(s, tensor)) fail_msg("%s: %s[%d] is certified", s->t.plan.c->name, tensor->path, (int)i);
        tensor->indices[i]--;
    }
    return 1;
}

/* Every result of every kind of case, altered, is refused; the choice of experts has tests of its own. */
TEST(what_is_altered_is_not_certified)
{
    static const struct {
        const char *name, *set;
        int results;
    } table[] = {
        {"rms_norm/one-column", "seed=1", 3},
        {"gmm/empty-run", "seed=1", 3},
        {"gmm/recipe-fp8-full", "base_emb_dim=9", 3},
        {"gmm/recipe-deepseek-v3-powers", "base_emb_dim=9", 3},
        {"moe/recipe-fp8-full-shared", "base_emb_dim=9", 20},
        {"batch_split/quantized-psum-scatter-mesh2", "base_emb_dim=5", 2},
        {"batch_split/gmm-bwd-recipe-mesh2", "base_emb_dim=5", 2},
        {"batch_split/compute-linear-bwd-recipe-mesh2", "base_emb_dim=5", 2},
        {"batch_split/shared-expert-bwd-recipe-mesh2", "base_emb_dim=5", 2},
        {"batch_split/expert-selection-bwd-recipe-mesh2", "base_emb_dim=5", 2},
        {"permute/one-token", "seed=1", 4},
        {"unpermute/primes", "seed=1", 3},
        {"routing/balance", "seed=1", 6},
        {"mlp/gpt-oss", "base_emb_dim=4", 10},
        {"yarn_rope/two-dimensions", "seed=1", 2},
        {"attention/segments", "seed=1", 5},
        {"mla/small", "sequence=3", 19},
        {"mla/recipe-fp8-full", "sequence=3", 23},
        {"moe/small", "load_balance_loss_weight=0.7", 20},
        {"moe/mesh-primes", "ragged_buffer_factor=0.75", 20},
        {"deepseek_stack/dense-then-moe", "sequence=2", 60},
        {"deepseek_layer/batch-split", "sequence=1", 24},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        subject s;
        OWNED_BY(free_case) assay_case *c = case_named(table[i].name, table[i].set);
        int altered = 0;
        subject_start(&s, c, false);
        for (int j = 0; j < s.inputs.results.count; j++) {
            const quad_tensor *tensor = &s.inputs.results.items[j];
            if (!assay_role_is_result(assay_role_of(tensor->path)) || assay_path_is_choice(tensor->path)) continue;
            altered += (tensor->indices != NULL ? tampered_indices : tampered_numbers)(&s, tensor) > 0;
        }
        if (altered < table[i].results) fail_msg("%s: only %d results were altered", table[i].name, altered);
        subject_end(&s);
    }
}
