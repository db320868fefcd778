/* A stack's golden made a layer at a time is the golden of the stack, however often the work was stopped; what its layers
 * are checked against; gradients that are held as digests. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "harness/golden/journal.h"
#include "harness/golden/layer_golden.h"
#include "harness/golden/layer_run.h"
#include "harness/plan/golden_read.h"
#include "harness/tests/harness_test.h"
#include "oracle/base/whole_file.h"

TEST_LABELS(slow);

enum { JOURNAL_SIZE = 128 };

#define BOUNDARIES "gradients=['*', 'checkpoints/*'];checkpoints=['layers/*/decoder_layer_input'];profiles=none"
#define TINY "deepseek_stack/three-layers"

static void journal_of(const char *path, char journal[JOURNAL_SIZE])
{
    snprintf(journal, JOURNAL_SIZE, "%.64s.journal", path);
}

/* The first layer's. */
static void part_of(const char *path, char part[JOURNAL_SIZE])
{
    snprintf(part, JOURNAL_SIZE, "%.64s.journal/forward-0.h5", path);
}

static assay_status write_layers(assay_context *ctx, const assay_case *c, const char *path)
{
    assay_plan plan = {0};
    assay_status status = assay_plan_make(ctx, &plan, c);
    if (status == ASSAY_OK) status = assay_golden_write_layers(ctx, &plan, path, true);
    assay_plan_free(&plan);
    return status;
}

/* The same datasets, with the same digests, in both. */
static void assert_same_golden(const char *path, const char *expected, const char *what)
{
    assay_context ctx = assay_context_default(1);
    assay_fixture_reader *a = NULL, *b = NULL;
    assert_ok(&ctx, assay_fixture_open_golden(&ctx, path, &a));
    assert_ok(&ctx, assay_fixture_open_golden(&ctx, expected, &b));
    assert_int_equal(assay_fixture_count(a), assay_fixture_count(b));
    for (int i = 0; i < assay_fixture_count(b); i++) {
        const char *dataset = assay_fixture_spec(b, i)->path;
        const char *found = assay_fixture_dataset_digest(a, dataset);
        if (found == NULL || strcmp(found, assay_fixture_dataset_digest(b, dataset)) != 0)
            fail_msg("%s: %s differs", what, dataset);
    }
    assert_string_equal(assay_fixture_text(a, "case_yaml"), assay_fixture_text(b, "case_yaml"));
    assay_fixture_close(a);
    assay_fixture_close(b);
}

static const struct {
    const char *name, *set;
} stacks[] = {
    {TINY, BOUNDARIES},
    {TINY, BOUNDARIES ";sketch_above=100;drawn_above=100"},
    {TINY, "profiles=none;checkpoints=all"},
    {TINY, "profiles=none;gradients=none"},
    {TINY, "profiles=none;gradients=['weights/layers/1/*', inputs/x];checkpoints=all"},
    {"deepseek_stack/two-dense", BOUNDARIES},
    {"deepseek_stack/one-layer", BOUNDARIES ";sketch_above=1;drawn_above=1"},
    {"deepseek_stack/tiny-4-layers", BOUNDARIES ";load_balance_loss_weight=0.01;routed_bias_update_rate=0.001"},
    {"decoder_stack/mixtral", BOUNDARIES ";sketch_above=50;drawn_above=50"},
    {"decoder_stack/gpt-oss", BOUNDARIES},
};
enum { STACKS = sizeof stacks / sizeof *stacks };

TEST_IN_FOLDER(layers_give_the_golden_of_the_stack)
{
    for (int i = 0; i < STACKS; i++) {
        assay_context ctx = assay_context_default(1);
        assay_case *c = case_named(stacks[i].name, stacks[i].set);
        assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
        assert_ok(&ctx, write_layers(&ctx, c, folder->file));
        assert_same_golden(folder->file, folder->other, stacks[i].name);
        assert_int_equal(folder_count(folder->path, false), 2); /* no journal */
        assay_cases_free(c, 1);
    }
}

TEST_IN_FOLDER(threads_and_instruction_sets_change_no_bit)
{
    assay_context ctx = assay_context_default(1);
    bool first = true;
    assay_case *c =
        case_named(TINY, BOUNDARIES ";sketch_above=100;drawn_above=100;base_emb_dim=96;base_moe_mlp_dim=40");
    for (int form = 0; test_next_context(&form, &ctx); first = false) {
        assert_ok(&ctx, write_layers(&ctx, c, first ? folder->other : folder->file));
        if (!first) assert_same_golden(folder->file, folder->other, "another form");
    }
    assay_cases_free(c, 1);
}

/* Stopped at one allocation after the other, and begun again each time. */
TEST_IN_FOLDER(what_is_stopped_goes_on)
{
    assay_context ctx = assay_context_default(1);
    char journal[JOURNAL_SIZE];
    int parts = 0, grown = 0, rounds = 0;
    assay_case *c = case_named(TINY, BOUNDARIES ";sketch_above=100;drawn_above=100");
    assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
    journal_of(folder->file, journal);
    for (int64_t n = 0;; n += 1 + n / 8, rounds++) {
        assay_fail_allocation(n);
        if (had_memory(&ctx, write_layers(&ctx, c, folder->file))) break;
        assert_int_equal(access(folder->file, F_OK), -1);
        const int now = folder_count(journal, false);
        assert_true(now >= parts || now == -1);
        grown += now > parts;
        parts = now > parts ? now : parts;
    }
    assert_true(grown > 3 && rounds > 10);
    assert_same_golden(folder->file, folder->other, "after many stops");
    assert_int_equal(access(journal, F_OK), -1);
    assay_cases_free(c, 1);
}

static void remove_journal(const char *path)
{
    char journal[JOURNAL_SIZE];
    journal_of(path, journal);
    folder_count(journal, true);
    rmdir(journal);
}

/* Bytes on the disk of all in a folder. */
static int64_t disk_of(const char *path)
{
    int64_t bytes = 0;
    DIR *folder = opendir(path);
    if (folder == NULL) return 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char name[2 * TEST_PATH_SIZE];
        struct stat info;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (stat(name, &info) == 0 && S_ISREG(info.st_mode)) bytes += (int64_t)info.st_blocks * 512;
    }
    closedir(folder);
    return bytes;
}

/* In a process that the system kills as soon as a file has more than `limit` bytes: whether it went to the end. */
static bool write_layers_within(const assay_case *c, const char *path, int64_t limit)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        assay_context ctx = assay_context_default(1);
        const struct rlimit most = {(rlim_t)limit, (rlim_t)limit}, no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        setrlimit(RLIMIT_FSIZE, &most);
        signal(SIGXFSZ, SIG_DFL);
        _exit(write_layers(&ctx, c, path) == ASSAY_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
    if (WIFSIGNALED(status)) assert_int_equal(WTERMSIG(status), SIGXFSZ);
    return WIFEXITED(status);
}

#define LARGER BOUNDARIES ";base_emb_dim=256;base_moe_mlp_dim=64;drawn_above=100"

/* The largest file is the golden, which grows while parts are moved into it. */
TEST_IN_FOLDER(killed_while_parts_are_moved)
{
    static const struct {
        const char *ending;
        int steps, moving; /* of how many at least are while parts are moved */
    } forms[] = {{"h5", 12, 4}, {"safetensors", 4, 1}};
    assay_context ctx = assay_context_default(1);
    struct stat whole;
    assay_case *c = case_named("deepseek_stack/tiny-4-layers", LARGER);
    assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
    assert_int_equal(stat(folder->other, &whole), 0);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char path[TEST_PATH_SIZE], journal[JOURNAL_SIZE], results[2 * JOURNAL_SIZE];
        int moving = 0;
        int64_t most = 0;
        snprintf(path, sizeof path, "%s/killed.%s", folder->path, forms[i].ending);
        journal_of(path, journal);
        snprintf(results, sizeof results, "%s/results-0", journal);
        for (int64_t limit = whole.st_size / 3;; limit += whole.st_size / forms[i].steps) {
            if (write_layers_within(c, path, limit)) break;
            assert_int_equal(access(path, F_OK), -1);
            moving += access(results, F_OK) == 0;
            const int64_t bytes = disk_of(journal);
            most = bytes > most ? bytes : most;
        }
        assert_true(moving > forms[i].moving);
        assert_true(most > whole.st_size / 2 && most < whole.st_size * 5 / 3); /* with every part twice it is 2 */
        assert_same_golden(path, folder->other, "after many kills");
        assert_int_equal(access(journal, F_OK), -1);
    }
    assay_cases_free(c, 1);
}

static void kill_while_moving(const assay_case *c, const char *path, char results[2 * JOURNAL_SIZE])
{
    assay_context ctx = assay_context_default(1);
    assay_plan plan = {0};
    char journal[JOURNAL_SIZE];
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
    assert_false(write_layers_within(c, path, plan.file_bytes * 2 / 3));
    journal_of(path, journal);
    snprintf(results, 2 * JOURNAL_SIZE, "%s/results-0", journal);
    assert_int_equal(access(results, F_OK), 0);
    assay_plan_free(&plan);
}

TEST_IN_FOLDER(damage_where_parts_were_moved_is_refused)
{
    assay_context ctx = assay_context_default(1);
    char results[2 * JOURNAL_SIZE];
    assay_case *c = case_named("deepseek_stack/tiny-4-layers", LARGER);
    kill_while_moving(c, folder->file, results);
    size_t size = 0;
    unsigned char *bytes = bytes_of(results, &size);
    for (size_t i = size / 8; i < size; i += 64) bytes[i] ^= 1;
    FILE *file = fopen(results, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    free(bytes);
    assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "is damaged: its digest is another");
    assert_int_equal(truncate(results, 4096), 0);
    assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "what the journal has of it is cut short");
    assert_int_equal(access(folder->file, F_OK), -1);
    remove_journal(folder->file);
    assay_cases_free(c, 1);
}

/* Killed when the golden had its name, and the journal was there still. */
TEST_IN_FOLDER(what_is_finished_is_not_made_again)
{
    assay_context ctx = assay_context_default(1);
    char results[2 * JOURNAL_SIZE], journal[JOURNAL_SIZE];
    struct stat before, after;
    assay_case *c = case_named("deepseek_stack/tiny-4-layers", LARGER);
    kill_while_moving(c, folder->file, results);
    assert_int_equal(rename(results, folder->other), 0);
    assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "which is gone: remove the journal");
    assert_int_equal(rename(folder->other, folder->file), 0);
    assert_int_equal(stat(folder->file, &before), 0);
    assert_ok(&ctx, write_layers(&ctx, c, folder->file));
    assert_int_equal(stat(folder->file, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);
    journal_of(folder->file, journal);
    assert_int_equal(access(journal, F_OK), -1);
    assay_cases_free(c, 1);
}

/* Leaves the journal of a run that memory ran out for. */
static void stop_in_the_middle(const assay_case *c, const char *path)
{
    assay_context ctx = assay_context_default(1);
    for (int64_t n = 400;; n += 100) {
        char part[JOURNAL_SIZE];
        assay_fail_allocation(n);
        assert_false(had_memory(&ctx, write_layers(&ctx, c, path)));
        part_of(path, part);
        if (access(part, F_OK) == 0) break;
    }
    assay_fail_allocation(-1);
}

TEST_IN_FOLDER(another_journal_is_refused)
{
    assay_context ctx = assay_context_default(1);
    char part[JOURNAL_SIZE], journal[JOURNAL_SIZE];
    assay_case *c = case_named(TINY, BOUNDARIES), *other = case_named(TINY, BOUNDARIES ";seed=99");
    part_of(folder->file, part);
    journal_of(folder->file, journal);
    stop_in_the_middle(c, folder->file);
    assert_int_equal(write_layers(&ctx, other, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "case.h5.journal is the work on another case");
    ctx.arithmetic = &assay_arithmetic_blas;
    assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "is the work on another case, or of another assay or engine");
    ctx.arithmetic = &assay_arithmetic_reference;
    assert_int_equal(truncate(part, 3000), 0);
    assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "forward-0.h5");
    assert_int_equal(access(folder->file, F_OK), -1);
    assert_int_equal(remove(part), 0);
    assert_ok(&ctx, write_layers(&ctx, c, folder->file)); /* made again */
    assert_int_equal(mkdir(journal, 0777), 0);
    assert_ok(&ctx, assay_write_whole_file(&ctx, part, "not ours"));
    assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "is no journal: it has no case.yml");
    remove_journal(folder->file);
    assay_cases_free(c, 1);
    assay_cases_free(other, 1);
}

/* Names are the part's own: one under another's would pass on what is another layer's. */
TEST_IN_FOLDER(parts_are_of_their_layer_and_journal)
{
    assay_context ctx = assay_context_default(1);
    char journal[JOURNAL_SIZE], one[2 * JOURNAL_SIZE], two[2 * JOURNAL_SIZE], aside[2 * JOURNAL_SIZE];
    assay_case *c = case_named(TINY, BOUNDARIES), *other = case_named(TINY, BOUNDARIES ";seed=99");
    journal_of(folder->file, journal);
    snprintf(one, sizeof one, "%s/forward-0.h5", journal);
    snprintf(two, sizeof two, "%s/forward-1.h5", journal);
    snprintf(aside, sizeof aside, "%s/aside", folder->path);
    for (int64_t n = 400; access(two, F_OK) != 0; n += 100) {
        assay_fail_allocation(n);
        assert_false(had_memory(&ctx, write_layers(&ctx, c, folder->file)));
    }
    assay_fail_allocation(-1);
    assert_int_equal(rename(one, aside) + rename(two, one) + rename(aside, two), 0);
    assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "is forward of layer");
    assert_int_equal(access(folder->file, F_OK), -1);
    assert_int_equal(rename(one, aside), 0); /* the second layer's, from its own journal */
    remove_journal(folder->file);
    stop_in_the_middle(other, folder->file);
    assert_int_equal(rename(aside, two), 0);
    assert_int_equal(write_layers(&ctx, other, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "forward-1.h5 is of another journal: remove it");
    assert_int_equal(remove(two), 0);
    assert_ok(&ctx, write_layers(&ctx, other, folder->file));
    assay_cases_free(c, 1);
    assay_cases_free(other, 1);
}

TEST_IN_FOLDER(two_do_not_work_in_one_journal)
{
    assay_context ctx = assay_context_default(1);
    assay_plan plan = {0};
    assay_journal journal;
    assay_case *c = case_named(TINY, BOUNDARIES);
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
    assert_ok(&ctx, assay_journal_open(&ctx, &journal, folder->file, &plan));
    assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
    assert_message(&ctx, "another process works there");
    assay_journal_close(&journal);
    assert_ok(&ctx, write_layers(&ctx, c, folder->file));
    assay_plan_free(&plan);
    assay_cases_free(c, 1);
}

TEST_IN_FOLDER(cases_that_cannot_be_made_so_are_refused)
{
    static const struct {
        const char *name, *set, *message;
    } table[] = {
        {"moe/small", "profiles=none", "op moe is no stack of layers"},
        {TINY, "", "profiles has to be none"},
        {TINY, BOUNDARIES ";only_layer=1", "only_layer leaves one alone"},
        {"deepseek_stack/tiny-4-layers-minimal", "profiles=none", "qkv_proj has to be remat"},
        {"deepseek_stack/batch-split", "profiles=none", "the batch-split schedule has two at once"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assay_case *c = case_named(table[i].name, table[i].set);
        assert_int_equal(write_layers(&ctx, c, folder->file), ASSAY_BAD_INPUT);
        assert_message(&ctx, table[i].message);
        assert_int_equal(folder_count(folder->path, false), 0);
        assay_cases_free(c, 1);
    }
}

/* However many layers there are, and as much as one alone says. */
TEST(memory_is_that_of_one_layer)
{
    assay_context ctx = assay_context_default(1);
    int64_t bytes[2], layers = 0;
    for (int i = 0; i < 2; i++) {
        assay_plan plan = {0};
        assay_case *c = case_named(TINY, i == 0 ? BOUNDARIES : BOUNDARIES ";base_num_decoder_layers=500");
        assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
        assert_ok(&ctx, assay_layers_check(&ctx, &plan, "--resume", &layers));
        assert_int_equal(layers, i == 0 ? 3 : 500);
        bytes[i] = assay_layers_memory(&plan, layers);
        assert_true(bytes[i] > 0 && bytes[i] < plan.memory);
        assay_plan_free(&plan);
        assay_cases_free(c, 1);
    }
    assert_int_equal(bytes[0], bytes[1]);
}

static assay_status recompute(assay_context *ctx, const assay_golden *golden, unsigned layers)
{
    bool chosen[3];
    for (int i = 0; i < 3; i++) chosen[i] = (layers >> i & 1) != 0;
    return assay_golden_recompute_layers(ctx, &golden->plan, golden->reader, 3, chosen, true);
}

static assay_golden open_planned(const char *path)
{
    assay_context ctx = assay_context_default(1);
    assay_golden golden = {0};
    assert_ok(&ctx, assay_golden_open(&ctx, path, &golden));
    assert_ok(&ctx, assay_golden_plan(&ctx, &golden, NULL));
    return golden;
}

/* Changed numbers are found in the layers that they belong to, and not looked at in others. */
TEST_IN_FOLDER(layers_of_a_golden_are_checked_alone)
{
    static const struct {
        const char *path;
        unsigned finds, passes; /* sets of layers */
    } table[] = {
        {"checkpoints/layers/1/decoder_layer_input", 1 << 0, 1 << 2}, /* it is the output of layer 0 */
        {"checkpoints/layers/1/decoder_layer_input", 1 << 1, 1 << 2},
        {"gradients/checkpoints/layers/2/decoder_layer_input", 1 << 1, 1 << 0},
        {"gradients/checkpoints/layers/2/decoder_layer_input", 1 << 2, 1 << 0},
        {"gradients/weights/layers/0/pre_self_attention_layer_norm/scale", 1 << 0 | 1 << 2, 1 << 1 | 1 << 2},
        {"gradients/weights/layers/2/moe/wi_0/sketch/blocks", 1 << 2, 1 << 0 | 1 << 1},
        {"routing/layers/1/weights", 1 << 1, 1 << 2},
        {"routing/layers/2/selected_experts", 1 << 2, 1 << 1},
        {"outputs/y", 1 << 2, 1 << 0},
        {"gradients/inputs/x", 1 << 0, 1 << 1},
        {"inputs/x", 1 << 0, 1 << 1},
        {"cotangents/y", 1 << 2, 1 << 1},
    };
    assay_context ctx = assay_context_default(1);
    assay_case *c = case_named(TINY, BOUNDARIES ";sketch_above=100;drawn_above=100");
    assert_ok(&ctx, write_layers(&ctx, c, folder->file));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double *values = NULL;
        int32_t *indices = NULL;
        assay_golden golden = open_planned(folder->file);
        assay_fixture_reader *reader = golden.reader;
        if (i == 0) assert_ok(&ctx, recompute(&ctx, &golden, 7));
        const assay_tensor_spec *spec = assay_fixture_find(reader, table[i].path);
        if (spec == NULL) fail_msg("%s is not in the golden", table[i].path);
        const int64_t count = assay_shape_count(&spec->shape);
        if (spec->type == ASSAY_INT32) {
            indices = calloc((size_t)count, sizeof *indices);
            assert_ok(&ctx, assay_fixture_read_i32(&ctx, reader, spec->path, 0, count, indices));
            indices[count - 1] ^= 1;
        } else {
            values = calloc((size_t)count, sizeof *values);
            assert_ok(&ctx, assay_fixture_read(&ctx, reader, spec->path, 0, count, values));
            values[count - 1] = 2 * values[count - 1] + 1;
        }
        assert_ok(&ctx, assay_fixture_replace(&ctx, reader, table[i].path, values, indices));
        if (recompute(&ctx, &golden, table[i].finds) != ASSAY_BAD_INPUT) fail_msg("%s is not seen", table[i].path);
        assert_ok(&ctx, recompute(&ctx, &golden, table[i].passes));
        assay_golden_close(&golden);
    }
    assay_cases_free(c, 1);
}

TEST_IN_FOLDER(a_golden_without_boundaries_has_no_layers)
{
    assay_context ctx = assay_context_default(1);
    assay_case layer = {0};
    assay_case *c = case_named(TINY, "profiles=none");
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assay_golden golden = open_planned(folder->file);
    assert_int_equal(recompute(&ctx, &golden, 2), ASSAY_BAD_INPUT);
    assert_message(&ctx, "the golden has no checkpoints/layers/1/decoder_layer_input");
    assert_int_equal(assay_layer_case(&ctx, &golden, 1, &layer), ASSAY_BAD_INPUT);
    assert_message(&ctx, "the golden has no checkpoints/layers/1/decoder_layer_input");
    assert_int_equal(assay_layer_case(&ctx, &golden, 3, &layer), ASSAY_BAD_INPUT);
    assert_message(&ctx, "--layer is 3, expected 0 to 2");
    assay_golden_close(&golden);
    assay_cases_free(c, 1);
}

/* Weights that are not in the file are drawn for whoever asks. */
TEST_IN_FOLDER(weights_that_a_golden_leaves_out_are_drawn)
{
    assay_context ctx = assay_context_default(1);
    assay_golden full, left = {0};
    int drawn = 0;
    assay_case *c = case_named(TINY, BOUNDARIES);
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assert_ok(&ctx, assay_case_set(&ctx, c, "drawn_above=100"));
    assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
    full = open_planned(folder->file);
    assert_ok(&ctx, assay_golden_open(&ctx, folder->other, &left));
    assert_null(assay_fixture_find(left.reader, "weights/layers/2/moe/wi_0"));
    assert_ok(&ctx, assay_golden_plan(&ctx, &left, NULL));
    for (int i = 0; i < full.plan.spec_count; i++) {
        const assay_tensor_spec *spec = &full.plan.specs[i];
        const int64_t count = assay_shape_count(&spec->shape);
        if (spec->role != ASSAY_ROLE_WEIGHT) continue;
        double *a = calloc((size_t)count, sizeof *a), *b = calloc((size_t)count, sizeof *b);
        assert_ok(&ctx, assay_fixture_read(&ctx, full.reader, spec->path, 0, count, a));
        assert_ok(&ctx, assay_fixture_read(&ctx, left.reader, spec->path, 0, count, b));
        assert_same_bits(b, a, count);
        drawn += assay_fixture_recipe(left.reader, spec->path) != NULL;
        free(a);
        free(b);
    }
    assert_true(drawn > 20);
    assay_golden_close(&full);
    assay_golden_close(&left);
    assay_cases_free(c, 1);
}

/* Where the boundaries lie on the grid of the case, a layer's golden has the results of the stack's. */
TEST_IN_FOLDER(a_layer_of_a_golden_is_a_golden)
{
    static const char *const sets[] = {
        "dtype=float64", "dtype=float64;sketch_above=100;drawn_above=100",
        "dtype=float64;gradients=['checkpoints/*', 'weights/layers/1/*', inputs/x]",
        "dtype=float64;dtypes.weights/layers/1/*=float32;dtypes.weights/*gate/bias=bfloat16", ""};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        assay_context ctx = assay_context_default(1);
        assay_case *c = case_named(TINY, BOUNDARIES);
        char assignments[TEST_PATH_SIZE];
        snprintf(assignments, sizeof assignments, "%s", sets[i]);
        for (char *rest = assignments, *one; (one = strsep(&rest, ";")) != NULL && *one != '\0';)
            assert_ok(&ctx, assay_case_set(&ctx, c, one));
        assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
        assay_golden stack = open_planned(folder->file);
        int compared = 0;
        for (int64_t number = 0; number < 3; number++) {
            assay_layer_given given;
            assay_case layer = {0};
            assay_plan plan = {0};
            assay_fixture_reader *reader = NULL;
            assert_ok(&ctx, assay_layer_case(&ctx, &stack, number, &layer));
            assert_ok(&ctx, assay_plan_make(&ctx, &plan, &layer));
            const assay_source source = assay_layer_source(&given, &stack, number);
            assert_ok(&ctx, assay_golden_write_from(&ctx, &plan, folder->other, &source, true));
            assert_ok(&ctx, assay_fixture_open_golden(&ctx, folder->other, &reader));
            assert_true(assay_fixture_has(reader, ASSAY_ROLE_ERROR_SCALE));
            for (int k = 0; k < assay_fixture_count(reader); k++) {
                const char *path = assay_fixture_spec(reader, k)->path;
                if (!assay_is_of_layer(assay_fixture_spec(reader, k), number, false) &&
                    !assay_is_of_layer(assay_fixture_spec(reader, k), number, true))
                    continue;
                const char *whole = assay_fixture_dataset_digest(stack.reader, path);
                assert_non_null(whole);
                if (sets[i][0] != '\0') assert_string_equal(whole, assay_fixture_dataset_digest(reader, path));
                compared++;
            }
            assay_fixture_close(reader);
            assay_plan_free(&plan);
            assay_case_free(&layer);
        }
        assert_true(compared > 10);
        assay_golden_close(&stack);
        assay_cases_free(c, 1);
    }
}
