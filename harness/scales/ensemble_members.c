/* The runs of an ensemble: the golden one, and the members' in the emulated arithmetic. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/scales/ensemble_internal.h"
#include "oracle/base/random.h"

assay_dtype assay_type_of_input(const assay_precision *precision, const assay_case *c, const char *path)
{
    if (strcmp(path, "inputs/logits") == 0) return ASSAY_FLOAT64;
    if (assay_path_ends(path, "gate/bias")) return precision->router_bias;
    if (assay_case_quantises(c, path)) return ASSAY_FLOAT64;
    return assay_case_dtype_of(c, path) != NULL ? ASSAY_FLOAT64 : precision->inputs;
}

static void round_given(const assay_context *ctx, const assay_case *c, const char *path, int64_t count, double *values)
{
    if (ctx->emulation == NULL) return;
    if (assay_type_of_input(&ctx->emulation->precision, c, path) == ASSAY_FLOAT64) return;
    assay_arithmetic_emulated.round(ctx, ASSAY_ROUND_STORAGE, count, values);
}

/* What a candidate stored between two stages may have been finer for the kernel that stored it and goes on in the same
 * launch, or coarser for one that reads it; or the kernel stored a multiple of what it goes on with. So a uniform error
 * with the variance of two roundings to nearest. */
static void unround(const assay_emulation *emulation, const char *path, int64_t first, int64_t count, double *values)
{
    const assay_dtype storage = emulation->storage;
    const double unit = assay_dtype_unit_roundoff(storage), least = 0.5 * assay_dtype_least_subnormal(storage);
    for (int64_t i = 0; i < count; i++) {
        if (values[i] == 0 || !isfinite(values[i])) continue;
        const double half = M_SQRT2 * fmax(unit * ldexp(1, ilogb(values[i])), least);
        const uint64_t bits = assay_random_bits(emulation->seed, path, (uint64_t)(first + i));
        values[i] += half * ((double)(bits >> 11) * 0x1p-52 - 1);
    }
}

static assay_status rounded_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                 double *out)
{
    const assay_rounded *rounded = self;
    const assay_source *in = rounded->wrapped.in;
    const assay_status status = in->read(ctx, in->self, path, first, count, out);
    const bool staged = assay_staged_of(path) != NULL;
    if (status == ASSAY_OK && !staged) round_given(ctx, rounded->c, path, count, out);
    if (status == ASSAY_OK && staged && ctx->emulation != NULL && !ctx->emulation->nearest &&
        !assay_path_is_hidden(path))
        unround(ctx->emulation, path, first, count, out);
    return status;
}

/* What stays as it is need not be copied for every member. */
static const double *rounded_lend(void *self, const char *path, int64_t first, int64_t count)
{
    const assay_rounded *rounded = self;
    const assay_source *in = rounded->wrapped.in;
    const bool stays = rounded->inputs != NULL && assay_staged_of(path) == NULL &&
                       assay_type_of_input(rounded->inputs, rounded->c, path) == ASSAY_FLOAT64;
    return stays && in->lend != NULL ? in->lend(in->self, path, first, count) : NULL;
}

assay_source assay_rounded_source(assay_rounded *rounded)
{
    return (assay_source){.self = rounded,
                          .has = assay_wrapped_has,
                          .read = rounded_read,
                          .read_i32 = assay_wrapped_read_i32,
                          .lend = rounded_lend};
}

/* Of a member's results only the errors are left. */
static bool member_wants(void *self, const char *path)
{
    return assay_ensemble_tensor(self, path) != NULL;
}

static assay_status member_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const assay_ensemble *e = self;
    assay_scaled *t = assay_ensemble_tensor(e, path);
    if (count > t->count - t->written)
        return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
    const double *golden = t->golden + t->written;
    float *errors = t->errors + e->slot * t->count + t->written;
    for (int64_t i = 0; i < count; i++) {
        const double error = isfinite(values[i]) ? values[i] - golden[i] : NAN;
        errors[i] = (float)(e->subtracts ? error - errors[i] : error);
    }
    t->written += count;
    return ASSAY_OK;
}

/* After each run, so that no errors are those of another one. */
static assay_status check_complete(assay_context *ctx, const assay_ensemble *e)
{
    for (int i = 0; i < e->golden.count; i++) {
        const assay_scaled *t = &e->tensors[i];
        if (t->written != t->count) return assay_fail(ctx, ASSAY_INTERNAL, "%s was not written in full", t->spec->path);
    }
    return ASSAY_OK;
}

assay_status assay_ensemble_run_golden(assay_context *ctx, assay_ensemble *e)
{
    const assay_plan *plan = e->plan;
    assay_tee memory = {assay_tensor_set_sink(&e->golden), assay_tensor_set_sink(&e->inputs)};
    assay_tee both = {assay_tee_sink(&memory), *e->out};
    const assay_sink golden = assay_tee_sink(&both);
    MUST(assay_operation_run(ctx, plan->operation, plan->c, e->in, &golden));
    return assay_tensor_set_require_complete(ctx, &e->golden);
}

assay_emulation assay_ensemble_member(const assay_plan *plan, const assay_precision *precision, const char *name,
                                      int number)
{
    char stream[64];
    const assay_profile *profile = assay_plan_profile(plan, precision->name);
    snprintf(stream, sizeof stream, "%s/%s", name, precision->name);
    assay_emulation member = {.precision = *precision,
                              .storage = profile->storage,
                              .multiply = assay_case_multiply(plan->c, profile),
                              .seed = assay_random_bits(plan->c->seed, stream, (uint64_t)number),
                              .member = number,
                              .second_form = number % 2 == 1,
                              .stores_parts = number / 4 % 2 == 1,
                              .staged = plan->staged};
    /* Half of them leave what is given as it is but in products, whose operands they round: what other uses of it have
     * in common with a product then does not cancel. */
    if (number / 2 % 2 == 1) member.precision.inputs = ASSAY_FLOAT64;
    return member;
}

static assay_status run(assay_context *ctx, assay_ensemble *e, const assay_member *member, const char *stream,
                        int number)
{
    const assay_plan *plan = e->plan;
    assay_overlay numbers = {assay_tensor_set_source(&e->inputs), *e->in};
    const assay_source given = assay_overlay_source(&numbers);
    assay_emulation emulation = assay_ensemble_member(plan, member->precision, stream, number);
    assay_rounded rounded = {{&given, NULL}, plan->c, &emulation.precision};
    assay_overlay deviation = {assay_tensor_set_source(&e->deviation), assay_rounded_source(&rounded)};
    const assay_source in = assay_overlay_source(&deviation);
    const assay_sink own = {.self = e, .wants = member_wants, .write = member_write};
    assay_context emulated = *ctx;
    emulation.nearest = member->nearest;
    if (member->keeps && member->precision->storage > ASSAY_FLOAT32_RMS) emulation.storage = ASSAY_FLOAT32;
    if (member->keeps) emulation.precision.inputs = ASSAY_FLOAT64; /* what is given is rounded in products alone */
    if (!member->exact) emulated.arithmetic = &assay_arithmetic_emulated;
    emulated.emulation = &emulation;
    e->slot = member->nearest ? 0 : member->number;
    for (int i = 0; i < e->golden.count; i++) e->tensors[i].written = 0;
    assay_status status = assay_operation_run(&emulated, plan->operation, plan->c, &in, &own);
    memcpy(ctx->message, emulated.message, sizeof ctx->message);
    return status == ASSAY_OK ? check_complete(ctx, e) : status;
}

/* What storing the results of plan->less adds to their errors. It is drawn: where both kernels' errors are small they mostly store the
 * same, but need not. */
static void store(const assay_ensemble *e, const assay_member *member)
{
    for (int k = 0; k < e->golden.count; k++) {
        const assay_scaled *t = &e->tensors[k];
        const assay_dtype type = assay_profile_type_of(e->plan->less, t->spec);
        const double unit = assay_dtype_unit_roundoff(type), tiny = 0.5 * assay_dtype_least_subnormal(type);
        float *errors = t->errors + e->slot * t->count;
        for (int64_t i = 0; i < t->count && type != ASSAY_FLOAT64; i++) {
            const uint64_t bits =
                assay_random_bits(e->plan->c->seed + (uint64_t)member->number, t->spec->path, (uint64_t)i);
            const double uniform = (double)(bits >> 11) * 0x1p-52 - 1;
            if (errors[i] != 0) errors[i] += (float)(uniform * (unit * fabs(t->golden[i]) + tiny));
        }
    }
}

assay_status assay_ensemble_run(assay_context *ctx, assay_ensemble *e, const assay_member *member)
{
    assay_precision precision;
    assay_member less = *member;
    e->subtracts = false;
    if (e->plan->less == NULL) return run(ctx, e, member, "ensemble", member->number);
    precision = assay_case_precision(e->plan->c, e->plan->less);
    precision.form = member->precision->form;
    less.precision = strcmp(precision.name, member->precision->name) == 0 ? member->precision : &precision;
    /* to nearest both would round alike; but one may store what the other keeps */
    if (member->nearest)
        return run(ctx, e, less.precision->storage > member->precision->storage ? &less : member, "", 0);
    /* forms of kernels go by the number: the two have all pairs of them */
    MUST(run(ctx, e, &less, "less", (5 * member->number + member->number / 8 + 1) % ASSAY_MOST_MEMBERS));
    store(e, member);
    e->subtracts = true;
    return run(ctx, e, member, "ensemble", member->number);
}

assay_status assay_ensemble_run_members(assay_context *ctx, assay_ensemble *e, const assay_member *kind, int count)
{
    assay_member member = *kind;
    for (member.number = 0; member.number < count; member.number++) MUST(assay_ensemble_run(ctx, e, &member));
    return ASSAY_OK;
}
