/* The decoder blocks: MaxText's (DecoderBlockType), GLM-4.5's and Kimi-K2's, grouped queries with
 * DeepSeek-V3's experts, those of which the experts or the router alone are known, and what each decides about the formulas. */
#pragma once

#include "oracle/moe/routing.h"

enum {
    ASSAY_BLOCK_LATENT = 1 << 0,       /* its attention is multi-head latent attention */
    ASSAY_BLOCK_CLAMPS = 1 << 1,       /* its experts clamp where there is a mlp_activations_limit */
    ASSAY_BLOCK_UNGATED = 1 << 2,      /* its MLP has one projection and no gate */
    ASSAY_BLOCK_OTHER_NORM = 1 << 3,   /* its norm is no RMS norm with a plain scale */
    ASSAY_BLOCK_GATED_SHARED = 1 << 4, /* its shared expert is multiplied by a gate of its own */
    ASSAY_BLOCK_GROUPED = 1 << 5,      /* its attention is what the op gqa computes */
    ASSAY_BLOCK_SCALES_QUERY = 1 << 6, /* it multiplies queries by head_dim^-0.5; others have that in their kernel */
    ASSAY_BLOCK_LAYER = 1 << 7,        /* its layers are what decoder_layer computes */
    ASSAY_BLOCK_ALTERNATES = 1 << 8,   /* the window of its attention is that of every other layer */
    ASSAY_BLOCK_NORMS_HEADS = 1 << 9,  /* its layers honour use_qk_norm */
    ASSAY_BLOCK_MIXED = 1 << 12,       /* layers with grouped-query attention may be dense, and have shared experts */
    ASSAY_BLOCK_MOE = 1 << 10,         /* nothing but its router and experts is known */
    ASSAY_BLOCK_ROUTER = 1 << 11,      /* nor its experts */

    /* layers with multi-head latent attention, and with grouped-query attention */
    ASSAY_BLOCK_LATENT_LAYER = ASSAY_BLOCK_LATENT | ASSAY_BLOCK_LAYER,
    ASSAY_BLOCK_GROUPED_LAYER = ASSAY_BLOCK_GROUPED | ASSAY_BLOCK_LAYER,
};

/* name, router (of DEEPSEEK3 the model's name and score function make DEEPSEEK2), what it has. "": not said. */
#define ASSAY_DECODER_BLOCK_TABLE(X)                                                                                   \
    X("", DEFAULT, ASSAY_BLOCK_LATENT_LAYER | ASSAY_BLOCK_GROUPED | ASSAY_BLOCK_SCALES_QUERY)                          \
    X("default", DEFAULT, ASSAY_BLOCK_GROUPED)                                                                         \
    X("llama2", DEFAULT, ASSAY_BLOCK_GROUPED)                                                                          \
    X("mistral", DEFAULT, ASSAY_BLOCK_GROUPED)                                                                         \
    X("mixtral", DEFAULT, ASSAY_BLOCK_GROUPED_LAYER)                                                                   \
    X("deepseek", DEEPSEEK3, ASSAY_BLOCK_LATENT_LAYER | ASSAY_BLOCK_CLAMPS)                                            \
    X("deepseek2", DEEPSEEK3, ASSAY_BLOCK_LATENT_LAYER | ASSAY_BLOCK_CLAMPS)                                           \
    X("deepseek3", DEEPSEEK3, ASSAY_BLOCK_LATENT_LAYER | ASSAY_BLOCK_CLAMPS)                                           \
    X("deepseek4", DEEPSEEK3, ASSAY_BLOCK_CLAMPS)                                                                      \
    X("kimi_k2", DEEPSEEK3, ASSAY_BLOCK_LATENT_LAYER)                                                                  \
    X("glm4_moe", DEEPSEEK3, 0)                                                                                        \
    X("gemma", DEFAULT, 0)                                                                                             \
    X("gemma2", DEFAULT, 0)                                                                                            \
    X("gemma3", DEFAULT, 0)                                                                                            \
    X("gemma4", GEMMA4, 0)                                                                                             \
    X("gemma4_small", DEFAULT, 0)                                                                                      \
    X("qwen2", DEFAULT, 0)                                                                                             \
    X("qwen3", DEFAULT, ASSAY_BLOCK_GROUPED | ASSAY_BLOCK_SCALES_QUERY)                                                \
    X("qwen3_moe", DEFAULT, ASSAY_BLOCK_GROUPED_LAYER | ASSAY_BLOCK_SCALES_QUERY | ASSAY_BLOCK_NORMS_HEADS)            \
    X("qwen3_custom_moe", DEFAULT, 0)                                                                                  \
    X("qwen3_next", DEFAULT, ASSAY_BLOCK_OTHER_NORM | ASSAY_BLOCK_GATED_SHARED)                                        \
    X("qwen3_5", DEFAULT, ASSAY_BLOCK_OTHER_NORM | ASSAY_BLOCK_GATED_SHARED)                                           \
    X("gpt3", DEFAULT, ASSAY_BLOCK_UNGATED | ASSAY_BLOCK_OTHER_NORM)                                                   \
    X("gpt_oss", DEFAULT,                                                                                              \
      ASSAY_BLOCK_CLAMPS | ASSAY_BLOCK_GROUPED_LAYER | ASSAY_BLOCK_SCALES_QUERY | ASSAY_BLOCK_ALTERNATES)              \
    X("llama4", LLAMA4, 0)                                                                                             \
    X("olmo3", DEFAULT, 0)                                                                                             \
    X("envy", DEFAULT, 0)                                                                                              \
    X("simple", DEFAULT, ASSAY_BLOCK_UNGATED)                                                                          \
    X("simple_mlp", DEFAULT, ASSAY_BLOCK_UNGATED)                                                                      \
    X("grouped_deepseek3", DEEPSEEK3,                                                                                  \
      ASSAY_BLOCK_GROUPED_LAYER | ASSAY_BLOCK_SCALES_QUERY | ASSAY_BLOCK_NORMS_HEADS | ASSAY_BLOCK_MIXED)              \
    X("moe_deepseek3", DEEPSEEK3, ASSAY_BLOCK_MOE | ASSAY_BLOCK_CLAMPS)                                                \
    X("moe_deepseek2", DEEPSEEK2, ASSAY_BLOCK_MOE)                                                                     \
    X("moe_default", DEFAULT, ASSAY_BLOCK_MOE)                                                                         \
    X("moe_gated_shared", DEFAULT, ASSAY_BLOCK_MOE | ASSAY_BLOCK_GATED_SHARED)                                         \
    X("moe_llama4", LLAMA4, ASSAY_BLOCK_MOE)                                                                           \
    X("router_deepseek3", DEEPSEEK3, ASSAY_BLOCK_MOE | ASSAY_BLOCK_ROUTER)                                             \
    X("router_default", DEFAULT, ASSAY_BLOCK_MOE | ASSAY_BLOCK_ROUTER)

extern const char *const assay_decoder_block_names[]; /* ends with NULL */

/* Whether the block of that name has ASSAY_BLOCK_...; one that is not in the table is as "". */
bool assay_block_has(const char *block, unsigned what);
assay_router_family assay_block_router(const char *block);
