#include "harness/fuzz/draw_table.h"

#include <stddef.h>

#include "cases/model_config.h"

#include "cases/model_components.inc"

#define ALL (~0u)

const int assay_draw_edges[] = {8, 16, 32, 64, 128, 256, 0};

const assay_draw_key assay_draw_keys[] = {
    {"sequence", ALL, 24, "1 2 3 4 5-9 edge edge edge"},
    {"batch", ALL, 10, "1 2 3 4"},
    {"seed", ALL, 10, "1-9999"},
    {"positions.start", ROPE | ATTENTION, 10, "0 1 255 4095 40000 131000 163000"},
    {"positions.step", ROPE, 5, "1 2 7 977"},
    {"gradients", ALL, 1, "all none"},
    {"checkpoints", ALL, 2, "all none"},
    {"dtype", ALL, 2, "bfloat16 float32 float16"},
    {"mesh.expert", EXPERTS | ATTENTION, 2, "1 2 4"},
    {"mesh.data", EXPERTS | ATTENTION, 2, "1 2"},
    {"mesh.fsdp", EXPERTS | ATTENTION, 2, "1 2"},
    {"mesh.tensor", EXPERTS | ATTENTION, 1, "1 2"},
    {"mesh.mlp_tensor", EXPERTS, 1, "1 2"},
#define KEY(type, key, value, parts, weight, draws, choices) {#key, parts, weight, draws},
#include "cases/model_keys.inc"
    {NULL, 0, 0, NULL},
};

/* harness/mutants/README.md, "What makes bugs show". */
const assay_draw_fill assay_draw_fills[] = {
    {"*", "{distribution: normal, scale: 1}", 4},
    {"*", "{distribution: normal, scale: 0.001}", 3},
    {"*", "{distribution: normal, scale: 0.03}", 3},
    {"*", "{distribution: normal, scale: 30}", 2},
    {"*", "{distribution: normal, scale: 1, mean: 2}", 2},
    {"*", "{distribution: uniform, low: -1, high: 1}", 3},
    {"*", "{distribution: uniform, low: -3, high: -1}", 2},
    {"*", "{distribution: constant, mean: 0.125}", 2},
    {"*", "{distribution: constant, mean: 0}", 2},
    {"*", "{distribution: near_ties, low: -1, high: 1}", 2},
    {"*", "{distribution: row_powers, low: -6, high: 6}", 2},
    {"*", "{distribution: block_powers, scale: 0.0625, low: -4, high: 4}", 1},
    {"*", "{distribution: cancel}", 2},
    {"*", "{distribution: integers, low: -3, high: 3}", 3},
    {"*bias", "{distribution: uniform, low: 10, high: 12}", 4},
    {"*bias", "{distribution: uniform, low: -1, high: 1}", 6},
    {"*bias", "{distribution: near_ties, mean: 12, low: -2, high: 2}", 3},
    {"*gate/bias", "{distribution: normal, scale: 0.14, mean: 34.5}", 4},
    {"*gate/kernel", "{distribution: integers, low: -1, high: 1, scale: 0.5}", 6},
    {"*gate/kernel", "{distribution: constant, mean: 0}", 4},
    {"logits", "{distribution: uniform, low: -9, high: -3}", 4},
    {"logits", "{distribution: integers, low: -4, high: 0}", 6},
    {"logits", "{distribution: normal, scale: 8, mean: -10}", 4},
    {"lhs", "{tail_nan_rows: 3}", 4},
    {"segment_ids", "{distribution: integers, low: 0, high: 2}", 8},
    {"segment_ids", "{distribution: integers, low: 1, high: 2}", 4},
    {"*selected_experts", "{distribution: integers, low: 0, high: 1}", 4},
    {NULL, NULL, 0},
};
