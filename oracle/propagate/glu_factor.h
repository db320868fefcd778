/* The two factors of a gated MLP's h = u(a) v(b) at one point, with what error propagation needs of them. */
#ifndef ASSAY_PROPAGATE_GLU_FACTOR_H
#define ASSAY_PROPAGATE_GLU_FACTOR_H

#include "oracle/ops/gated_mlp.h"

/* f, f', f'' and the sum of the sizes of the terms of f' at one x. What cancels in a kernel's form of f and f' that is none of
 * ours: x (1 + tanh u) / 2 far below 0, 1 - s of a sigmoid near 1; 0 where nothing does. `first_left`: what is left of the terms of
 * f' that cancel, which is the most that can be lost. */
typedef struct assay_activation_point {
    double value, first, second, first_size;
    double cancels, first_cancels, first_left;
} assay_activation_point;
assay_activation_point assay_activation_at(assay_activation f, double x);
assay_activation_point assay_quick_gelu_at(double x);

/* `sigma`: by how much an implementation's argument may be off. A
 * kink at a distance of d sigma counts with the weight exp(-d^2/16), and not at all beyond 8. */
typedef struct assay_glu_factor {
    double value, first, second;
    double first_size;             /* sum of the sizes of the terms of `first` */
    double slope;                  /* |first|, or the weighted slope beyond a kink where that is steeper */
    double jump;                   /* how far the derivative jumps there, weighted */
    double cancels, first_cancels; /* the sizes of what cancels in kernels, in value and in first */
    double first_left;             /* of the latter, what is left */
    bool elementary;               /* whether elementary functions went into it */
} assay_glu_factor;
assay_glu_factor assay_glu_gate(const assay_gated_mlp_config *config, double a, double sigma); /* u */
assay_glu_factor assay_glu_up(const assay_gated_mlp_config *config, double b, double sigma);   /* v */

#endif
