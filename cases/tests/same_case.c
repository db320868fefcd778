#include "cases/tests/same_case.h"

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same_list(const assay_text_list *a, const assay_text_list *b)
{
    if (a->count != b->count) return false;
    for (int i = 0; i < a->count; i++) {
        if (strcmp(a->items[i], b->items[i]) != 0) return false;
    }
    return true;
}

static bool same_input(const assay_case_input *a, const assay_case_input *b)
{
    const assay_fill *f = &a->fill, *g = &b->fill;
    if (strcmp(a->path, b->path) != 0 || f->distribution != g->distribution) return false;
    if (!same_bits(f->scale, g->scale) || !same_bits(f->mean, g->mean)) return false;
    if (!same_bits(f->low, g->low) || !same_bits(f->high, g->high)) return false;
    if (f->value_count != g->value_count || a->tail_nan_rows != b->tail_nan_rows || a->unused_nan != b->unused_nan)
        return false;
    return f->value_count == 0 || memcmp(a->values, b->values, (size_t)f->value_count * sizeof *a->values) == 0;
}

#define SAME_I(a, b) ((a) == (b))
#define SAME_B(a, b) ((a) == (b))
#define SAME_D(a, b) same_bits((a), (b))
#define SAME_S(a, b) (strcmp((a).text, (b).text) == 0)
#define SAME_A(a, b) (strcmp((a).item[0], (b).item[0]) == 0 && strcmp((a).item[1], (b).item[1]) == 0)

static const char *config_difference(const assay_model_config *a, const assay_model_config *b)
{
#define KEY(type, key, ...)                                                                                            \
    if (!SAME_##type(a->key, b->key)) return "config." #key;
#include "cases/model_keys.inc"
    return NULL;
}

const char *assay_case_difference(const assay_case *a, const assay_case *b)
{
    if (strcmp(a->name, b->name) != 0) return "case";
    if (strcmp(a->description, b->description) != 0) return "description";
    if (strcmp(a->op, b->op) != 0) return "op";
    if (strcmp(a->model, b->model) != 0) return "model";
    if (!same_list(&a->tags, &b->tags)) return "tags";
    if (a->batch != b->batch || a->sequence != b->sequence) return "batch, sequence";
    if (a->mesh_data != b->mesh_data || a->mesh_fsdp != b->mesh_fsdp || a->mesh_expert != b->mesh_expert ||
        a->mesh_tensor != b->mesh_tensor || a->mesh_mlp_tensor != b->mesh_mlp_tensor ||
        a->mesh_fsdp_transpose != b->mesh_fsdp_transpose) {
        return "mesh";
    }
    if (a->seed != b->seed) return "seed";
    if (a->dtype != b->dtype) return "dtype";
    if (a->fill != b->fill) return "fill";
    if (a->only_layer != b->only_layer) return "only_layer";
    if (a->drawn_above != b->drawn_above || a->sketch_above != b->sketch_above) return "drawn_above, sketch_above";
    if (a->dtype_count != b->dtype_count) return "dtypes";
    for (int i = 0; i < a->dtype_count; i++) {
        if (strcmp(a->dtypes[i].pattern, b->dtypes[i].pattern) != 0 || a->dtypes[i].type != b->dtypes[i].type)
            return "dtypes";
    }
    if (a->quant_format_count != b->quant_format_count) return "quant_formats";
    for (int i = 0; i < a->quant_format_count; i++) {
        if (strcmp(a->quant_formats[i].path, b->quant_formats[i].path) != 0 ||
            a->quant_formats[i].format != b->quant_formats[i].format)
            return "quant_formats";
    }
    if (a->position_start != b->position_start || a->position_step != b->position_step) return "positions";
    if (!same_list(&a->gradients, &b->gradients)) return "gradients";
    if (!same_list(&a->checkpoints, &b->checkpoints)) return "checkpoints";
    if (!same_list(&a->profiles, &b->profiles)) return "profiles";
    if (a->input_count != b->input_count) return "inputs";
    for (int i = 0; i < a->input_count; i++) {
        if (!same_input(&a->inputs[i], &b->inputs[i])) return a->inputs[i].path;
    }
    return config_difference(&a->config, &b->config);
}

void write_case_file(char *path, const char *text)
{
    const int handle = mkstemps(path, 4);
    FILE *file = handle < 0 ? NULL : fdopen(handle, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}
