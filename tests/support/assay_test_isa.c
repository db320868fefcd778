/* Tests run as on a processor without the instruction sets above ASSAY_ISA (scalar, avx2; not set: with all of this
 * one's). The linker sends the program's calls here (--wrap); the __real_ names are the library's. */
#include <stdlib.h>

#include "tests/support/assay_test.h"

bool __real_assay_isa_supported(assay_isa isa);
assay_isa __real_assay_isa_best(void);
assay_context __real_assay_context_default(int threads);
bool __wrap_assay_isa_supported(assay_isa isa);
assay_isa __wrap_assay_isa_best(void);
assay_context __wrap_assay_context_default(int threads);

bool __wrap_assay_isa_supported(assay_isa isa)
{
    return isa <= __wrap_assay_isa_best();
}

assay_isa __wrap_assay_isa_best(void)
{
    const char *name = getenv("ASSAY_ISA");
    const assay_isa best = __real_assay_isa_best();
    assay_isa most = best;
    if (name != NULL && name[0] != '\0' && !assay_isa_from_name(name, &most))
        abort(); /* a slip of the pen tests nothing */
    return most < best ? most : best;
}

assay_context __wrap_assay_context_default(int threads)
{
    assay_context ctx = __real_assay_context_default(threads);
    ctx.isa = __wrap_assay_isa_best();
    return ctx;
}

bool test_next_context(int *form, assay_context *ctx)
{
    static const int threads[] = {1, 2, 7};
    while (*form < 3 * (ASSAY_ISA_AVX512 + 1)) {
        ctx->isa = (assay_isa)(*form / 3);
        ctx->threads = threads[*form % 3];
        *form += 1;
        if (assay_isa_supported(ctx->isa)) return true;
    }
    return false;
}
