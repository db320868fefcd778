#include "cases/decoder_block.h"

#include <string.h>

const char *const assay_decoder_block_names[] = {
#define X(name, router, has) name,
    ASSAY_DECODER_BLOCK_TABLE(X)
#undef X
        NULL,
};

typedef struct decoder_block {
    assay_router_family router;
    unsigned has;
} decoder_block;

static decoder_block block_of(const char *name)
{
    static const decoder_block blocks[] = {
#define X(name, router, has) {ASSAY_ROUTER_##router, has},
        ASSAY_DECODER_BLOCK_TABLE(X)
#undef X
    };
    for (int i = 0; assay_decoder_block_names[i] != NULL; i++) {
        if (strcmp(assay_decoder_block_names[i], name) == 0) return blocks[i];
    }
    return blocks[0];
}

bool assay_block_has(const char *block, unsigned what)
{
    return (block_of(block).has & what) != 0;
}

assay_router_family assay_block_router(const char *block)
{
    return block_of(block).router;
}
