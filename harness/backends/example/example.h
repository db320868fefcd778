/* An example backend: RMS norm, the grouped product, the gated MLP, MoE blocks, attention and MLA on one device, forward
 * and backward, as a kernel for bfloat16 tensors would do them. Copy it.
 *
 *     cc -O3 -shared -fPIC -I include harness/backends/example/example*.c harness/backends/support/support.c \
 *         -o libassay_example.so -lm
 *     assay run mla/deepseek3-tiny --backend ./libassay_example.so
 *
 * Tensors that a kernel would leave in memory are rounded to bfloat16 (float arrays that hold such numbers stand for
 * them); sums, statistics of norms and softmax, phases, the router and the gradients of weights are float32.
 *
 * The environment variable ASSAY_EXAMPLE_BUG=NAME puts one of BUG_TABLE's errors in, to see it caught. */
#pragma once

#include <stddef.h>

#include "../support/support.h"

/*    code, name, number in the list of bugs that real implementations had (0: not in it), what is wrong */
#define BUG_TABLE(X)                                                                                                   \
    X(BIASED_WEIGHTS, "biased_weights", 1, "weights from the biased scores and not divided, as V2 has them")           \
    X(GROUP_FILL_ZERO, "group_fill_zero", 3, "experts of masked groups count as 0: more than a negative score")        \
    X(GROUP_SCORE_OTHER, "group_score_other", 4, "groups ranked by their maximum, not their top two, or reversed")     \
    X(NO_RENORMALISATION, "no_renormalisation", 6, "the chosen weights are not divided by their sum")                  \
    X(SCALING_TWICE, "scaling_twice", 8, "routed_scaling_factor applied twice")                                        \
    X(ROUTER_BIAS_DROPPED, "router_bias_dropped", 19, "the router without its bias")                                   \
    X(EMPTY_EXPERT_UNWRITTEN, "empty_expert_unwritten", 25, "weight gradients of experts without tokens left alone")   \
    X(PADDING_IN_LAST_GROUP, "padding_in_last_group", 26, "rows behind the last group taken for rows of it")           \
    X(LAST_TILE_DROPPED, "last_tile_dropped", 28, "the down product lacks what is beyond the last whole tile of 16")   \
    X(VECTOR_TAIL_DROPPED, "vector_tail_dropped", 28, "the grouped product lacks what is beyond its last vector of 8") \
    X(GATE_UP_SWAPPED, "gate_up_swapped", 34, "the activation applied to the other branch")                            \
    X(DX_WITHOUT_UP, "dx_without_up", 41, "the gradient of x lacks the up branch")                                     \
    X(MSCALE_MISSING, "mscale_missing", 46, "the softmax scale lacks its factor m^2")                                  \
    X(ROPE_TIMES_MSCALE, "rope_times_mscale", 47, "cos and sin multiplied by m")                                       \
    X(SCALE_FROM_HIDDEN, "scale_from_hidden", 48, "the softmax scale from emb_dim over heads")                         \
    X(YARN_NOT_TRUNCATED, "yarn_not_truncated", 49, "the ends of YaRN's ramp not made whole numbers")                  \
    X(ROPE_OTHER_PAIRS, "rope_other_pairs", 50, "halves paired where neighbours should be, or the reverse")            \
    X(ROPE_PHASE_BF16, "rope_phase_bf16", 51, "the rotation's angle rounded to bfloat16")                              \
    X(LATENT_EPSILON, "latent_epsilon", 52, "1e-5 for the epsilon of q_norm and kv_norm")                              \
    X(LSE_BASE_2, "lse_base_2", 53, "the log-sum-exp to base 2")                                                       \
    X(DV_NARROW_HEADS, "dv_narrow_heads", 54, "the last columns of dV lost where value heads are the narrower ones")   \
    X(MASKED_ROWS_NAN, "masked_rows_nan", 55, "a row that sees no key divided by its sum, 0")                          \
    X(BIAS_UPDATES_NEGATED, "bias_updates_negated", 58, "the bias of experts with too many tokens raised")             \
    X(ROUTER_GRADIENT_MISSING, "router_gradient_missing", 59, "no gradient through the routing weights")               \
    X(TIES_TO_HIGHER, "ties_to_higher", 0, "of experts that tie the higher index first")                               \
    X(WRONG_EXPERT, "wrong_expert", 0, "the last choice passed over for the next best")                                \
    X(MASK_OFF_BY_ONE, "mask_off_by_one", 0, "a query sees the next key as well")                                      \
    X(LAST_KEYS_DROPPED, "last_keys_dropped", 0, "keys cut to a multiple of the tile")                                 \
    X(KV_NORM_OMITTED, "kv_norm_omitted", 0, "the latent of keys and values not normalised")                           \
    X(EMPTY_GROUP_SHIFTS, "empty_group_shifts", 0, "weights counted over groups that have rows alone")

enum bug {
    NO_BUG,
#define X(code, name, issue, what) code,
    BUG_TABLE(X)
#undef X
        BUG_COUNT
};

/* ASSAY_EXAMPLE_VARIANT: no errors, but other choices that a backend may make. */
enum variant {
    NO_VARIANT,
    BF16_ROUTER,      /* "bf16_router": logits, scores and weights in bfloat16 (the profile bf16_router) */
    ASCENDING_SLOTS,  /* "ascending_slots": a token's experts by ascending id */
    LAST_TOKENS_FIRST /* "last_tokens_first": copies for one expert by descending token */
};

/* The names below stay inside the shared object. */
#pragma GCC visibility push(hidden)

/* One call of the backend. */
typedef struct example {
    const assay_backend_request *request;
    enum bug bug;
    enum variant variant;
    int64_t batch, sequence, tokens; /* B, S, T = B*S */
    memory memory;                   /* of the call */
} example;

/* ---- example_request.c: tensors and results by path ---- */

/* Its floats, or NULL where the case has none. */
float *whole(example *e, const char *path);
/* Room for the gradient of `path` from number `first` on, float32; NULL where nobody asks. */
float *gradient(const example *e, const char *path, int64_t first);
/* All of a result, in bfloat16 or as the 32-bit type that it has at first. */
void store(const example *e, const char *path, bool in_bf16, const void *values, int64_t count);

/* ---- example_numbers.c ---- */

void round_bf16(float *x, int64_t count);

/* Element (i,p) is data[i * row + p * column]. */
typedef struct matrix {
    const float *data;
    int64_t row, column;
} matrix;
/* out [m,n] = a [m,k] * b [k,n], summed in float32; nothing where out is NULL. */
void product(float *out, int64_t out_row, int64_t m, int64_t n, int64_t k, matrix a, matrix b);
/* For x [rows,n], w [n,m], all contiguous: y = x w; and dx (in bfloat16) = dy w^T, dw = x^T dy (NULL: not wanted). */
void linear(float *y, const float *x, const float *w, int64_t rows, int64_t n, int64_t m);
void linear_backward(float *dx, float *dw, const float *dy, const float *x, const float *w, int64_t rows, int64_t n,
                     int64_t m);
void add(float *sum, const float *x, int64_t count);

float sigmoid(float x);
void softmax(float *y, const float *x, int64_t count);
/* d [count], a gradient by y = softmax(x), becomes that by x. */
void softmax_backward(float *d, const float *y, int64_t count);

/* Row t of x is at x + t * x_row; y [rows,n]. */
typedef struct norm {
    int64_t rows, n, x_row;
    float epsilon;
    const float *x, *scale;
} norm;
void norm_forward(float *y, const norm *m);
/* dx (rows as those of x) and dscale (NULL: not wanted) are overwritten. */
void norm_backward(float *dx, float *dscale, const float *dy, const norm *m);

/* ---- example_rope.c ---- */

typedef struct rope {
    int64_t tokens, half;
    bool interleave, pairwise;
    float *cosine, *sine; /* [tokens,half] */
} rope;
void rope_set_up(example *e, rope *r, int64_t dim);
/* y = x rotated as token t; `back` applies the transpose, from y's layout to x's. y is not x. */
void rope_rotate(float *y, const float *x, const rope *r, int64_t t, bool back);
/* What YaRN multiplies cos and sin with, or the softmax scale: 0.1 mscale ln(rope_factor) + 1. */
float yarn_magnitude(const assay_backend_request *request, double mscale);

/* ---- example_attention.c ---- */

typedef struct attention {
    int64_t batch, sequence, heads, qk_dim, v_dim;
    bool mask_padding;
    const int32_t *segment_ids; /* [B,S] or NULL */
    float *query, *key, *value; /* [T,N,Dq], [T,N,Dq], [T,N,Dv]; query scaled already */
    float *out, *lse;           /* [T,N,Dv], [B,N,S] */
} attention;
void attention_forward(example *e, const attention *a);
/* The gradients come zeroed; d_lse may be NULL. */
void attention_backward(example *e, const attention *a, float *d_query, float *d_key, float *d_value,
                        const float *d_out, const float *d_lse);
void attention_run(example *e);

/* ---- example_mla.c ---- */

void mla_run(example *e);

/* ---- example_glu.c ---- */

enum activation { SILU, GELU, GELU_EXACT, RELU, SIGMOID, LINEAR, ACTIVATION_COUNT };

/* h = gate(a) up(b). With a limit above 0, of min(a, limit) and of b between -limit and limit. GPT-OSS has
 * a sigmoid(1.702 a) and b + 1 instead of activations. */
typedef struct glu {
    enum activation gate, up;
    float limit;
    bool gpt_oss;
} glu;
bool glu_known(const assay_backend_request *request); /* whether its activations are among these */
/* A dense layer has an activation of b besides; a shared expert has neither clamps nor GPT-OSS's form. */
enum mlp_place { DENSE, ROUTED, SHARED };
glu glu_of(const assay_backend_request *request, enum mlp_place place);

/* h = u v, and the slopes of u by a and of v by b. */
typedef struct glu_point {
    float u, v, d_u, d_v;
} glu_point;
glu_point glu_at(const glu *g, float a, float b);

/* ---- example_mlp.c ---- */

/* x w + bias: w's rows lie `row` numbers apart; NULL for a bias that is not there and for gradients nobody asks for. */
typedef struct projection {
    const float *w, *bias;
    float *d_w, *d_bias;
    int64_t row;
} projection;

/* a = x wi_0, b = x wi_1, h = glu(a, b), o = h wo. */
typedef struct mlp {
    enum bug bug;
    glu glu;
    int64_t rows, emb, hidden;
    projection wi_0, wi_1, wo;      /* [D,H], [D,H], [H,D] */
    float *x, *a, *b, *h, *o, *d_o; /* [rows,D], [rows,H] three times, [rows,D] twice */
} mlp;
/* The weights <prefix>{wi_0,wi_1,wo}<suffix>, or wi<suffix>: number `expert` of several; biases are wi_0_bias, or
 * wi_0/bias where the suffix is /kernel. */
void mlp_load(example *e, mlp *m, const char *prefix, const char *suffix, int64_t expert);
void mlp_take(example *e, mlp *m); /* a, b, h, o */
void mlp_forward(const mlp *m);
/* d_x [rows,D]; a and b become their own gradients. */
void mlp_backward(example *e, const mlp *m, float *d_x);
void mlp_run(example *e);

/* ---- example_gmm.c ---- */

void gmm_run(example *e);

/* ---- example_routing.c, example_moe.c ---- */

typedef struct moe {
    enum bug bug;
    enum variant variant;
    int64_t batch, sequence, tokens, emb, hidden, shared_hidden, experts, chosen; /* B, S, T, D, H, F, E, K */
    bool sigmoid, softmax, sqrtsoftplus;              /* the scores; else the logits themselves */
    bool bias_inside, select_scores;                  /* scores of logits + bias; choice by scores alone */
    bool weights_from_biased, softmax_chosen, divide; /* what becomes of the chosen ones */
    bool groups_by_max;
    bool scales_tokens; /* llama4: tokens times sigmoid(weight), weights 1 */
    bool drops;         /* choices beyond the capacity */
    int64_t groups, groups_kept;
    float epsilon, factor, loss_weight, update_rate;           /* epsilon: added to the sum that divides */
    const float *x, *gate, *bias, *expert_scale;               /* [T,D], [D,E], [E], [E] (0 and 1 for NULL) */
    const int32_t *token_ids, *expert_table;                   /* hash routing: [T], [V,K]; else NULL */
    float *logits, *scores, *biased, *d_logits, *d_biased;     /* [T,E]; biased is what experts are chosen by */
    float *gathered, *weights_of, *d_weights, *d_expert_scale; /* [T,K] three times, [E] or NULL */
    int32_t *selected, *order, *sizes;                         /* [T,K], [T*K] by expert, [E] */
    int64_t capacity, dispatched;                              /* places of an expert in a batch row; copies in all */
    int32_t *place, *dispatch, *dispatch_sizes;                /* [T*K] (-1: dropped), [dispatched] of order, [E] */
    float *probabilities, *density;                            /* [T,E], [B,E] of the balance loss */
    mlp rows;                                                  /* of all copies of tokens, sorted by expert */
} moe;

void routing_set_up(example *e, moe *m);
void routing_forward(example *e, moe *m);
/* d_logits, d_biased (for the bias) and d_expert_scale from d_weights and the gradient of the balance loss. */
void routing_backward(const moe *m, float d_loss);
/* Load balance: the loss, and the step of the bias by which it is kept instead. */
float routing_balance(const moe *m, float *bias_updates);

void moe_run(example *e);

#pragma GCC visibility pop
