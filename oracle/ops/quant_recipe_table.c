#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/ops/quant_recipe.h"

#define BLOCKS(name)                                                                                                   \
    {                                                                                                                  \
        .scales = ASSAY_SCALES_BLOCKS, .format = name                                                                  \
    }
#define E4M3(axis)                                                                                                     \
    {                                                                                                                  \
        .scales = ASSAY_SCALES_##axis, .element = ASSAY_FLOAT8_E4M3FN                                                  \
    }
#define E5M2(axis)                                                                                                     \
    {                                                                                                                  \
        .scales = ASSAY_SCALES_##axis, .element = ASSAY_FLOAT8_E5M2                                                    \
    }
#define ALONG_ROW BLOCKS("fp8_e4m3_1x128")
#define ALONG_COLUMN BLOCKS("fp8_e4m3_128x1")
#define FORWARD_FP8 .x = E4M3(ROWS), .w = E4M3(COLUMNS)
#define FP8_FULL FORWARD_FP8, .folds = true, .dx_dy = E5M2(ROWS), .dw_dy = E5M2(COLUMNS)

static const assay_quant_recipe recipes[] = {
    {"deepseek_v3", .dx_dy = ALONG_ROW, .dw_x = ALONG_COLUMN, .dw_dy = ALONG_COLUMN},
    {"fp8_full", FP8_FULL},
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

const assay_quant_recipe *assay_quant_recipe_by_name(const char *name)
{
    for (int i = 0; i < RECIPES; i++)
        if (strcmp(recipes[i].name, name) == 0) return &recipes[i];
    return NULL;
}

bool assay_calibration_of(const char *text, assay_calibration *calibration)
{
    double given[2] = {0};
    int count = 0;
    const bool fixed = strncmp(text, "fixed,", 6) == 0;
    *calibration = (assay_calibration){.factor = 1};
    if (strcmp(text, "absmax") == 0) return true;
    if (!fixed && strncmp(text, "absmax,", 7) != 0) return false;
    for (const char *at = strchr(text, ','); at != NULL && *at == ','; count++) {
        char *end = NULL;
        if (count == 2) return false;
        given[count] = strtod(at + 1, &end);
        if (end == at + 1 || (*end != '\0' && *end != ',')) return false;
        at = end;
    }
    const double most = given[count - 1];
    if (!(most > 0 && most < 0x1p100) || (count == 2 && (!fixed || given[0] != -most))) return false;
    *(fixed ? &calibration->fixed : &calibration->factor) = most;
    return true;
}
