/* What the files of certification share. */
#pragma once

#include "harness/certify/certify.h"

assay_status quad_add_certificate(assay_context *ctx, quad_certificates *certificates, const char *path,
                                  quad_certificate **added);
/* One comparison. */
typedef struct quad_comparison {
    int64_t index;
    quad computed, reference, error;
    quad scale, allowed;
} quad_comparison;
/* Takes it into the certificate: the worst stays, and what is no number is the worst of all. */
void quad_note(quad_certificate *certificate, const quad_comparison *comparison);
/* The largest |value| that is a number. */
quad quad_largest(int64_t count, const quad *values);

/* routing/.../selected_experts, an input too, against own/.../selected_experts of `references`; `computed` has the weights. */
bool quad_is_choice(const char *path);
assay_status quad_certify_choice(assay_context *ctx, const quad_tensor *choice, const quad_tensors *computed,
                                 const quad_tensors *references, quad_certificates *certificates);
/* The gradients of `references` against central differences: noted in the certificates of their paths. */
assay_status quad_check_derivatives(assay_context *ctx, const quad_operation *operation, const void *config,
                                    const quad_tensors *in, const quad_tensors *references, const quad_budget *budget,
                                    quad_certificates *certificates);
