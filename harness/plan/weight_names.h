/* The names and layouts of weights in Hugging Face's checkpoints, beside ours: one table. Source: the models of transformers
 * (a linear layer's weight is [out, in]; its conversion mappings say how experts are fused), vLLM for w13_weight and
 * w2_weight. docs/hugging-face.md has the table. */
#pragma once

#include <stdbool.h>

/* How their tensor, or their tensor of an expert, lies. */
typedef enum assay_weight_layout {
    ASSAY_WEIGHT_LINEAR, /* [out, in] */
    ASSAY_WEIGHT_PLAIN,  /* [in, out], as ours */
    ASSAY_WEIGHT_VECTOR, /* [out] */
    ASSAY_WEIGHT_MXFP4,  /* NAME_blocks [out, in / 32, 16] with two numbers a byte, NAME_scales [out, in / 32] */
} assay_weight_layout;

/* Which of their outputs: gate is the first half of a fused tensor, or its even outputs. */
typedef enum assay_weight_outputs {
    ASSAY_OUTPUTS_WHOLE,
    ASSAY_OUTPUTS_FIRST,
    ASSAY_OUTPUTS_SECOND,
    ASSAY_OUTPUTS_EVEN,
    ASSAY_OUTPUTS_ODD,
} assay_weight_outputs;

typedef struct assay_weight_name {
    const char *theirs; /* below the layer; "*" is the number of an expert. Else experts are their first axis */
    const char *ours;   /* below the layer */
    assay_weight_layout layout;
    assay_weight_outputs outputs;
    bool gpt_oss; /* of a block gpt_oss alone; the other fused experts are of all others */
} assay_weight_name;

/* Of several rows for one of our tensors the first one counts of which the file has the tensor in that shape. */
extern const assay_weight_name assay_weight_names[];
extern const int assay_weight_name_count;
