/* What rows of the table ask of a case. Of shards: docs/expert-parallelism.md. */
#include <math.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_support.h"
#include "oracle/ops/cache_format.h"

int64_t assay_case_replicas(const assay_case *c)
{
    return c->mesh_data * c->mesh_fsdp * c->mesh_fsdp_transpose;
}

int64_t assay_case_shards(const assay_case *c)
{
    return assay_case_replicas(c) * (c->config.fused_moe_func ? 1 : c->mesh_expert);
}

int64_t assay_rows_of_shard(const assay_case *c)
{
    const int64_t shards = assay_case_shards(c);
    return shards > 1 && c->batch % shards == 0 ? c->batch / shards : 0;
}

/* Row r of a shard is in microbatch r mod factor. 0: there are none. */
static int64_t microbatches(const assay_case *c)
{
    return c->config.use_batch_split_schedule && c->config.batch_split_factor > 1 ? c->config.batch_split_factor : 0;
}

int64_t assay_last_microbatch(const assay_case *c)
{
    return microbatches(c) - 1;
}

int64_t assay_microbatch_of(const assay_case *c, int64_t row)
{
    return row % (c->batch / assay_case_shards(c)) % microbatches(c);
}

static bool is(const assay_text *text, const char *value)
{
    return strcmp(text->text, value) == 0;
}

static bool has_expert_shards(const assay_case *c)
{
    return c->mesh_expert > 1 && c->config.num_experts % c->mesh_expert == 0 && !c->config.weights_on_shards;
}

static const assay_cache_format *cache_of(const assay_case *c)
{
    return assay_cache_format_by_name(c->config.kv_cache_dtype.text);
}

/* One that hides keys: of few tokens over a cache, and where it is shorter than the sequence. */
static bool has_window(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    const bool over_cache = (assay_operation_by_name(c->op)->components & ASSAY_USES_DECODE) != 0;
    return m->sliding_window_size > 0 && (over_cache || m->sliding_window_size < c->sequence) &&
           !is(&m->attention_type, "global");
}

static bool is_deepseek3(const assay_model_config *m)
{
    return assay_router_family_of(m) == ASSAY_ROUTER_DEEPSEEK3 && m->first_num_hash_layers == 0;
}

static bool divides(const assay_model_config *m)
{
    return is_deepseek3(m) && (is(&m->routed_score_func, "sigmoid") || is(&m->routed_score_func, "sqrtsoftplus"));
}

/* Weights are a softmax over the chosen. */
static bool is_default(const assay_model_config *m)
{
    return assay_router_family_of(m) == ASSAY_ROUTER_DEFAULT && !m->use_random_routing;
}

/* By any of the rules. */
static bool divides_anyhow(const assay_case *c)
{
    assay_context ctx = {0}; /* for the message of a case that was checked */
    assay_routing_config config;
    return assay_routing_config_of(&ctx, c, &config) == ASSAY_OK && assay_routing_divides(&config);
}

static bool sums_over_experts(const assay_text *function)
{
    static const char *const names[] = {"unroute",        "unroute_impl", "unroute_impl_fwd",
                                        "route_impl_bwd", "route_bwd",    "quantized_psum_scatter"};
    bool sums = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) sums |= is(function, names[i]);
    return sums;
}

bool assay_case_gathers_codes(const assay_case *c)
{
    return strncmp(c->config.function.text, "quantized_psum_scatter", 22) == 0;
}

/* Of experts, each part with scales of its own. */
static bool has_parts_of_products(const assay_case *c)
{
    const bool experts = (assay_operation_by_name(c->op)->components & ASSAY_USES_EXPERTS) != 0;
    return experts && c->mesh_mlp_tensor * c->mesh_tensor * c->config.num_moe_emb_chunks > 1;
}

bool assay_case_is_where(const assay_case *c, int where)
{
    const assay_model_config *m = &c->config;
    switch (where) {
#define X(name, test)                                                                                                  \
    case ASSAY_WHERE_##name:                                                                                           \
        return test;
        ASSAY_WHERE_TABLE(X)
#undef X
    }
    return false;
}

double assay_case_number_of(const assay_case *c, int number)
{
    const assay_model_config *m = &c->config;
    switch (number) {
#define X(name, value)                                                                                                 \
    case ASSAY_CASE_##name:                                                                                            \
        return value;
        ASSAY_CASE_NUMBER_TABLE(X)
#undef X
    }
    return 1.0;
}
