#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/json.h"
#include "compare/printable.h"
#include "harness/backends/backend.h"
#include "harness/backends/backend_files.h"
#include "harness/between/between.h"
#include "harness/commands/given_golden.h"
#include "harness/golden/golden.h"
#include "harness/plan/golden_read.h"

typedef struct between_run {
    const assay_options *options;
    assay_given_golden *given;
    assay_backend_folder folder; /* of backends */
    assay_profile profiles[2];
    assay_between_side sides[2];
} between_run;

/* ---- the choice that a backend is given ---- */

/* The first one's choices as inputs, and the case that has them. */
static assay_status take_choice(assay_context *ctx, const between_run *r, assay_case *c, assay_tensor_set *choice)
{
    assay_fixture_reader *from = r->sides[0].candidate;
    const assay_source source = assay_fixture_source(from);
    for (int i = 0; i < assay_fixture_count(r->given->golden.reader); i++) {
        assay_tensor_spec spec = *assay_fixture_spec(r->given->golden.reader, i);
        char input[ASSAY_PATH_SIZE], set[ASSAY_PATH_SIZE + 64];
        assay_tensor *added;
        const char *path = spec.path;
        if (!assay_path_is_choice(path) || !assay_path_ends(path, "selected_experts")) continue;
        const assay_tensor_spec *found = assay_fixture_find(from, path);
        if (found == NULL || found->type != ASSAY_INT32 || !assay_shape_equal(&found->shape, &spec.shape))
            return assay_fail(ctx, ASSAY_BAD_INPUT, "--replay A: A gives no %s of its shape", path);
        snprintf(input, ASSAY_PATH_SIZE, "inputs/%s", strchr(path, '/') + 1);
        snprintf(set, sizeof set, "inputs.%s={distribution: experts, high: 1}", strchr(input, '/') + 1);
        MUST(assay_case_set(ctx, c, set));
        assay_tensor_call(&spec, input);
        MUST(assay_tensor_set_add(ctx, choice, &spec, &added));
        MUST(source.read_i32(ctx, source.self, assay_fixture_spec(r->given->golden.reader, i)->path, 0, added->count,
                             added->indices));
        added->written = added->count;
    }
    if (choice->count > 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "--replay: %s chooses no experts", c->name);
}

static assay_status write_request(assay_context *ctx, const between_run *r, bool replays, const char *path)
{
    OWNED_BY(assay_golden_close) assay_golden replayed = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set choice = {0};
    const assay_golden *golden = &r->given->golden;
    const assay_source inputs = assay_golden_inputs(golden->reader);
    if (!replays) return assay_request_write_from(ctx, &golden->plan, path, &inputs, true);
    assay_status status = assay_golden_read(ctx, golden->reader, "case_yaml", &replayed);
    replayed.reader = NULL; /* which stays the golden's */
    if (status == ASSAY_OK) status = take_choice(ctx, r, replayed.c, &choice);
    if (status == ASSAY_OK) status = assay_case_set(ctx, replayed.c, "profiles=none");
    if (status == ASSAY_OK) status = assay_plan_make(ctx, &replayed.plan, replayed.c);
    MUST(status);
    assay_overlay both = {assay_tensor_set_source(&choice), inputs};
    const assay_source source = assay_overlay_source(&both);
    return assay_request_write_from(ctx, &replayed.plan, path, &source, true);
}

/* ---- the two ---- */

static assay_status run_backend(assay_context *ctx, between_run *r, int side, const char *spec)
{
    const assay_options *o = r->options;
    char request[2304], candidate[2304];
    const char *which = side == 0 ? "A" : "B";
    assay_backend_end end = {0};
    if (r->folder.path[0] == '\0') MUST(assay_backend_folder_make(ctx, NULL, &r->folder));
    assay_backend_file(request, sizeof request, r->folder.path, which, "request.h5");
    assay_backend_file(candidate, sizeof candidate, r->folder.path, which, "candidate.h5");
    MUST(write_request(ctx, r, side == 1 && o->replay != NULL, request));
    const assay_backend_call call = {.spec = spec,
                                     .request = request,
                                     .candidate = candidate,
                                     .folder = r->folder.path,
                                     .limits = {o->timeout, o->memory}};
    MUST(assay_backend_execute(ctx, &call, &end));
    if (end.outcome != ASSAY_OUTCOME_DONE) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s", which, end.message);
    if (!end.repeats) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s does not repeat: %s", which, end.message);
    return assay_fixture_open(ctx, candidate, &r->sides[side].candidate);
}

static assay_status open_side(assay_context *ctx, between_run *r, int side)
{
    const char *what = r->options->arguments[1 + side];
    return assay_fixture_is_file_name(what) ? assay_command_open_candidate(ctx, what, &r->sides[side].candidate)
                                            : run_backend(ctx, r, side, what);
}

/* Before anything is evaluated. */
static assay_status check_sides(assay_context *ctx, const assay_options *o)
{
    for (int side = 0; side < 2; side++) {
        const char *what = o->arguments[1 + side];
        if (!assay_fixture_is_file_name(what)) MUST(assay_backend_check(ctx, what));
    }
    if (o->replay == NULL) return ASSAY_OK;
    if (strcmp(o->replay, "A") != 0)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--replay is \"%s\", expected A: B is given its choice", o->replay);
    if (assay_fixture_is_file_name(o->arguments[2]))
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--replay A: B is a file, expected a backend, which can be run");
    return ASSAY_OK;
}

/* ---- what is said ---- */

static const char *word_of(const assay_tensor_result *t)
{
    return t->finding == ASSAY_FINDING_MISSING ? "not given" : t->verdict == ASSAY_FAIL ? "beyond" : "rounding";
}

static double rms_of(const assay_between *b, int side, const char *path)
{
    const assay_tensor_result *t = assay_result_of(&b->of[side], path);
    return t == NULL ? 0 : t->rms_ratio;
}

static void print_tensors(const assay_between *b, bool verbose)
{
    printf("  %-48s %-10s %-10s %-10s %s\n", "tensor: RMS over error scale of", "A", "B", "B - A", "");
    for (int i = 0; i < b->apart.count; i++) {
        const assay_tensor_result *t = &b->apart.tensors[i];
        const bool shown = t->finding != ASSAY_FINDING_MISSING && t->spec.type != ASSAY_INT32;
        if (!shown || (!verbose && !t->required && t->verdict != ASSAY_FAIL)) continue;
        printf("  %-48s %-10.3g %-10.3g %-10.3g %s\n", t->spec.path, rms_of(b, 0, t->spec.path),
               rms_of(b, 1, t->spec.path), t->rms_ratio, word_of(t));
    }
}

static void print_text(const between_run *r, const assay_between *b, const char *why)
{
    const assay_golden *golden = &r->given->golden;
    char message[ASSAY_PRINTABLE_SIZE];
    printf("%s  op %s, profiles %s and %s, false alarm %g\n", golden->c->name, golden->c->op,
           r->profiles[0].precision.name, r->profiles[1].precision.name, r->options->false_alarm);
    for (int side = 0; side < 2; side++)
        printf("  %c  %s  %s\n", 'A' + side, assay_verdict_name(b->of[side].verdict),
               assay_printable(b->of[side].message, message));
    print_tensors(b, r->options->verbose);
    if (b->tokens > 0) {
        printf("choices: %lld of %lld tokens have other experts", (long long)b->differ, (long long)b->tokens);
        printf(b->differ > 0 ? ", margins up to %.3g\n" : "\n", b->margin);
    }
    if (b->next.tokens > 0)
        printf("next token: KL %.3g on average, at most %.3g; %lld of %lld tokens choose another, %lld are near ties\n",
               b->next.mean, b->next.largest, (long long)b->next.other, (long long)b->next.tokens,
               (long long)b->next.near_ties);
    printf("%s  %s\n", assay_between_name(assay_between_verdict_of(b)), assay_printable(why, message));
}

static bool put_tensor(cJSON *list, const assay_between *b, const assay_tensor_result *t)
{
    cJSON *item = json_object(list, NULL);
    return json_text(item, "path", t->spec.path) && json_text(item, "verdict", word_of(t)) &&
           json_text(item, "message", t->message) && json_number(item, "a", rms_of(b, 0, t->spec.path)) &&
           json_number(item, "b", rms_of(b, 1, t->spec.path)) && json_number(item, "apart", t->rms_ratio);
}

static bool put_counts(cJSON *root, const assay_between *b)
{
    cJSON *choices = json_object(root, "choices");
    const bool ok = json_number(choices, "tokens", (double)b->tokens) &&
                    json_number(choices, "differ", (double)b->differ) && json_number(choices, "margin", b->margin);
    if (!ok || b->next.tokens == 0) return ok;
    cJSON *next = json_object(root, "next_token");
    return json_number(next, "tokens", (double)b->next.tokens) && json_number(next, "other", (double)b->next.other) &&
           json_number(next, "near_ties", (double)b->next.near_ties) && json_number(next, "kl_mean", b->next.mean) &&
           json_number(next, "kl_largest", b->next.largest);
}

static bool put_all(cJSON *root, const between_run *r, const assay_between *b, const char *why)
{
    const assay_golden *golden = &r->given->golden;
    bool ok = json_text(root, "case", golden->c->name) && json_text(root, "profile", r->profiles[0].precision.name) &&
              json_text(root, "other_profile", r->profiles[1].precision.name) &&
              json_number(root, "false_alarm", r->options->false_alarm) &&
              json_text(root, "verdict", assay_between_name(assay_between_verdict_of(b))) &&
              json_text(root, "message", why) && json_text(root, "a", assay_verdict_name(b->of[0].verdict)) &&
              json_text(root, "b", assay_verdict_name(b->of[1].verdict)) && put_counts(root, b);
    cJSON *tensors = ok ? json_list(root, "tensors") : NULL;
    ok = tensors != NULL;
    for (int i = 0; ok && i < b->apart.count; i++) ok = put_tensor(tensors, b, &b->apart.tensors[i]);
    return ok;
}

static assay_status conclude(assay_context *ctx, const between_run *r, const assay_between *b)
{
    cJSON *root = json_document("assay-between");
    assay_status status = ASSAY_OK;
    char why[ASSAY_VERDICT_SIZE];
    assay_between_message(b, why);
    if (!put_all(root, r, b, why)) status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report");
    if (status == ASSAY_OK && r->options->json_file != NULL)
        status = assay_command_write_json(ctx, r->options->json_file, root);
    cJSON_Delete(root);
    if (status == ASSAY_OK) print_text(r, b, why);
    return status;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status = ASSAY_OK;
    OWNED_BY(assay_chosen_free) assay_chosen chosen = {0};
    assay_given_golden given = {0};
    assay_between b = {0};
    between_run r = {.options = options, .given = &given};
    assay_options first = *options; /* a view */
    first.argument_count = 1;
    const assay_profile *other = NULL;
    TRY(check_sides(ctx, options));
    if (options->other_precision != NULL) {
        other = assay_profile_by_name(options->other_precision);
        if (other == NULL)
            TRY(assay_fail(ctx, ASSAY_BAD_INPUT, "--other-precision is \"%s\", expected %s", options->other_precision,
                           assay_profile_names()));
    }
    TRY(assay_choose(ctx, &first, ASSAY_CHOOSE_GOLDENS, &chosen));
    if (chosen.count != 1)
        TRY(assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %d cases, expected one", options->arguments[0], chosen.count));
    if (chosen.goldens[0] == NULL) TRY(assay_case_set(ctx, chosen.cases, "checkpoints=all"));
    TRY(assay_given_golden_open(ctx, options, chosen.cases, chosen.goldens[0],
                                other == NULL ? NULL : other->precision.name, &given));
    r.profiles[0] = given.profile;
    r.profiles[1] = other == NULL ? given.profile : *other;
    for (int side = 0; side < 2; side++) {
        r.sides[side].profile = &r.profiles[side];
        TRY(open_side(ctx, &r, side));
    }
    ctx->threads = given.threads;
    TRY(assay_between_compare(ctx, &given.golden, r.sides, options->false_alarm, options->quiet, &b));
    TRY(conclude(ctx, &r, &b));
    *exit_code = assay_between_verdict_of(&b) == ASSAY_BETWEEN_BEYOND ? ASSAY_EXIT_FAIL : ASSAY_EXIT_PASS;
cleanup:
    assay_between_free(&b);
    for (int side = 0; side < 2; side++) assay_fixture_close(r.sides[side].candidate);
    assay_given_golden_close(&given);
    assay_backend_folder_end(&r.folder);
    return status;
}

const assay_command assay_command_between = {
    .name = "between",
    .arguments = "CASE|GOLDEN A B",
    .summary = "two backends against each other: does rounding explain how far they lie apart",
    .details =
        "A and B are files of results, or backends: shared objects, or commands with {request} and {candidate}.\n"
        "Their errors may differ by what the errors of two correct kernels differ by (docs/further-checks.md).\n"
        "Status 1: by more, and the line names the first such tensor of the data flow. -v: checkpoints too.\n",
    .options = ASSAY_OPT_SET | ASSAY_OPT_PRECISION | ASSAY_OPT_JSON | ASSAY_OPT_TRUST | ASSAY_OPT_BETWEEN,
    .least = 3,
    .most = 3,
    .run = run,
};
