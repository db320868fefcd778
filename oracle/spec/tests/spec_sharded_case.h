/* What MoE blocks over a mesh give beside one device's results, in cases of the block itself and of layers. */
#ifndef ASSAY_SPEC_TESTS_SPEC_SHARDED_CASE_H
#define ASSAY_SPEC_TESTS_SPEC_SHARDED_CASE_H

#include "oracle/spec/tests/spec_case.h"

/* No tensor shards and no chunks. */
assay_sharding mesh_of(int64_t data, int64_t fsdp, int64_t expert);

/* [M,last], or [M,C,last] with token chunks. */
assay_shape sharded_shape(const assay_shard_sizes *sizes, int64_t last);

/* A path of a layer's result: FOLDER PREFIX NAME. */
typedef struct case_path {
    char text[ASSAY_PATH_SIZE];
} case_path;
case_path case_path_of(const char *folder, const char *prefix, const char *name);

/* routing/PREFIX... of whole numbers but for selected_experts, which every block has alike; of one device too. */
void want_routing_lists(spec_case *c, const char *prefix, const assay_moe_config *config,
                        const assay_sharding *sharding);
/* outputs/PREFIX lb_loss with its cotangent, and bias_updates, where they are on. */
void want_balance(spec_case *c, const char *prefix, const assay_moe_config *config, const assay_sharding *sharding);

#endif
