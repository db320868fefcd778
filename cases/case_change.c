#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"
#include "oracle/base/memory.h"

static assay_status copy_list(assay_context *ctx, const assay_text_list *list, assay_text_list *copy)
{
    assay_status status = ASSAY_OK;
    *copy = (assay_text_list){0};
    for (int i = 0; i < list->count; i++)
        TRY(assay_text_list_append(ctx, copy, list->items[i], strlen(list->items[i])));
cleanup:
    return status;
}

static assay_status copy_inputs(assay_context *ctx, const assay_case *c, assay_case *copy)
{
    assay_status status = ASSAY_OK;
    void *inputs = NULL;
    copy->inputs = NULL;
    copy->input_count = 0;
    if (c->input_count == 0) return ASSAY_OK;
    TRY(assay_alloc(ctx, "inputs", c->input_count, sizeof *c->inputs, &inputs));
    copy->inputs = inputs;
    for (; copy->input_count < c->input_count; copy->input_count++) {
        const assay_case_input *from = &c->inputs[copy->input_count];
        assay_case_input *to = &copy->inputs[copy->input_count];
        *to = *from;
        if (from->values == NULL) continue;
        TRY(assay_alloc_f64(ctx, "values", from->fill.value_count, &to->values));
        memcpy(to->values, from->values, (size_t)from->fill.value_count * sizeof *to->values);
        to->fill.values = to->values;
    }
cleanup:
    return status;
}

static assay_status copy_dtypes(assay_context *ctx, const assay_case *c, assay_case *copy)
{
    void *dtypes = NULL;
    copy->dtypes = NULL;
    copy->dtype_count = 0;
    if (c->dtype_count == 0) return ASSAY_OK;
    const assay_status status = assay_alloc(ctx, "dtypes", c->dtype_count, sizeof *c->dtypes, &dtypes);
    RETURN_IF(status != ASSAY_OK, status);
    memcpy(dtypes, c->dtypes, (size_t)c->dtype_count * sizeof *c->dtypes);
    copy->dtypes = dtypes;
    copy->dtype_count = c->dtype_count;
    return ASSAY_OK;
}

static assay_status copy_quant_formats(assay_context *ctx, const assay_case *c, assay_case *copy)
{
    void *formats = NULL;
    copy->quant_formats = NULL;
    copy->quant_format_count = 0;
    if (c->quant_format_count == 0) return ASSAY_OK;
    const size_t size = sizeof *c->quant_formats;
    const assay_status status = assay_alloc(ctx, "quant_formats", c->quant_format_count, size, &formats);
    RETURN_IF(status != ASSAY_OK, status);
    memcpy(formats, c->quant_formats, (size_t)c->quant_format_count * size);
    copy->quant_formats = formats;
    copy->quant_format_count = c->quant_format_count;
    return ASSAY_OK;
}

assay_status assay_case_copy(assay_context *ctx, const assay_case *c, assay_case *copy)
{
    assay_status status;
    const assay_text_list none = {0};
    *copy = *c;
    copy->tags = copy->gradients = copy->checkpoints = copy->profiles = none;
    copy->dtypes = NULL;
    copy->dtype_count = 0;
    copy->quant_formats = NULL;
    copy->quant_format_count = 0;
    TRY(copy_inputs(ctx, c, copy));
    TRY(copy_dtypes(ctx, c, copy));
    TRY(copy_quant_formats(ctx, c, copy));
    TRY(copy_list(ctx, &c->tags, &copy->tags));
    TRY(copy_list(ctx, &c->gradients, &copy->gradients));
    TRY(copy_list(ctx, &c->checkpoints, &copy->checkpoints));
    TRY(copy_list(ctx, &c->profiles, &copy->profiles));
cleanup:
    if (status != ASSAY_OK) assay_case_free(copy);
    return status;
}

void assay_case_drop_input(assay_case *c, int index)
{
    free(c->inputs[index].values);
    c->input_count--;
    memmove(&c->inputs[index], &c->inputs[index + 1], (size_t)(c->input_count - index) * sizeof *c->inputs);
}

void assay_case_drop_quant_format(assay_case *c, int index)
{
    const size_t behind = (size_t)(--c->quant_format_count - index);
    memmove(&c->quant_formats[index], &c->quant_formats[index + 1], behind * sizeof *c->quant_formats);
}

void assay_case_drop_tags(assay_case *c)
{
    assay_text_list_free(&c->tags);
}

static size_t size_of(assay_key_type type)
{
    static const size_t sizes[] = {[ASSAY_KEY_I] = sizeof(int64_t),
                                   [ASSAY_KEY_D] = sizeof(double),
                                   [ASSAY_KEY_B] = sizeof(bool),
                                   [ASSAY_KEY_S] = sizeof(assay_text),
                                   [ASSAY_KEY_A] = sizeof(assay_text_pair)};
    return sizes[type];
}

void assay_case_leave_open(assay_case *c, int key)
{
    const assay_model_key *k = &assay_model_keys[key];
    memcpy((char *)&c->config + k->offset, (const char *)&assay_model_defaults + k->offset, size_of(k->type));
    c->config.given[key] = false;
    if (key == ASSAY_KEY_AT_model_name) c->model[0] = '\0';
}

bool assay_case_says_key(const assay_case *c, int key)
{
    char text[ASSAY_KEY_VALUE_SIZE], usual[ASSAY_KEY_VALUE_SIZE];
    assay_model_key_text(&assay_model_keys[key], &c->config, text, sizeof text);
    assay_model_key_text(&assay_model_keys[key], &assay_model_defaults, usual, sizeof usual);
    return c->config.given[key] || strcmp(text, usual) != 0;
}
