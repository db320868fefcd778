#include "oracle/base/block_format.h"

#include <string.h>

const char *const assay_block_format_names[] = {"",
#define X(name, element, scale, rows, columns, tensor_scale) name,
                                                ASSAY_BLOCK_FORMATS(X)
#undef X
                                                    NULL};

const assay_block_format *assay_block_format_by_name(const char *name)
{
    static const assay_block_format formats[] = {
#define X(...) {__VA_ARGS__},
        ASSAY_BLOCK_FORMATS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(name, formats[i].name) == 0) return &formats[i];
    }
    return NULL;
}

int64_t assay_block_count(int64_t size, int64_t block)
{
    return size / block + (size % block != 0);
}
