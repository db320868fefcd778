/* Keys of a Hugging Face config.json (docs/hugging-face.md). */
#pragma once

#include <stdbool.h>

/* A key in the families where it stands. `to`: the MaxText keys that take its value, where it is not null. `only`: any
 * value but these ("|" between) would change numbers in a way that no operation has. Neither: it changes nothing, or
 * `settled` says what is done with it, and of a required key what null means, which the others may not be. */
typedef struct assay_hugging_face_key {
    const char *name;
    unsigned families; /* bits */
    bool required;     /* what it is when it is not there is another thing in each version */
    const char *to[2], *only, *settled;
} assay_hugging_face_key;

extern const assay_hugging_face_key assay_hugging_face_keys[];
extern const int assay_hugging_face_key_count;

/* The model_types of some families, as "deepseek_v3, kimi_k2"; "all", or the dictionary of the rotary embedding. */
void assay_hugging_face_families(unsigned families, char *text, int size);
