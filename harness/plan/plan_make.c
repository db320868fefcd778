#include "harness/plan/plan_make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/profile_yaml.h"
#include "compare/statistics.h"
#include "harness/plan/left_out.h"
#include "harness/plan/sections.h"
#include "oracle/base/memory.h"

/* Without gradients nothing goes the way back, where recipes quantise. */
static bool is_possible(const assay_case *c, const assay_tensor_spec *spec)
{
    const bool none = c->gradients.count > 0 && strcmp(c->gradients.items[0], "none") == 0;
    const char *back = strstr(spec->path, "_gradient");
    return !none || spec->role != ASSAY_ROLE_CHECKPOINT || back == NULL || strcmp(back, "_gradient") != 0;
}

/* Whether the golden of this case holds the tensor. */
static bool is_held(const assay_case *c, const assay_tensor_entry *entry)
{
    const assay_tensor_spec *spec = &entry->spec;
    if (entry->always_stored) return true;
    if (spec->role == ASSAY_ROLE_GRADIENT) return assay_text_list_matches(&c->gradients, "gradients/", spec->path);
    if (spec->role != ASSAY_ROLE_CHECKPOINT) return true;
    return is_possible(c, spec) && assay_text_list_matches(&c->checkpoints, "checkpoints/", spec->path);
}

static bool has_profile(const assay_case *c, const char *name)
{
    bool found = false;
    for (int i = 0; i < c->profiles.count; i++) found |= strcmp(c->profiles.items[i], name) == 0;
    return found;
}

/* Of the golden's profiles and `own` those that the case names. */
static assay_status collect_own(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *golden,
                                const assay_profile *own)
{
    OWNED assay_profile *stored = NULL;
    int count = 0;
    if (golden != NULL) MUST(assay_profiles_of_golden(ctx, golden, &stored, &count));
    MUST(assay_alloc_list(ctx, "the profiles", count + 1, sizeof *plan->own, &plan->own));
    for (int i = 0; i < count; i++) {
        if (own != NULL && strcmp(own->precision.name, stored[i].precision.name) == 0) continue;
        if (has_profile(plan->c, stored[i].precision.name)) plan->own[plan->own_count++] = stored[i];
    }
    if (own != NULL && assay_profile_by_name(own->precision.name) == NULL &&
        has_profile(plan->c, own->precision.name)) {
        plan->own[plan->own_count++] = *own;
    }
    return ASSAY_OK;
}

assay_status assay_case_add_profile(assay_context *ctx, assay_case *c, const char *name)
{
    char assignment[1024] = "profiles=[";
    size_t length = strlen(assignment);
    if (has_profile(c, name)) return ASSAY_OK;
    for (int i = 0; i < c->profiles.count; i++) {
        if (strcmp(c->profiles.items[i], "none") == 0) continue;
        length += (size_t)snprintf(assignment + length, sizeof assignment - length, "%.32s, ", c->profiles.items[i]);
        if (length > sizeof assignment - 2 * ASSAY_PRECISION_NAME_SIZE) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: has too many profiles for another", c->name);
        }
    }
    snprintf(assignment + length, sizeof assignment - length, "%.32s]", name);
    return assay_case_set(ctx, c, assignment);
}

/* Whether a golden, unless there is none, has error scales of a profile. */
static bool has_scales(const assay_fixture_reader *golden, const char *profile)
{
    char folder[ASSAY_PATH_SIZE];
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile, "", folder);
    for (int i = 0; golden != NULL && i < assay_fixture_count(golden); i++)
        if (strncmp(assay_fixture_spec(golden, i)->path, folder, strlen(folder)) == 0) return true;
    return golden == NULL;
}

/* Where steps have two forms each has error scales of its own, but at a profile of somebody's own. */
static void add_precision(assay_plan *plan, const assay_profile *profile, bool forms,
                          const assay_fixture_reader *golden)
{
    assay_precision *precision = &plan->precisions[plan->precision_count++];
    const assay_profile *other = assay_profile_inaccurate(profile->precision.name);
    *precision = assay_case_precision(plan->c, profile);
    if (!forms || other == NULL || !has_scales(golden, other->precision.name)) return;
    precision[1] = assay_case_precision(plan->c, other);
    precision[0].form = ASSAY_FORM_ACCURATE;
    precision[1].form = ASSAY_FORM_INACCURATE;
    plan->precision_count++;
}

static assay_status collect_precisions(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *golden)
{
    const assay_text_list *profiles = &plan->c->profiles;
    const char *form = NULL;
    MUST(assay_alloc_list(ctx, "the profiles", 2 * profiles->count + 1, sizeof *plan->precisions, &plan->precisions));
    if (!assay_plan_is_exact(plan)) MUST(assay_operation_inaccurate(ctx, plan->operation, plan->c, &form));
    for (int i = 0; i < profiles->count; i++) {
        if (strcmp(profiles->items[i], "none") == 0) continue;
        const assay_profile *profile = assay_plan_profile(plan, profiles->items[i]);
        if (profile == NULL) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: profiles has \"%s\", expected %s", plan->c->name,
                              profiles->items[i], assay_profile_names());
        }
        add_precision(plan, profile, form != NULL, golden);
    }
    return ASSAY_OK;
}

/* A pattern of gradients or checkpoints that matches nothing is a slip of the pen. */
static assay_status check_patterns(assay_context *ctx, const assay_plan *plan, const assay_text_list *patterns,
                                   assay_tensor_role role)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s/", assay_role_folders[role]);
    for (int i = 0; i < patterns->count; i++) {
        assay_text_list one = {.items = &patterns->items[i], .count = 1};
        bool found =
            strcmp(patterns->items[i], "all") == 0 || (patterns->count == 1 && strcmp(patterns->items[i], "none") == 0);
        for (int j = 0; !found && j < plan->list.count; j++) {
            const assay_tensor_spec *spec = &plan->list.entries[j].spec;
            found =
                spec->role == role && is_possible(plan->c, spec) && assay_text_list_matches(&one, prefix, spec->path);
        }
        if (!found) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s has \"%s\", which matches no tensor of op %s",
                              plan->c->name, assay_role_folders[role], patterns->items[i], plan->c->op);
        }
    }
    return ASSAY_OK;
}

static assay_status add_at(assay_context *ctx, assay_plan *plan, assay_tensor_role role,
                           const assay_precision *precision, const char *of, assay_tensor_spec *spec)
{
    assay_path_at(role, precision->name, of, spec->path);
    spec->role = role;
    if (!assay_path_ends(spec->path, of)) return assay_fail(ctx, ASSAY_INTERNAL, "%s: path too long", of);
    return assay_plan_add_spec(ctx, plan, spec);
}

/* Error scales and null distributions of a tensor at one precision. */
static assay_status add_scales(assay_context *ctx, assay_plan *plan, const assay_precision *precision,
                               const assay_tensor_spec *of)
{
    assay_tensor_spec scale = *of;
    scale.type = ASSAY_FLOAT32;
    MUST(add_at(ctx, plan, ASSAY_ROLE_ERROR_SCALE, precision, of->path, &scale));
    if (assay_plan_is_exact(plan) || of->role == ASSAY_ROLE_ROUTING) return ASSAY_OK;
    assay_tensor_spec null = {
        .type = ASSAY_FLOAT32,
        .shape = assay_shape_of(2, (int64_t)assay_statistics_rows(&of->shape), (int64_t)ASSAY_NULL_COLUMNS),
        .labels = {"statistic", "column"}};
    return add_at(ctx, plan, ASSAY_ROLE_NULL, precision, of->path, &null);
}

/* What a golden holds for each tensor of the case, null distributions included. */
static assay_status add_specs(assay_context *ctx, assay_plan *plan)
{
    const int for_each = 1 + 2 * plan->precision_count;
    MUST(assay_alloc_list(ctx, "the list of datasets", plan->list.count * for_each + 1, sizeof *plan->specs,
                          &plan->specs));
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (!is_held(plan->c, &plan->list.entries[i])) continue;
        MUST(assay_plan_add_spec(ctx, plan, spec));
        for (int p = 0; assay_has_error_scale(spec) && p < plan->precision_count; p++) {
            MUST(add_scales(ctx, plan, &plan->precisions[p], spec));
        }
    }
    return ASSAY_OK;
}

static assay_status describe(assay_context *ctx, assay_plan *plan, const assay_case *c,
                             const assay_fixture_reader *golden, const assay_profile *own)
{
    assay_status status;
    TRY(assay_operation_prepare(ctx, c, &plan->operation, &plan->list));
    TRY(collect_own(ctx, plan, golden, own));
    TRY(collect_precisions(ctx, plan, golden));
    if (golden != NULL) TRY(assay_plan_adopt_left_out(ctx, plan, golden));
    if (golden == NULL && own != NULL) snprintf(plan->asked, sizeof plan->asked, "%s", own->precision.name);
    TRY(check_patterns(ctx, plan, &c->gradients, ASSAY_ROLE_GRADIENT));
    TRY(check_patterns(ctx, plan, &c->checkpoints, ASSAY_ROLE_CHECKPOINT));
    TRY(add_specs(ctx, plan));
    plan->memory = assay_operation_memory(plan->operation, c) + assay_ensemble_memory(plan);
cleanup:
    if (status != ASSAY_OK) assay_plan_free(plan);
    return status;
}

assay_status assay_plan_describe(assay_context *ctx, assay_plan *plan, const assay_case *c,
                                 const assay_fixture_reader *golden, const assay_profile *own)
{
    *plan = (assay_plan){.c = c};
    return describe(ctx, plan, c, golden, own);
}

assay_status assay_plan_describe_stages(assay_context *ctx, assay_plan *plan, const assay_case *c,
                                        const assay_fixture_reader *golden, const assay_profile *own)
{
    *plan = (assay_plan){.c = c, .staged = true};
    return describe(ctx, plan, c, golden, own);
}

assay_status assay_plan_require_memory(assay_context *ctx, const assay_plan *plan)
{
    return assay_require_memory(ctx, plan->c->name, plan->memory);
}

assay_status assay_plan_make(assay_context *ctx, assay_plan *plan, const assay_case *c)
{
    return assay_plan_make_with(ctx, plan, c, NULL, NULL);
}

assay_status assay_plan_make_with(assay_context *ctx, assay_plan *plan, const assay_case *c,
                                  const assay_fixture_reader *golden, const assay_profile *own)
{
    assay_status status;
    TRY(assay_plan_describe(ctx, plan, c, golden, own));
    TRY(assay_plan_require_memory(ctx, plan));
cleanup:
    if (status != ASSAY_OK) assay_plan_free(plan);
    return status;
}
