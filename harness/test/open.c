/* A case opened as a test. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare/profile_yaml.h"
#include "harness/test/golden_cache.h"
#include "harness/test/test_internal.h"
#include "harness/version/version.h"
#include "oracle/base/memory.h"

#define USUAL_FALSE_ALARM 1e-6

assay_status assay_cached_golden_make(assay_context *ctx, assay_cached_golden **held)
{
    *held = calloc(1, sizeof **held);
    if (*held == NULL || pthread_mutex_init(&(*held)->turn, NULL) != 0) {
        free(*held);
        *held = NULL;
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a golden");
    }
    (*held)->users = 1;
    return ASSAY_OK;
}

void assay_cached_golden_release(assay_cached_golden *held)
{
    if (held == NULL) return;
    pthread_mutex_lock(&held->turn);
    const bool is_last = --held->users == 0;
    pthread_mutex_unlock(&held->turn);
    if (!is_last) return;
    assay_golden_close(&held->golden);
    pthread_mutex_destroy(&held->turn);
    free(held);
}

const assay_case *assay_test_case(const assay_test *test)
{
    return test->cases != NULL ? test->cases : test->held->golden.c;
}

static assay_status check_options(assay_context *ctx, const assay_test_options *o)
{
    if (o->set_count < 0 || (o->set_count > 0 && o->sets == NULL)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "options: set_count is %" PRId32 " and sets %s", o->set_count,
                          o->sets == NULL ? "is NULL" : "is not");
    }
    if (o->threads < 0 || o->threads > ASSAY_MOST_THREADS) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "options: threads is %" PRId32 ", expected 0 to %d", o->threads,
                          ASSAY_MOST_THREADS);
    }
    if (!(o->false_alarm == 0.0 || (o->false_alarm >= 1e-300 && o->false_alarm <= 0.5))) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "options: false_alarm is %g, expected 0 or 1e-300 to 0.5",
                          o->false_alarm);
    }
    if (o->only_count < 0 || (o->only_count > 0 && o->only == NULL)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "options: only_count is %" PRId32 " and only %s", o->only_count,
                          o->only == NULL ? "is NULL" : "is not");
    }
    if (o->cache_bytes < 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "options: cache_bytes is %" PRId64 ", expected 0 or more",
                          o->cache_bytes);
    }
    return ASSAY_OK;
}

static assay_status find_case(assay_context *ctx, assay_test *t, const char *what)
{
    char *pattern = (char *)(uintptr_t)what; /* argv's type; nothing is changed */
    const assay_status status = strchr(what, '\n') != NULL
                                    ? assay_cases_parse(ctx, "case", what, strlen(what), &t->cases, &t->case_count)
                                    : assay_cases_find(ctx, 1, &pattern, &t->cases, &t->case_count);
    if (status != ASSAY_OK || t->case_count == 1) return status;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%.200s: %d cases, expected one",
                      strchr(what, '\n') != NULL ? "case" : what, t->case_count);
}

/* Only the profile that is judged at is evaluated, if any. The case that the user sees keeps its own. */
static assay_status narrow_profiles(assay_context *ctx, assay_test *t, bool none)
{
    const assay_status status = assay_case_set(ctx, t->cases, "profiles=none");
    return status == ASSAY_OK && !none ? assay_case_add_profile(ctx, t->cases, t->profile.precision.name) : status;
}

static assay_status copy_path(assay_context *ctx, const char *path, char **copy)
{
    *copy = path == NULL ? NULL : strdup(path);
    return path == NULL || *copy != NULL ? ASSAY_OK
                                         : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the path of a file");
}

static assay_status open_case(assay_context *ctx, assay_test *t, const char *what, const assay_test_options *o)
{
    MUST(find_case(ctx, t, what));
    for (int i = 0; i < o->set_count; i++) {
        if (o->sets[i] == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "options: sets[%d] is NULL", i);
        MUST(assay_case_set(ctx, t->cases, o->sets[i]));
    }
    MUST(assay_profile_named(ctx, "precision", o->precision, NULL, assay_dtype_name(t->cases->dtype), &t->profile));
    MUST(assay_case_yaml(ctx, t->cases, &t->yaml));
    MUST(narrow_profiles(ctx, t, o->unscaled != 0));
    MUST(assay_plan_make_with(ctx, &t->plan, t->cases, NULL, &t->profile));
    MUST(copy_path(ctx, o->inputs, &t->inputs_path));
    MUST(copy_path(ctx, o->weights, &t->weights_text));
    t->plan.weights = t->weights_text;
    return assay_inputs_open_plan(ctx, &t->inputs, &t->plan, t->inputs_path);
}

static assay_status open_golden(assay_context *ctx, assay_test *t, const char *path, const assay_test_options *o)
{
    if (o->set_count > 0 || o->inputs != NULL || o->weights != NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: nothing can be set in a golden, its results are there", path);
    }
    assay_golden *golden = &t->held->golden;
    MUST(copy_path(ctx, path, &t->path));
    MUST(assay_golden_open(ctx, path, golden));
    t->held->open = true;
    MUST(assay_profile_named(ctx, "precision", o->precision, golden->reader, assay_dtype_name(golden->c->dtype),
                             &t->profile));
    t->yaml = strdup(assay_fixture_text(golden->reader, "case_yaml"));
    if (t->yaml == NULL) MUST(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a golden"));
    return assay_plan_describe(ctx, &t->plan, golden->c, golden->reader, &t->profile);
}

static assay_status copy_only(assay_context *ctx, assay_test *t, const assay_test_options *o)
{
    MUST(assay_alloc_list(ctx, "the list of results", o->only_count + 1, sizeof *t->only, &t->only));
    for (; t->only_count < o->only_count; t->only_count++) {
        if (o->only[t->only_count] == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "options: a glob of only is NULL");
        t->only[t->only_count] = strdup(o->only[t->only_count]);
        if (t->only[t->only_count] == NULL)
            return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of results");
    }
    return ASSAY_OK;
}

/* Each glob alone makes some result required. */
static assay_status check_only(assay_context *ctx, const assay_test *t)
{
    for (int glob = 0; glob < t->only_count; glob++) {
        const assay_order order = {.only = (const char *const *)t->only + glob, .only_count = 1};
        bool found = false;
        for (int i = 0; !found && i < t->plan.spec_count; i++) found = assay_order_requires(order, &t->plan.specs[i]);
        if (found) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "only has %.160s, which matches no output and no gradient of the case",
                          t->only[glob]);
    }
    return ASSAY_OK;
}

/* The tensors of the plan that a kernel is given, and those that it may give. */
static assay_status list_tensors(assay_context *ctx, assay_test *t)
{
    const assay_plan *plan = &t->plan;
    const int most = plan->spec_count + 1;
    MUST(assay_alloc_list(ctx, "the list of tensors", most, sizeof *t->given_specs, &t->given_specs));
    MUST(assay_alloc_list(ctx, "the list of tensors", most, sizeof *t->given, &t->given));
    MUST(assay_alloc_list(ctx, "the list of tensors", most, sizeof *t->expected, &t->expected));
    MUST(assay_alloc_list(ctx, "the list of tensors", most, sizeof *t->results, &t->results));
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (assay_role_is_input(spec->role)) t->given_specs[t->given_count++] = spec;
        const assay_tensor_spec *asked = assay_plan_asked(plan, i);
        if (asked == NULL) continue;
        assay_backend_result *expected = &t->expected[t->expected_count++];
        *expected = assay_backend_result_of(asked);
        expected->required = assay_order_requires(assay_plan_order(plan), asked);
    }
    return ASSAY_OK;
}

static assay_status open_test(assay_context *ctx, assay_test *t, const char *what, const assay_test_options *o)
{
    MUST(check_options(ctx, o));
    MUST(assay_isa_from_environment(ctx));
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int usual = cores < 1 ? 1 : cores > ASSAY_MOST_THREADS ? ASSAY_MOST_THREADS : (int)cores;
    ctx->threads = o->threads > 0 ? o->threads : usual;
    t->false_alarm = o->false_alarm > 0.0 ? o->false_alarm : USUAL_FALSE_ALARM;
    t->unexplained = o->no_explanation != 0;
    t->staged = o->staged != 0;
    MUST(assay_cache_folder(ctx, o->cache, &t->cache));
    MUST(assay_cache_bytes(ctx, o->cache_bytes, &t->cache_bytes));
    MUST(copy_only(ctx, t, o));
    MUST(assay_cached_golden_make(ctx, &t->held));
    MUST(assay_fixture_is_file_name(what) ? open_golden(ctx, t, what, o) : open_case(ctx, t, what, o));
    t->plan.only = (const char *const *)t->only;
    t->plan.only_count = t->only_count;
    MUST(check_only(ctx, t));
    MUST(assay_backend_settings_make(ctx, assay_test_case(t), &t->settings));
    MUST(list_tensors(ctx, t));
    t->ctx = *ctx;
    t->ctx.threads = assay_plan_threads(ctx, &t->plan); /* on a small case they would only wait for each other */
    return ASSAY_OK;
}

int assay_test_open(const char *what, const assay_test_options *options, assay_test **test,
                    char message[ASSAY_TEST_MESSAGE])
{
    static const assay_test_options usual = {0};
    if (test == NULL) return assay_test_refuse_null("the place of the test", message);
    const assay_context own = assay_context_default(1);
    assay_test_call call;
    assay_status status;
    assay_test_begin(&call, &own, 1, NULL);
    *test = calloc(1, sizeof **test);
    if (*test == NULL) {
        status = assay_fail(&call.ctx, ASSAY_NO_MEMORY, "no memory for a test");
    } else if (what == NULL) {
        status = assay_fail(&call.ctx, ASSAY_BAD_INPUT, "a case is missing: its name, its text or a file");
    } else {
        status = open_test(&call.ctx, *test, what, options != NULL ? options : &usual);
    }
    if (status != ASSAY_OK) {
        assay_test_close(*test);
        *test = NULL;
    }
    return assay_test_end(&call, status, message);
}

void assay_test_close(assay_test *t)
{
    if (t == NULL) return;
    for (int i = 0; i < t->given_count; i++) free((void *)(uintptr_t)t->given[i].data);
    for (int i = 0; i < t->expected_count; i++) free((void *)(uintptr_t)t->results[i].data);
    for (int i = 0; i < t->only_count; i++) free(t->only[i]);
    free(t->only);
    free(t->given_specs);
    free(t->given);
    free(t->results);
    free(t->expected);
    assay_backend_settings_free(&t->settings);
    assay_inputs_close(&t->inputs);
    assay_plan_free(&t->plan);
    assay_cases_free(t->cases, t->case_count);
    assay_cached_golden_release(t->held);
    free(t->yaml);
    free(t->path);
    free(t->inputs_path);
    free(t->weights_text);
    free(t->cache);
    free(t);
}

const char *assay_test_name(const assay_test *test)
{
    return test == NULL ? NULL : assay_test_case(test)->name;
}

const char *assay_test_op(const assay_test *test)
{
    return test == NULL ? NULL : assay_test_case(test)->op;
}

const char *assay_test_yaml(const assay_test *test)
{
    return test == NULL ? NULL : test->yaml;
}

const char *assay_test_precision(const assay_test *test)
{
    return test == NULL ? NULL : test->profile.precision.name;
}

int32_t assay_test_setting_count(const assay_test *test)
{
    return test == NULL ? 0 : test->settings.count;
}

const assay_backend_setting *assay_test_setting(const assay_test *test, int32_t index)
{
    return test != NULL && index >= 0 && index < test->settings.count ? &test->settings.items[index] : NULL;
}

const char *assay_test_version(void)
{
    assay_context ctx = assay_context_default(1);
    assay_isa_from_environment(&ctx); /* one that there is not is refused where a case is opened */
    return assay_version_text(ctx.isa);
}
