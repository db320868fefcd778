#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"
#include "oracle/base/memory.h"
#include "oracle/program/program.h"

static assay_status copy_list(assay_context *ctx, const assay_text_list *list, assay_text_list *copy)
{
    *copy = (assay_text_list){0};
    for (int i = 0; i < list->count; i++)
        MUST(assay_text_list_append(ctx, copy, list->items[i], strlen(list->items[i])));
    return ASSAY_OK;
}

/* `to` is the address of a pointer; NULL where there is nothing. */
static assay_status copy_array(assay_context *ctx, const char *what, int64_t count, size_t size, const void *from,
                               void *to)
{
    void *copy = NULL;
    if (count > 0) {
        MUST(assay_alloc(ctx, what, count, size, &copy));
        memcpy(copy, from, (size_t)count * size);
    }
    memcpy(to, &copy, sizeof copy);
    return ASSAY_OK;
}

/* Those that are counted have values of their own. */
static assay_status copy_inputs(assay_context *ctx, const assay_case *c, assay_case *copy)
{
    copy->input_count = 0;
    MUST(copy_array(ctx, "inputs", c->input_count, sizeof *c->inputs, c->inputs, &copy->inputs));
    for (; copy->input_count < c->input_count; copy->input_count++) {
        assay_case_input *input = &copy->inputs[copy->input_count];
        MUST(copy_array(ctx, "values", input->fill.value_count, sizeof *input->values, input->values, &input->values));
        input->fill.values = input->values;
    }
    return ASSAY_OK;
}

assay_status assay_case_copy(assay_context *ctx, const assay_case *c, assay_case *copy)
{
    assay_status status;
    const assay_text_list none = {0};
    *copy = *c;
    copy->tags = copy->gradients = copy->checkpoints = copy->profiles = none;
    copy->inputs = NULL;
    copy->dtypes = NULL;
    copy->quant_formats = NULL;
    copy->program = NULL;
    TRY(copy_inputs(ctx, c, copy));
    TRY(copy_array(ctx, "dtypes", c->dtype_count, sizeof *c->dtypes, c->dtypes, &copy->dtypes));
    TRY(copy_array(ctx, "quant_formats", c->quant_format_count, sizeof *c->quant_formats, c->quant_formats,
                   &copy->quant_formats));
    if (c->program != NULL) TRY(assay_program_copy(ctx, c->program, &copy->program));
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
    c->config.is_set[key] = false;
    if (key == ASSAY_KEY_AT_model_name) c->model[0] = '\0';
}

bool assay_case_says_key(const assay_case *c, int key)
{
    char text[ASSAY_KEY_VALUE_SIZE], usual[ASSAY_KEY_VALUE_SIZE];
    assay_model_key_text(&assay_model_keys[key], &c->config, text, sizeof text);
    assay_model_key_text(&assay_model_keys[key], &assay_model_defaults, usual, sizeof usual);
    /* of rope_interleave also what is not as it would be without the key: that of a golden, whose keys do not count as given */
    const bool unsettled =
        key == ASSAY_KEY_AT_rope_interleave && c->config.rope_interleave != assay_model_interleaves(&c->config);
    return c->config.is_set[key] || strcmp(text, usual) != 0 || unsettled;
}
