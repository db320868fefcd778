#include "harness/backends/example/tests/naive_layers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/backends/example/tests/naive_glu.h"

static const double *values(trial *t, const char *prefix, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s%s", prefix, name);
    const trial_tensor *in = trial_find_input(t, path);
    return in == NULL ? NULL : in->values;
}

/* y [rows,m] = x [rows,n] w [n,m]; a row of x is `row` numbers long. */
static void times(double *y, const double *x, const double *w, int rows, int n, int m, int row)
{
    for (int i = 0; i < rows * m; i++) {
        y[i] = 0;
        for (int p = 0; p < n; p++) y[i] += x[i / m * row + p] * w[p * m + i % m];
    }
}

static void normalise(double *y, const double *x, const double *scale, int n, int row, double epsilon)
{
    for (int t = 0; t < T; t++) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += x[t * row + i] * x[t * row + i];
        for (int i = 0; i < n; i++) y[t * n + i] = x[t * row + i] / sqrt(sum / n + epsilon) * scale[i];
    }
}

static double corner(const naive_config *c, double rotations)
{
    return ROPE * log(c->original / (rotations * 8 * atan(1))) / (2 * log(c->theta));
}

static void rotate(const naive_config *c, double *y, const double *x, int token)
{
    double low = corner(c, c->beta_fast), high = corner(c, c->beta_slow);
    if (c->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, ROPE - 1);
    const double size = c->attention_scaling && c->factor > 1 ? 0.1 * log(c->factor) + 1 : 1;
    for (int i = 0; i < ROPE / 2; i++) {
        const double base = pow(c->theta, -2.0 * i / ROPE);
        double ramp = (i - low) / (low == high ? 0.001 : high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        const double frequency = c->yarn ? base / c->factor * ramp + base * (1 - ramp) : base;
        const double angle = c->positions[token] * frequency;
        const double a = c->interleave ? x[2 * i] : x[i], b = c->interleave ? x[2 * i + 1] : x[i + ROPE / 2];
        y[c->pairwise ? 2 * i : i] = size * (a * cos(angle) - b * sin(angle));
        y[c->pairwise ? 2 * i + 1 : i + ROPE / 2] = size * (a * sin(angle) + b * cos(angle));
    }
}

static void attend(const naive_config *c, const double *q, const double *k, const double *v, double *out, double *lse)
{
    for (int r = 0; r < B * N * S; r++) {
        const int b = r / (N * S), n = r / S % N, i = r % S;
        double s[S], sum = 0, largest = -INFINITY, *o = out + ((b * S + i) * N + n) * V;
        for (int j = 0; j < S; j++) {
            const int32_t mine = c->segment_ids[b * S + i], its = c->segment_ids[b * S + j];
            s[j] = 0;
            for (int d = 0; d < QK; d++) s[j] += q[((b * S + i) * N + n) * QK + d] * k[((b * S + j) * N + n) * QK + d];
            if (j > i || mine != its || (mine == 0 && c->mask_padding)) s[j] = -INFINITY;
            largest = fmax(largest, s[j]);
        }
        memset(o, 0, V * sizeof *o);
        lse[r] = -INFINITY;
        if (isinf(largest)) continue;
        for (int j = 0; j < S; j++) sum += exp(s[j] - largest);
        lse[r] = largest + log(sum);
        for (int j = 0; j < S; j++) {
            for (int d = 0; d < V; d++) o[d] += exp(s[j] - lse[r]) * v[((b * S + j) * N + n) * V + d];
        }
    }
}

static void naive_mla(trial *t, const naive_config *c, const char *prefix, const double *x, double *y)
{
    static double q_a[T * LQ], q_n[T * LQ], q[T * N * QK], kv_a[T * (LKV + ROPE)], c_kv[T * LKV];
    static double kv[T * N * (NOPE + V)], k[T * N * QK], v[T * N * V], out[T * N * V], lse[B * N * S];
    const double m = 0.1 * c->mscale * log(c->factor) + 1;
    const double scale = pow(QK, -0.5) * (c->longest > c->original ? m * m : 1);
    if (c->compressed) {
        times(q_a, x, values(t, prefix, "wq_a/kernel"), T, D, LQ, D);
        normalise(q_n, q_a, values(t, prefix, "q_norm/scale"), LQ, LQ, c->epsilon);
        times(q, q_n, values(t, prefix, "wq_b/kernel"), T, LQ, N * QK, LQ);
    } else {
        times(q, x, values(t, prefix, "query/kernel"), T, D, N * QK, D);
    }
    times(kv_a, x, values(t, prefix, "wkv_a/kernel"), T, D, LKV + ROPE, D);
    normalise(c_kv, kv_a, values(t, prefix, "kv_norm/scale"), LKV, LKV + ROPE, c->epsilon);
    times(kv, c_kv, values(t, prefix, "wkv_b/kernel"), T, LKV, N * (NOPE + V), LKV);
    for (int i = 0; i < T * N; i++) {
        double turned[ROPE];
        rotate(c, turned, q + i * QK + NOPE, i / N);
        memcpy(q + i * QK + NOPE, turned, sizeof turned);
        for (int d = 0; d < QK; d++) q[i * QK + d] *= scale;
        memcpy(k + i * QK, kv + i * (NOPE + V), NOPE * sizeof *k);
        rotate(c, k + i * QK + NOPE, kv_a + i / N * (LKV + ROPE) + LKV, i / N);
        memcpy(v + i * V, kv + i * (NOPE + V) + NOPE, V * sizeof *v);
    }
    attend(c, q, k, v, out, lse);
    times(y, out, values(t, prefix, "out/kernel"), T, N * V, D, N * V);
}

/* y [D] += weight * mlp(x [D]). */
static void add_expert(double *y, double weight, const double *x, const double *wi_0, const double *wi_1,
                       const double *wo, int hidden)
{
    for (int j = 0; j < hidden; j++) {
        double a = 0, b = 0;
        for (int i = 0; i < D; i++) a += x[i] * wi_0[i * hidden + j], b += x[i] * wi_1[i * hidden + j];
        for (int i = 0; i < D; i++) y[i] += weight * (a / (1 + exp(-a)) * b) * wo[j * D + i];
    }
}

/* The dense MLP <prefix>: y [D] += mlp(x [D]). */
static void add_mlp(trial *t, const naive_config *c, const char *prefix, const double *x, double *y)
{
    const double *wi = values(t, prefix, "wi/kernel"), *wo = values(t, prefix, "wo/kernel");
    const double *wi_0 = wi != NULL ? wi : values(t, prefix, "wi_0/kernel");
    const double *wi_1 = wi != NULL ? wi + F : values(t, prefix, "wi_1/kernel");
    const double *bias_0 = values(t, prefix, "wi_0/bias"), *bias_1 = values(t, prefix, "wi_1/bias");
    const double *bias_o = values(t, prefix, "wo/bias");
    const int row = wi != NULL ? 2 * F : F;
    for (int j = 0; j < F; j++) {
        double a = bias_0 != NULL ? bias_0[j] : 0, b = bias_1 != NULL ? bias_1[j] : 0;
        for (int i = 0; i < D; i++) a += x[i] * wi_0[i * row + j], b += x[i] * wi_1[i * row + j];
        const double h = naive_glu(c->activations, c->limit, c->gpt_oss, a, b);
        for (int i = 0; i < D; i++) y[i] += h * wo[j * D + i];
    }
    for (int i = 0; i < D && bias_o != NULL; i++) y[i] += bias_o[i];
}

/* DeepSeek-V3's without groups: sigmoid scores, chosen with the bias, weights without it. */
static void add_moe(trial *t, const naive_config *c, const char *prefix, int32_t *selected, const double *x, double *y)
{
    const double *gate = values(t, prefix, "gate/kernel"), *bias = values(t, prefix, "gate/bias");
    double scores[E], sum = 0;
    for (int e = 0; e < E; e++) {
        double logit = 0;
        for (int i = 0; i < D; i++) logit += x[i] * gate[i * E + e];
        scores[e] = 1 / (1 + exp(-logit));
    }
    for (int k = 0; k < K && c->choose; k++) {
        selected[k] = -1;
        for (int e = 0; e < E; e++) {
            const bool taken = k > 0 && selected[0] == e;
            if (taken) continue;
            if (selected[k] < 0 || scores[e] + bias[e] > scores[selected[k]] + bias[selected[k]]) selected[k] = e;
        }
    }
    for (int k = 0; k < K; k++) sum += scores[selected[k]];
    for (int k = 0; k < K; k++) {
        const int e = selected[k];
        add_expert(y, scores[e] / sum * c->scaling, x, values(t, prefix, "wi_0") + e * D * H,
                   values(t, prefix, "wi_1") + e * D * H, values(t, prefix, "wo") + e * H * D, H);
    }
    add_expert(y, 1, x, values(t, prefix, "shared_experts/wi_0/kernel"),
               values(t, prefix, "shared_experts/wi_1/kernel"), values(t, prefix, "shared_experts/wo/kernel"), SHARED);
}

/* x [T,D] becomes the layer's output. */
static void naive_layer(trial *t, naive_config *c, int layer, double *x)
{
    static double normal[T * D], h[T * D];
    char weights[64] = "weights/", block[80];
    if (!c->single) snprintf(weights, sizeof weights, "weights/layers/%d/", layer);
    normalise(normal, x, values(t, weights, "pre_self_attention_layer_norm/scale"), D, D, c->epsilon);
    snprintf(block, sizeof block, "%sself_attention/", weights);
    naive_mla(t, c, block, normal, h);
    for (int i = 0; i < T * D; i++) x[i] += h[i];
    normalise(normal, x, values(t, weights, "post_self_attention_layer_norm/scale"), D, D, c->epsilon);
    snprintf(block, sizeof block, "%smlp/", weights);
    const bool dense = values(t, block, "wo/kernel") != NULL;
    if (!dense) snprintf(block, sizeof block, "%smoe/", weights);
    for (int token = 0; token < T; token++) {
        const double *in = normal + token * D;
        if (!dense) {
            add_moe(t, c, block, c->selected[layer] + token * K, in, x + token * D);
        } else {
            add_mlp(t, c, block, in, x + token * D);
        }
    }
}

void naive_run(trial *t, naive_config *c, naive_results *out)
{
    const double *x = values(t, "inputs/", "x");
    if (strcmp(c->op, "rms_norm") == 0) {
        normalise(out->y, x, values(t, "weights/", "scale"), D, D, c->epsilon);
    } else if (strcmp(c->op, "mlp") == 0) {
        memset(out->y, 0, sizeof out->y);
        for (int token = 0; token < T; token++) add_mlp(t, c, "weights/", x + token * D, out->y + token * D);
    } else if (strcmp(c->op, "yarn_rope") == 0) {
        for (int i = 0; i < T * N; i++) rotate(c, out->y + i * ROPE, x + i * ROPE, i / N);
    } else if (strcmp(c->op, "attention") == 0) {
        attend(c, values(t, "inputs/", "query"), values(t, "inputs/", "key"), values(t, "inputs/", "value"), out->y,
               out->lse);
    } else if (strcmp(c->op, "mla") == 0) {
        naive_mla(t, c, "weights/", x, out->y);
    } else {
        memcpy(out->y, x, T * D * sizeof *x);
        for (int layer = 0; layer < (c->single ? 1 : LAYERS); layer++) naive_layer(t, c, layer, out->y);
    }
}
