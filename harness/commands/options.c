#define _GNU_SOURCE /* asprintf */
#include "harness/commands/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/fixture.h"
#include "harness/certify/certificate.h"
#include "oracle/base/memory.h"

enum { COMMON = 1 << 30 };

/* Each takes `value` into the field that the row says, or refuses it; value is NULL of an option that has none. */

static void *field(const assay_option_row *row, assay_options *o)
{
    return (char *)o + row->field;
}

static assay_status parse_flag(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    (void)ctx, (void)value;
    *(bool *)field(row, o) = true;
    return ASSAY_OK;
}

static assay_status parse_text(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    (void)ctx;
    *(const char **)field(row, o) = value;
    return ASSAY_OK;
}

static assay_status parse_words(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    return assay_words_add(ctx, field(row, o), row->name, value);
}

static assay_status parse_number(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    char *end = NULL;
    errno = 0;
    const double number = strtod(value, &end);
    if (end == value || *end != '\0' || errno != 0 || !(number >= row->least && number <= row->most)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--%s is \"%s\", expected a number from %g to %g", row->name, value,
                          row->least, row->most);
    }
    *(double *)field(row, o) = number;
    return ASSAY_OK;
}

static bool is_integer(const char *text, int64_t least, int64_t most, int64_t *number)
{
    char *end = NULL;
    errno = 0;
    *number = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && *number >= least && *number <= most;
}

static assay_status parse_integer(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    const int64_t least = (int64_t)row->least;
    if (is_integer(value, least, INT64_MAX, field(row, o))) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "--%s is \"%s\", expected a whole number from %" PRId64 " up", row->name,
                      value, least);
}

static assay_status parse_budget(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    int64_t *budget = field(row, o);
    if (strcmp(value, "all") == 0) {
        *budget = ASSAY_BUDGET_ALL;
    } else if (!is_integer(value, 0, INT64_MAX, budget)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--budget is \"%s\", expected a whole number from 0 up, or all", value);
    }
    return ASSAY_OK;
}

static assay_status parse_threads(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    enum { MOST = 1024 };
    int64_t threads;
    if (!is_integer(value, 1, MOST, &threads)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--threads is \"%s\", expected a whole number from 1 to %d", value,
                          MOST);
    }
    *(int *)field(row, o) = (int)threads;
    return ASSAY_OK;
}

/* A number of seconds, minutes or hours. */
static assay_status parse_time(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}};
    char *end = NULL;
    const double number = strtod(value, &end);
    for (size_t i = 0; end != value && i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0 || !(number > 0 && number <= 1e6)) continue;
        *(double *)field(row, o) = number * units[i].seconds;
        return ASSAY_OK;
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "--time is \"%s\", expected a time above 0, as 90, 90s, 10m or 1h", value);
}

/* A number of megabytes or gigabytes. */
static assay_status parse_memory(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    char *end = NULL;
    const double number = strtod(value, &end);
    const double unit = strcmp(end, "M") == 0 ? 1 << 20 : strcmp(end, "G") == 0 ? 1 << 30 : 0;
    if (end == value || unit == 0 || !(number * unit >= 1 << 20 && number * unit <= 1e18)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--memory is \"%s\", expected a size from 1M up, as 512M or 8G", value);
    }
    *(int64_t *)field(row, o) = (int64_t)(number * unit);
    return ASSAY_OK;
}

static assay_status parse_shard(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    enum { MOST = 10000 };
    char *slash = NULL, *end = NULL;
    (void)row;
    const long shard = strtol(value, &slash, 10);
    const long shards = *slash == '/' ? strtol(slash + 1, &end, 10) : 0;
    if (slash == value || end == NULL || *end != '\0' || shard < 1 || shards > MOST || shard > shards) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--shard is \"%s\", expected I/N with 1 <= I <= N <= %d", value, MOST);
    }
    o->shard = (int)shard;
    o->shards = (int)shards;
    return ASSAY_OK;
}

static assay_status parse_color(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    const bool always = strcmp(value, "always") == 0;
    if (always || strcmp(value, "never") == 0) {
        *(bool *)field(row, o) = always;
    } else if (strcmp(value, "auto") != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--color is \"%s\", expected auto, always or never", value);
    }
    return ASSAY_OK;
}

static assay_status parse_container(assay_context *ctx, const assay_option_row *row, const char *value,
                                    assay_options *o)
{
    char name[32];
    snprintf(name, sizeof name, "--container .%.12s", value);
    MUST(assay_fixture_check_name(ctx, name));
    if (assay_fixture_is_file_name(name) && strchr(value, '.') == NULL) return parse_text(ctx, row, value, o);
    return assay_fail(ctx, ASSAY_BAD_INPUT, "--container is \"%s\", expected h5 or safetensors", value);
}

/* --set KEY=VALUE and --seed N, in their order. */
static assay_status parse_set(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *o)
{
    char *assignment = NULL;
    MUST(assay_grow(ctx, "the options", o->set_count + 1, sizeof *o->sets, &o->sets));
    if (asprintf(&assignment, "%s%s", strcmp(row->name, "seed") == 0 ? "seed=" : "", value) < 0)
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the options");
    o->sets[o->set_count++] = assignment;
    return ASSAY_OK;
}

#define RANGE(parse, name, least, most) parse, offsetof(assay_options, name), least, most
#define INTO(parse, name) RANGE(parse, name, 0, 0)
static const assay_option_row rows[] = {
    {"output", 'o', ASSAY_OPT_OUTPUT, "PATH", "one file (.h5, .safetensors), or a folder", INTO(parse_text, output)},
    {"container", '\0', ASSAY_OPT_CONTAINER | ASSAY_OPT_FUZZ, "NAME",
     "of files in a folder: h5 (default) or safetensors", INTO(parse_container, container)},
    {"set", '\0', ASSAY_OPT_SET | ASSAY_OPT_FUZZ, "KEY=VALUE", "change a key of the case (repeatable)",
     INTO(parse_set, sets)},
    {"seed", '\0', ASSAY_OPT_SET, "N", "the seed of inputs, weights and cotangents", INTO(parse_set, sets)},
    {"inputs", '\0', ASSAY_OPT_INPUTS, "FILE", "take inputs, weights and cotangents from this file where it has them",
     INTO(parse_text, inputs)},
    {"weights", '\0', ASSAY_OPT_WEIGHTS, "FILE[:LAYER]",
     "take the weights from a checkpoint of Hugging Face (docs/hugging-face.md)", INTO(parse_text, weights)},
    {"precision", '\0', ASSAY_OPT_PRECISION | ASSAY_OPT_PROFILE | ASSAY_OPT_FUZZ, "NAME",
     "profile: f64, f32, bf16, bf16_router, bf16_sums, f16, tf32, tpu_default, fp8_e4m3_block128, or a FILE.yml with "
     "your own",
     INTO(parse_text, precision)},
    {"false-alarm", '\0', ASSAY_OPT_PRECISION | ASSAY_OPT_FUZZ, "P",
     "probability that a correct backend fails (default 1e-6)", RANGE(parse_number, false_alarm, 1e-300, 0.5)},
    {"verbose", 'v', ASSAY_OPT_PRECISION | ASSAY_OPT_VERIFY | ASSAY_OPT_FUZZ, NULL, "every tensor in detail",
     INTO(parse_flag, verbose)},
    {"staged", '\0', ASSAY_OPT_STAGED, NULL, "judge each stage too, from the candidate's own inputs to it",
     INTO(parse_flag, staged)},
    {"json", '\0', ASSAY_OPT_REPORTS | ASSAY_OPT_JSON, "FILE", "write the report as JSON", INTO(parse_text, json_file)},
    {"junit", '\0', ASSAY_OPT_REPORTS, "FILE", "write the report as JUnit XML", INTO(parse_text, junit_file)},
    {"html", '\0', ASSAY_OPT_REPORTS, "FILE", "write the report as one HTML page, with pictures",
     INTO(parse_text, html_file)},
    {"backend", '\0', ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ, "SPEC",
     "a shared object (./libmine.so), or a command with {request} and {candidate}", INTO(parse_text, backend)},
    {"serve", '\0', ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ, NULL,
     "the command is started once, without placeholders, and reads requests (docs/your-kernel.md)",
     INTO(parse_flag, serve)},
    {"timeout", '\0', ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ | ASSAY_OPT_BETWEEN, "SECONDS",
     "time limit of one run of the backend (default 300)", RANGE(parse_number, timeout, 1e-3, 1e9)},
    {"memory", '\0', ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ | ASSAY_OPT_BETWEEN, "SIZE",
     "memory limit of each process of the backend, as 8G or 512M", INTO(parse_memory, memory)},
    {"hostile", '\0', ASSAY_OPT_HOSTILE, NULL,
     "each case in trials of other numbers and sizes, for a backend that nobody trusts (docs/further-checks.md)",
     INTO(parse_flag, hostile)},
    {"keep", '\0', ASSAY_OPT_BACKEND, "DIR", "keep golden, request and candidate files in this folder",
     INTO(parse_text, keep)},
    {"known", '\0', ASSAY_OPT_KNOWN, "FILE",
     "known failures, lines of a case and a reason: run, reported apart, an error when one passes",
     INTO(parse_text, known_file)},
    {"known", '\0', ASSAY_OPT_FUZZ, "FILE",
     "known failures, lines fuzz/OP:TENSOR:HOW and a reason: counted apart (docs/further-checks.md)",
     INTO(parse_text, known_file)},
    {"tag", '\0', ASSAY_OPT_CHOOSE, "TAG[,TAG]", "only cases with one of these tags (repeatable)",
     INTO(parse_words, filter.tags)},
    {"op", '\0', ASSAY_OPT_CHOOSE, "OP[,OP]", "only cases of one of these operations (repeatable)",
     INTO(parse_words, filter.ops)},
    {"exclude", '\0', ASSAY_OPT_CHOOSE, "WORD[,WORD]",
     "no cases with this tag, of this operation, or whose name this glob matches (repeatable)",
     INTO(parse_words, filter.excludes)},
    {"no-mesh", '\0', ASSAY_OPT_CHOOSE, NULL, "no cases on more than one device", INTO(parse_flag, filter.no_mesh)},
    {"shard", '\0', ASSAY_OPT_CHOOSE, "I/N", "part I of N, of about the same work: for N jobs beside each other",
     INTO(parse_shard, shard)},
    {"json", '\0', ASSAY_OPT_LIST, NULL, "as JSON", INTO(parse_flag, json)},
    {"mutants", '\0', ASSAY_OPT_LIST, NULL,
     "the mutants of assay power instead of cases; of cases that are named, theirs", INTO(parse_flag, mutants)},
    {"steps", '\0', ASSAY_OPT_LIST, NULL, "the steps of programs instead of cases", INTO(parse_flag, steps)},
    {"recipe", '\0', ASSAY_OPT_RECIPE, NULL,
     "inputs and weights that the seed makes as their recipe and digest, without elements", INTO(parse_flag, recipe)},
    {"materialise", '\0', ASSAY_OPT_MATERIALISE, NULL, "write the elements that a golden has recipes of",
     INTO(parse_flag, materialise)},
    {"certify", '\0', ASSAY_OPT_CERTIFY, NULL, "certify in binary128, and store the certificate",
     INTO(parse_flag, certify)},
    {"mutants", '\0', ASSAY_OPT_WRITE, "NAMES",
     "only mutants whose name this glob matches; of steps too, as 'step:*', of any operation that has such",
     INTO(parse_text, mutants_like)},
    {"mutants", '\0', ASSAY_OPT_CERTIFY, NULL, "store which mutants the golden detects (assay power)",
     INTO(parse_flag, mutants)},
    {"equivalence", '\0', ASSAY_OPT_EQUIVALENCE, "NAME", "one of them, or all (default)",
     INTO(parse_text, equivalence)},
    {"budget", '\0', ASSAY_OPT_CERTIFY | ASSAY_OPT_VERIFY, "N",
     "certify N elements of each sketch of a gradient (default 8), or all; 0: outputs alone",
     INTO(parse_budget, budget)},
    {"write", '\0', ASSAY_OPT_WRITE, "FOLDER",
     "write the candidate of each mutant that has an effect as FOLDER/MUTANT.h5 (one golden)",
     INTO(parse_text, folder)},
    {"op", '\0', ASSAY_OPT_FUZZ, "OP", "cases of this operation alone", INTO(parse_text, fuzz_op)},
    {"time", '\0', ASSAY_OPT_FUZZ, "TIME", "how long cases are drawn: 90, 90s, 10m, 1h (default 60)",
     INTO(parse_time, fuzz_seconds)},
    {"cases", '\0', ASSAY_OPT_FUZZ, "N", "how many cases are drawn, in place of a time",
     RANGE(parse_integer, fuzz_cases, 1, 0)},
    {"failures", '\0', ASSAY_OPT_FUZZ, "N", "end when so many different failures were found",
     RANGE(parse_integer, fuzz_failures, 1, 0)},
    {"seed", '\0', ASSAY_OPT_FUZZ, "N", "the same cases again: what is drawn follows from it (default 1)",
     INTO(parse_integer, fuzz_seed)},
    {"draw-only", '\0', ASSAY_OPT_FUZZ, NULL, "run nothing: write the --cases that are drawn to the folder of -o",
     INTO(parse_flag, draw_only)},
    {"output", 'o', ASSAY_OPT_FUZZ, "DIR", "write each failure's case, golden and command to this folder",
     INTO(parse_text, output)},
    {"other-precision", '\0', ASSAY_OPT_BETWEEN, "NAME", "the profile of B, built in (default: that of A)",
     INTO(parse_text, other_precision)},
    {"replay", '\0', ASSAY_OPT_BETWEEN, "A", "give B, a backend, the choice of experts that A made",
     INTO(parse_text, replay)},
    {"audit", '\0', ASSAY_OPT_TOLERANCE, "RULE",
     "what this rule lets through, as 'atol=5e-3,rtol=0'; also largest, matched, diff (docs/power.md)",
     INTO(parse_text, audit)},
    {"runs", '\0', ASSAY_OPT_TOLERANCE, "N", "how many correct runs are tried (default 16)",
     RANGE(parse_integer, runs, 1, 0)},
    {"snippet", '\0', ASSAY_OPT_TOLERANCE, NULL, "print the tolerances as Python", INTO(parse_flag, snippet)},
    {"trust", '\0', ASSAY_OPT_TRUST, NULL, "take goldens without a look at their digests", INTO(parse_flag, trust)},
    {"all", '\0', ASSAY_OPT_ALL, NULL, "every key of the model, with its default", INTO(parse_flag, all)},
    {"graph", '\0', ASSAY_OPT_GRAPH, NULL, "the steps of the case in its place, in the order of the data flow",
     INTO(parse_flag, graph)},
    {"svg", '\0', ASSAY_OPT_GRAPH, "FILE", "write a picture of the steps (one case)", INTO(parse_text, svg_file)},
    {"threads", '\0', COMMON, "N", "threads (default: all cores); the same bits for any number",
     INTO(parse_threads, threads)},
    {"engine", '\0', COMMON, "NAME", "reference (default) or blas", INTO(parse_text, engine)},
    {"quiet", 'q', COMMON, NULL, "no progress", INTO(parse_flag, quiet)},
    {"color", '\0', COMMON, "WHEN", "auto (default), always or never", INTO(parse_color, color)},
    {"help", 'h', COMMON, NULL, "this text", INTO(parse_flag, help)},
};
#undef INTO
#undef RANGE
enum { ROWS = sizeof rows / sizeof *rows };

static bool taken(const assay_option_row *row, unsigned allowed)
{
    return row->group == COMMON || (row->group & allowed) != 0;
}

/* What getopt gives: the letter, or a number that is none. */
static int id_of(const assay_option_row *row)
{
    return row->letter != '\0' ? row->letter : UCHAR_MAX + 1 + (int)(row - rows);
}

/* getopt's tables from the rows that the command takes. */
static void build_tables(unsigned allowed, struct option *longs, char *shorts)
{
    int count = 0;
    *shorts++ = ':'; /* a missing value is told apart from an unknown option */
    for (int i = 0; i < ROWS; i++) {
        if (!taken(&rows[i], allowed)) continue;
        longs[count++] = (struct option){rows[i].name, rows[i].value != NULL ? required_argument : no_argument, NULL,
                                         id_of(&rows[i])};
        if (rows[i].letter == '\0') continue;
        *shorts++ = rows[i].letter;
        if (rows[i].value != NULL) *shorts++ = ':';
    }
    longs[count] = (struct option){0};
    *shorts = '\0';
}

/* What went with a version, and what to use instead. */
static const struct {
    const char *name, *instead;
} gone[] = {
    {"--ranks", "a process of mpirun takes whole cases, and assay show CASE says what one costs (docs/large.md)"},
    {"--resume", "assay generate --set only_layer=N makes a stack layer by layer (docs/large.md)"},
    {"--layer", "assay generate CASE --set only_layer=N makes the golden of one layer (docs/large.md)"},
    {"--layers", "assay generate CASE --set only_layer=N makes goldens of single layers to verify (docs/large.md)"},
};

/* getopt's place: a long option is the word before optind; of short ones, which may share a word, it gives the letter.
 */
static assay_status refuse_option(assay_context *ctx, char **argv, bool value_missing)
{
    char letter[3] = {'-', (char)optopt, '\0'};
    bool is_short = optopt > 0 && optopt <= UCHAR_MAX;
    const char *option = is_short ? letter : argv[optind - 1];
    if (value_missing) return assay_fail(ctx, ASSAY_BAD_INPUT, "option %s needs a value", option);
    const size_t length = strcspn(option, "=");
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        if (strlen(gone[i].name) == length && strncmp(option, gone[i].name, length) == 0)
            return assay_fail(ctx, ASSAY_BAD_INPUT, "option %s is gone with 0.2: %s", gone[i].name, gone[i].instead);
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "unknown option %s; see assay %s --help", option, argv[0]);
}

assay_status assay_options_parse(assay_context *ctx, int argc, char **argv, unsigned allowed, assay_options *options)
{
    struct option longs[ROWS + 1];
    char shorts[2 * ROWS + 2];
    *options = (assay_options){.threads = assay_launch_cores(),
                               .engine = "reference",
                               .container = "h5",
                               .color = isatty(STDOUT_FILENO) != 0 && !assay_launch_is_shared(),
                               .false_alarm = ASSAY_FALSE_ALARM,
                               .timeout = ASSAY_TIMEOUT,
                               .fuzz_seed = 1,
                               .budget = ASSAY_BUDGET_UNSAID,
                               .argv = argv,
                               .argc = argc};
    build_tables(allowed, longs, shorts);
    opterr = 0;
    optind = 1;
    for (;;) {
        int letter = getopt_long(argc, argv, shorts, longs, NULL);
        if (letter == -1) break;
        if (letter == ':' || letter == '?') return refuse_option(ctx, argv, letter == ':');
        const assay_option_row *row = assay_options_next(allowed, NULL);
        while (id_of(row) != letter) row = assay_options_next(allowed, row);
        MUST(row->parse(ctx, row, optarg, options));
    }
    options->arguments = argv + optind;
    options->argument_count = argc - optind;
    return ASSAY_OK;
}

void assay_options_free(assay_options *options)
{
    for (int i = 0; i < options->set_count; i++) free((char *)options->sets[i]);
    free(options->sets);
    options->sets = NULL;
    options->set_count = 0;
    assay_text_list_free(&options->filter.tags);
    assay_text_list_free(&options->filter.ops);
    assay_text_list_free(&options->filter.excludes);
}

assay_status assay_options_apply(assay_context *ctx, const assay_options *options, assay_case *c)
{
    for (int i = 0; i < options->set_count; i++) MUST(assay_case_set(ctx, c, options->sets[i]));
    return ASSAY_OK;
}

const assay_option_row *assay_options_next(unsigned allowed, const assay_option_row *after)
{
    for (const assay_option_row *row = after == NULL ? rows : after + 1; row < rows + ROWS; row++) {
        if (taken(row, allowed)) return row;
    }
    return NULL;
}

void assay_options_print_help(unsigned allowed)
{
    printf("\noptions:\n");
    for (const assay_option_row *row = NULL; (row = assay_options_next(allowed, row)) != NULL;) {
        char left[64], letter[5] = "    ";
        if (row->letter != '\0') snprintf(letter, sizeof letter, "-%c, ", row->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, row->name, row->value != NULL ? " " : "",
                 row->value != NULL ? row->value : "");
        printf("  %-26s %s\n", left, row->help);
    }
}
