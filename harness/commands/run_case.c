#include "harness/commands/run_case.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "compare/profile_yaml.h"
#include "harness/backends/backend_files.h"
#include "harness/fixes/fixes.h"
#include "harness/judge/judge.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/inputs.h"

/* What a case is judged by, before it is. */
typedef struct case_plan {
    assay_profile profile;
    assay_plan plan;
    assay_fixture_reader *stored; /* of the stored golden, or NULL */
} case_plan;

static void case_plan_free(case_plan *p)
{
    assay_plan_free(&p->plan);
    assay_fixture_close(p->stored);
    *p = (case_plan){0};
}

static const char *folder_of(const assay_options *options, const assay_case_run *r)
{
    return options->keep != NULL ? options->keep : r->temporary.path;
}

/* Without --keep each case has a folder of its own: no case finds what another left. */
static assay_status name_files(assay_context *ctx, const assay_options *options, assay_case_run *r)
{
    const char *name = r->c->name;
    assay_status status = ASSAY_OK;
    if (options->keep == NULL) status = assay_backend_folder_make(ctx, NULL, &r->temporary);
    if (status != ASSAY_OK) return status;
    const struct {
        const char *what;
        char *path;
    } files[] = {{"golden", r->golden}, {"request", r->request}, {"candidate", r->candidate}};
    for (int i = 0; i < 3; i++) {
        char what[32];
        snprintf(what, sizeof what, "%s.%s", files[i].what, options->container);
        assay_backend_file(files[i].path, sizeof r->golden, folder_of(options, r), name, what);
    }
    assay_backend_file(r->log, sizeof r->log, folder_of(options, r), name, "log");
    return ASSAY_OK;
}

static assay_status check_scales(assay_context *ctx, const char *path, const assay_fixture_reader *golden,
                                 const assay_profile *profile)
{
    for (int i = 0; i < assay_fixture_count(golden); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden, i);
        char scale[ASSAY_PATH_SIZE];
        if (!assay_role_is_required(spec->role) || !assay_has_error_scale(spec)) continue;
        assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile->precision.name, spec->path, scale);
        if (assay_fixture_find(golden, scale) != NULL) continue;
        const char *why = assay_profile_left_out(golden, profile->precision.name);
        if (why != NULL)
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%.300s: the golden has no profile %s: %s", path,
                              profile->precision.name, why);
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%.300s: the golden has no error scales of %s for the profile %s: assay calibrate adds them",
                          path, spec->path, profile->precision.name);
    }
    return ASSAY_OK;
}

/* No case names a user's own profile: that is added here. */
static assay_status plan_case(assay_context *ctx, const assay_options *options, assay_case *c, const char *stored,
                              case_plan *p)
{
    assay_status status;
    *p = (case_plan){0};
    if (options->staged) TRY(assay_stages_check(ctx, c));
    if (options->staged) TRY(assay_case_set(ctx, c, "checkpoints=all"));
    if (stored != NULL && options->weights != NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is a golden, which has its weights: --weights %s has no use",
                          stored, options->weights);
    }
    if (stored != NULL) TRY(assay_fixture_open(ctx, stored, &p->stored));
    TRY(assay_command_profile(ctx, options, p->stored, assay_dtype_name(c->dtype), &p->profile));
    if (stored != NULL) {
        TRY(check_scales(ctx, stored, p->stored, &p->profile));
        TRY(assay_plan_describe(ctx, &p->plan, c, p->stored, &p->profile));
        goto cleanup;
    }
    TRY(assay_case_add_profile(ctx, c, p->profile.precision.name));
    TRY(assay_plan_make_with(ctx, &p->plan, c, NULL, &p->profile));
    p->plan.weights = options->weights;
cleanup:
    if (status != ASSAY_OK) case_plan_free(p);
    return status;
}

/* The files that --keep keeps must not take the place of a golden. */
static assay_status check_place(assay_context *ctx, const assay_options *options, const assay_case *c,
                                const char *stored)
{
    static const char *const kinds[] = {"request.", "candidate.", "log"};
    if (stored == NULL || options->keep == NULL) return ASSAY_OK;
    for (int i = 0; i < 3; i++) {
        char path[2304], kind[32];
        snprintf(kind, sizeof kind, "%s%s", kinds[i], i < 2 ? options->container : "");
        assay_backend_file(path, sizeof path, options->keep, c->name, kind);
        if (!assay_is_same_file(stored, path)) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s would be written over by --keep %s", stored, options->keep);
    }
    return ASSAY_OK;
}

assay_status assay_run_check(assay_context *ctx, const assay_options *options, const assay_chosen *chosen)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < chosen->count; i++) {
        case_plan p;
        MUST(check_place(ctx, options, &chosen->cases[i], chosen->goldens[i]));
        MUST(plan_case(ctx, options, &chosen->cases[i], chosen->goldens[i], &p));
        if (p.stored == NULL) status = assay_inputs_check(ctx, &p.plan, NULL);
        case_plan_free(&p);
        MUST(status);
    }
    return status;
}

static assay_status write_request(assay_context *ctx, const assay_options *options, const case_plan *p,
                                  const char *path)
{
    /* for the request alone: a golden of recipes is an ordinary one to a backend that does not ask for them */
    assay_plan plan = p->plan;
    plan.recipe = options->recipe;
    if (p->stored == NULL) return assay_request_write(ctx, &plan, path, NULL, options->quiet);
    const assay_source source = assay_golden_inputs(p->stored);
    return assay_request_write_from(ctx, &plan, path, &source, options->quiet);
}

/* The backend is shown other numbers at the request's place, and what it makes of them is nobody's: in one trial the same with the
 * other sign, which some are remembered by, in the next those of another seed. */
static assay_status show_others(assay_context *ctx, const assay_options *options, const case_plan *p,
                                const assay_case_run *r, const assay_backend_call *call)
{
    OWNED_BY(assay_backend_first_free) assay_backend_first first = {0};
    assay_plan others = p->plan;
    assay_case c = *p->plan.c;
    c.seed ^= (uint64_t)r->trials % 2;
    others.c = &c;
    others.negated = r->trials % 2 == 0;
    MUST(assay_request_write(ctx, &others, r->request, NULL, options->quiet));
    MUST(assay_backend_execute_first(ctx, call, &first));
    return write_request(ctx, options, p, r->request);
}

/* Both runs come after others under the same names; the request must be as it was. */
static assay_status execute_hostile(assay_context *ctx, const assay_options *options, const case_plan *p,
                                    assay_backend_call *call, assay_case_run *r)
{
    OWNED_BY(assay_backend_first_free) assay_backend_first first = {0};
    struct stat before, after;
    call->hostile = true;
    MUST(show_others(ctx, options, p, r, call));
    MUST(assay_backend_execute_first(ctx, call, &first));
    if (first.end.outcome == ASSAY_OUTCOME_DONE) MUST(show_others(ctx, options, p, r, call));
    call->first = &first;
    const bool there = stat(r->request, &before) == 0;
    MUST(assay_backend_execute(ctx, call, &r->end));
    if (there && stat(r->request, &after) == 0 && before.st_ino == after.st_ino &&
        memcmp(&before.st_ctim, &after.st_ctim, sizeof before.st_ctim) == 0)
        return ASSAY_OK;
    r->end.outcome = ASSAY_OUTCOME_FAILED;
    snprintf(r->end.message, sizeof r->end.message, "the backend changed its request");
    return ASSAY_OK;
}

static assay_status compare_files(assay_context *ctx, const assay_options *options, const assay_profile *profile,
                                  assay_case_run *r)
{
    OWNED_BY(assay_golden_close) assay_golden golden = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    const assay_judging how = {.profile = profile,
                               .false_alarm = options->false_alarm,
                               .quiet = options->quiet,
                               .staged = options->staged,
                               .pictures =
                                   options->html_file != NULL ? ASSAY_PICTURES_OF_NOT_PASSED : ASSAY_PICTURES_OF_NONE};
    const char *path = r->stored != NULL ? r->stored : r->golden;
    MUST(assay_golden_open(ctx, path, &golden));
    MUST(assay_fixture_open(ctx, r->candidate, &candidate));
    MUST(assay_judge(ctx, &golden, candidate, &how, &r->report, NULL));
    if (r->stored != NULL || options->keep != NULL) { /* files that are still there */
        snprintf(r->report.golden_path, sizeof r->report.golden_path, "%.500s", path);
    }
    if (options->keep != NULL) {
        snprintf(r->report.candidate_path, sizeof r->report.candidate_path, "%.500s", r->candidate);
    }
    return ASSAY_OK;
}

/* The golden is made when the backend is done. */
static assay_status judge(assay_context *ctx, const assay_options *options, const case_plan *p, assay_case_run *r)
{
    if (r->stored == NULL) MUST(assay_golden_write(ctx, &p->plan, r->golden, NULL, options->quiet));
    const assay_status status = compare_files(ctx, options, &p->profile, r);
    if (status != ASSAY_BAD_INPUT) return status;
    /* of the two files the candidate is the one that others wrote */
    r->end.outcome = ASSAY_OUTCOME_FAILED;
    r->end.is_unfit = true;
    snprintf(r->end.message, sizeof r->end.message, "%.590s", ctx->message);
    return ASSAY_OK;
}

static assay_backend_call call_of(const assay_options *options, const assay_case_run *r)
{
    return (assay_backend_call){.spec = options->backend,
                                .server = r->server,
                                .first = r->first,
                                .request = r->request,
                                .candidate = r->candidate,
                                .golden = r->stored == NULL ? r->golden : NULL,
                                .log = options->keep != NULL ? r->log : NULL,
                                .folder = folder_of(options, r),
                                .limits = {options->timeout, options->memory}};
}

assay_status assay_run_case_first(assay_context *ctx, const assay_options *options, assay_case_run *r,
                                  assay_backend_first *first)
{
    assay_status status;
    case_plan p = {0};
    TRY(name_files(ctx, options, r));
    TRY(plan_case(ctx, options, r->c, r->stored, &p));
    TRY(write_request(ctx, options, &p, r->request));
    const assay_backend_call call = call_of(options, r);
    status = assay_backend_execute_first(ctx, &call, first);
cleanup:
    case_plan_free(&p);
    assay_backend_folder_end(&r->temporary);
    return status;
}

assay_status assay_run_case(assay_context *ctx, const assay_options *options, assay_case_run *r)
{
    assay_status status;
    case_plan p = {0};
    TRY(name_files(ctx, options, r));
    TRY(plan_case(ctx, options, r->c, r->stored, &p));
    TRY(write_request(ctx, options, &p, r->request));
    assay_backend_call call = call_of(options, r);
    TRY(options->hostile ? execute_hostile(ctx, options, &p, &call, r) : assay_backend_execute(ctx, &call, &r->end));
    if (r->end.outcome == ASSAY_OUTCOME_DONE) TRY(judge(ctx, options, &p, r));
    snprintf(r->report.case_name, sizeof r->report.case_name, "%s", r->c->name);
    snprintf(r->report.op, sizeof r->report.op, "%s", r->c->op);
    if (r->end.outcome != ASSAY_OUTCOME_DONE || !r->end.repeats) {
        r->report.verdict = r->end.outcome == ASSAY_OUTCOME_UNSUPPORTED ? ASSAY_UNSUPPORTED : ASSAY_FAIL;
        snprintf(r->report.message, sizeof r->report.message, "%.250s", r->end.message);
    }
    r->report.seconds = r->end.seconds;
    r->report.one_process = r->server != NULL;
    if (r->report.verdict != ASSAY_PASS && r->report.verdict != ASSAY_UNSUPPORTED) {
        assay_command_reproduce(options, "run", r->stored != NULL ? r->stored : r->c->name, NULL, r->report.reproduce,
                                sizeof r->report.reproduce);
    }
cleanup:
    case_plan_free(&p);
    assay_backend_folder_end(&r->temporary);
    return status;
}
