#include "cases/case_internal.h"

assay_status assay_hugging_face_read(const assay_yaml *y, const yaml_node_t *root, assay_model_config *config)
{
    (void)config;
    return assay_yaml_refuse(y, root,
                             "model_type: this build was made without Hugging Face (ASSAY_WITHOUT=hugging_face)");
}
