/* What certify.c and certify_gradients.c share. */
#ifndef ASSAY_SPEC_CERTIFY_INTERNAL_H
#define ASSAY_SPEC_CERTIFY_INTERNAL_H

#include "oracle/spec/certify.h"

assay_status spec_add_certificate(assay_context *ctx, spec_certificates *certificates, const char *path,
                                  spec_certificate **added);
/* One comparison. */
typedef struct spec_comparison {
    int64_t index;
    spec_quad computed, reference, error;
    spec_quad scale, allowed;
} spec_comparison;
/* Takes it into the certificate: the worst stays, and what is no number is the worst of all. */
void spec_note(spec_certificate *certificate, const spec_comparison *comparison);
/* The error scales of a tensor of the results, or NULL. */
assay_status spec_find_error_scale(assay_context *ctx, const spec_tensors *results, const spec_tensor *tensor,
                                   const spec_quad **scale);
bool spec_has_prefix(const char *path, const char *prefix);
/* The largest |value| that is a number. */
spec_quad spec_largest(int64_t count, const spec_quad *values);

#endif
