#include "oracle/arithmetic/arithmetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated_internal.h"

static const assay_arithmetic *const arithmetics[] = {&assay_arithmetic_reference, &assay_arithmetic_blas};
static const char *const isa_names[] = {"scalar", "avx2", "avx512"};

enum { ARITHMETIC_COUNT = sizeof arithmetics / sizeof *arithmetics, ISA_COUNT = sizeof isa_names / sizeof *isa_names };

const assay_arithmetic *assay_arithmetic_by_name(const char *name)
{
    for (int i = 0; i < ARITHMETIC_COUNT; i++)
        if (strcmp(arithmetics[i]->name, name) == 0) return arithmetics[i];
    return NULL;
}

assay_status assay_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    return ctx->arithmetic->matmul(ctx, args);
}

void assay_round(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values)
{
    if (ctx->arithmetic->round != NULL) ctx->arithmetic->round(ctx, rounding, count, values);
}

double assay_moved_by(const assay_context *ctx, double number)
{
    return assay_rounds_at_random(ctx) ? emulated_moved_by(ctx, number) : 0;
}

void assay_round_terms(const assay_context *ctx, int64_t terms, int64_t count, const double *squares, double *sums)
{
    if (ctx->arithmetic->round_terms != NULL) ctx->arithmetic->round_terms(ctx, terms, count, squares, sums);
}

bool assay_rounds_at_random(const assay_context *ctx)
{
    return ctx->emulation != NULL && !ctx->emulation->nearest;
}

bool assay_uses_second_form(const assay_context *ctx)
{
    return ctx->emulation != NULL && ctx->emulation->second_form;
}

bool assay_uses_second_form_at(const assay_context *ctx, int64_t row)
{
    return assay_rounds_at_random(ctx) && ctx->emulation->second_form == (row % 2 == 0);
}

bool assay_uses_inaccurate_form_at(const assay_context *ctx, int64_t row)
{
    const assay_accuracy form = assay_rounds_at_random(ctx) ? ctx->emulation->precision.form : ASSAY_FORM_ACCURATE;
    return form == ASSAY_FORM_INACCURATE || form == ASSAY_FORM_ROUNDED_ONCE ||
           (form == ASSAY_FORMS_IN_TURN && assay_uses_second_form_at(ctx, row));
}

bool assay_rounds_sums_once(const assay_context *ctx)
{
    return ctx->emulation != NULL && ctx->emulation->precision.form == ASSAY_FORM_ROUNDED_ONCE;
}

bool assay_uses_third_form_at(const assay_context *ctx, int64_t row)
{
    return assay_rounds_at_random(ctx) && ctx->emulation->stores_parts == (row / 2 % 2 == 0);
}

/* The members in another order at each row, so that what else they differ in by their number is apart from it: bit i of a
 * member's place is its own bit i and some of those above, which is one to one among the first 2^n members, whatever n. */
int64_t assay_turn_at(const assay_context *ctx, int64_t row, int64_t count)
{
    enum { BITS = 8 };
    if (!assay_rounds_at_random(ctx)) return 0;
    const uint64_t drawn = emulated_hash((uint64_t)row + 1), number = (uint64_t)ctx->emulation->member;
    uint64_t place = 0;
    for (int bit = 0; bit < BITS; bit++) {
        const uint64_t above = emulated_hash(drawn + (uint64_t)bit) << (bit + 1);
        place |= (uint64_t)(__builtin_popcountll(number & (above | UINT64_C(1) << bit)) & 1) << bit;
    }
    return (int64_t)((place + drawn) % (uint64_t)count);
}

bool assay_is_staged(const assay_context *ctx)
{
    return assay_rounds_at_random(ctx) && ctx->emulation->staged;
}

bool assay_stores_parts(const assay_context *ctx)
{
    return ctx->emulation != NULL && ctx->emulation->stores_parts;
}

void assay_round_sums(const assay_context *ctx, double roundings, int64_t count, double *sums)
{
    double rounded[256];
    const int64_t most = (int64_t)(sizeof rounded / sizeof *rounded);
    const double factor = sqrt(roundings);
    if (ctx->arithmetic->round == NULL) return;
    for (int64_t first = 0; first < count; first += most) {
        const int64_t length = count - first < most ? count - first : most;
        memcpy(rounded, sums + first, (size_t)length * sizeof *rounded);
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, length, rounded);
        for (int64_t i = 0; i < length; i++) {
            const double error = (rounded[i] - sums[first + i]) * factor;
            sums[first + i] += isfinite(error) ? error : 0; /* infinity stays */
        }
    }
}

bool assay_isa_supported(assay_isa isa)
{
    switch (isa) {
    case ASSAY_ISA_SCALAR:
        return true;
#ifdef __x86_64__
    case ASSAY_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case ASSAY_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && assay_isa_supported(ASSAY_ISA_AVX2);
#else
    case ASSAY_ISA_AVX2:
    case ASSAY_ISA_AVX512:
        return false;
#endif
    }
    return false;
}

assay_isa assay_isa_best(void)
{
    if (assay_isa_supported(ASSAY_ISA_AVX512)) return ASSAY_ISA_AVX512;
    if (assay_isa_supported(ASSAY_ISA_AVX2)) return ASSAY_ISA_AVX2;
    return ASSAY_ISA_SCALAR;
}

const char *assay_isa_name(assay_isa isa)
{
    return isa_names[isa];
}

bool assay_isa_from_name(const char *name, assay_isa *isa)
{
    for (int i = 0; i < ISA_COUNT; i++) {
        if (strcmp(isa_names[i], name) == 0) {
            *isa = (assay_isa)i;
            return true;
        }
    }
    return false;
}

assay_status assay_isa_from_environment(assay_context *ctx)
{
    const char *name = getenv("ASSAY_ISA");
    if (name == NULL || name[0] == '\0') return ASSAY_OK;
    if (!assay_isa_from_name(name, &ctx->isa))
        return assay_refuse(ctx, "ASSAY_ISA is \"%s\", expected scalar, avx2 or avx512", name);
    if (!assay_isa_supported(ctx->isa)) {
        return assay_refuse(ctx, "ASSAY_ISA is %s, which this processor does not have", name);
    }
    return ASSAY_OK;
}

assay_context assay_context_default(int threads)
{
    return (assay_context){
        .arithmetic = &assay_arithmetic_reference,
        .isa = assay_isa_best(),
        .threads = threads < 1 ? 1 : threads,
    };
}
