/* Status codes, the context that every library call takes, and the macros of control flow.
 *
 * A function that can fail returns assay_status and leaves one line in ctx->message saying what was wrong, where,
 * what was expected and what was found. No library below harness/ prints, exits or aborts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ASSAY_STATUS_TABLE(X)                                                                                          \
    X(ASSAY_OK, "ok")                                                                                                  \
    X(ASSAY_BAD_INPUT, "bad input")     /* the caller's data or configuration cannot be used */                        \
    X(ASSAY_NO_MEMORY, "out of memory") /* refused beforehand, or an allocation failed */                              \
    X(ASSAY_IO, "input/output error")   /* a file could not be read, written or renamed */                             \
    X(ASSAY_INTERNAL, "internal error") /* a library below us failed in a way that input cannot cause */

typedef enum assay_status {
#define X(code, text) code,
    ASSAY_STATUS_TABLE(X)
#undef X
} assay_status;

const char *assay_status_text(assay_status status);

struct assay_arithmetic;  /* oracle/arithmetic/arithmetic.h */
struct assay_emulation;   /* oracle/arithmetic/emulated.h */
struct assay_step_change; /* oracle/base/step_change.h */

/* Instruction sets that a kernel can be asked for. All give the same bits. */
typedef enum assay_isa { ASSAY_ISA_SCALAR, ASSAY_ISA_AVX2, ASSAY_ISA_AVX512 } assay_isa;

#define ASSAY_MESSAGE_SIZE 1024

typedef struct assay_context {
    const struct assay_arithmetic *arithmetic; /* who computes products */
    const struct assay_emulation *emulation;   /* what the emulated arithmetic emulates; else NULL */
    const struct assay_step_change *change;    /* what a mutant does in another way; else NULL */
    assay_isa isa;                             /* the instruction set that kernels use */
    int threads;                               /* at least 1 */
    bool trusts;                               /* goldens are taken without a look at their digests */
    char message[ASSAY_MESSAGE_SIZE];          /* set by the call that failed, else empty */
} assay_context;

/* Writes the message and returns `status`, so that `return assay_fail(...)` reads as one sentence. */
assay_status assay_fail(assay_context *ctx, assay_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Of what is given, and wrong. */
#define assay_refuse(ctx, ...) assay_fail(ctx, ASSAY_BAD_INPUT, __VA_ARGS__)

/* Evaluates a call; when it fails, jumps to the function's one cleanup label. Needs a local `status`. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != ASSAY_OK) goto cleanup;                                                                          \
    } while (0)

/* The same where there is nothing to clean up: returns the status of a call that fails. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        const assay_status must_status = (call);                                                                       \
        if (must_status != ASSAY_OK) return must_status;                                                               \
    } while (0)

/* Before a local that owns memory: it is released where its scope ends. `OWNED double *x = NULL;`, or a structure by the function
 * that releases it: `OWNED_BY(assay_plan_free) assay_plan plan = {0};`. Each has a value from the start. */
#define OWNED_BY(release) __attribute__((cleanup(release)))
#define OWNED OWNED_BY(assay_free_owned)
void assay_free_owned(void *pointer); /* what the pointer at this address points to */
