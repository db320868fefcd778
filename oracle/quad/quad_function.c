/* The functions of the batch-split module one by one, naively. A NAME_bwd is the tape's way back through NAME. */
#include "oracle/quad/quad_function.h"

void quad_function(quad_tape *t, const void *config)
{
    quad_call *c = quad_keep(t, 1, sizeof *c);
    if (c == NULL) return;
    *c = (quad_call){.t = t, .view = config, .parts = 1, .make = quad_make};
    c->config = c->view->config;
    c->mla = &c->config->stack.mla;
    c->routing = &c->config->stack.moe.routing;
    c->recipe = &c->config->recipe;
    c->s = c->view->sizes;
    c->factor = c->config->stack.batch_split_factor;
    quad_call_run(c);
    if (!quad_others(c)) quad_move(c);
    quad_finish(c);
}
