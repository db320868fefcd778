/* Certification: float64 results against the second form (SPEC 12).
 *
 * `computed` holds the float64 results as they are (a float64 is exact in binary128) under the paths of a fixture:
 * outputs/, checkpoints/, routing/, gradients/. Where it also has error_scale/f64/ of such a path, those are standard
 * deviations of a correct float64 implementation. `in` holds inputs/, weights/, cotangents/, and
 * routing/selected_experts where the choice is to be the golden one: gradients are taken at a fixed choice, so there it
 * is needed.
 *
 * Gradients: L = sum over outputs of <cotangent, output>; (L(x + h) - L(x - h)) / 2h along single coordinates and along
 * random directions, with h about 1e-10 of the tensor's size: what the difference leaves out is of order 1e-20, the
 * rounding of binary128 of order 1e-24. Where the two one-sided differences disagree, a kink (a clamp, relu) lies
 * between: that probe is counted and left out. */
#ifndef ASSAY_QUAD_CERTIFY_H
#define ASSAY_QUAD_CERTIFY_H

#include "oracle/quad/quad.h"

/* What is allowed. A value with an error scale: so many of them, a scale counting as this part of the value's last
 * place at least, since it leaves out the rounding of the value itself. Without one: this share of the tensor's largest
 * value. Gradients: that share, along a direction of the gradient's norm, or so many error scales where those are more,
 * in a tensor that is all cancellation. Indices: equality. docs/numerics.md has what is found. */
#define QUAD_ALLOWED_SCALES 10.0
#define QUAD_LEAST_SCALES 0.4 /* so that 4 ulps always pass */
#define QUAD_ALLOWED_RELATIVE 1e-12

typedef struct quad_certificate {
    char path[ASSAY_PATH_SIZE];
    int64_t checked; /* elements, or probes of a gradient */
    int64_t kinks;   /* probes left out; of a choice of experts, elements of tokens whose choice is a tie */
    /* The worst of what was checked, by error / what is allowed. */
    int64_t worst; /* the element; of a gradient -1 for a random direction */
    double computed, reference;
    double error;  /* |computed - reference| */
    double excess; /* error / what is allowed: above 1 the tensor is not certified */
    /* The largest of each. */
    double scale; /* |value| of the tensor; for a direction the gradient's 2-norm */
    double
        relative;  /* error / scale: 0 where both are 0, infinite where a NaN or an infinity stands on one side only */
    double ulps;   /* error in units of the reference's last place in float64; 0 for gradients */
    double scales; /* error / error scale; 0 where there is none */
} quad_certificate;

typedef struct quad_certificates {
    quad_certificate *items;
    int count;
} quad_certificates;

void quad_certificates_free(quad_certificates *certificates); /* safe on a zeroed struct */

/* How much is probed of each gradient: so many coordinates (the largest element, then random ones; all of them where
 * the tensor has no more), and so many random directions. */
typedef struct quad_budget {
    int64_t coordinates, directions;
    uint64_t seed;
    void (*advance)(void *self, const char *path); /* after each probe, by one thread at a time; or NULL */
    void *self;
    /* Of a tensor under gradients/ whose elements are derivatives along directions of +1, -1 and 0 in another tensor: its
     * path there, and `signs` [of that tensor], unless NULL, of element `index`. False: a gradient of the tensor of its
     * own path, whose elements are its coordinates. NULL: there are no others. */
    bool (*direction)(const void *signed_sums, const char *path, int64_t index, char of[ASSAY_PATH_SIZE],
                      signed char *signs);
    const void *signed_sums; /* for it */
} quad_budget;

/* Numbers of inputs and weights from which on probes are evaluated at once, of an operation that can. */
enum { QUAD_LARGE = 1 << 20 };
/* What inputs and results of probes that are evaluated at once may take. */
#define QUAD_TOGETHER_BYTES ((int64_t)2 << 30)

/* How many probes that is of a gradient of so many elements. */
int64_t quad_probe_count(const quad_budget *budget, int64_t elements);

/* One certificate for each tensor of `computed` outside error_scale/ and, unless the second form gives them, gradients/, each of which `evaluate` of the
 * operation must give. Indices: relative is 0 or infinite. */
assay_status quad_certify_outputs(assay_context *ctx, const quad_operation *operation, const void *config,
                                  const quad_tensors *in, const quad_tensors *computed,
                                  quad_certificates *certificates);

/* One certificate for each routing/.../selected_experts of `in`: against the choice that the second form makes, those
 * of all other layers being held. A tie, which the rounding of float64 decides, is counted and left out. `computed` has
 * the weights. */
assay_status quad_certify_choices(assay_context *ctx, const quad_operation *operation, const void *config,
                                  const quad_tensors *in, const quad_tensors *computed,
                                  quad_certificates *certificates);

/* One certificate for each tensor of `computed` under gradients/; none where the second form gives them itself. An output without a cotangent is not in L.
 * Probes run on ctx->threads threads; the certificates do not depend on how many. */
assay_status quad_certify_gradients(assay_context *ctx, const quad_operation *operation, const void *config,
                                    const quad_tensors *in, const quad_tensors *computed, const quad_budget *budget,
                                    quad_certificates *certificates);

/* What both stand on: values against a reference of the same number of elements; `error_scale` may be NULL.
 * `certificate->path` is the caller's. */
void quad_certify_values(int64_t count, const quad *computed, const quad *reference,
                         const quad *error_scale, quad_certificate *certificate);

#endif
