/* The choice of experts against the one that the second form makes. */
#include <quadmath.h>
#include <stdio.h>
#include <string.h>

#include "harness/certify/certify_internal.h"

/* One routing: its choice, and what tells a tie. */
typedef struct routing {
    int64_t tokens, per_token;
    const int32_t *computed, *reference; /* [tokens,per_token] */
    const quad *margin;                  /* [tokens], of the second form */
    const quad *weights; /* [tokens,per_token], computed; NULL: it has none, and the margin is also that of the order */
    const quad *reference_weights;
    quad margin_allowed, weight_allowed;
} routing;

bool quad_is_choice(const char *path)
{
    const char *name = strrchr(path, '/');
    return assay_begins(path, "routing/") && (strcmp(name, "/selected_experts") == 0 || strcmp(name, "/top_k") == 0);
}

static bool same_set(int64_t count, const int32_t *a, const int32_t *b)
{
    bool same = true;
    for (int64_t i = 0; i < count; i++) {
        bool found = false;
        for (int64_t j = 0; j < count; j++) found |= a[i] == b[j];
        same &= found;
    }
    return same;
}

/* Whether the two choices of a token differ only in what the rounding of float64 decides: another expert, where the
 * second form's margin is no more than that; another order, where that changes no weight. */
static bool is_tie(const routing *r, int64_t token)
{
    const int64_t first = token * r->per_token;
    if (r->weights == NULL || !same_set(r->per_token, r->computed + first, r->reference + first))
        return r->margin[token] <= r->margin_allowed;
    bool tie = true;
    for (int64_t i = first; i < first + r->per_token; i++)
        tie &= fabsq(r->weights[i] - r->reference_weights[i]) <= r->weight_allowed;
    return tie;
}

static void compare(const routing *r, quad_certificate *certificate)
{
    for (int64_t t = 0; t < r->tokens; t++) {
        const int64_t first = t * r->per_token;
        const size_t bytes = (size_t)r->per_token * sizeof *r->computed;
        const bool same = memcmp(r->computed + first, r->reference + first, bytes) == 0;
        if (!same && is_tie(r, t)) {
            certificate->kinks += r->per_token;
            continue;
        }
        for (int64_t i = first; i < first + r->per_token; i++) {
            const quad error = fabsq((quad)r->computed[i] - r->reference[i]);
            quad_note(certificate,
                      &(quad_comparison){
                          .index = i, .computed = r->computed[i], .reference = r->reference[i], .error = error});
        }
    }
}

/* PREFIXname for the choice at PREFIXselected_experts. */
static void sibling(const char *choice, const char *name, char path[ASSAY_PATH_SIZE])
{
    const int prefix = (int)(strrchr(choice, '/') + 1 - choice);
    snprintf(path, ASSAY_PATH_SIZE, "%.*s%s", prefix, choice, name);
}

static assay_status read_routing(assay_context *ctx, const quad_tensor *choice, const quad_tensors *computed,
                                 const quad_tensors *references, routing *r)
{
    const assay_shape *shape = &choice->shape;
    const int64_t count = assay_shape_count(shape);
    const char *of = choice->path + strlen("routing/");
    char weights[ASSAY_PATH_SIZE], own[ASSAY_PATH_SIZE], own_margin[ASSAY_PATH_SIZE], own_weights[ASSAY_PATH_SIZE];
    sibling(choice->path, "weights", weights);
    snprintf(own, sizeof own, "own/%s", of);
    sibling(own, "margin", own_margin);
    sibling(own, "weights", own_weights);
    r->per_token = assay_row_length(shape);
    r->tokens = r->per_token > 0 ? count / r->per_token : 0;
    r->computed = choice->indices;
    MUST(quad_read_indices(ctx, references, own, count, &r->reference));
    MUST(quad_read(ctx, references, own_margin, r->tokens, &r->margin));
    /* scores are of order 1; where they are logits, margins tell their size */
    r->margin_allowed = QUAD_ALLOWED_RELATIVE * fmaxq(1, quad_largest(r->tokens, r->margin));
    if (quad_tensors_find(references, own_weights) == NULL) return ASSAY_OK;
    MUST(quad_read(ctx, references, own_weights, count, &r->reference_weights));
    /* the op `routing` has its weights among the outputs */
    const char *found = quad_tensors_find(computed, weights) != NULL ? weights : "outputs/weights";
    MUST(quad_read(ctx, computed, found, count, &r->weights));
    r->weight_allowed = QUAD_ALLOWED_RELATIVE * quad_largest(count, r->reference_weights);
    return ASSAY_OK;
}

assay_status quad_certify_choice(assay_context *ctx, const quad_tensor *choice, const quad_tensors *computed,
                                 const quad_tensors *references, quad_certificates *certificates)
{
    quad_certificate *certificate = NULL;
    routing r = {0};
    MUST(read_routing(ctx, choice, computed, references, &r));
    MUST(quad_add_certificate(ctx, certificates, choice->path, &certificate));
    compare(&r, certificate);
    return ASSAY_OK;
}
