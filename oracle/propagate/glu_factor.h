/* The two factors of a gated MLP's h = u(a) v(b) at one point, with what error propagation needs of them. */
#pragma once

#include "oracle/ops/gated_mlp.h"

/* cancels: the sizes of what cancels in a kernel's form of value and first that is none of ours (x (1 + tanh u) / 2 far below 0, 1 - s of a sigmoid near 1);
 * 0 where nothing does. `sigma`: by how much an implementation's argument may be off. A
 * kink at a distance of d sigma counts with the weight exp(-d^2/16), and not at all beyond 8. */
typedef struct assay_glu_factor {
    double value, first, second; /* f, f', f'' */
    double first_size;           /* sum of the sizes of the terms of `first` */
    double cancels, first_cancels;
    double first_left; /* what is left of the terms of `first` that cancel, which is the most that can be lost */
    double slope;      /* |first|, or the weighted slope beyond a kink where that is steeper */
    double jump;       /* how far the derivative jumps there, weighted */
    bool elementary;   /* whether elementary functions went into it */
} assay_glu_factor;

/* At one x, without a look at kinks: slope and what follows it are 0. */
assay_glu_factor assay_activation_at(assay_activation f, double x);
assay_glu_factor assay_quick_gelu_at(double x);

assay_glu_factor assay_glu_gate(const assay_gated_mlp_config *config, double a, double sigma); /* u */
assay_glu_factor assay_glu_up(const assay_gated_mlp_config *config, double b, double sigma);   /* v */
