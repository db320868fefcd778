/* The table of operations: each entry gives its configuration its type back. */
#include <string.h>

#include "oracle/spec/spec_internal.h"

static assay_status rms_norm(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_rms_norm(ctx, config, in, out);
}

static assay_status gated_mlp(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_gated_mlp(ctx, config, in, out);
}

static assay_status gmm(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_gmm(ctx, config, in, out);
}

static assay_status permute(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_permute(ctx, config, in, out);
}

static assay_status unpermute(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_unpermute(ctx, config, in, out);
}

static assay_status routing(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_routing(ctx, config, in, out);
}

static assay_status moe(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_moe(ctx, config, in, out);
}

static assay_status moe_checkpoints(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_moe_checkpoints(ctx, config, in, out);
}

static assay_status yarn_rope(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_yarn_rope(ctx, config, in, out);
}

static assay_status attention(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_attention(ctx, config, in, out);
}

static assay_status mla(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_mla(ctx, config, in, out);
}

static assay_status mla_checkpoints(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_mla_checkpoints(ctx, config, in, out);
}

static assay_status stack(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_stack(ctx, config, in, out);
}

static assay_status stack_checkpoints(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    return spec_stack_checkpoints(ctx, config, in, out);
}

const spec_operation spec_operations[] = {
    {"rms_norm", rms_norm, NULL},
    {"mlp", gated_mlp, NULL},
    {"gmm", gmm, NULL},
    {"permute", permute, NULL},
    {"unpermute", unpermute, NULL},
    {"routing", routing, NULL},
    {"moe", moe, moe_checkpoints},
    {"yarn_rope", yarn_rope, NULL},
    {"attention", attention, NULL},
    {"mla", mla, mla_checkpoints},
    {"deepseek_layer", stack, stack_checkpoints},
    {"deepseek_stack", stack, stack_checkpoints},
    {NULL, NULL, NULL},
};

const spec_operation *spec_operation_by_name(const char *name)
{
    for (const spec_operation *operation = spec_operations; operation->name != NULL; operation++) {
        if (strcmp(operation->name, name) == 0) return operation;
    }
    return NULL;
}
