/* MoE blocks over a mesh, for tests. */
#pragma once

#include "oracle/moe/sharded_moe.h"
#include "oracle/moe/tests/moe_case.h"

/* No tensor shards, chunks or buffer factor. */
assay_sharding sharded_case_mesh(int64_t data, int64_t fsdp, int64_t expert);

/* Blocks of every family and form, filled; E is 8, S is 6. */
enum { SHARDED_CASES = 8, SHARDED_CASE_LLAMA4 = 2, SHARDED_CASE_FUSED = 9 }; /* the last is of fused_moe_func */
moe_case sharded_case(int variant, int64_t batch);
/* The same with widths that 2, 3 and 6 shards of H divide. */
moe_case sharded_case_wide(int variant, int64_t batch);

/* Blocks on meshes that between them go through all of the code, with a balance loss and its cotangents. */
enum { SHARDED_FORMS = 10 };
moe_case sharded_case_form(int form, assay_sharding *sharding);

/* Runs it and asserts success; results go to `out`. */
void sharded_case_run(assay_context *ctx, moe_case *c, const assay_sharding *sharding, test_tensors *out);

/* Every gradient that `expected` has, within `relative` of the tensor's largest value. */
void sharded_case_assert_gradients(const test_tensors *actual, const test_tensors *expected, double relative);
/* One tensor has the same bits in both. */
void sharded_case_assert_bits(const test_tensors *actual, const test_tensors *expected, const char *path);
