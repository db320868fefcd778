#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/commands/command.h"
#include "harness/commands/show_steps.h"
#include "harness/equivalences/free_axes.h"
#include "harness/operations/op_support.h"
#include "harness/plan/plan_make.h"
#include "oracle/base/memory.h"

/* 1234567 as "1.2 MB". */
static void size_text(double bytes, char *text, size_t size)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    int unit = 0;
    while (bytes >= 1000.0 && unit < 6) {
        bytes /= 1000.0;
        unit++;
    }
    snprintf(text, size, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

/* With as many digits as it takes to make the number again. */
static void print_number(const char *name, double x)
{
    int precision = 4;
    char text[40];
    do snprintf(text, sizeof text, "%.*g", precision, x);
    while (strtod(text, NULL) != x && precision++ < 17);
    printf("%s%s", name, text);
}

/* All that docs/random-inputs.md needs of a tensor. */
static void print_fill(const assay_fill *fill)
{
    printf("%s", assay_distribution_name(fill->distribution));
    const assay_distribution d = fill->distribution;
    const bool scaled = d == ASSAY_NORMAL || d == ASSAY_BELL || d == ASSAY_CANCEL || d == ASSAY_INTEGERS ||
                        d == ASSAY_NEAR_TIES || d == ASSAY_BLOCK_POWERS || d == ASSAY_ROW_POWERS || d == ASSAY_VALUES;
    const bool bounded = d != ASSAY_NORMAL && d != ASSAY_BELL && d != ASSAY_CANCEL && d != ASSAY_VALUES &&
                         d != ASSAY_CONSTANT && d != ASSAY_RAMP && d != ASSAY_PERMUTATION;
    if (d == ASSAY_CONSTANT) print_number(" ", fill->mean);
    if (d == ASSAY_RAMP) {
        print_number(" from ", fill->mean);
        print_number(" by ", fill->scale);
    }
    if (bounded) {
        print_number(" ", fill->low);
        print_number("..", fill->high);
    }
    if (scaled) {
        print_number(" scale ", fill->scale);
        print_number(" mean ", fill->mean);
    }
    if (fill->passes_over) print_number(", a quarter ", fill->over);
}

static void print_tensors(const assay_plan *plan)
{
    printf("\n%-52s %-10s %-20s %s\n", "tensor", "type", "shape", "axes");
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        char shape[128];
        if (spec->role >= ASSAY_ROLE_ERROR_SCALE) continue;
        assay_shape_text(&spec->shape, shape, sizeof shape);
        printf("%-52s %-10s %-20s ", spec->path, assay_dtype_name(spec->type), shape);
        for (int axis = 0; axis < spec->shape.rank; axis++) printf("%s%s", axis > 0 ? "," : "", spec->labels[axis]);
        if (assay_role_is_input(spec->role)) {
            const assay_tensor_entry *entry = assay_tensor_list_find(&plan->list, spec->path);
            const assay_case_input *rule = assay_case_input_of(plan->c, spec->path);
            printf("  ");
            if (rule == NULL && entry->derived) {
                printf("follows from the other inputs");
            } else {
                print_fill(rule != NULL ? &rule->fill : &entry->fill);
            }
        }
        printf("\n");
    }
}

static void print_costs(const assay_plan *plan)
{
    char memory[32], disk[32], available[32];
    const int64_t bytes = assay_memory_available();
    size_text((double)plan->memory, memory, sizeof memory);
    size_text((double)plan->file_bytes, disk, sizeof disk);
    size_text((double)bytes, available, sizeof available);
    printf("\nproducts  %.4g flops forward, %.4g with backward\n",
           assay_operation_flops(plan->operation, plan->c, false),
           assay_operation_flops(plan->operation, plan->c, true));
    printf("memory    %s at most", memory);
    if (plan->memory > bytes) printf("; this machine has %s available", available);
    printf("\ndisk      %s (%d datasets)\n", disk, plan->spec_count);
    printf("profiles ");
    for (int i = 0; i < plan->precision_count; i++) printf(" %s", plan->precisions[i].name);
    printf(" (error_scale/PROFILE/...)\n");
    const char rows = plan->c->program == NULL ? '\0' : assay_program_row_axis(plan->c->program);
    if (rows != '\0') printf("rows      %c\n", rows);
}

/* What a layer's remat policy costs; other operations keep everything. */
static assay_status print_remat(assay_context *ctx, const assay_plan *plan)
{
    char kept[32], offloaded[32];
    assay_stack_config config;
    assay_remat_report report;
    if (assay_tensor_list_find(&plan->list, "remat/bytes_kept") == NULL) return ASSAY_OK;
    MUST(assay_stack_config_of(ctx, plan->c, &config));
    MUST(assay_stack_remat_model(ctx, &config, &report));
    size_text((double)report.bytes_kept, kept, sizeof kept);
    size_text((double)report.bytes_offloaded, offloaded, sizeof offloaded);
    printf("remat     %s kept, %s offloaded, %.4g operations computed again by backward\n", kept, offloaded,
           report.operations_recomputed);
    return ASSAY_OK;
}

static assay_status print_case(assay_context *ctx, const assay_options *options, const assay_plan *plan,
                               const char *golden, const assay_fixture_reader *reader)
{
    OWNED char *yaml = NULL;
    MUST((options->all ? assay_case_yaml : assay_case_brief_yaml)(ctx, plan->c, &yaml));
    printf("%s", yaml);
    if (reader != NULL) printf("\ngolden    %s, by %s\n", golden, assay_fixture_text(reader, "generator"));
    print_tensors(plan);
    print_costs(plan);
    return print_remat(ctx, plan);
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    OWNED_BY(assay_chosen_free) assay_chosen chosen = {0};
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *golden = NULL;
    *exit_code = ASSAY_EXIT_PASS;
    MUST(assay_choose(ctx, options, ASSAY_CHOOSE_GOLDENS, &chosen));
    if (options->svg_file != NULL && chosen.count > 1) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--svg is a picture of one case, found %d", chosen.count);
    }
    for (int i = 0; i < chosen.count; i++) {
        if (chosen.goldens[i] != NULL) MUST(assay_fixture_open(ctx, chosen.goldens[i], &golden));
        MUST(assay_plan_describe(ctx, &plan, &chosen.cases[i], golden, NULL));
        MUST(assay_show_steps(ctx, options, &plan));
        if (!options->graph) MUST(print_case(ctx, options, &plan, chosen.goldens[i], golden));
        if (i + 1 < chosen.count) printf("\n");
        assay_plan_free(&plan);
        assay_fixture_close(golden);
        golden = NULL;
    }
    return ASSAY_OK;
}

const assay_command assay_command_show = {
    .name = "show",
    .arguments = "CASE|GOLDEN...",
    .summary = "one case: configuration, tensors, cost",
    .details = "What it prints above the table is a case file: save it and change it to make your own. Keys of the "
               "model that\n"
               "have their defaults are left out. Of a golden it is the case that is stored in it.\n",
    .options = ASSAY_OPT_SET | ASSAY_OPT_GRAPH | ASSAY_OPT_ALL,
    .least = 1,
    .most = -1,
    .run = run,
};
