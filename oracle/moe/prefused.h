/* Gate and up of experts in one tensor, whose last axis [2H] is split over N tensor shards: each shard's part holds its
 * gate and then its up, gate_0 up_0 gate_1 up_1 ... of H/N columns each (MaxText convert_utils.py _interleave_moe_weights,
 * tpu-inference utils.py reorder_concatenated_tensor_for_sharding). N = 1 is all of gate, then all of up, which is what
 * every operation here computes with. */
#pragma once

#include "oracle/base/tensor.h"

/* The place of a column of [gate | up] in the layout of so many shards, and back. shards divides mlp_dim. */
int64_t assay_prefused_place(int64_t column, int64_t mlp_dim, int64_t shards);
int64_t assay_prefused_column(int64_t place, int64_t mlp_dim, int64_t shards);

/* Rows [rows,2H] from [gate | up] to the layout, and back; `out` and `in` do not overlap. */
void assay_prefuse(double *out, const double *in, int64_t rows, int64_t mlp_dim, int64_t shards, bool to_shards);

/* A source and a sink in the layout of the shards, as an operation sees them that computes with [gate | up]: weights wi of
 * experts, their gradients, the checkpoint moe_mlpwi and the error scales of these. Everything else passes through. Over a mesh
 * with `parts` shards of H (mesh.mlp_tensor, which divides N) the checkpoint is of each its own columns: those of N / parts
 * shards. */
typedef struct assay_prefused {
    assay_wrapped wrapped;
    int64_t mlp_dim, shards, parts;
} assay_prefused;

/* Whether the tensor at this path has the layout. */
bool assay_path_is_prefused(const char *path);
assay_source assay_prefused_source(assay_prefused *p);
assay_sink assay_prefused_sink(assay_prefused *p);
