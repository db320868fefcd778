/* Other forms over a mesh. */
#include "harness/equivalences/forms_internal.h"

#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/layer/batch_split_function.h"

static int64_t token_pieces(const assay_case *c)
{
    return c->mesh_data * c->mesh_fsdp * c->mesh_fsdp_transpose * c->config.num_moe_token_chunks;
}

static int64_t sum_pieces(const assay_case *c)
{
    return c->mesh_tensor * (c->config.num_moe_emb_chunks > 1 ? c->config.num_moe_emb_chunks : 1);
}

/* Whether experts by a recipe have the scales of another mesh: each shard finds those of its own rows, experts and columns. */
bool form_has_same_scales(const assay_case *c, const assay_case *other)
{
    assay_context ctx = {0};
    assay_quant_recipe_config r;
    const int64_t width = c->config.base_moe_mlp_dim;
    if (!form_has_moe(c) || assay_quant_recipe_config_of(&ctx, c, &r) != ASSAY_OK || r.recipe == NULL) return true;
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
static bool shard_case(const assay_case *one, assay_case *c)
{
    for (int64_t experts = 4; experts >= 1; experts /= 2) {
        const bool whole_batch = c->batch == 1, two = c->batch % (2 * experts) == 0,
                   four = c->batch % (4 * experts) == 0;
        c->mesh_expert = experts;
        c->mesh_data = four || (two && c->seed % 2 == 0) ? 2 : 1;
        c->mesh_fsdp = four || (two && c->seed % 2 == 1) ? 2 : 1;
        if (!form_has_same_scales(one, c)) c->mesh_data = c->mesh_fsdp = 1;
        const bool fits = c->config.num_experts % experts == 0 && (whole_batch || c->batch % experts == 0);
        if (fits && c->mesh_data * c->mesh_fsdp * experts > 1 && form_is_case(c)) return true;
    }
    c->mesh_expert = c->mesh_data = c->mesh_fsdp = 1;
    c->mesh_tensor = 2;
    if (form_is_case(c)) return true;
    c->mesh_tensor = 1;
    c->mesh_mlp_tensor = 2;
    return form_is_case(c);
}

/* Heads over shards of the axes that they may lie on, and the batch over data. */
static bool shard_heads(assay_case *c)
{
    c->mesh_data = c->batch % 2 == 0 ? 2 : 1;
    for (int64_t experts = 2; experts >= 1; experts--) {
        c->mesh_expert = experts;
        for (c->mesh_mlp_tensor = 3; c->mesh_mlp_tensor >= 1; c->mesh_mlp_tensor--) {
            if (c->mesh_data * experts * c->mesh_mlp_tensor > 1 && form_is_case(c)) return true;
        }
    }
    return false;
}

bool form_other_sharded(const assay_case *c, assay_other_form *form)
{
    const bool heads = form_is_op(c, "mla") || form_is_op(c, "gqa");
    if (heads && c->mesh_data * c->mesh_fsdp * c->mesh_expert * c->mesh_mlp_tensor == 1) return shard_heads(&form->c);
    if (heads) {
        form_on_one_device(&form->c);
        return true;
    }
    const bool fused = form_has_moe(c) && c->config.fused_moe_func; /* which has no loss */
    if (!(form_has_sparse_moe(c) || fused) || form_drops_rows(c) || form_is_batch_split(c) || form_has_own_loss(c))
        return false;
    if (!form_is_sharded(c)) return shard_case(c, &form->c);
    form_on_one_device(&form->c);
    return true;
}

/* In as few shards as divide H and D. */
bool form_other_tensor(const assay_case *c, assay_other_form *form)
{
    const bool fused = form_has_moe(c) && c->config.fused_moe_func;
    if (!(form_has_sparse_moe(c) || fused) || form_is_batch_split(c)) return false;
    const bool losses = c->config.load_balance_loss_weight > 0 || c->config.router_z_loss_weight > 0;
    if (losses && !fused) return false;
    form->c.mesh_mlp_tensor = 1;
    form->c.config.weights_on_shards = false;
    if (c->mesh_mlp_tensor > 1) return true;
    while (form->c.mesh_mlp_tensor < c->config.base_moe_mlp_dim) {
        form->c.mesh_mlp_tensor++;
        if (form_is_case(&form->c)) return true;
    }
    return false;
}

/* Shards with the ring see the tokens of their whole expert axis, others their own. */
bool form_other_ring(const assay_case *c, assay_other_form *form)
{
    const assay_model_config *m = &c->config;
    const bool chunks = m->num_moe_emb_chunks > 0 || m->num_moe_token_chunks > 1;
    if (!form_has_sparse_moe(c) || !form_is_complete(c) || chunks || c->mesh_expert == 1) return false;
    form->c.config.use_ring_of_experts = !m->use_ring_of_experts;
    form->other_shards = true;
    return !form_has_own_loss(c) && form_is_case(&form->c);
}

/* Chunks of the embedding change no sum; a chunk of tokens has loads of its own. */
bool form_other_chunks(const assay_case *c, assay_other_form *form)
{
    const assay_model_config *m = &c->config;
    const bool emb = m->num_moe_emb_chunks > 0, tokens = m->num_moe_token_chunks > 1;
    if (!form_has_sparse_moe(c) || form_is_batch_split(c) || !m->use_ring_of_experts) return false;
    if (tokens && form_has_own_loss(c)) return false;
    const bool sums = tokens || m->quant_recipe.text[0] != '\0'; /* a layer for each chunk, whose products are added */
    form->holding = sums ? ASSAY_HOLDS_SCALES : ASSAY_HOLDS_BITS;
    form->other_shards = tokens;
    form->c.config.num_moe_emb_chunks = emb || tokens ? 0 : 2;
    form->c.config.num_moe_token_chunks = 1;
    return form_is_case(&form->c);
}

/* Whether a kernel's weight gradient has scales of all rows that it sums: of a part of these rows it has others. */
static bool scales_of_all_rows(const assay_case *c)
{
    assay_context ctx = {0};
    assay_quant_recipe_config config;
    if (assay_quant_recipe_config_of(&ctx, c, &config) != ASSAY_OK || config.recipe == NULL) return false;
    return config.recipe->dw_dy.scales != ASSAY_SCALES_NONE && config.dy.fixed == 0;
}

bool form_other_kernels(const assay_case *c, assay_other_form *form)
{
    form->c.config.weights_on_shards = false;
    return c->config.weights_on_shards;
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
bool form_other_mesh(const assay_case *c, assay_other_form *form)
{
    if (!form_is_op(c, "batch_split") || c->config.batch_split_factor > 1) return false;
    const assay_batch_split_function *f = assay_batch_split_function_of(c->config.function.text);
    if (f == NULL || !assay_function_is_local(f)) return false;
    if (scales_of_all_rows(c) && sums_weight_gradients(c)) return false;
    const bool one = c->mesh_data * c->mesh_fsdp * c->mesh_expert == 1;
    form_on_one_device(&form->c);
    if (one) form->c.mesh_data = 2;
    return form_is_case(&form->c);
}
