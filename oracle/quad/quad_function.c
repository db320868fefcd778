/* The functions of the batch-split module one by one, naively, shard after shard. A NAME_bwd is the tape's way back through NAME. */
#include <string.h>

#include "oracle/quad/quad_function.h"

void quad_function(quad_tape *t, const void *config)
{
    static const quad_named_function *const topics[] = {quad_weight_functions, quad_attention_functions,
                                                        quad_expert_functions};
    quad_call *c = quad_keep(t, 1, sizeof *c);
    if (c == NULL) return;
    memset(c, 0, sizeof *c);
    c->t = t;
    c->view = config;
    c->config = c->view->config;
    c->mla = &c->config->stack.mla;
    c->routing = &c->config->stack.moe.routing;
    c->recipe = &c->config->recipe;
    c->s = c->view->sizes;
    c->factor = c->config->stack.batch_split_factor;
    quad_take(c);
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++) {
        for (const quad_named_function *f = topics[i]; f->name != NULL; f++) {
            if (strcmp(f->name, c->view->name) != 0) continue;
            c->of_weight = f->of_weight;
            if (t->status == ASSAY_OK) f->evaluate(c);
            quad_finish(c);
            return;
        }
    }
    quad_refuse(t, "%s has no second form", c->view->name);
}
