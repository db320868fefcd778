/* What of the case a factor is, by which a wrong tensor is the golden's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/explain/explain_internal.h"

/* A factor is known to some thousandths at bfloat16, and one this near to 1 is none of these. */
#define NEAR 3e-3
#define NEAR_ONE 2e-2

typedef struct constant {
    const char *name;
    double value; /* 0: the case has none */
} constant;

enum { CONSTANTS = 10 };

static void constants_of(const assay_plan *plan, constant constants[CONSTANTS])
{
    const assay_model_config *m = &plan->c->config;
    const unsigned components = plan->operation->components;
    const bool routes = (components & (ASSAY_USES_ROUTER | ASSAY_USES_EXPERTS)) != 0;
    const bool latent = (components & ASSAY_USES_LATENT) != 0, attends = (components & ASSAY_USES_ATTENTION) != 0;
    const bool yarn =
        strcmp(m->rope_type.text, "yarn") == 0 && (components & ASSAY_USES_ROPE) != 0 && m->rope_factor > 1;
    const double head = (double)(m->head_dim > 0 ? m->head_dim : m->qk_nope_head_dim + m->qk_rope_head_dim);
    const double mscale = yarn ? 0.1 * (latent ? m->mscale : 1.0) * log(m->rope_factor) + 1.0 : 0.0;
    const constant all[CONSTANTS] = {
        {"routed_scaling_factor", routes ? m->routed_scaling_factor : 0},
        {"routed_scaling_factor squared", routes ? m->routed_scaling_factor * m->routed_scaling_factor : 0},
        {"num_experts_per_tok", routes ? (double)m->num_experts_per_tok : 0},
        {"num_experts", routes ? (double)m->num_experts : 0},
        {"the root of the head dimension", attends ? sqrt(head) : 0},
        {"the root of base_emb_dim", sqrt((double)m->base_emb_dim)},
        {"YaRN's factor of the softmax scale", mscale},
        {"YaRN's factor of the softmax scale squared", mscale * mscale},
        {"rope_factor", yarn ? m->rope_factor : 0},
        {"ln 2", attends ? log(2.0) : 0},
    };
    memcpy(constants, all, sizeof all);
}

static bool is_near(double factor, double value)
{
    return fabs(value - 1) > NEAR_ONE && fabs(factor / value - 1) <= NEAR;
}

void assay_name_factor(const assay_plan *plan, assay_report *report)
{
    constant constants[CONSTANTS];
    int count = 0;
    if (!(report->factor > 0)) return;
    constants_of(plan, constants);
    for (int i = 0; i < CONSTANTS; i++) {
        const double value = constants[i].value;
        const bool times = value > 0 && is_near(report->factor, value);
        if (!times && !(value > 0 && is_near(report->factor, 1 / value))) continue;
        const size_t said = strlen(report->diagnosis);
        snprintf(report->diagnosis + said, sizeof report->diagnosis - said, "%s%s%s",
                 count++ == 0 ? "; that factor is " : " or ", times ? "" : "1/", constants[i].name);
    }
}
