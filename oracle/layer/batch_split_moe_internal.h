/* What the files of the schedule's MoE half share; batch_split_moe.h is the contract. */
#pragma once

#include "oracle/layer/batch_split_moe.h"

/* Rows that a shard's experts compute. */
int64_t bs_rows_of(const bs_run *run, const int32_t *group_sizes, int64_t shard);
