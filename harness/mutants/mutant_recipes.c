/* Training recipes with one bug each (oracle/ops/quant_recipe.h). */
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/ops/quant_recipe.h"

/* Gathered codes have the scales of the shard after their own. */
static void of_next_shard(int64_t own, int64_t shards, int64_t columns, int64_t *sender, int64_t *place)
{
    (void)own, (void)columns, (void)place;
    *sender = (*sender + 1) % shards;
}

/* Codes are gathered without their scales: the receiver has one for each of its own rows. */
static void of_receiver(int64_t own, int64_t shards, int64_t columns, int64_t *sender, int64_t *place)
{
    *sender = own;
    *place = *place / columns / shards * columns + *place % columns;
}

#define E4M3(axis) .scales = ASSAY_SCALES_##axis, .element = ASSAY_FLOAT8_E4M3FN
#define E5M2(axis) .scales = ASSAY_SCALES_##axis, .element = ASSAY_FLOAT8_E5M2
#define ALONG_ROW .scales = ASSAY_SCALES_BLOCKS, .format = "fp8_e4m3_1x128"
#define ALONG_COLUMN .scales = ASSAY_SCALES_BLOCKS, .format = "fp8_e4m3_128x1"
#define BLOCKS_OF_E5M2 .scales = ASSAY_SCALES_BLOCKS, .format = "fp8_e5m2_1x128"
#define DEEPSEEK_V3 .name = "deepseek_v3"
#define FP8_FULL .name = "fp8_full", .x = {E4M3(ROWS)}, .w = {E4M3(COLUMNS)}
#define GRADIENTS .folds = true, .dx_dy = {E5M2(ROWS)}, .dw_dy = {E5M2(COLUMNS)}

static const struct {
    const char *name; /* of the recipe, and of the bug */
    assay_quant_recipe recipe;
} recipes[] = {
    {"deepseek_v3 dw_along_rows", {DEEPSEEK_V3, .dx_dy = {ALONG_ROW}, .dw_x = {ALONG_ROW}, .dw_dy = {ALONG_ROW}}},
    {"deepseek_v3 forward_x", {DEEPSEEK_V3, .dx_dy = {ALONG_ROW}, .dw_dy = {ALONG_COLUMN}}},
    {"deepseek_v3 dx_along_columns",
     {DEEPSEEK_V3, .dx_dy = {ALONG_COLUMN}, .dw_x = {ALONG_COLUMN}, .dw_dy = {ALONG_COLUMN}}},
    {"deepseek_v3 e5m2", {DEEPSEEK_V3, .dx_dy = {BLOCKS_OF_E5M2}, .dw_x = {ALONG_COLUMN}, .dw_dy = {ALONG_COLUMN}}},
    {"fp8_full other_axis", {FP8_FULL, .folds = true, .dx_dy = {E5M2(COLUMNS)}, .dw_dy = {E5M2(ROWS)}}},
    {"fp8_full e4m3", {FP8_FULL, .folds = true, .dx_dy = {E4M3(ROWS)}, .dw_dy = {E4M3(COLUMNS)}}},
    {"fp8_full ignored", {.name = "fp8_full"}},
    {"fp8_full next_shard", {FP8_FULL, GRADIENTS, .gathered = of_next_shard}},
    {"fp8_full receiver", {FP8_FULL, GRADIENTS, .gathered = of_receiver}},
    {"fp8_full each_expert", {FP8_FULL, GRADIENTS, .each_group = true}},
    {"fp8_full all_parts", {FP8_FULL, GRADIENTS, .joins_slices = true}},
    {"fp8_full scales_lost", {FP8_FULL, .dx_dy = {E5M2(ROWS)}, .dw_dy = {E5M2(COLUMNS)}}},
};

bool assay_change_recipe(const char *bugs, assay_model_config *config)
{
    for (const char *at = bugs; *at != '\0'; at += strspn(at, " ")) {
        char name[ASSAY_TEXT_SIZE];
        const size_t length = strcspn(at, " ");
        snprintf(name, sizeof name, "%.40s %.*s", config->quant_recipe.text, (int)length, at);
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
            if (strcmp(recipes[i].name, name) != 0) continue;
            config->other_recipe = &recipes[i].recipe;
            return true;
        }
        at += length;
    }
    return false;
}
