#include "harness/equivalences/free_axes.h"

#include <string.h>

/* Letters of axes that are bound. */
typedef struct bound {
    const assay_program *p;
    const assay_program_node *node;
    bool letters[ASSAY_PROGRAM_LETTERS];
} bound;

static const assay_program_node *operand(const bound *b, int i)
{
    return &b->p->nodes[b->node->in[i]];
}

static void bind(bound *b, const char *axes)
{
    for (; *axes != '\0'; axes++) b->letters[(unsigned char)*axes % ASSAY_PROGRAM_LETTERS] = true;
}

/* `from` is where, -1 the last. */
static void bind_one(bound *b, const char *axes, int from)
{
    const int rank = (int)strlen(axes), at = from < 0 ? rank + from : from;
    if (at >= 0 && at < rank) bind(b, (char[]){axes[at], '\0'});
}

static void along(bound *b)
{
    bind(b, assay_program_axes(b->node, "over"));
}

/* What has another letter in the pattern. */
static void renamed(bound *b)
{
    assay_program_pattern_of p;
    assay_program_pattern(assay_program_axes(b->node, "axes"), &p);
    for (int i = 0; i < p.count && i < b->node->in_count; i++) {
        for (int k = 0; p.in[i][k] != '\0'; k++) {
            if (p.in[i][k] == operand(b, i)->axes[k]) continue;
            bind_one(b, p.in[i], k);
            bind_one(b, operand(b, i)->axes, k);
        }
    }
}

static void grouped(bound *b)
{
    renamed(b);
    bind_one(b, operand(b, 0)->axes, 0);
    bind_one(b, operand(b, 1)->axes, 0);
}

static void reshaped(bound *b)
{
    const char *from = operand(b, 0)->axes, *to = b->node->axes;
    for (; *from != '\0' && *from == *to; to++) from++;
    bind(b, from);
    bind(b, to);
}

/* All letters of the pattern, of axes that are cut or joined. */
static void cut(bound *b)
{
    bind(b, assay_program_axes(b->node, "axes"));
}

static void rows(bound *b)
{
    bind_one(b, operand(b, 0)->axes, 0);
}

static void scattered(bound *b)
{
    bind_one(b, b->node->axes, 0);
}

static void picked(bound *b)
{
    bind_one(b, operand(b, 0)->axes, -1);
}

static void chosen(bound *b)
{
    picked(b);
    bind_one(b, b->node->axes, -1);
}

/* Pairs and their frequencies. */
static void turned(bound *b)
{
    picked(b);
    if (b->node->in_count > 2) bind_one(b, operand(b, 2)->axes, -1);
}

/* Places of numbers, and numbers that are indices. */
static void all(bound *b)
{
    bind(b, operand(b, 0)->axes);
    bind(b, b->node->axes);
}

static void convolved(bound *b)
{
    bind_one(b, operand(b, 0)->axes, -2);
    bind_one(b, operand(b, 1)->axes, -1);
    if (b->node->in_count > 2) bind_one(b, operand(b, 2)->axes, -2);
}

/* Tokens follow each other, and heads of queries share those of keys. */
static void attended(bound *b)
{
    for (int i = 0; i < 3; i++) {
        bind_one(b, operand(b, i)->axes, 1);
        bind_one(b, operand(b, i)->axes, 2);
    }
}

static void recurrent(bound *b)
{
    bind_one(b, operand(b, 0)->axes, -3);
}

static void in_blocks(bound *b)
{
    if (assay_program_quantize(b->node).format->rows > 1) bind(b, b->node->axes);
    picked(b);
}

/* Of equal numbers the first has the gradient. */
static void largest(bound *b)
{
    if (assay_program_number(b->node, "first") != 0) along(b);
}

#define STEP(name, least, most, operands, integers, parameters, shape, exact, kind, put, function, besides, free,      \
             text)                                                                                                     \
    free,

/* In the order of assay_program_steps. */
static void (*const RULES[])(bound *b) = {
#include "oracle/program/program_steps.inc"
};

void assay_program_free_axes(const assay_program *p, char axes[ASSAY_PROGRAM_LETTERS])
{
    bound b = {.p = p};
    int count = 0;
    for (int i = 1; i < p->node_count; i++) {
        b.node = &p->nodes[i];
        if (b.node->step == NULL) continue;
        void (*const rule)(bound * b) = RULES[b.node->step - assay_program_steps];
        if (rule != NULL) rule(&b);
    }
    for (int i = 0; i < ASSAY_PROGRAM_LETTERS; i++)
        if (p->sizes[i] > 1 && !b.letters[i]) axes[count++] = (char)i;
    axes[count] = '\0';
}

/* Whether indices of the axis know each other after this step: it goes over them, or takes them together, also where the result has the axis: norms
 * and attention along the last one. */
static bool couples(const assay_program *p, const assay_program_node *node, char axis)
{
    static const char *const over_last[] = {"norm", "attention", "delta", NULL};
    const char *const *last = over_last;
    bool coupled =
        node->step == NULL && node->input >= 0 && p->tensors[node->input].weight && strchr(node->axes, axis) != NULL;
    if (node->step == NULL) return coupled;
    while (*last != NULL && strstr(node->step->name, *last) == NULL) last++;
    for (const assay_program_parameter *x = node->step->parameters; x->name != NULL; x++)
        coupled |= strcmp(x->name, "over") == 0 && strchr(assay_program_axes(node, "over"), axis) != NULL;
    for (int i = 0; i < node->in_count; i++) {
        const char *at = strchr(p->nodes[node->in[i]].axes, axis);
        coupled |= at != NULL && (strchr(node->axes, axis) == NULL || (*last != NULL && at[1] == '\0'));
    }
    return coupled;
}

char assay_program_row_axis(const assay_program *p)
{
    char axes[ASSAY_PROGRAM_LETTERS];
    assay_program_free_axes(p, axes);
    for (int i = 1; i < p->node_count; i++) {
        for (char *axis = axes; *axis != '\0'; axis++)
            if (couples(p, &p->nodes[i], *axis)) *axis = '-';
    }
    for (const assay_program_tensor *t = p->tensors; t < p->tensors + p->tensor_count; t++)
        if (strpbrk(t->axes, axes) != NULL) return *strpbrk(t->axes, axes);
    return '\0';
}
