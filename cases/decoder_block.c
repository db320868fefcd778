#include "cases/decoder_block.h"

#include <string.h>

#include "cases/model_config.h"

const char *const assay_decoder_block_names[] = {
#define X(name, router, has) name,
    ASSAY_DECODER_BLOCK_TABLE(X)
#undef X
        NULL,
};

typedef struct decoder_block {
    assay_router_family router;
    unsigned has;
} decoder_block;

/* One that no name matches is as one that is not said. */
static decoder_block block_of(const assay_model_config *m)
{
    static const decoder_block blocks[] = {
#define X(name, router, has) {ASSAY_ROUTER_##router, has},
        ASSAY_DECODER_BLOCK_TABLE(X)
#undef X
    };
    for (int i = 0; assay_decoder_block_names[i] != NULL; i++) {
        if (strcmp(assay_decoder_block_names[i], m->decoder_block.text) == 0) return blocks[i];
    }
    return blocks[0];
}

bool assay_block_has(const assay_model_config *m, unsigned what)
{
    return (block_of(m).has & what) != 0;
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

assay_router_family assay_router_family_of(const assay_model_config *m)
{
    const char *name = m->model_name.text, *block = m->decoder_block.text;
    if (m->fused_moe_func) return ASSAY_ROUTER_FUSED;
    const bool deepseek = starts_with(block, "deepseek") || (block[0] == '\0' && starts_with(name, "deepseek"));
    if (!deepseek) return block_of(m).router;
    if (starts_with(name, "deepseek3") || starts_with(name, "deepseek4")) return ASSAY_ROUTER_DEEPSEEK3;
    if (starts_with(name, "deepseek2")) return ASSAY_ROUTER_DEEPSEEK2;
    const bool softmax = strcmp(m->routed_score_func.text, "softmax") == 0;
    return softmax && !m->routed_bias ? ASSAY_ROUTER_DEEPSEEK2 : ASSAY_ROUTER_DEEPSEEK3;
}
