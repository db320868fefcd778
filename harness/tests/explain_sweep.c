/* The diagnosis tried on mutants: explain_sweep [-av] [-m MUTANT] [-p PROFILE] [-s KEY=VALUE] CASE...
 *
 * For each case and each mutant that its golden detects, the candidate of a backend that has this bug *and* computes in
 * low precision: the mutated case evaluated in the emulated arithmetic of the profile, as another draw than any that
 * made the error scales. The diagnosis must name the mutant, or say that it does not know; and it must not know what is
 * wrong in another way. Prints what it does not name; ends with 1 where it names others, with -a also where a mutant is
 * named on none of the cases. -p PROFILE and -s KEY=VALUE hold for the cases after them. A mutant that MOST cases have named, and
 * the comparer has seen, is not tried on more, unless ASSAY_NIGHTLY is set. */
#include <getopt.h>
#include <limits.h>

#include "harness/explain/explain.h"
#include "harness/mutants/mutants_tensors.h"
#include "harness/plan/written_codes.h"
#include "harness/tests/golden_trial.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/random.h"

enum { MOST = 3, MUTANTS = 512 };

typedef struct tally {
    int named, unknown, wrong, passed;
    int met[MUTANTS];   /* of each mutant: how many cases named it */
    bool seen[MUTANTS]; /* of each structure: whether the comparer has seen it by itself */
} tally;

/* What the comparer itself says of the first wrong tensor under these mutants, when it says anything (compare/
 * diagnosis.h): one of the words between bars. */
static const struct {
    const char *mutant, *words;
} structures[] = {
    {"zero_results", "zero everywhere|where it is zero"},
    {"zero_outputs", "zero everywhere|where it is zero"},
    {"zero_gradients", "zero everywhere|where it is zero"},
    {"negated_outputs", "negated"},
    {"negated_gradients", "negated"},
    {"doubled", "the golden times 2|the golden times 1.9"},
    {"halved", "the golden times 0.5|the golden times 0.49"},
    {"scaled_by_root", "the golden times"},
    {"scaled_1_2^-7", "the golden times 1.0|cut off|wrong only at"},
    {"rows_shifted", "shifted|order|wrong only at|belongs in|negated"},
    {"rows_reversed", "shifted|order|transposed|wrong only at|belongs in|negated"},
    {"transposed", "transposed|order|shifted|wrong only at|belongs in|negated"},
    {"columns_swapped", "shifted|order|transposed|wrong only at|belongs in|negated"},
    {"halves_swapped", "shifted|order|transposed|wrong only at|belongs in|negated"},
    {"experts_exchanged", "shifted|order|transposed|wrong only at|belongs in|negated"},
    {"last_row_zero", "where it is zero|zero everywhere|wrong only at"},
    {"last_columns_zero", "where it is zero|zero everywhere|wrong only at"},
    {"last_tile_zero", "where it is zero|zero everywhere|wrong only at"},
    {"last_head_zero", "where it is zero|zero everywhere|wrong only at"},
    {"last_batch_row_zero", "where it is zero|zero everywhere|wrong only at"},
    {"last_expert_zero", "where it is zero|zero everywhere|wrong only at"},
    {"truncated", "cut off|wrong only at"},
    {"lse_in_base_2", "the golden times 1.44"},
};
enum { STRUCTURES = sizeof structures / sizeof *structures };

typedef struct subject {
    test_folder *folder;
    trial t;
    assay_tensor_set noisy; /* the golden's results by a correct implementation in low precision */
    bool emulated;          /* low precision is the emulated arithmetic; else only what is stored is rounded */
    assay_trial trial;
    assay_emulation emulation;
} subject;

static void require(const subject *s, assay_status status)
{
    if (status == ASSAY_OK) return;
    fprintf(stderr, "explain_sweep: %s\n", s->t.ctx.message);
    exit(2);
}

static assay_context in_low_precision(const subject *s)
{
    assay_context ctx = s->t.ctx;
    if (!s->emulated) return ctx;
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &s->emulation;
    return ctx;
}

/* By what errors allow of the bytes of a cache, too. */
static void compare(subject *s, assay_fixture_reader *candidate, assay_report *report)
{
    OWNED_BY(assay_written_codes_free) assay_written_codes codes = {0};
    const assay_profile *profile = s->trial.profile;
    require(s, assay_written_codes_adopt(&s->t.ctx, &s->t.plan, profile, 1e-6, false, s->t.reader, candidate, &codes));
    require(s, assay_compare(&s->t.ctx, s->t.reader, candidate, profile, 1e-6, assay_plan_order(&s->t.plan), report));
    require(s, assay_written_codes_put_back(&s->t.ctx, candidate, &codes));
}

static assay_verdict verdict_on(subject *s, const assay_tensor_set *results)
{
    OWNED_BY(assay_report_free) assay_report report = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    require(s, assay_trial_reader(&s->t.ctx, results, "candidate", s->trial.profile, &candidate));
    compare(s, candidate, &report);
    return report.verdict;
}

/* The golden's case in low precision, with the golden's choice of experts: the arithmetic of no mutant. Where routing
 * alone is asked for, its error scales know nothing of what the emulated arithmetic stores between its parts; and of
 * products that are exact it knows nothing itself. */
static void make_noisy(subject *s)
{
    static const assay_mutant none = {.name = "none", .golden_choice = true};
    s->emulated = strcmp(s->t.c->op, "routing") != 0 && !assay_case_is_exact(s->t.c);
    for (;; s->emulated = false) {
        bool applies = false;
        assay_context ctx = in_low_precision(s);
        OWNED_BY(assay_tensor_set_free) assay_tensor_set rounded = {0};
        require(s, assay_tensor_set_copy(&s->t.ctx, &s->t.golden, &s->noisy));
        require(s, assay_mutant_evaluate(&ctx, &s->trial, &none, &s->noisy, &applies));
        require(s, assay_tensor_set_copy(&s->t.ctx, &s->noisy, &rounded));
        trial_round(&rounded, s->trial.profile->storage);
        const assay_verdict verdict = verdict_on(s, &rounded);
        if (verdict == ASSAY_PASS || !s->emulated) break;
        /* whole steps of a coarse grid, which rounding to nearest does not take, are at times beyond few members' scale
         */
        printf("control %s: %s\n", s->t.c->name, assay_verdict_name(verdict));
        assay_tensor_set_free(&s->noisy);
    }
}

static void start(subject *s, const char *name, const assay_profile *profile, const char *set)
{
    char settings[256];
    void *folder = NULL;
    *s = (subject){0};
    if (folder_setup(&folder) != 0) exit(2);
    s->folder = folder;
    snprintf(settings, sizeof settings, "profiles=[%s];%s", profile->precision.name, set != NULL ? set : "");
    trial_write(&s->t, s->folder, case_named(name, settings));
    s->trial = trial_at(&s->t, profile->precision.name);
    s->emulation = (assay_emulation){.precision = profile->precision,
                                     .storage = profile->storage,
                                     .multiply = assay_case_multiply(s->t.c, profile),
                                     .seed = 20240607};
    make_noisy(s);
}

/* Whether more cases of the mutant would show nothing new. */
static bool is_done(const tally *t, int mutant, int most)
{
    for (int i = 0; i < STRUCTURES; i++) {
        if (!t->seen[i] && strcmp(structures[i].mutant, assay_mutants[mutant].name) == 0) return false;
    }
    return t->met[mutant] >= most;
}

/* Mutants that no case named. */
static int say_missed(const tally *t)
{
    int missed = 0;
    for (int i = 0; i < assay_mutant_count; i++) {
        if (t->met[i] > 0) continue;
        printf("never named: %s\n", assay_mutants[i].name);
        missed++;
    }
    for (int i = 0; i < STRUCTURES; i++) {
        if (t->seen[i]) continue;
        printf("never seen by the comparer itself: %s\n", structures[i].mutant);
        missed++;
    }
    return missed;
}

static void end(subject *s)
{
    void *folder = s->folder;
    assay_tensor_set_free(&s->noisy);
    trial_close(&s->t);
    if (folder_teardown(&folder) != 0) exit(2);
}

/* The mutant's results in low precision. Where experts nearly tie, low precision may choose others: they are those of
 * the mutant in float64, as the error scales have it for the golden. */
static void make(subject *s, const assay_mutant *mutant, assay_tensor_set *results, bool *applies)
{
    assay_context ctx = in_low_precision(s);
    OWNED_BY(assay_tensor_set_free) assay_tensor_set exact = {0};
    assay_trial of = s->trial;
    assay_mutant held = *mutant;
    const bool evaluated = assay_mutant_is_evaluated(mutant) && !mutant->other_seed && !mutant->golden_choice &&
                           strcmp(mutant->name, "choice_dropped") != 0;
    /* what is stored by the emulated arithmetic lies on the grid already, and nothing would be left to cut off */
    const bool truncated = mutant->results.edit == assay_edit_truncate;
    if (!assay_mutant_is_evaluated(mutant) && !truncated) of.golden = &s->noisy;
    if (evaluated) {
        require(s, assay_mutant_make(&s->t.ctx, &s->trial, mutant, &exact, applies));
        if (!*applies) return;
        of.golden = &exact;
        held.golden_choice = true;
    }
    require(s, assay_mutant_make(&ctx, &of, &held, results, applies));
}

static bool has_one_of(const char *text, const char *words)
{
    char copy[128], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, "|", &rest); word != NULL; word = strtok_r(NULL, "|", &rest)) {
        if (strstr(text, word) != NULL) return true;
    }
    return false;
}

/* Whether the comparer's own diagnosis is wrong. */
static bool is_misread(const char *name, const char *diagnosis, tally *t)
{
    for (int i = 0; name != NULL && diagnosis[0] != '\0' && i < STRUCTURES; i++) {
        if (strcmp(name, structures[i].mutant) != 0) continue;
        if (!has_one_of(diagnosis, structures[i].words)) return true;
        t->seen[i] = true;
    }
    return false;
}

/* Mutants that move numbers by a few units of bfloat16, which in low precision is what roundings add up to. */
static bool is_as_small_as_rounding(const char *mutant)
{
    return strcmp(mutant, "scaled_1_2^-7") == 0 || strcmp(mutant, "scaled_1_2^-8") == 0 ||
           strcmp(mutant, "last_tile_off") == 0;
}

/* `name`: what the diagnosis is to say; NULL: that it does not know. */
static void judge(subject *s, const char *what, const char *name, assay_tensor_set *results, bool verbose, tally *t)
{
    OWNED_BY(assay_report_free) assay_report report = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    const assay_profile *profile = s->trial.profile;
    bool named = false;
    assay_golden golden = {.reader = s->t.reader, .c = s->t.c, .plan = s->t.plan};
    trial_round(results, s->trial.profile->storage);
    require(s, assay_trial_reader(&s->t.ctx, results, "candidate", profile, &candidate));
    compare(s, candidate, &report);
    require(s, assay_explain(&s->t.ctx, &golden, NULL, candidate, profile, true, &report));
    for (int i = 0; name != NULL && i < report.explained_count; i++) named |= strcmp(report.explained_by[i], name) == 0;
    const assay_mutant *mutant = name == NULL ? NULL : assay_mutant_by_name(name);
    if (mutant != NULL && mutant->degrade != NULL) named |= strstr(report.explanation, name) != NULL;
    const bool failed = report.verdict == ASSAY_FAIL;
    /* a remark on the size of errors is wrong where it leaves out the mutant that they are of; of others it is true */
    const bool remarks =
        name != NULL && !is_as_small_as_rounding(name) && strstr(report.explanation, "as large as") != NULL;
    const bool others = report.explained_count > 0 || remarks;
    const bool wrong = failed && ((!named && others) || is_misread(name, report.diagnosis, t));
    const bool unknown = failed && !named && !others;
    t->passed += !failed;
    t->named += named;
    if (named) t->met[mutant - assay_mutants]++;
    t->unknown += unknown;
    t->wrong += wrong;
    if (failed && (verbose || wrong || (unknown && name != NULL))) {
        printf("%s %s %s: %s%s%s\n",
               wrong   ? "WRONG  "
               : named ? "named  "
                       : "unknown",
               s->t.c->name, what, report.explanation, report.diagnosis[0] != '\0' ? " | " : "", report.diagnosis);
    }
}

static void try_mutant(subject *s, const assay_mutant *mutant, bool verbose, tally *t)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    bool applies = false;
    if (!assay_mutant_is_for(mutant, &s->t.plan)) return;
    make(s, mutant, &results, &applies);
    if (applies) judge(s, mutant->name, mutant->name, &results, verbose, t);
}

/* --- candidates that are wrong in a way that no mutant is --- */

static bool add_noise(subject *s, assay_tensor_set *results)
{
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        const assay_tensor *scale = assay_results_scales(&s->t.golden, s->trial.profile, tensor->spec.path);
        for (int64_t k = 0; scale != NULL && k < tensor->count; k++) {
            const double uniform =
                ldexp((double)(assay_random_bits(7, scale->spec.path, (uint64_t)k) >> 11), -53) - 0.5;
            const double unit = assay_dtype_unit_roundoff(s->trial.profile->storage);
            tensor->values[k] += 50 * sqrt(12.0) * uniform * hypot(scale->values[k], unit * tensor->values[k]);
        }
    }
    return true;
}

/* Outputs negated, gradients doubled: each a mutant. Without gradients the two are one. */
static bool mix_two(subject *s, assay_tensor_set *results)
{
    bool gradients = false;
    (void)s;
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        const double factor = tensor->spec.role == ASSAY_ROLE_OUTPUT     ? -1.0
                              : tensor->spec.role == ASSAY_ROLE_GRADIENT ? 2.0
                                                                         : 1.0;
        gradients |= tensor->spec.role == ASSAY_ROLE_GRADIENT;
        for (int64_t k = 0; tensor->values != NULL && k < tensor->count; k++) tensor->values[k] *= factor;
    }
    return gradients;
}

/* Weights, or where there are none the first input, of another model. */
static bool other_weights(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        if (tensor->spec.role != ASSAY_ROLE_WEIGHT || tensor->values == NULL || tensor->count < 8) continue;
        for (int64_t k = 0; k < tensor->count; k++) {
            const uint64_t bits = assay_random_bits(11, tensor->spec.path, (uint64_t)k);
            tensor->values[k] = ldexp(tensor->values[(int64_t)(bits % (uint64_t)tensor->count)], bits & 64 ? 0 : -1);
        }
        changed = true;
    }
    return changed;
}

static void try_unknown(subject *s, bool verbose, tally *t)
{
    static const assay_mutant other = {.name = "other_weights", .change_inputs = other_weights};
    static const struct {
        const char *name;
        bool (*change)(subject *s, assay_tensor_set *results);
    } changes[] = {{"noise of 50 deviations", add_noise}, {"two mutants at once", mix_two}};
    for (size_t i = 0; i <= sizeof changes / sizeof *changes; i++) {
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        bool applies = true;
        if (i == sizeof changes / sizeof *changes) {
            make(s, &other, &results, &applies);
        } else {
            require(s, assay_tensor_set_copy(&s->t.ctx, &s->noisy, &results));
            applies = changes[i].change(s, &results);
        }
        if (applies)
            judge(s, i == sizeof changes / sizeof *changes ? other.name : changes[i].name, NULL, &results, verbose, t);
    }
}

int main(int argc, char **argv)
{
    const char *profile = "bf16", *set = NULL, *only = NULL;
    bool verbose = false, all = false;
    tally t = {0};
    const int most = getenv("ASSAY_NIGHTLY") != NULL ? INT_MAX : MOST;
    if (assay_mutant_count > MUTANTS) return 2;
    /* "-": cases come as the value of option 1, in their place between the options */
    for (int letter; (letter = getopt(argc, argv, "-avm:p:s:")) != -1;) {
        if (letter == 'a') all = true;
        if (letter == 'v') verbose = true;
        if (letter == 'm') only = optarg;
        if (letter == 'p') profile = optarg;
        if (letter == 's') set = optarg[0] == '\0' ? NULL : optarg;
        if (letter == '?' || assay_profile_by_name(profile) == NULL) return 2;
        if (letter != 1) continue;
        subject s;
        start(&s, optarg, assay_profile_by_name(profile), set);
        for (int k = 0; k < assay_mutant_count; k++) {
            if (!is_done(&t, k, most) && (only == NULL || strcmp(only, assay_mutants[k].name) == 0))
                try_mutant(&s, &assay_mutants[k], verbose, &t);
        }
        if (only == NULL) try_unknown(&s, verbose, &t);
        end(&s);
    }
    printf("%d candidates fail: %d named, %d not known, %d named wrongly; %d pass\n", t.named + t.unknown + t.wrong,
           t.named, t.unknown, t.wrong, t.passed);
    const int missed = all ? say_missed(&t) : 0;
    return t.wrong > 0 || missed > 0;
}
