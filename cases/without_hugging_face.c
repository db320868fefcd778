#include "cases/case_internal.h"
#include "cases/hugging_face.h"

const assay_hugging_face_key assay_hugging_face_keys[1] = {0};
const int assay_hugging_face_key_count = 0;

assay_status assay_hugging_face_read(const assay_yaml *y, const yaml_node_t *root, assay_model_config *config)
{
    (void)config;
    return assay_yaml_refuse(y, root,
                             "model_type: this build was made without Hugging Face (ASSAY_WITHOUT=hugging_face)");
}

void assay_hugging_face_families(unsigned families, char *text, int size)
{
    if (families == 0 || size > 0) text[0] = '\0';
}
