/* Certification: float64 results against the second form.
 *
 * `computed` holds the float64 results as they are (a float64 is exact in binary128) under the paths of a fixture:
 * outputs/, checkpoints/, routing/, gradients/. Where it also has error_scale/f64/ of such a path, those are standard
 * deviations of a correct float64 implementation. `in` holds inputs/, weights/, cotangents/, and
 * routing/selected_experts where the choice is to be the golden one: gradients are taken at a fixed choice, so there it
 * is needed.
 *
 * Gradients are the tape's, every element. That they are the derivatives of L = sum over outputs of <cotangent, output> is held against
 * (L(x + h) - L(x - h)) / 2h along random directions of each tensor, or of all tensors of a large case together, with h about 1e-10 of the tensor's size: what the
 * difference leaves out is of order 1e-20, the rounding of binary128 of order 1e-24. Where the two one-sided differences disagree, a kink (a
 * clamp, relu) lies between, and the direction is counted and left out; where what is quantised passes straight through there is no derivative. */
#pragma once

#include "oracle/quad/quad.h"

/* What is allowed. A value with an error scale: so many of them, a scale counting as this part of the value's last
 * place at least, since it leaves out the rounding of the value itself. Without one, and of a gradient where that is more: this share of the
 * tensor's largest value. Along a direction: that share of the gradient's norm. Indices: equality. docs/promises.md has what is found. */
#define QUAD_ALLOWED_SCALES 10.0
#define QUAD_LEAST_SCALES 0.4 /* so that 4 ulps always pass */
#define QUAD_ALLOWED_RELATIVE 1e-12

typedef struct quad_certificate {
    char path[ASSAY_PATH_SIZE];
    int64_t checked; /* elements, and of a gradient directions */
    int64_t kinks;   /* directions left out; of a choice of experts, elements of tokens whose choice is a tie */
    /* The worst of what was checked, by error / what is allowed. */
    int64_t
        worst; /* the element; -1: along a random direction, where `computed` is the tape's and `reference` the difference's */
    double computed, reference;
    double error;  /* |computed - reference| */
    double excess; /* error / what is allowed: above 1 the tensor is not certified */
    /* The largest of each. */
    double scale;    /* |value| of the tensor; for a direction the gradient's 2-norm */
    double relative; /* error / scale: 0 where both are 0, infinite where one side alone is NaN or infinite */
    double ulps;     /* error in units of the reference's last place in float64 */
    double scales;   /* error / error scale; 0 where there is none */
} quad_certificate;

typedef struct quad_certificates {
    quad_certificate *items;
    int count;
} quad_certificates;

void quad_certificates_free(quad_certificates *certificates); /* safe on a zeroed struct */

typedef struct quad_budget {
    int64_t directions; /* of each gradient; 0: gradients are not held against differences */
    int64_t samples;    /* elements of each sum of signs (below): the largest, then random ones */
    uint64_t seed;
    void (*advance)(void *self, const char *path); /* after each direction, by one thread at a time; or NULL */
    void *self;
    /* Of a tensor under gradients/ whose elements are sums with signs +1, -1 and 0 over another gradient: the path of the tensor that this
     * is the gradient of, and `signs` [of it], unless NULL, of element `index`. False: it is a gradient. NULL: there are no others. */
    bool (*direction)(const void *signed_sums, const char *path, int64_t index, char of[ASSAY_PATH_SIZE],
                      signed char *signs);
    const void *signed_sums; /* for it */
} quad_budget;

/* Numbers of inputs and weights from which on a case is large: its evaluations have all threads, one after the other, where those of smaller
 * ones each have one. */
enum { QUAD_LARGE = 1 << 20 };

/* One certificate for each tensor of `computed` outside error_scale/, each of which the operation's form must give; of a
 * routing/.../selected_experts against the choice that the scores make, those of all layers being held: a tie, which the
 * rounding of float64 decides, is counted and left out. Runs on ctx->threads threads; the certificates do not depend on how many. */
assay_status quad_certify(assay_context *ctx, const quad_operation *operation, const void *config,
                          const quad_tensors *in, const quad_tensors *computed, const quad_budget *budget,
                          quad_certificates *certificates);

/* What both stand on: values against a reference of the same number of elements; `error_scale` may be NULL, and `share` of the
 * tensor's largest value is allowed anyway. `certificate->path` is the caller's. */
void quad_certify_values(int64_t count, const quad *computed, const quad *reference, const quad *error_scale,
                         quad share, quad_certificate *certificate);
