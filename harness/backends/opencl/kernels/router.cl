/* The router of one token: a work-group with float32 logits. Compiled with float32 storage. */
enum score { LOGIT, SIGMOID_SCORE, SOFTMAX_SCORE, SQRTSOFTPLUS };

/* What families differ in. */
typedef struct router {
    int experts, chosen, score;
    int bias_inside;         /* scores of logits + bias */
    int select_scores;       /* choice by scores alone */
    int weights_from_biased; /* weights are what experts were chosen by */
    int softmax_chosen, divide;
    int groups, groups_kept, groups_by_max;
    float epsilon, factor; /* epsilon: added to the sum that divides */
} router;

typedef struct best {
    float value;
    int index;
} best;

/* The largest of values [count], the lower index of equals: a tree over lanes. */
best largest(__local float *values, __local float *lane_values, __local int *lane_indices, int count)
{
    const int lane = get_local_id(0);
    float value = -INFINITY;
    int index = count;
    for (int i = lane; i < count; i += LANES)
        if (values[i] > value || index == count) value = values[i], index = i;
    barrier(CLK_LOCAL_MEM_FENCE);
    lane_values[lane] = value, lane_indices[lane] = index;
    for (int span = LANES / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        const int other = lane + span;
        if (lane < span && (lane_values[other] > lane_values[lane] ||
                            (lane_values[other] == lane_values[lane] && lane_indices[other] < lane_indices[lane])))
            lane_values[lane] = lane_values[other], lane_indices[lane] = lane_indices[other];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    best found;
    found.value = lane_values[0], found.index = lane_indices[0];
    barrier(CLK_LOCAL_MEM_FENCE); /* before the next call writes there */
    return found;
}

float group_score(__local const float *values, int size, int by_max)
{
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; i++) {
        second = fmax(second, fmin(first, values[i]));
        first = fmax(first, values[i]);
    }
    return by_max || size == 1 ? first : first + second;
}

float divisor(const router *r, __local const float *gathered)
{
    float sum = r->epsilon;
    for (int k = 0; k < r->chosen; k++) sum += gathered[k];
    return r->divide ? sum : 1;
}

/* y = softmax(x) [count], by one work-item; y may be x */
void softmax_of_few(__local float *y, __local const float *x, int count)
{
    float maximum = -INFINITY, sum = 0;
    for (int k = 0; k < count; k++) maximum = fmax(maximum, x[k]);
    for (int k = 0; k < count; k++) sum += y[k] = exp(x[k] - maximum);
    for (int k = 0; k < count; k++) y[k] /= sum;
}

/* logits [T,E], to which a bias inside is added; probabilities [T,E] are those of the balance loss; table [V,K] and ids [T] of hash routing, or NULL. Local room: values
 * and kept [E], group_scores [groups], few [K]. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void
route(__global float *logits, __global float *scores, __global float *probabilities, __global float *gathered,
      __global float *weights, __global int *selected, __global const float *bias, __global const float *expert_scale, __global const int *table,
      __global const int *ids, router r, __local float *values, __local float *kept, __local float *group_scores,
      __local float *few)
{
    __local float lane_values[LANES];
    __local int lane_indices[LANES];
    const int lane = get_local_id(0), token = get_group_id(0), E = r.experts, K = r.chosen;
    logits += (long)token * E, scores += (long)token * E, probabilities += (long)token * E;
    gathered += token * K, weights += token * K, selected += token * K;

    /* scores, and the values that select */
    float maximum = 0, total = 1;
    for (int e = lane; e < E; e += LANES) {
        const float logit = logits[e] + (r.bias_inside && bias ? bias[e] : 0);
        logits[e] = values[e] = logit;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (r.score == SOFTMAX_SCORE) {
        maximum = largest(values, lane_values, lane_indices, E).value;
        float sum = 0;
        for (int e = lane; e < E; e += LANES) sum += exp(values[e] - maximum);
        total = sum_of_lanes(lane_values, sum);
    }
    for (int e = lane; e < E; e += LANES) {
        const float logit = values[e];
        float score = logit;
        if (r.score == SIGMOID_SCORE) score = sigmoid(logit);
        if (r.score == SOFTMAX_SCORE) score = exp(logit - maximum) / total;
        if (r.score == SQRTSOFTPLUS) score = sqrt(fmax(logit, 0) + log1p(exp(-fabs(logit))));
        scores[e] = score;
        values[e] = r.select_scores ? score : r.bias_inside ? logit : score + (bias ? bias[e] : 0);
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);

    /* probabilities of the balance loss: the softmax of what selects */
    maximum = largest(values, lane_values, lane_indices, E).value;
    total = 0;
    for (int e = lane; e < E; e += LANES) total += exp(values[e] - maximum);
    total = sum_of_lanes(lane_values, total);
    for (int e = lane; e < E; e += LANES) probabilities[e] = exp(values[e] - maximum) / total;

    /* groups: of those that do not stay no expert is a candidate */
    const int size = E / r.groups;
    for (int e = lane; e < E; e += LANES) kept[e] = r.groups > 1 ? -INFINITY : values[e];
    for (int g = lane; g < r.groups; g += LANES)
        group_scores[g] = group_score(values + g * size, size, r.groups_by_max);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < r.groups_kept && r.groups > 1; i++) {
        const int group = largest(group_scores, lane_values, lane_indices, r.groups).index;
        for (int e = group * size + lane; e < (group + 1) * size; e += LANES) kept[e] = values[e];
        if (lane == 0) group_scores[group] = -INFINITY;
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    /* the best K; what becomes of them is little work, for one work-item */
    for (int k = 0; k < K; k++) {
        const int index = table ? table[ids[token] * K + k] : largest(kept, lane_values, lane_indices, E).index;
        if (lane == 0) {
            kept[index] = -INFINITY;
            selected[k] = index;
            few[k] = r.weights_from_biased ? values[index] : scores[index];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane > 0) return;
    if (r.softmax_chosen) softmax_of_few(few, few, K);
    const float sum = divisor(&r, few);
    for (int k = 0; k < K; k++) {
        gathered[k] = few[k];
        weights[k] = few[k] / sum * r.factor * (expert_scale ? expert_scale[selected[k]] : 1);
    }
}

/* How often the tokens of each sequence choose an expert, [B,E]. */
__kernel void choice_density(__global float *density, __global const int *selected, int sequence, int chosen, int experts)
{
    const int e = get_global_id(0), b = get_global_id(1);
    int count = 0;
    if (e >= experts) return;
    for (int i = b * sequence * chosen; i < (b + 1) * sequence * chosen; i++) count += selected[i] == e;
    density[b * experts + e] = (float)count / sequence;
}

/* loss = factor times the sum over tokens and experts of density times probability: one work-group. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void
balance_loss(__global float *loss, __global const float *density, __global const float *probabilities, int tokens,
             int sequence, int experts, float factor)
{
    __local float parts[LANES];
    float sum = 0;
    for (int i = get_local_id(0); i < tokens * experts; i += LANES)
        sum += density[i / (sequence * experts) * experts + i % experts] * probabilities[i];
    sum = sum_of_lanes(parts, sum);
    if (get_local_id(0) == 0) *loss = sum * factor;
}

/* The bias of an expert with too few tokens is raised, of one with too many lowered. */
__kernel void bias_updates(__global float *updates, __global const int *sizes, int choices, int experts, float rate)
{
    const int e = get_global_id(0);
    if (e < experts) updates[e] = rate * sign((float)(choices - sizes[e] * experts));
}

/* d_logits [T,E] and d_biased [T,E] (the gradient of what selects: its sum over tokens is the bias's), from d_weights
 * [T,K] and d_loss, the gradient of density times probability; d_scaled [T,K] is the gradient of each choice's
 * expert_scale. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void
route_backward(__global float *d_logits, __global float *d_biased, __global float *d_scaled,
               __global const float *d_weights, __global const float *logits, __global const float *scores,
               __global const float *gathered, __global const int *selected, __global const float *expert_scale,
               __global const float *density, __global const float *probabilities, int sequence, float d_loss, router r,
               __local float *few)
{
    __local float parts[LANES];
    const int lane = get_local_id(0), token = get_group_id(0), E = r.experts, K = r.chosen;
    d_logits += (long)token * E, d_biased += (long)token * E, logits += (long)token * E, scores += (long)token * E;
    d_weights += token * K, d_scaled += token * K, gathered += token * K, selected += token * K;

    density += token / sequence * E, probabilities += (long)token * E;
    float balance = 0; /* what the softmax of the balance loss takes away */
    for (int e = lane; e < E; e += LANES) balance += density[e] * probabilities[e];
    balance = sum_of_lanes(parts, balance);
    for (int e = lane; e < E; e += LANES) {
        d_biased[e] = d_loss * probabilities[e] * (density[e] - balance);
        d_logits[e] = r.bias_inside ? 0 : d_biased[e];
    }
    for (int k = lane; k < K; k += LANES) few[k] = gathered[k];
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (lane == 0) {
        const float sum = divisor(&r, few);
        float mean = 0, through = 0; /* what the division and the softmax take away */
        for (int k = 0; k < K; k++) {
            d_scaled[k] = d_weights[k] * few[k] / sum * r.factor;
            const float d = d_weights[k] * (expert_scale ? expert_scale[selected[k]] : 1);
            if (r.divide) mean += d * few[k] / sum;
        }
        for (int k = 0; k < K; k++) {
            const float d = d_weights[k] * (expert_scale ? expert_scale[selected[k]] : 1);
            through += (d - mean) / sum * r.factor * few[k];
        }
        for (int k = 0; k < K; k++) {
            float d = d_weights[k] * (expert_scale ? expert_scale[selected[k]] : 1);
            d = (d - mean) / sum * r.factor;
            if (r.softmax_chosen) d = few[k] * (d - through);
            d_logits[selected[k]] += d;
            if (r.weights_from_biased) d_biased[selected[k]] += d;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    float part = 0;
    for (int e = lane; e < E && r.score == SOFTMAX_SCORE; e += LANES) part += d_logits[e] * scores[e];
    part = sum_of_lanes(parts, part);
    for (int e = lane; e < E; e += LANES) {
        float d = d_logits[e];
        if (r.score == SOFTMAX_SCORE) d = scores[e] * (d - part);
        if (r.score == SIGMOID_SCORE) d *= scores[e] * sigmoid(-logits[e]);
        if (r.score == SQRTSOFTPLUS) d *= scores[e] > 0 ? sigmoid(logits[e]) / (2 * scores[e]) : 0;
        if (r.bias_inside) d_biased[e] = d += d_biased[e];
        d_logits[e] = d;
    }
}

/* llama4 scales a copy by the sigmoid of its weight; slopes are those of that scale. */
__kernel void sigmoid_of_weights(__global float *scales, __global float *slopes, __global const float *weights,
                                 int count)
{
    const int i = get_global_id(0);
    if (i >= count) return;
    scales[i] = sigmoid(weights[i]);
    slopes[i] = scales[i] * (1 - scales[i]);
}

/* The gradient of per_expert_scale: what the choices of an expert give, in their order. */
__kernel void sum_of_choices(__global float *d, __global const float *d_scaled, __global const int *order,
                             __global const int4 *segments, int experts)
{
    const int e = get_global_id(0);
    float sum = 0;
    if (e >= experts) return;
    for (int row = segments[e].s0; row < segments[e].s0 + segments[e].s1; row++) sum += d_scaled[order[row]];
    d[e] = sum;
}
