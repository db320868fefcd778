#include "oracle/propagate/routing_token.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/moe/balance.h"

int64_t routing_token_experts(const assay_routing_config *config)
{
    const assay_routing_rule rule = assay_routing_rule_of(config);
    return rule.score_func == ASSAY_SCORE_SOFTMAX || rule.balance ? config->num_experts : config->num_experts_per_tok;
}

void routing_token_start(routing_token *token, double *memory, int64_t t)
{
    const assay_routing_config *config = token->run->config;
    const int64_t n = token->n, count = config->num_experts_per_tok;
    const int32_t *selected = token->run->r->selected_experts + t * count;
    assay_uncertain *const vectors[ROUTING_VECTORS] = {
        &token->argument,   &token->score,       &token->selecting, &token->value,
        &token->normalized, &token->probability, &token->balance,   &token->d_bias,
        &token->d_value,    &token->d_argument,  &token->work,      &token->d_normalized,
    };
    double **const scratch[ROUTING_SCRATCH] = {&token->ones, &token->chosen, &token->scale,   &token->rounding,
                                               &token->a,    &token->b,      &token->variance};
    const bool all = n == config->num_experts;
    token->t = t;
    assay_errors_start(&token->space, memory, n);
    memory += assay_errors_size(n);
    for (int i = 0; i < ROUTING_VECTORS; i++, memory += assay_uncertain_size(n))
        assay_uncertain_start(vectors[i], memory, n);
    for (int i = 0; i < ROUTING_SCRATCH; i++, memory += n) *scratch[i] = memory;
    for (int64_t i = 0; i < n; i++) {
        token->expert[i] = all ? i : selected[i];
        token->ones[i] = 1;
        token->chosen[i] = 0;
        token->rounding[i] = 0;
    }
    for (int64_t k = 0; k < count; k++) {
        token->place[k] = all ? selected[k] : k;
        token->chosen[token->place[k]] = 1;
    }
}

static double largest_of(const assay_uncertain *x, const double *among, int64_t n)
{
    double largest = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (among[i] > 0) largest = fmax(largest, x->value[i]);
    }
    return largest;
}

/* What a softmax loses in its exponentials: a relative error of one is an absolute error of its argument. */
static void add_exponentials(routing_token *token, assay_uncertain *x, const double *among)
{
    const assay_precision *p = token->precision;
    const double largest = largest_of(x, among, token->n);
    for (int64_t i = 0; i < token->n; i++) {
        token->a[i] = among[i] * (assay_square(p->elementary) + assay_square(p->router * (x->value[i] - largest)));
    }
    assay_errors_add(&token->space, x, token->a);
}

static void copy(const routing_token *token, assay_uncertain *y, const assay_uncertain *x)
{
    memcpy(y->value, x->value, (size_t)token->n * sizeof *y->value);
    assay_errors_combine(&token->space, y, x, token->ones, NULL, NULL);
}

/* The router's bias at an expert, 0 without one, and its error: it is given. */
static double bias_of(const routing_token *token, int64_t i, double *variance)
{
    const double *bias = token->run->in->bias, value = bias == NULL ? 0 : bias[token->expert[i]];
    *variance = assay_propagate_given(token->precision->router_bias, value);
    return value;
}

static void set_argument(routing_token *token)
{
    const assay_routing_run *run = token->run;
    const int64_t first = token->t * run->config->num_experts;
    const double unit = token->precision->router;
    const bool inside = token->rule.bias_inside && run->in->bias != NULL;
    for (int64_t i = 0; i < token->n; i++) {
        const int64_t at = first + token->expert[i];
        const double logit = run->in->logits[at];
        double of_bias, x = logit;
        token->a[i] = assay_square(unit * logit) + (run->variance_logits == NULL ? 0 : run->variance_logits[at]);
        if (inside) {
            x += bias_of(token, i, &of_bias);
            token->a[i] += assay_square(unit * x) + of_bias;
        }
        token->argument.value[i] = x;
    }
    assay_errors_add(&token->space, &token->argument, token->a);
    if (token->rule.score_func == ASSAY_SCORE_SOFTMAX) add_exponentials(token, &token->argument, token->ones);
}

static void set_score(routing_token *token)
{
    const double *scores = token->run->r->scores + token->t * token->run->config->num_experts;
    const assay_score_func score_func = token->rule.score_func;
    const bool softmax = score_func == ASSAY_SCORE_SOFTMAX;
    const double unit2 = assay_square(token->precision->router),
                 elementary2 = assay_square(token->precision->elementary);
    for (int64_t i = 0; i < token->n; i++) {
        token->score.value[i] = scores[token->expert[i]];
        token->a[i] = softmax ? 0 : assay_score_derivative(score_func, token->argument.value[i]);
        token->b[i] = (unit2 + (softmax ? 0 : elementary2)) * assay_square(token->score.value[i]);
    }
    if (softmax) {
        assay_errors_softmax(&token->space, &token->score, &token->argument);
    } else {
        assay_errors_combine(&token->space, &token->score, &token->argument, token->a, NULL, NULL);
    }
    /* Of fused and gemma4 the probabilities of lb_loss are the scores, before they are kept. */
    if (token->rule.bias_inside) copy(token, &token->probability, &token->score);
    if (score_func != ASSAY_SCORE_NONE) assay_errors_add(&token->space, &token->score, token->b);
}

/* What selects: the score, a bias added, or the argument. */
static void set_selecting(routing_token *token)
{
    const double unit = token->precision->router;
    if (token->rule.selects == ASSAY_SELECTS_ARGUMENT) {
        copy(token, &token->selecting, &token->argument);
        return;
    }
    copy(token, &token->selecting, &token->score);
    if (token->rule.selects != ASSAY_SELECTS_BIASED || token->run->in->bias == NULL) return;
    for (int64_t i = 0; i < token->n; i++) {
        double of_bias;
        token->selecting.value[i] += bias_of(token, i, &of_bias);
        token->a[i] = assay_square(unit * token->selecting.value[i]) + of_bias;
    }
    assay_errors_add(&token->space, &token->selecting, token->a);
}

/* Softmax over the chosen, division by their sum, or neither. */
static void set_normalized(routing_token *token)
{
    const assay_routing_rule *rule = &token->rule;
    const int64_t n = token->n, count = token->run->config->num_experts_per_tok;
    const double *gathered = token->run->r->gathered + token->t * count;
    const assay_uncertain *from = rule->weighs_scores ? &token->score : &token->selecting;
    token->divisor = assay_routing_divisor(gathered, count, rule);
    memset(token->normalized.value, 0, (size_t)n * sizeof(double));
    for (int64_t k = 0; k < count; k++) token->normalized.value[token->place[k]] = gathered[k] / token->divisor;
    memcpy(token->value.value, from->value, (size_t)n * sizeof(double));
    assay_errors_combine(&token->space, &token->value, from, token->chosen, NULL, NULL);
    if (rule->softmax_chosen) {
        add_exponentials(token, &token->value, token->chosen);
        assay_errors_softmax(&token->space, &token->normalized, &token->value);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        token->a[i] = 1 / token->divisor;
        token->b[i] = -token->normalized.value[i] / token->divisor;
    }
    assay_errors_combine(&token->space, &token->normalized, &token->value, token->a, NULL, NULL);
    if (!rule->divide) return;
    token->divisor_sum = assay_errors_sum(&token->space, &token->value, 0);
    assay_errors_add_sum(&token->space, &token->normalized, token->divisor_sum, token->b);
}

void routing_token_forward(routing_token *token)
{
    set_argument(token);
    set_score(token);
    set_selecting(token);
    set_normalized(token);
    if (!token->rule.balance) return;
    if (!token->rule.bias_inside) {
        const double *p = token->run->r->probabilities + token->t * token->run->config->num_experts;
        copy(token, &token->work, token->rule.balance_pre_bias ? &token->score : &token->selecting);
        add_exponentials(token, &token->work, token->ones);
        memcpy(token->probability.value, p, (size_t)token->n * sizeof *p);
        assay_errors_softmax(&token->space, &token->probability, &token->work);
    }
}

/* a = d_lb_loss times the derivative of the loss by the probabilities; the sum of the squares of p a. */
static double set_d_probability(routing_token *token, double d_lb_loss)
{
    const assay_routing_config *config = token->run->config;
    const double *density = token->run->r->density + token->t / config->sequence * config->num_experts;
    const double coefficient = d_lb_loss * assay_balance_coefficient(config);
    double squares = 0;
    for (int64_t i = 0; i < token->n; i++) {
        token->a[i] = coefficient * density[i];
        squares += assay_square(token->probability.value[i] * token->a[i]);
    }
    return squares;
}

double routing_token_loss(routing_token *token)
{
    const double rounding = 2 * assay_square(token->precision->router) * set_d_probability(token, 1);
    assay_errors_combine(&token->space, &token->work, &token->probability, token->a, NULL, NULL);
    const int sum = assay_errors_sum(&token->space, &token->work, rounding);
    return token->space.covariance[sum][sum];
}

/* The gradient of what selects by way of lb_loss. */
static void set_balance(routing_token *token)
{
    const double unit2 = assay_square(token->precision->router), d_lb_loss = token->run->d_lb_loss;
    const double given = assay_propagate_given(token->precision->given, d_lb_loss);
    const double squares = set_d_probability(token, d_lb_loss), *p = token->probability.value;
    double mean = 0;
    assay_uncertain *d = &token->work;
    memcpy(d->value, token->a, (size_t)token->n * sizeof *d->value);
    d->rows = 0;
    for (int64_t i = 0; i < token->n; i++) mean = fma(p[i], d->value[i], mean);
    assay_errors_center(&token->space, &token->balance, &token->probability, d,
                        unit2 * (2 * squares + assay_square(mean)));
    for (int64_t i = 0; i < token->n; i++) {
        token->b[i] = unit2 * assay_square(p[i] * d->value[i]) +
                      (2 * unit2 + given / assay_square(d_lb_loss)) * assay_square(token->balance.value[i]);
    }
    assay_errors_add(&token->space, &token->balance, token->b);
}

/* The gradient of the normalised values: that of the weights, scaled. */
static void set_d_normalized(routing_token *token)
{
    const assay_routing_run *run = token->run;
    const int64_t count = run->config->num_experts_per_tok, first = token->t * count;
    const double unit = token->precision->router, *own = run->in->per_expert_scale;
    memset(token->d_normalized.value, 0, (size_t)token->n * sizeof(double));
    memset(token->a, 0, (size_t)token->n * sizeof *token->a);
    for (int64_t k = 0; k < count; k++) {
        const double d_weight = run->d_weights[first + k], scale = token->scale[k], d = d_weight * scale;
        const double variance = run->variance_d_weights != NULL
                                    ? run->variance_d_weights[first + k]
                                    : assay_propagate_given(token->precision->given, d_weight);
        const double of_scale =
            own == NULL ? 0
                        : assay_square(token->rule.factor) *
                              assay_propagate_given(token->precision->given, own[token->expert[token->place[k]]]);
        token->d_normalized.value[token->place[k]] = d;
        /* As it comes in, and the product. */
        token->a[token->place[k]] = variance * scale * scale + (scale != 1 ? 2 : 1) * assay_square(unit * d) +
                                    assay_square(d_weight) * of_scale;
    }
    assay_errors_add(&token->space, &token->d_normalized, token->a);
}

/* The gradient of what is weighed. */
static void set_d_value(routing_token *token)
{
    const assay_routing_rule *rule = &token->rule;
    const int64_t n = token->n, count = token->run->config->num_experts_per_tok;
    const double *of_n = token->normalized.value, *d = token->d_normalized.value,
                 unit2 = assay_square(token->precision->router);
    double squares = 0, mean = 0;
    for (int64_t i = 0; i < n; i++) {
        squares += assay_square(of_n[i] * d[i]);
        mean = fma(of_n[i], d[i], mean);
    }
    /* Each term is a product and two quotients, of which a softmax has none; of partial sums the rounding counts where what they leave cancels. */
    const bool quotient = rule->divide && !rule->softmax_chosen;
    const double partial = quotient || rule->score_func == ASSAY_SCORE_SOFTMAX
                               ? assay_propagate_partial_squares(count, squares, mean)
                               : mean * mean;
    const double rounding = unit2 * ((quotient ? 4 : 2) * squares + partial);
    if (rule->softmax_chosen) { /* divided as well: centred twice */
        assay_errors_center(&token->space, &token->d_value, &token->normalized, &token->d_normalized,
                            (rule->divide ? 2 : 1) * rounding);
    } else if (rule->divide) { /* (d - mean) / divisor */
        assay_errors_combine(&token->space, &token->work, &token->normalized, d, &token->d_normalized, of_n);
        const int sum = assay_errors_sum(&token->space, &token->work, rounding);
        for (int64_t i = 0; i < n; i++) {
            token->a[i] = token->chosen[i] / token->divisor;
            token->b[i] = -token->a[i];
            token->d_value.value[i] = token->a[i] * (d[i] - mean);
        }
        assay_errors_combine(&token->space, &token->d_value, &token->d_normalized, token->a, NULL, NULL);
        assay_errors_add_sum(&token->space, &token->d_value, sum, token->b);
        for (int64_t i = 0; i < n; i++) token->b[i] = -token->d_value.value[i] / token->divisor;
        assay_errors_add_sum(&token->space, &token->d_value, token->divisor_sum, token->b);
    } else {
        copy(token, &token->d_value, &token->d_normalized);
        return;
    }
    /* A framework divides d and the mean each by itself, so that the first quotient's rounding is left where they cancel. */
    for (int64_t i = 0; i < n; i++) {
        token->b[i] = 2 * unit2 * assay_square(token->d_value.value[i]);
        if (quotient) token->b[i] += unit2 * assay_square(token->chosen[i] * d[i] / token->divisor);
    }
    assay_errors_add(&token->space, &token->d_value, token->b);
}

/* The slope of an elementwise score function as implementations have it, from the score s as it is kept: s (1 - s) of a
 * sigmoid, sigmoid(x) / (2 s) of sqrtsoftplus; a and b: its derivatives by s and by x. */
static void set_slope(routing_token *token, assay_uncertain *slope)
{
    for (int64_t i = 0; i < token->n; i++) {
        const double x = token->argument.value[i], s = token->score.value[i];
        slope->value[i] = assay_score_derivative(token->rule.score_func, x);
        token->a[i] = token->b[i] = 0;
        if (token->rule.score_func == ASSAY_SCORE_SIGMOID) {
            token->a[i] = 1 - 2 * s;
        } else if (token->rule.score_func == ASSAY_SCORE_SQRTSOFTPLUS) {
            const double sigmoid = 1 / (1 + assay_exp(-x));
            token->a[i] = x < -40 ? -0.5 : -sigmoid / (2 * s * s);
            token->b[i] = slope->value[i] * (1 - sigmoid);
        }
    }
    assay_errors_combine(&token->space, slope, &token->score, token->a, &token->argument, token->b);
}

/* d_argument from the gradient of the scores. */
static void through_score(routing_token *token, const assay_uncertain *d_score)
{
    const int64_t n = token->n;
    const double unit2 = assay_square(token->precision->router);
    const bool root = token->rule.score_func == ASSAY_SCORE_SQRTSOFTPLUS;
    double *s = token->score.value, squares = 0, mean = 0;
    if (token->rule.score_func == ASSAY_SCORE_NONE) {
        copy(token, &token->d_argument, d_score);
        return;
    }
    if (token->rule.score_func == ASSAY_SCORE_SOFTMAX) {
        for (int64_t i = 0; i < n; i++) {
            squares += assay_square(s[i] * d_score->value[i]);
            mean = fma(s[i], d_score->value[i], mean);
        }
        const double partial = assay_propagate_partial_squares(token->run->config->num_experts_per_tok, squares, mean);
        assay_errors_center(&token->space, &token->d_argument, &token->score, d_score, unit2 * (squares + partial));
    } else {
        set_slope(token, &token->work);
        for (int64_t i = 0; i < n; i++) token->d_argument.value[i] = token->work.value[i] * d_score->value[i];
        assay_errors_combine(&token->space, &token->d_argument, d_score, token->work.value, &token->work,
                             d_score->value);
    }
    for (int64_t i = 0; i < n; i++) {
        token->rounding[i] = (2 * unit2 + (root ? assay_square(token->precision->elementary) : 0)) *
                             assay_square(token->d_argument.value[i]);
    }
}

static void add(routing_token *token, assay_uncertain *sum, const assay_uncertain *x)
{
    for (int64_t i = 0; i < token->n; i++) sum->value[i] += x->value[i];
    assay_errors_combine(&token->space, sum, sum, token->ones, x, token->ones);
}

void routing_token_backward(routing_token *token)
{
    const bool weights = token->run->d_weights != NULL, inside = token->rule.bias_inside;
    const bool balance = token->rule.balance && token->run->d_lb_loss != 0;
    assay_uncertain *none = &token->work;
    if (weights) {
        set_d_normalized(token);
        set_d_value(token);
    } else {
        memset(token->d_value.value, 0, (size_t)token->n * sizeof(double));
        token->d_value.rows = 0;
    }
    if (balance) set_balance(token);
    memset(none->value, 0, (size_t)token->n * sizeof(double));
    none->rows = 0;
    /* A bias that is added to the scores takes the gradient of what selects, and of what is weighed if that is it. */
    copy(token, &token->d_bias, token->rule.weighs_scores ? none : &token->d_value);
    if (balance && !inside) {
        if (!token->rule.balance_pre_bias) add(token, &token->d_bias, &token->balance);
        add(token, &token->d_value, &token->balance);
    }
    through_score(token, &token->d_value);
    if (!inside) return;
    if (balance) add(token, &token->d_argument, &token->balance);
    copy(token, &token->d_bias, &token->d_argument);
}
