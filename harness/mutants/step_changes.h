/* Changes of single steps: what a kernel computes that has one of them wrong. Every kind of step has some, which follow from what
 * it reads, what it is told and what it makes; the graph stays as it is. Mutants are made so (oracle/base/step_change.h). */
#pragma once

#include "oracle/graph/graph.h"

/* Name, and what a kernel with it does. */
#define ASSAY_STEP_CHANGES(X)                                                                                          \
    /* the step is another one */                                                                                      \
    X(LEFT_OUT, "left_out", "the step is left out")                                                                    \
    X(FIRST_ALONE, "first_alone", "the first operand stays as it is")                                                  \
    X(SECOND_ALONE, "second_alone", "the second operand stays as it is")                                               \
    X(OTHER_FUNCTION, "as", "another function")                                                                        \
    /* it reads something else */                                                                                      \
    X(EXCHANGED, "exchanged", "two inputs are exchanged")                                                              \
    X(LAST_EXCHANGED, "last_exchanged", "the inputs behind the first are exchanged")                                   \
    X(FIRST_ELSE, "first_reads", "the first input is another tensor")                                                  \
    X(SECOND_ELSE, "second_reads", "the second input is another tensor")                                               \
    X(THIRD_ELSE, "third_reads", "the third input is another tensor")                                                  \
    X(TAIL_NOT_READ, "tail_not_read", "the last 8 of what is summed over, or half of them, are not read")              \
    X(HALF_NOT_READ, "above_power_of_two_not_read",                                                                    \
      "of what is summed over only as many are read as the largest power of two below has")                            \
    X(READS_ON, "reads_on",                                                                                            \
      "the last tile of what is summed over is not cut: what lies behind the end is added, in a product by what is "   \
      "left of the tile before in the other operand")                                                                  \
    X(TAIL_TWICE, "tail_twice",                                                                                        \
      "the last tile of what is summed over is filled up with what is left of the tile before, which counts twice")    \
    X(SUM_LEFT_OUT, "sum_left_out", "the sum over an axis is left out: its index 0 stands for it")                     \
    X(INDEX_0, "index_0_of", "index 0 along an axis of an input is read for all of it")                                \
    X(TRANSPOSED, "transposed", "two axes of an input are read as if they lay the other way round")                    \
    X(INTERLEAVED, "interleaved", "who takes halves of the result takes every second column")                          \
    X(REVERSED, "reversed", "the taps are read in reverse")                                                            \
    X(STATE_LOST, "state_lost", "the state is lost at each boundary of a chunk")                                       \
    X(STATE_TRANSPOSED, "state_transposed", "at each boundary of a chunk the state is read in another layout")         \
    X(STATE_REVERSED, "state_reversed", "at each boundary of a chunk the state is read in reverse")                    \
    X(STATE_COARSER, "state_in_bf16", "at each boundary of a chunk the state is rounded to bfloat16")                  \
    X(CHOOSES, "chooses_by", "it chooses its own indices, by the numbers before they were masked or biased")           \
    X(BIAS_IGNORED, "bias_ignored", "the bias is not added")                                                           \
    X(SEGMENTS_IGNORED, "segments_ignored", "tokens see other segments")                                               \
    /* it is told something else */                                                                                    \
    X(BY_TANH, "by_tanh", "the sigmoid is (1 + tanh(x / 2)) / 2 in float32, which is off by 2^-25 where x is below 0") \
    X(NOT_DIVIDED, "not_divided", "the softmax is not divided by its sum")                                             \
    X(OF_ALL, "of_all", "the softmax is that of all numbers instead of the chosen ones: it is not renormalised")       \
    X(OTHER_EPSILON, "other_epsilon", "epsilon is 1e-5 instead of 1e-6, or the reverse")                               \
    X(FACTOR_TWICE, "factor_twice", "the factor is applied twice")                                                     \
    X(OTHER_THETA, "other_theta", "theta is 50 times as large")                                                        \
    X(OTHER_PAIRS, "other_pairs", "pairs are side by side instead of half the width apart, or the reverse")            \
    X(OTHER_AXIS, "over", "along another axis")                                                                        \
    X(OTHER_FIRST, "other_first", "the part begins one index beside")                                                  \
    X(LOW_IGNORED, "low_ignored", "there is no lower bound")                                                           \
    X(HIGH_IGNORED, "high_ignored", "there is no upper bound")                                                         \
    X(WINDOW_LONGER, "window_longer", "the window is one key longer")                                                  \
    X(WINDOW_IGNORED, "window_ignored", "there is no window")                                                          \
    X(OTHER_SCALE_ROUNDING, "other_scale_rounding",                                                                    \
      "scales of codes are powers of two rounded the other way, or none")                                              \
    X(SOFT_CAP_IGNORED, "soft_cap_ignored", "there is no soft cap")                                                    \
    /* what it makes is spoilt */                                                                                      \
    X(NEGATED, "negated", "the result has the wrong sign")                                                             \
    X(DOUBLED, "doubled", "the result is twice what it should be")                                                     \
    X(COARSER, "coarser", "the result is rounded to a coarser type")                                                   \
    X(LAST_COLUMNS_ZERO, "last_columns_zero", "the last 8 columns of the result, or half of them, are zero")           \
    X(LAST_ROW_ZERO, "last_row_zero", "the last row of the result is zero")                                            \
    X(LAST_ROW_STALE, "last_row_stale", "the last row of the result is that of the row before")                        \
    X(NOT_SORTED, "not_sorted", "the whole numbers are taken as if they were sorted")                                  \
    X(ONE_NOT_COUNTED, "one_not_counted", "the last of the whole numbers is not counted")                              \
    /* backward alone */                                                                                               \
    X(DETACHED, "detached", "nothing flows back to the first input")                                                   \
    X(SECOND_DETACHED, "second_detached", "nothing flows back to the second input")                                    \
    X(THIRD_DETACHED, "third_detached", "nothing flows back to the third input")                                       \
    X(NOT_STOPPED, "gradient_not_stopped", "the gradient flows all the same")                                          \
    X(INDEX_0_BACK, "backward_index_0_of", "backward reads index 0 along an axis of an input for all of it")           \
    X(GRADIENT_OF_INDEX_0, "gradient_of_index_0", "all of an axis has the gradient that index 0 of the result has")
typedef enum assay_step_change_kind {
#define X(code, name, text) ASSAY_STEP_CHANGE_##code,
    ASSAY_STEP_CHANGES(X)
#undef X
        ASSAY_STEP_CHANGE_COUNT
} assay_step_change_kind;

enum { ASSAY_STEP_NAME = 64 };

/* What people call a tensor: what is given by its own name, what is made by that of the checkpoint or output that it is, or that it
 * goes into first: "h.silu", "h.silu2" of two. */
void assay_step_name(const graph *g, int tensor, char name[ASSAY_STEP_NAME]);

/* A change of some kinds is one of several, of inputs, axes or chunks: kind + ASSAY_STEP_CHANGE_COUNT * which, below ASSAY_STEP_CHANGES_MOST. */
enum { ASSAY_STEP_CHANGES_MOST = ASSAY_STEP_CHANGE_COUNT * GRAPH_IN * ASSAY_MAX_RANK * 2 };

/* Step `number` with such a change, as assay_step_change.make has it; false: it has none of the kind. name [ASSAY_STEP_NAME], of the
 * change: "left_out", "as_gelu", "first_reads_up"; NULL: nobody asks. */
bool assay_change_step(const graph *g, int number, int change, graph_step *changed, char *name);
const char *assay_step_change_text(int change);
