/* Lines of programs: read, written, planned, and run on small tensors. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "harness/plan/results.h"
#include "oracle/program/program.h"
#include "tests/fuzz/fuzz.h"

/* Of what a program may read those tensors are there that it names: one that nothing reads is refused. */
static const struct {
    const char *name, *text;
} GIVEN[] = {
    {"x", "{axes: [T, D]}"},
    {"y", "{axes: [T, D]}"},
    {"z", "{axes: [T, E]}"},
    {"w", "{axes: [D, E]}"},
    {"c", "{axes: [D, K]}"},
    {"q", "{axes: [B, S, N, D]}"},
    {"s", "{axes: [D]}"},
    {"i", "{axes: [T], integers: [0, 1]}"},
    {"p", "{axes: [B, S], integers: [0, 1]}"},
};

static bool has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        const bool begins = at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '_');
        if (begins && !isalnum((unsigned char)at[length]) && at[length] != '_') return true;
    }
    return false;
}

/* Lines of the input, those that begin with = as outputs; to be freed. */
static char *case_of(const char *text)
{
    char *yaml = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&yaml, &size);
    fuzz_require(to != NULL, "no memory");
    fprintf(to, "case: c\nop: program\nprofiles: none\nsizes: {");
    static const char sizes[] = "T2D4E3K2F2R2B1S2N2V5";
    for (const char *axis = sizes; *axis != '\0'; axis += 2)
        if (strchr(text, *axis) != NULL || strchr("TDEKBSN", *axis) != NULL) fprintf(to, "%c: %c, ", axis[0], axis[1]);
    fprintf(to, "}\ninputs:\n");
    for (size_t i = 0; i < sizeof GIVEN / sizeof *GIVEN; i++)
        if (has_word(text, GIVEN[i].name)) fprintf(to, "  %s: %s\n", GIVEN[i].name, GIVEN[i].text);
    for (int outputs = 0; outputs < 2; outputs++) {
        fprintf(to, "%s:\n", outputs ? "outputs" : "steps");
        for (const char *at = text; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n')
            if ((*at == '=') == outputs) fprintf(to, "  %.*s\n", (int)strcspn(at + outputs, "\n"), at + outputs);
    }
    fclose(to);
    return yaml;
}

static void run(const assay_case *c)
{
    assay_plan plan = {0};
    assay_inputs inputs = {0};
    assay_context ctx = fuzz_context();
    assay_status status = assay_plan_describe(&ctx, &plan, c, NULL, NULL);
    if (status == ASSAY_OK) status = assay_inputs_open(&ctx, &inputs, c, &plan.list, NULL);
    const assay_source source = assay_inputs_source(&inputs);
    if (status == ASSAY_OK) status = assay_operation_run(&ctx, plan.operation, c, &source, &assay_nowhere);
    fuzz_check(&ctx, status);
    assay_inputs_close(&inputs);
    assay_plan_free(&plan);
}

static void try_program(const uint8_t *data, size_t size)
{
    assay_case *cases = NULL;
    int count = 0;
    assay_context ctx = fuzz_context();
    char *text = fuzz_text(data, size), *yaml = case_of(text);
    const assay_status status = assay_cases_parse(&ctx, "case.yml", yaml, strlen(yaml), &cases, &count);
    fuzz_check(&ctx, status);
    if (status == ASSAY_OK && count == 1) run(&cases[0]);
    if (status == ASSAY_OK) assay_cases_free(cases, count);
    free(yaml);
    free(text);
}

/* Each step once, with operands that may fit, and some programs. */
static void seeds(fuzz_corpus *corpus)
{
    char text[256];
    for (int i = 0; i < assay_program_step_count; i++) {
        const assay_program_step *step = &assay_program_steps[i];
        const bool axes = step->parameters[0].name != NULL && step->parameters[0].kind == 'a';
        snprintf(text, sizeof text, "a: neg(x)\n=y: %s(%s%s%s)\n", step->name,
                 !axes                                           ? ""
                 : strcmp(step->parameters[0].name, "over") == 0 ? "over=\"D\", "
                                                                 : "\"TD,DE->TE\", ",
                 "a",
                 step->least > 2   ? ", y, i"
                 : step->least > 1 ? ", w"
                                   : "");
        fuzz_seed_text(corpus, text);
    }
    fuzz_seed_text(corpus, "n: rms_norm(x, s, epsilon=1e-6)\n=y: product(\"TD,DE->TE\", n, w)\n");
    fuzz_seed_text(corpus, "k: top_k(z, \"E->K\")\n=a: softmax(pick(z, k), over=\"K\")\n");
    fuzz_seed_text(corpus, "a: attention(q, q, q, p, window=2)\n=y: rope(a, p, theta=100)\n");
    fuzz_seed_text(corpus,
                   "a: concatenate(\"R,F->D\", slice(\"D->R\", x), slice(\"D->F\", x, first=2))\n=y: gather(a, i)\n");
    fuzz_seed_text(corpus, "a: causal_conv(x, c)\n=y: scatter_add(\"V\", a, i)\n=l: logsumexp(a, over=\"D\")\n");
}

const fuzz_target fuzz_program = {"program", try_program, seeds, true};
