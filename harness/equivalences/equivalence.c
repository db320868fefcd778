#include "harness/equivalences/equivalence.h"

#include <stdio.h>
#include <string.h>

#include "harness/equivalences/free_axes.h"
#include "harness/operations/op_support.h"
#include "oracle/layer/batch_split_function.h"

static bool is_op(const assay_case *c, const char *name)
{
    return strcmp(c->op, name) == 0;
}

static bool has_moe(const assay_case *c)
{
    const int64_t layers = assay_is_stack(c) ? c->config.base_num_decoder_layers : 1;
    return is_op(c, "moe") || (assay_is_layer(c) && c->config.first_num_dense_layers < layers);
}

static bool has_sparse_moe(const assay_case *c)
{
    return has_moe(c) && c->config.sparse_matmul && !c->config.fused_moe_func;
}

/* Rows beyond the buffer of a shard are lost. */
static bool drops_rows(const assay_case *c)
{
    return c->config.ragged_buffer_factor > 0;
}

/* Layers under the schedule; a block alone only takes its rule of dividing the weights. */
static bool is_batch_split(const assay_case *c)
{
    return assay_is_layer(c) && c->config.use_batch_split_schedule;
}

static bool is_sharded(const assay_case *c)
{
    assay_context ctx = {0};
    assay_moe_config config;
    assay_sharding sharding;
    return has_moe(c) && assay_moe_config_of(&ctx, c, &config) == ASSAY_OK &&
           assay_sharding_of(&ctx, c, &sharding) == ASSAY_OK && assay_is_sharded(&config, &sharding);
}

static void on_one_device(assay_case *c)
{
    c->mesh_data = c->mesh_fsdp = c->mesh_expert = c->mesh_tensor = c->mesh_mlp_tensor = c->mesh_fsdp_transpose = 1;
    c->config.weights_on_shards = false;
    c->config.use_ring_of_experts = false;
    c->config.ragged_buffer_factor = -1;
    c->config.num_moe_emb_chunks = 0;
    c->config.num_moe_token_chunks = 1;
}

/* Whether a shard, or a chunk of its tokens, has losses of its own. */
static bool has_own_loss(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    const bool any = m->load_balance_loss_weight > 0 || m->router_z_loss_weight > 0;
    return any && !m->fused_moe_func && strcmp(m->load_balance_loss_scope.text, "global") != 0;
}

/* Whether the MoE blocks are what a block of another kind on one device computes as well: nothing is lost, all experts
 * are there, no shard has a loss of its own, and no token an expert twice. */
static bool is_whole(const assay_case *c)
{
    const bool own_loss = is_sharded(c) && has_own_loss(c);
    return !drops_rows(c) && !is_batch_split(c) && !own_loss && !c->config.use_random_routing &&
           c->config.local_num_experts == 0;
}

static bool fuses_experts(const assay_case *c)
{
    return c->config.prefuse_moe_weights || c->config.fused_moe_mlp;
}

static bool is_llama4(const assay_case *c)
{
    return strcmp(c->config.decoder_block.text, "llama4") == 0 || strcmp(c->config.routing_method.text, "Llama4") == 0;
}

/* What the sparse path alone has. */
static bool has_engine_form(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return m->apply_router_weight_on_input || m->num_fused_shared_experts > 0 || m->local_num_experts > 0 ||
           m->num_redundant_experts > 0 || !m->apply_routed_scaling_factor_on_output;
}

/* Scales by a recipe are those of rows or blocks of gate and up together; but blocks that end with gate. Of shards of H gate and
 * up give dx sums of their own, which only a fused one has together. */
static bool fuses_scales(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    const int64_t width = is_op(c, "moe") ? m->base_moe_mlp_dim : m->base_mlp_dim;
    return m->quant_recipe.text[0] != '\0' &&
           (strcmp(m->quant_recipe.text, "deepseek_v3") != 0 || width % 128 != 0 || c->mesh_mlp_tensor > 1);
}

static bool other_fused(const assay_case *c, assay_other_form *form)
{
    if (fuses_scales(c)) return false;
    const bool experts = has_sparse_moe(c) && !is_batch_split(c); /* which has no fused experts */
    const bool dense = is_op(c, "mlp") || (assay_is_layer(c) && c->config.first_num_dense_layers > 0);
    if (dense) form->c.config.fused_mlp = !c->config.fused_mlp;
    if (experts) form->c.config.prefuse_moe_weights = !fuses_experts(c);
    if (experts) form->c.config.fused_moe_mlp = false;
    if (experts) form->c.config.w13_reorder_size = 1;
    return dense || experts;
}

/* Where there are two tensor shards to have. */
static bool other_w13_layout(const assay_case *c, assay_other_form *form)
{
    int64_t *shards = &form->c.config.w13_reorder_size;
    *shards = *shards > 1 ? 1 : c->mesh_mlp_tensor > 1 ? c->mesh_mlp_tensor : 2;
    return is_op(c, "moe") && (fuses_experts(c) || c->config.fused_moe_func) && !c->config.weights_on_shards &&
           c->config.base_moe_mlp_dim % *shards == 0;
}

/* Biases of a fused product are those of its halves, so only the kernels change. */
static bool other_dense(const assay_case *c, assay_other_form *form)
{
    const bool dropping = !c->config.sparse_matmul && c->config.capacity_factor > 0;
    if (!has_moe(c) || has_engine_form(c) || dropping || fuses_experts(c) || c->config.fused_moe_func || !is_whole(c))
        return false;
    on_one_device(&form->c);
    form->c.config.sparse_matmul = !c->config.sparse_matmul;
    form->c.config.capacity_factor = -1;
    return true;
}

/* Whether a form that was made up here is a case. */
static bool is_case(const assay_case *c)
{
    assay_context ctx = {0};
    const assay_operation *operation = NULL;
    assay_tensor_list list = {0};
    const bool fits = assay_operation_prepare(&ctx, c, &operation, &list) == ASSAY_OK;
    assay_tensor_list_free(&list);
    return fits;
}

/* Room for every choice: nothing is dropped. */
static bool other_capacity(const assay_case *c, assay_other_form *form)
{
    const bool dropless = c->config.sparse_matmul || !(c->config.capacity_factor > 0);
    const bool llama4 = is_llama4(c);
    if (!has_moe(c) || has_engine_form(c) || !dropless || fuses_experts(c) || c->config.fused_moe_func || llama4)
        return false;
    if (!is_whole(c)) return false;
    on_one_device(&form->c);
    form->c.config.sparse_matmul = false;
    form->c.config.capacity_factor = (double)c->config.num_experts;
    return is_case(&form->c);
}

/* Where the fused path's own routing rule gives the same weights (docs/operations.md, "moe"). */
static bool other_fused_moe(const assay_case *c, assay_other_form *form)
{
    assay_context ctx = {0};
    assay_moe_config config;
    const assay_model_config *m = &c->config;
    if (!is_op(c, "moe") || !has_sparse_moe(c) || has_engine_form(c) || m->routed_bias || m->mlp_bias || !is_whole(c))
        return false;
    if (m->weights_on_shards) return false; /* whole and fused at once is no counterpart */
    if (assay_moe_config_of(&ctx, c, &config) != ASSAY_OK) return false;
    const assay_routing_config *r = &config.routing;
    const bool sigmoid =
        r->family == ASSAY_ROUTER_DEEPSEEK3 && r->score_func == ASSAY_SCORE_SIGMOID && r->routed_scaling_factor == 1;
    /* The fused path has no 1e-20 beside the sum of the weights: with one expert a token, that is all of their
     * gradient. */
    if (sigmoid && r->num_experts_per_tok == 1) return false;
    const bool softmax = r->family == ASSAY_ROUTER_DEFAULT && r->score_func == ASSAY_SCORE_NONE;
    if (m->routing_method.text[0] != '\0') return false;
    if (!(sigmoid || softmax) || r->n_routing_groups > 0 || r->hash_rows > 0) return false;
    if (r->load_balance_loss_weight > 0 || r->z_loss_weight > 0 || r->routed_bias_update_rate > 0) return false;
    if (r->batch * r->sequence * r->num_experts_per_tok % 16 != 0) return false;
    assay_case *other = &form->c;
    other->config.fused_moe_func = true;
    other->config.prefuse_moe_weights = true;
    other->config.fused_moe_mlp = false;
    /* On the same mesh where the fused path has such a one; a shard has other tokens there. */
    const int64_t sizes[] = {c->mesh_data, c->mesh_fsdp, c->mesh_expert, c->mesh_mlp_tensor};
    on_one_device(other);
    form->other_shards = is_sharded(c);
    other->mesh_data = sizes[0], other->mesh_fsdp = sizes[1];
    other->mesh_expert = sizes[2], other->mesh_mlp_tensor = sizes[3];
    if (!is_case(other)) on_one_device(other);
    return true;
}

static void set_policies(assay_model_config *m, const char *policy)
{
#define X(code, name) snprintf(m->name.text, sizeof m->name.text, "%s", policy);
    ASSAY_REMAT_TABLE(X)
#undef X
    snprintf(m->decoder_layer_input.text, sizeof m->decoder_layer_input.text, "device");
}

/* Everything kept, or, where that is the case's own policy, nothing. */
static bool other_remat(const assay_case *c, assay_other_form *form)
{
    assay_context ctx = {0};
    assay_stack_config config;
    assay_remat_report own, all;
    if (!assay_is_layer(c) || is_batch_split(c)) return false; /* the schedule has a policy of its own */
    if (assay_stack_config_of(&ctx, c, &config) != ASSAY_OK) return false;
    if (assay_stack_remat_model(&ctx, &config, &own) != ASSAY_OK) return false;
    for (int name = 0; name < ASSAY_REMAT_NAMES; name++) config.policy.action[name] = ASSAY_DEVICE;
    if (assay_stack_remat_model(&ctx, &config, &all) != ASSAY_OK) return false;
    const bool kept = own.bytes_kept == all.bytes_kept;
    snprintf(form->c.config.remat_policy.text, sizeof form->c.config.remat_policy.text, "custom");
    set_policies(&form->c.config, kept ? "remat" : "device");
    return true;
}

static int64_t token_pieces(const assay_case *c)
{
    return c->mesh_data * c->mesh_fsdp * c->mesh_fsdp_transpose * c->config.num_moe_token_chunks;
}

static int64_t sum_pieces(const assay_case *c)
{
    return c->mesh_tensor * (c->config.num_moe_emb_chunks > 1 ? c->config.num_moe_emb_chunks : 1);
}

/* Whether experts by a recipe have the scales of another mesh: each shard finds those of its own rows, experts and columns. */
static bool has_same_scales(const assay_case *c, const assay_case *other)
{
    assay_context ctx = {0};
    assay_quant_recipe_config r;
    const int64_t width = c->config.base_moe_mlp_dim;
    if (!has_moe(c) || assay_quant_recipe_config_of(&ctx, c, &r) != ASSAY_OK || r.recipe == NULL) return true;
    const bool blocks = r.recipe->dx_dy.scales == ASSAY_SCALES_BLOCKS;
    const bool x = r.x.fixed > 0, w = r.w.fixed > 0, dy = r.dy.fixed > 0;
    const bool tokens = token_pieces(c) == token_pieces(other), experts = c->mesh_expert == other->mesh_expert;
    const bool sums = sum_pieces(c) == sum_pieces(other), hidden = c->mesh_mlp_tensor == other->mesh_mlp_tensor;
    const bool whole_blocks = width % (128 * c->mesh_mlp_tensor) == 0 && width % (128 * other->mesh_mlp_tensor) == 0;
    if (blocks) return tokens && (hidden || whole_blocks);
    return (tokens || dy) && (experts || (w && dy)) && ((sums && hidden) || (x && w && dy));
}

/* The most shards of experts that divide, then of the batch; or of the embedding. By a recipe that has blocks of rows no shards
 * of the batch. */
static bool spread(const assay_case *one, assay_case *c)
{
    for (int64_t experts = 4; experts >= 1; experts /= 2) {
        const bool whole_batch = c->batch == 1, two = c->batch % (2 * experts) == 0,
                   four = c->batch % (4 * experts) == 0;
        c->mesh_expert = experts;
        c->mesh_data = four || (two && c->seed % 2 == 0) ? 2 : 1;
        c->mesh_fsdp = four || (two && c->seed % 2 == 1) ? 2 : 1;
        if (!has_same_scales(one, c)) c->mesh_data = c->mesh_fsdp = 1;
        const bool fits = c->config.num_experts % experts == 0 && (whole_batch || c->batch % experts == 0);
        if (fits && c->mesh_data * c->mesh_fsdp * experts > 1 && is_case(c)) return true;
    }
    c->mesh_expert = c->mesh_data = c->mesh_fsdp = 1;
    c->mesh_tensor = 2;
    if (is_case(c)) return true;
    c->mesh_tensor = 1;
    c->mesh_mlp_tensor = 2;
    return is_case(c);
}

/* Heads over shards of the axes that they may lie on, and the batch over data. */
static bool spread_heads(assay_case *c)
{
    c->mesh_data = c->batch % 2 == 0 ? 2 : 1;
    for (int64_t experts = 2; experts >= 1; experts--) {
        c->mesh_expert = experts;
        for (c->mesh_mlp_tensor = 3; c->mesh_mlp_tensor >= 1; c->mesh_mlp_tensor--) {
            if (c->mesh_data * experts * c->mesh_mlp_tensor > 1 && is_case(c)) return true;
        }
    }
    return false;
}

static bool other_sharded(const assay_case *c, assay_other_form *form)
{
    const bool heads = is_op(c, "mla") || is_op(c, "gqa");
    if (heads && c->mesh_data * c->mesh_fsdp * c->mesh_expert * c->mesh_mlp_tensor == 1) return spread_heads(&form->c);
    if (heads) {
        on_one_device(&form->c);
        return true;
    }
    const bool fused = has_moe(c) && c->config.fused_moe_func; /* which has no loss */
    if (!(has_sparse_moe(c) || fused) || drops_rows(c) || is_batch_split(c) || has_own_loss(c)) return false;
    if (!is_sharded(c)) return spread(c, &form->c);
    on_one_device(&form->c);
    return true;
}

/* In as few shards as divide H and D. */
static bool other_tensor(const assay_case *c, assay_other_form *form)
{
    const bool fused = has_moe(c) && c->config.fused_moe_func;
    if (!(has_sparse_moe(c) || fused) || is_batch_split(c)) return false;
    const bool losses = c->config.load_balance_loss_weight > 0 || c->config.router_z_loss_weight > 0;
    if (losses && !fused) return false;
    form->c.mesh_mlp_tensor = 1;
    form->c.config.weights_on_shards = false;
    if (c->mesh_mlp_tensor > 1) return true;
    while (form->c.mesh_mlp_tensor < c->config.base_moe_mlp_dim) {
        form->c.mesh_mlp_tensor++;
        if (is_case(&form->c)) return true;
    }
    return false;
}

/* Shards with the ring see the tokens of their whole expert axis, others their own. */
static bool other_ring(const assay_case *c, assay_other_form *form)
{
    const assay_model_config *m = &c->config;
    const bool chunks = m->num_moe_emb_chunks > 0 || m->num_moe_token_chunks > 1;
    if (!has_sparse_moe(c) || !is_whole(c) || chunks || c->mesh_expert == 1) return false;
    form->c.config.use_ring_of_experts = !m->use_ring_of_experts;
    form->other_shards = true;
    return !has_own_loss(c) && is_case(&form->c);
}

/* Chunks of the embedding change no sum; a chunk of tokens has loads of its own. */
static bool other_chunks(const assay_case *c, assay_other_form *form)
{
    const assay_model_config *m = &c->config;
    const bool emb = m->num_moe_emb_chunks > 0, tokens = m->num_moe_token_chunks > 1;
    if (!has_sparse_moe(c) || is_batch_split(c) || !m->use_ring_of_experts) return false;
    if (tokens && has_own_loss(c)) return false;
    const bool sums = tokens || m->quant_recipe.text[0] != '\0'; /* a layer for each chunk, whose products are added */
    form->holding = sums ? ASSAY_HOLDS_SCALES : ASSAY_HOLDS_BITS;
    form->other_shards = tokens;
    form->c.config.num_moe_emb_chunks = emb || tokens ? 0 : 2;
    form->c.config.num_moe_token_chunks = 1;
    return is_case(&form->c);
}

static bool other_batch_split(const assay_case *c, assay_other_form *form)
{
    assay_model_config *m = &form->c.config;
    if (!assay_is_layer(c) || has_engine_form(c)) return false;
    /* The schedule's router has a bias. Its weights lack the 1e-20 beside their sum: with one expert a token, that is
     * all of their gradient. */
    if (!m->routed_bias || m->num_experts_per_tok == 1) return false;
    if (m->quant_recipe.text[0] != '\0') return false; /* each shard quantises its own microbatch */
    m->use_batch_split_schedule = !is_batch_split(c);
    if (is_batch_split(c)) {
        on_one_device(&form->c);
        return true;
    }
    for (m->batch_split_factor = 2; m->batch_split_factor >= 1; m->batch_split_factor--) {
        if (is_case(&form->c)) return true;
    }
    return false;
}

/* One of the routed width beside them, or the last of them. */
static bool other_shared(const assay_case *c, assay_other_form *form)
{
    form->c.config.num_fused_shared_experts = 0;
    return has_moe(c) && c->config.num_fused_shared_experts == 1;
}

/* Every expert once; where shards have as many of them. A ring rolls ids of experts, and not what it counts of replicas. */
static bool other_replicas(const assay_case *c, assay_other_form *form)
{
    form->c.config.num_redundant_experts = 0;
    form->other_shards = c->config.use_ring_of_experts;
    return has_moe(c) && c->config.num_redundant_experts > 0 && c->config.num_experts % c->mesh_expert == 0;
}

/* Whether a kernel's weight gradient has scales of all rows that it sums: of a part of these rows it has others. */
static bool scales_of_all_rows(const assay_case *c)
{
    assay_context ctx = {0};
    assay_quant_recipe_config config;
    if (assay_quant_recipe_config_of(&ctx, c, &config) != ASSAY_OK || config.recipe == NULL) return false;
    return config.recipe->dw_dy.scales != ASSAY_SCALES_NONE && config.dy.fixed == 0;
}

static bool other_kernels(const assay_case *c, assay_other_form *form)
{
    form->c.config.weights_on_shards = false;
    return c->config.weights_on_shards;
}

/* Where heads may share keys: the kernel, and the layers that have its projections. */
static bool may_share(const assay_case *c)
{
    const unsigned parts = assay_operation_by_name(c->op)->parts;
    return (parts & ASSAY_PART_SHARING) != 0 && (parts & ASSAY_PART_DECODE) == 0;
}

static bool decodes(const assay_case *c)
{
    return (assay_operation_by_name(c->op)->parts & ASSAY_PART_DECODE) != 0;
}

/* Over a cache. Splits cut pages or keys, so that they are others where these lie elsewhere. */
static bool decodes_whole(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return decodes(c) && m->num_kv_splits == 0 && !m->use_chunked_prefill && !m->use_indexer;
}

static int64_t most_keys(const assay_model_config *m)
{
    if (m->pagedattn_num_pages == 0 || m->pagedattn_max_pages_per_group < 1) return m->cache_length;
    return m->pagedattn_max_pages_per_group * m->pagedattn_tokens_per_page;
}

/* What the case lists of lengths and tables is of no use to a form that has others. */
static bool is_case_elsewhere(const assay_case *c)
{
    assay_case other = *c;
    other.input_count = 0;
    return is_case(&other);
}

static void without_pages(assay_model_config *m)
{
    m->cache_length = most_keys(m);
    m->pagedattn_num_pages = m->pagedattn_page_stride = 0;
}

static bool other_contiguous(const assay_case *c, assay_other_form *form)
{
    without_pages(&form->c.config);
    return decodes_whole(c) && c->config.pagedattn_num_pages > 0 && is_case_elsewhere(&form->c);
}

/* Scales that lie behind the rows of a page leave no rows between them. */
static bool other_pages(const assay_case *c, assay_other_form *form)
{
    assay_model_config *m = &form->c.config;
    const int64_t most = most_keys(m), size = m->pagedattn_num_pages > 0 && m->pagedattn_tokens_per_page == 3 ? 5 : 3;
    m->pagedattn_tokens_per_page = size;
    m->pagedattn_max_pages_per_group = (most + size - 1) / size;
    m->pagedattn_num_pages = c->batch * m->pagedattn_max_pages_per_group;
    m->pagedattn_page_stride = size + 1;
    if (is_op(c, "gqa_decode"))
        snprintf(m->kv_layout.text, sizeof m->kv_layout.text,
                 strcmp(c->config.kv_layout.text, "NHD") == 0 ? "HND" : "NHD");
    if (!decodes_whole(c)) return false;
    if (!is_case_elsewhere(&form->c)) m->pagedattn_page_stride = 0;
    return is_case_elsewhere(&form->c);
}

static bool other_splits(const assay_case *c, assay_other_form *form)
{
    form->c.config.num_kv_splits = c->config.num_kv_splits == 0 ? 3 : 0;
    return decodes(c) && is_case(&form->c);
}

static bool other_prefill_chunks(const assay_case *c, assay_other_form *form)
{
    assay_model_config *m = &form->c.config;
    m->use_chunked_prefill = !c->config.use_chunked_prefill;
    m->prefill_chunk_size = 3;
    return decodes(c) && is_case(&form->c);
}

/* Each token is a sequence that has the keys which it sees. */
static bool other_steps(const assay_case *c, assay_other_form *form)
{
    form->c.batch = c->batch * c->sequence;
    form->c.sequence = 1;
    return decodes_whole(c) && c->sequence > 1 && is_case_elsewhere(&form->c);
}

/* What no token goes beyond. */
static bool other_window(const assay_case *c, assay_other_form *form)
{
    assay_model_config *m = &form->c.config;
    const bool global = m->sliding_window_size == 0 || strcmp(m->attention_type.text, "global") == 0;
    m->sliding_window_size = c->sequence;
    snprintf(m->attention_type.text, sizeof m->attention_type.text, "%s",
             assay_says_latent(m) ? m->attention_type.text : "local_sliding");
    return may_share(c) && global && is_case(&form->c);
}

/* Those of a function that is backward are results: each shard has its own. */
static bool sums_weight_gradients(const assay_case *c)
{
    assay_context ctx = {0};
    const assay_operation *operation = NULL;
    assay_tensor_list list = {0};
    bool sums = false;
    assay_operation_prepare(&ctx, c, &operation, &list);
    for (int i = 0; i < list.count; i++) sums |= strncmp(list.entries[i].spec.path, "gradients/weights/", 18) == 0;
    assay_tensor_list_free(&list);
    return sums;
}

/* A list of microbatches has its rows in another order on another mesh. */
static bool other_mesh(const assay_case *c, assay_other_form *form)
{
    if (!is_op(c, "batch_split") || c->config.batch_split_factor > 1) return false;
    const assay_batch_split_function *f = assay_batch_split_function_of(c->config.function.text);
    if (f == NULL || !assay_function_is_local(f)) return false;
    if (scales_of_all_rows(c) && sums_weight_gradients(c)) return false;
    const bool one = c->mesh_data * c->mesh_fsdp * c->mesh_expert == 1;
    on_one_device(&form->c);
    if (one) form->c.mesh_data = 2;
    return is_case(&form->c);
}

/* Each sum of a gradient that goes along such an axis has another order. */
static bool other_axes(const assay_case *c, assay_other_form *form)
{
    if (c->program == NULL || c->program->node_count == 0) return false;
    assay_program_free_axes(c->program, form->reversed);
    return form->reversed[0] != '\0';
}

/* clang-format off */
const assay_equivalence assay_equivalences[] = {
    {"fused-unfused", "gate and up as one product, or as two", ASSAY_HOLDS_BITS, other_fused},
    {"prefused-layouts", "gate and up of each tensor shard side by side, or whole", ASSAY_HOLDS_BITS, other_w13_layout},
    {"dense-sparse", "every expert on every token, or copies grouped by expert", ASSAY_HOLDS_SCALES, other_dense},
    {"sparse-fused_moe", "the fused path of inference, where its routing rule is the same", ASSAY_HOLDS_SCALES, other_fused_moe},
    {"capacity-dropless", "a capacity that drops nothing, or none", ASSAY_HOLDS_SCALES, other_capacity},
    {"shared-fused", "the shared expert as one more slot of every token, or apart", ASSAY_HOLDS_SCALES, other_shared},
    {"sharded-whole", "experts and tokens over a mesh, or one device", ASSAY_HOLDS_SCALES, other_sharded},
    {"tensor-whole", "the experts' hidden dimension over shards, or whole", ASSAY_HOLDS_SCALES, other_tensor},
    {"gathered-whole", "kernels gathered from the shards on which they lie, or whole", ASSAY_HOLDS_BITS, other_kernels},
    {"ring-alltoall", "a ring of experts, or a ragged all-to-all", ASSAY_HOLDS_SCALES, other_ring},
    {"chunked-whole", "the embedding or the tokens of a ring in chunks, or whole", ASSAY_HOLDS_SCALES, other_chunks},
    {"window-whole", "a window as long as the sequence, or none", ASSAY_HOLDS_BITS, other_window},
    {"paged-contiguous", "a cache in pages, or each sequence by itself", ASSAY_HOLDS_BITS, other_contiguous},
    {"pages-other", "pages of one size, order and layout, or of another", ASSAY_HOLDS_BITS, other_pages},
    {"splits-whole", "a cache in splits that are merged, or whole", ASSAY_HOLDS_SCALES, other_splits},
    {"prefill-chunked", "the context in chunks and the new tokens by themselves, or all keys at once", ASSAY_HOLDS_SCALES, other_prefill_chunks},
    {"tokens-stepwise", "several tokens over a cache at once, or each as a sequence of its own", ASSAY_HOLDS_BITS, other_steps},
    {"remat-kept", "intermediates computed again, or kept", ASSAY_HOLDS_BITS, other_remat},
    {"batchsplit-plain", "the batch-split schedule, or layer after layer", ASSAY_HOLDS_SCALES, other_batch_split},
    {"replicas-one", "several replicas of an expert, or one", ASSAY_HOLDS_SCALES, other_replicas},
    {"function-mesh", "a function whose shards do not talk on its mesh, or on one shard", ASSAY_HOLDS_SCALES, other_mesh},
    {"axes-reversed", "a program's axes along which no step tells indices apart, the last index first, or as they are", ASSAY_HOLDS_SCALES, other_axes},
    {NULL, NULL, ASSAY_HOLDS_BITS, NULL},
};
/* clang-format on */

bool assay_other_form_of(const assay_case *c, const assay_equivalence *equivalence, assay_other_form *form)
{
    *form = (assay_other_form){.c = *c, .holding = equivalence->holding};
    if (c->quant_format_count > 0) { /* on the numbers that codes and scales are */
        form->c.quant_format_count = 0;
        const bool quantises = c->config.quant_recipe.text[0] != '\0' || c->config.quant_hidden_format.text[0] != '\0';
        if (!quantises) form->c.config.quant_scale_rounding = assay_model_defaults.quant_scale_rounding;
    }
    assay_model_forget_given(&form->c.config); /* what the user said was held against the form that it was said of */
    if (!equivalence->other(c, form)) return false;
    if (c->config.quant_recipe.text[0] == '\0') return true;
    return has_same_scales(c, &form->c) && is_case(&form->c); /* a recipe is not in every form */
}

const assay_equivalence *assay_equivalence_by_name(const char *name)
{
    for (const assay_equivalence *e = assay_equivalences; e->name != NULL; e++) {
        if (strcmp(e->name, name) == 0) return e;
    }
    return NULL;
}
