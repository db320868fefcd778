/* The step quantise: its rules, which are the format's own where a parameter does not say otherwise. */
#include <stdio.h>
#include <string.h>

#include "oracle/program/program_internal.h"

/* Place of the word among `words`, of "" `own`; -1: it is none of them. */
static int place_of(const char *word, const char *const words[], int own)
{
    int place = 0;
    if (word[0] == '\0') return own;
    while (words[place] != NULL && strcmp(words[place], word) != 0) place++;
    return words[place] == NULL ? -1 : place;
}

static const char *const TIES[] = {"even", "down", NULL};

static bool flag(const assay_program_node *node, const char *parameter, bool own)
{
    const double value = assay_program_number(node, parameter);
    return value == ASSAY_PROGRAM_OWN ? own : value != 0;
}

assay_quantize_config assay_program_quantize(const assay_program_node *node)
{
    const assay_block_format *format = assay_block_format_by_name(assay_program_axes(node, "format"));
    const int64_t columns = node->shape.dims[node->shape.rank - 1];
    assay_quantize_config q = assay_quantize_default(format, assay_shape_count(&node->shape) / columns, columns);
    const double amax = assay_program_number(node, "smallest_amax");
    q.rule = (assay_scale_rule)place_of(assay_program_axes(node, "scale"), assay_scale_rules, (int)q.rule);
    q.rounding = (assay_scale_rounding)place_of(assay_program_axes(node, "scale_rounding"), assay_scale_roundings,
                                                (int)q.rounding);
    q.subnormal_scale = flag(node, "subnormal_scale", q.subnormal_scale);
    q.ties_down = place_of(assay_program_axes(node, "ties"), TIES, 0) == 1;
    q.saturate = flag(node, "saturate", q.saturate);
    q.negative_zero = flag(node, "negative_zero", q.negative_zero);
    if (amax != ASSAY_PROGRAM_OWN) q.smallest_amax = (float)amax;
    q.tensor_scale = (float)assay_program_number(node, "tensor_scale");
    return q;
}

static assay_status refuse_word(assay_context *ctx, const char *parameter, const char *word, const char *const words[])
{
    char expected[ASSAY_MESSAGE_SIZE / 2] = "";
    for (int i = 0; words[i] != NULL; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%s", i == 0 ? "" : ", ", words[i]);
    return assay_refuse(ctx, "%s is %s, expected one of %s", parameter, word, expected);
}

static assay_status check_word(assay_context *ctx, const assay_program_node *node, const char *parameter,
                               const char *const words[])
{
    const char *word = assay_program_axes(node, parameter);
    return place_of(word, words, 0) >= 0 ? ASSAY_OK : refuse_word(ctx, parameter, word, words);
}

assay_status assay_program_check_quantise(assay_context *ctx, const assay_program_node *node)
{
    const char *name = assay_program_axes(node, "format");
    if (assay_block_format_by_name(name) == NULL) return refuse_word(ctx, "format", name, assay_block_format_names + 1);
    MUST(check_word(ctx, node, "scale", assay_scale_rules));
    MUST(check_word(ctx, node, "scale_rounding", assay_scale_roundings));
    MUST(check_word(ctx, node, "ties", TIES));
    const assay_quantize_config q = assay_program_quantize(node);
    MUST(assay_quantize_check(ctx, "", &q));
    if (q.format->tensor_scale ? q.tensor_scale > 0 && q.tensor_scale <= 1 : q.tensor_scale == 0) return ASSAY_OK;
    return assay_refuse(ctx, "tensor_scale is %g, expected %s with the format %s", q.tensor_scale,
                        q.format->tensor_scale ? "a number above 0, at most 1," : "none", q.format->name);
}

const assay_program_line *assay_program_coded_line(const assay_program *p, const char *path)
{
    const char *name = strchr(path, '/');
    for (int i = 0; name != NULL && i < p->line_count; i++) {
        const assay_program_line *line = &p->lines[i];
        if (strcmp(line->coded[ASSAY_CODED_CODES], name + 1) == 0) return line;
        if (strcmp(line->coded[ASSAY_CODED_SCALE], name + 1) == 0) return line;
    }
    return NULL;
}
