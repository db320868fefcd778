/* Other forms of a case, by what they change; the table of equivalence.c names them. */
#pragma once

#include "harness/equivalences/equivalence.h"

typedef bool other_form(const assay_case *c, assay_other_form *form);
other_form form_other_fused, form_other_w13_layout, form_other_dense, form_other_capacity, form_other_fused_moe,
    form_other_shared, form_other_replicas, form_other_sharded, form_other_tensor, form_other_ring, form_other_chunks,
    form_other_kernels, form_other_mesh, form_other_contiguous, form_other_pages, form_other_splits,
    form_other_prefill_chunks, form_other_steps, form_other_window, form_other_remat, form_other_batch_split;

/* What a case has; the source says more. */
bool form_is_op(const assay_case *c, const char *name);
bool form_has_moe(const assay_case *c);
bool form_has_sparse_moe(const assay_case *c);
bool form_drops_rows(const assay_case *c);
bool form_is_batch_split(const assay_case *c);
bool form_is_sharded(const assay_case *c);
void form_on_one_device(assay_case *c);
bool form_has_own_loss(const assay_case *c);
bool form_is_complete(const assay_case *c);
bool form_fuses_experts(const assay_case *c);
bool form_has_engine_form(const assay_case *c);
bool form_is_case(const assay_case *c);
bool form_has_same_scales(const assay_case *c, const assay_case *other);
