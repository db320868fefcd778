#include "oracle/mesh/expert_traffic.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

/* The local expert of each row of the buffer; of rows of other shards local_experts, and of none the last one. False: they have no
 * room. */
static bool label_rows(int32_t *labels, int32_t *sizes, int32_t (*received)[2], const assay_local_permute_args *args)
{
    const int64_t local = args->local_experts, groups = args->num_experts;
    int64_t row = 0;
    bool fits = true;
    memset(sizes, 0, (size_t)local * sizeof *sizes);
    for (int64_t group = 0, place = 0; group < args->senders * groups; group++) {
        const int64_t sender = group / groups, expert = group % groups;
        const bool own = expert / local == args->shard;
        int32_t left = args->group_sizes[group];
        if (expert == 0) place = 0;
        if (args->batch_sharded && !own) {
            place += left;
            continue;
        }
        for (; left > 0 && row < args->rows; left--, place++, row++) {
            labels[row] = (int32_t)(own ? expert % local : local);
            received[row][0] = own ? (int32_t)sender : -1;
            received[row][1] = own ? (int32_t)place : -1;
            if (own) sizes[expert % local]++;
        }
        fits &= left == 0;
    }
    for (; row < args->rows; row++) {
        labels[row] = (int32_t)(args->batch_sharded ? local - 1 : local);
        received[row][0] = received[row][1] = -1;
    }
    return fits;
}

assay_status assay_local_permute(assay_context *ctx, int32_t *local_sorted_indices, int32_t *local_group_sizes,
                                 int32_t (*received)[2], const assay_local_permute_args *args)
{
    const int64_t local = args->local_experts;
    OWNED int32_t *labels = NULL, *places = NULL;
    MUST(assay_alloc_i32(ctx, "experts of rows", args->rows, &labels));
    MUST(assay_alloc_i32(ctx, "places of rows", local + 2, &places));
    if (!label_rows(labels, local_group_sizes, received, args) && !args->truncate) {
        return assay_refuse(
            ctx, "moe: shard %" PRId64 " of mesh.expert is sent more rows than the %" PRId64 " of its buffer",
            args->shard, args->rows);
    }
    memset(places, 0, (size_t)(local + 2) * sizeof *places);
    for (int64_t row = 0; row < args->rows; row++) places[labels[row] + 1]++;
    for (int64_t label = 0; label <= local; label++) places[label + 1] += places[label];
    for (int64_t row = 0; row < args->rows; row++) local_sorted_indices[places[labels[row]]++] = (int32_t)row;
    return ASSAY_OK;
}
