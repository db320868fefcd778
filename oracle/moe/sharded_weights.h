/* Kernels of the experts as they lie on the shards of a mesh (docs/expert-parallelism.md; MaxText moe.py wi_kernel_axes, wo_kernel_axes): gathered
 * before the block, and their gradients scattered behind it. W = F T P N shards, those of one replica (`data` has the same),
 * numbered as in mesh.h; F, T, P, N the axes fsdp, fsdp_transpose, expert and mlp_tensor.
 *
 *   wi_0, wi_1  [W, E/P, D/F, H/(T N)]   with shard_exp_on_fsdp [W, E/(P F), D, H/(T N)]
 *   wi          its columns of gate, then those of up
 *   wo          [W, E/P, H/(T N), D/F]   with shard_exp_on_fsdp [W, E/(P F), H/(T N), D]
 * Experts are split over expert, then fsdp; H over fsdp_transpose, then mlp_tensor. Biases are whole. */
#pragma once

#include "oracle/moe/sharded_moe.h"

typedef struct assay_kernel_layout {
    int64_t shards;                   /* W */
    int64_t experts, rows, columns;   /* of a shard; of fused weights the columns of gate and up */
    int64_t expert_parts;             /* that E is split into */
    int64_t hidden_parts, emb_shards; /* H, D */
    int64_t halves;                   /* of a row: 2 of fused weights */
    bool down;                        /* wo */
} assay_kernel_layout;

/* weight: ASSAY_MLP_WI, WI_0, WI_1 or WO; of a configuration that was checked. */
assay_kernel_layout assay_kernel_layout_of(const assay_moe_config *config, const assay_sharding *sharding, int weight);
