/* What certify.c and certify_gradients.c share. */
#ifndef ASSAY_QUAD_CERTIFY_INTERNAL_H
#define ASSAY_QUAD_CERTIFY_INTERNAL_H

#include "oracle/quad/certify.h"

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
/* The error scales of a tensor of the results, or NULL. */
assay_status quad_find_error_scale(assay_context *ctx, const quad_tensors *results, const quad_tensor *tensor,
                                   const quad **scale);
bool quad_has_prefix(const char *path, const char *prefix);
/* The largest |value| that is a number. */
quad quad_largest(int64_t count, const quad *values);

#endif
