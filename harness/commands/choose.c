#include "harness/commands/choose.h"
#include "harness/backends/examine_file.h"

#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/plan/golden_open.h"
#include "oracle/base/memory.h"

/* What a case costs beside its products, in their unit: processes, files, error scales of small tensors. */
#define WORK_OF_A_CASE 3e7
#define WORK_OF_AN_ELEMENT 300.0

bool assay_chooses_without_arguments(const assay_options *options)
{
    return assay_case_filter_is_set(&options->filter) || options->shards > 0;
}

void assay_chosen_free(assay_chosen *chosen)
{
    for (int i = 0; chosen->goldens != NULL && i < chosen->count; i++) free(chosen->goldens[i]);
    free(chosen->goldens);
    assay_cases_free(chosen->cases, chosen->count);
    *chosen = (assay_chosen){0};
}

static bool is_folder(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

bool assay_is_same_file(const char *one, const char *other)
{
    struct stat a, b;
    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static const char LIST[] = "the list of cases";

/* The golden's case, which moves to the end of the list. */
static assay_status add_golden(assay_context *ctx, const char *path, assay_chosen *chosen)
{
    OWNED_BY(assay_golden_close) assay_golden golden = {0};
    char *name = NULL;
    MUST(assay_golden_open(ctx, path, &golden));
    MUST(assay_grow(ctx, LIST, chosen->count + 1, sizeof *chosen->cases, &chosen->cases));
    MUST(assay_grow(ctx, LIST, chosen->count + 1, sizeof *chosen->goldens, &chosen->goldens));
    name = strdup(path);
    if (name == NULL) MUST(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for %s", LIST));
    chosen->cases[chosen->count] = golden.c[0];
    golden.c[0] = (assay_case){0};
    chosen->goldens[chosen->count++] = name;
    return ASSAY_OK;
}

static assay_status add_golden_of_folder(assay_context *ctx, const char *path, assay_chosen *chosen)
{
    assay_fixture_reader *reader = NULL;
    assay_status status = assay_examine_structure(ctx, 1, &path);
    if (status == ASSAY_OK) status = assay_fixture_open(ctx, path, &reader);
    if (status != ASSAY_OK) return status;
    const char *kind = assay_fixture_text(reader, "kind");
    const bool golden = kind != NULL && strcmp(kind, "golden") == 0; /* requests and candidates may lie beside them */
    assay_fixture_close(reader);
    return golden ? add_golden(ctx, path, chosen) : ASSAY_OK;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static assay_status add_folder(assay_context *ctx, char *path, assay_chosen *chosen)
{
    assay_status status = ASSAY_OK;
    const int before = chosen->count;
    FTS *tree = fts_open((char *const[]){path, NULL}, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    if (tree == NULL) return assay_fail(ctx, ASSAY_IO, "%s: cannot be read", path);
    for (FTSENT *entry = fts_read(tree); entry != NULL && status == ASSAY_OK; entry = fts_read(tree)) {
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s", entry->fts_path, strerror(entry->fts_errno));
        } else if (entry->fts_info != FTS_D && entry->fts_info != FTS_DP &&
                   assay_fixture_is_file_name(entry->fts_name)) {
            status = add_golden_of_folder(ctx, entry->fts_path, chosen); /* a link to nowhere is refused there */
        }
    }
    fts_close(tree);
    if (status != ASSAY_OK || chosen->count > before) return status;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: no golden lies in this folder", path);
}

/* Goldens first into the list, the other arguments to `names`, which has room for all. */
static assay_status take_goldens(assay_context *ctx, const assay_options *options, char **names, int *count,
                                 assay_chosen *chosen)
{
    for (int i = 0; i < options->argument_count; i++) {
        char *argument = options->arguments[i];
        if (assay_fixture_is_file_name(argument)) {
            MUST(add_golden(ctx, argument, chosen));
        } else if (is_folder(argument)) {
            MUST(add_folder(ctx, argument, chosen));
        } else {
            names[(*count)++] = argument;
        }
    }
    if (chosen->count > 0 && options->set_count > 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is a golden: --set %s and --seed would ask for another one",
                          chosen->goldens[0], options->sets[0]);
    }
    return ASSAY_OK;
}

/* Cases before goldens. */
static assay_status put_before(assay_context *ctx, assay_case *cases, int count, assay_chosen *chosen)
{
    const int all = count + chosen->count;
    char **goldens = NULL;
    assay_status status = assay_grow(ctx, LIST, all + 1, sizeof *cases, &cases);
    if (status == ASSAY_OK) status = assay_alloc_list(ctx, LIST, all + 1, sizeof *goldens, &goldens);
    if (status != ASSAY_OK) {
        assay_cases_free(cases, count);
        return status;
    }
    if (chosen->count > 0) {
        memcpy(cases + count, chosen->cases, (size_t)chosen->count * sizeof *cases);
        memcpy(goldens + count, chosen->goldens, (size_t)chosen->count * sizeof *goldens);
    }
    free(chosen->cases);
    free(chosen->goldens);
    *chosen = (assay_chosen){.cases = cases, .goldens = goldens, .count = all};
    return ASSAY_OK;
}

static assay_status find(assay_context *ctx, const assay_options *options, unsigned how, assay_chosen *chosen)
{
    static char star[] = "*";
    OWNED char **names = NULL;
    assay_case *cases = NULL;
    int count = 0, name_count = 0;
    MUST(assay_alloc_list(ctx, LIST, options->argument_count + 1, sizeof *names, &names));
    if (how & ASSAY_CHOOSE_GOLDENS) {
        MUST(take_goldens(ctx, options, names, &name_count, chosen));
    } else {
        for (int i = 0; i < options->argument_count; i++) names[name_count++] = options->arguments[i];
    }
    if (options->argument_count == 0) names[name_count++] = star;
    MUST(options->argument_count == 0 && (how & ASSAY_CHOOSE_ALL)
             ? assay_catalogue(ctx, &cases, &count)
             : assay_cases_find(ctx, name_count, names, &cases, &count));
    return put_before(ctx, cases, count, chosen);
}

/* Keeps those with a mark, in their order. */
static void keep(assay_chosen *chosen, const bool *wanted)
{
    int kept = 0;
    for (int i = 0; i < chosen->count; i++) {
        if (wanted[i]) {
            const assay_case c = chosen->cases[i];
            char *golden = chosen->goldens[i];
            chosen->cases[kept] = c;
            chosen->goldens[kept++] = golden;
        } else {
            assay_case_free(&chosen->cases[i]);
            free(chosen->goldens[i]);
        }
    }
    chosen->count = kept;
}

static assay_status filter(assay_context *ctx, const assay_options *options, assay_chosen *chosen, bool *wanted)
{
    const int count = chosen->count;
    if (!assay_case_filter_is_set(&options->filter)) return ASSAY_OK;
    MUST(assay_case_filter_check(ctx, &options->filter, chosen->cases, count));
    for (int i = 0; i < count; i++) wanted[i] = assay_case_filter_matches(&options->filter, &chosen->cases[i]);
    keep(chosen, wanted);
    if (chosen->count == 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "none of the %d cases is left by --tag, --op, --exclude and --no-mesh",
                          count);
    }
    return ASSAY_OK;
}

/* Fixtures are stored under the names of their cases. */
static assay_status check_names(assay_context *ctx, const assay_chosen *chosen)
{
    for (int i = 0; i < chosen->count; i++) {
        for (int k = 0; k < i; k++) {
            if (strcmp(chosen->cases[i].name, chosen->cases[k].name) != 0) continue;
            if (chosen->goldens[i] == NULL) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is of the case %s, and so is %s", chosen->goldens[i],
                              chosen->cases[i].name,
                              chosen->goldens[k] != NULL ? chosen->goldens[k] : "one of the catalogue");
        }
    }
    return ASSAY_OK;
}

static assay_status work_of(assay_context *ctx, const assay_case *c, double *work)
{
    assay_tensor_list list;
    const assay_operation *operation;
    MUST(assay_operation_prepare(ctx, c, &operation, &list));
    *work = WORK_OF_A_CASE + assay_operation_flops(operation, c, true);
    for (int i = 0; i < list.count; i++) {
        *work += WORK_OF_AN_ELEMENT * (double)assay_shape_count(&list.entries[i].spec.shape);
    }
    assay_tensor_list_free(&list);
    return ASSAY_OK;
}

double assay_case_cost(const assay_case *c)
{
    assay_context ctx = {.threads = 1};
    double work = 0;
    return work_of(&ctx, c, &work) == ASSAY_OK ? work : 0;
}

assay_status assay_share_out(assay_context *ctx, const double *work, int count, int parts, int *places)
{
    OWNED double *loads = NULL;
    MUST(assay_alloc_zeros(ctx, "parts of the cases", parts, &loads));
    for (int i = 0; i < count; i++) places[i] = -1;
    for (int done = 0; done < count; done++) {
        int heaviest = -1, least = 0;
        for (int i = 0; i < count; i++) {
            if (places[i] < 0 && (heaviest < 0 || work[i] > work[heaviest])) heaviest = i;
        }
        for (int p = 1; p < parts; p++) {
            if (loads[p] < loads[least]) least = p;
        }
        places[heaviest] = least;
        loads[least] += work[heaviest];
    }
    return ASSAY_OK;
}

static assay_status take_shard(assay_context *ctx, const assay_options *options, assay_chosen *chosen, bool *wanted)
{
    const int count = chosen->count;
    if (options->shards == 0) return ASSAY_OK;
    if (options->shards > count) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--shard %d/%d: there are %d cases to share out", options->shard,
                          options->shards, count);
    }
    OWNED double *work = NULL;
    OWNED int *places = NULL;
    MUST(assay_alloc_zeros(ctx, "parts of the cases", count, &work));
    MUST(assay_alloc_list(ctx, "parts of the cases", count, sizeof *places, &places));
    for (int i = 0; i < count; i++) MUST(work_of(ctx, &chosen->cases[i], &work[i]));
    MUST(assay_share_out(ctx, work, count, options->shards, places));
    for (int i = 0; i < count; i++) wanted[i] = places[i] == options->shard - 1;
    keep(chosen, wanted);
    return ASSAY_OK;
}

assay_status assay_choose(assay_context *ctx, const assay_options *options, unsigned how, assay_chosen *chosen)
{
    assay_status status;
    bool *wanted = NULL;
    *chosen = (assay_chosen){0};
    TRY(find(ctx, options, how, chosen));
    TRY(check_names(ctx, chosen));
    TRY(assay_alloc_list(ctx, LIST, chosen->count + 1, sizeof *wanted, &wanted));
    TRY(filter(ctx, options, chosen, wanted));
    for (int i = 0; i < chosen->count; i++) TRY(assay_options_apply(ctx, options, &chosen->cases[i]));
    TRY(take_shard(ctx, options, chosen, wanted));
cleanup:
    free(wanted);
    if (status != ASSAY_OK) assay_chosen_free(chosen);
    return status;
}
