/* The data flow: in which order the tensors of all operations are computed, so that of several wrong ones the one where
 * the error began can be named. One table, by names alone: it orders a golden of any program and any case. */
#ifndef ASSAY_HARNESS_DATA_FLOW_H
#define ASSAY_HARNESS_DATA_FLOW_H

#include <stdint.h>

/* What is read and what is given, in the order in which a layer uses and computes it; ends with NULL. Paths without
 * layers/N/ and without the block (self_attention/, moe/, mlp/) of a layer's weights. */
extern const char *const assay_data_flow[];

/* For assay_compare: where the tensor of that path stands. Layers follow each other by number; gradients/X come behind
 * all results, and stand the other way round than X. INT64_MAX where no operation has such a tensor. */
int64_t assay_data_flow_rank(const char *path);

#endif
