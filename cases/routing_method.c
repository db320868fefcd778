#include "cases/routing_method.h"

#include <stddef.h>
#include <string.h>

const char *const assay_routing_method_names[] = {
    "",
#define X(name, router, score_func, has) name,
    ASSAY_ROUTING_METHOD_TABLE(X)
#undef X
        NULL,
};

const assay_routing_method *assay_routing_method_by_name(const char *name)
{
    static const assay_routing_method methods[] = {
#define X(name, router, score_func, has) {name, ASSAY_ROUTER_##router, ASSAY_SCORE_##score_func, has},
        ASSAY_ROUTING_METHOD_TABLE(X)
#undef X
    };
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(methods[i].name, name) == 0) return &methods[i];
    }
    return NULL;
}
