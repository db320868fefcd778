#include "harness/commands/options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/fixture.h"
#include "harness/certify/certificate.h"
#include "harness/ranks/launch.h"

enum { COMMON = 1 << 30 };

enum {
    THREADS = 256,
    ENGINE,
    COLOR,
    SET,
    SEED,
    INPUTS,
    WEIGHTS,
    PRECISION,
    FALSE_ALARM,
    JSON_FILE,
    JUNIT_FILE,
    HTML_FILE,
    KNOWN_FILE,
    BACKEND,
    TIMEOUT,
    MEMORY,
    KEEP,
    TAG,
    OP,
    EXCLUDE,
    NO_MESH,
    SHARD,
    SERVE,
    STAGED,
    JSON,
    CERTIFY,
    MUTANTS,
    EQUIVALENCE,
    BUDGET,
    WRITE,
    FUZZ_OP,
    FUZZ_TIME,
    FUZZ_CASES,
    FUZZ_SEED,
    FUZZ_FAILURES,
    CONTAINER,
    RECIPE,
    MATERIALISE,
    RESUME,
    LAYER,
    LAYERS,
    RANKS,
    TRUST,
    DRAW_ONLY,
    GRAPH,
    SVG_FILE
};

static const assay_option_row rows[] = {
    {"output", 'o', true, ASSAY_OPT_OUTPUT, "PATH", "one file (.h5, .safetensors, .npz), or a folder"},
    {"container", CONTAINER, true, ASSAY_OPT_CONTAINER | ASSAY_OPT_FUZZ, "NAME",
     "of files in a folder: h5 (default), safetensors or npz"},
    {"set", SET, true, ASSAY_OPT_SET | ASSAY_OPT_FUZZ, "KEY=VALUE", "change a key of the case (repeatable)"},
    {"seed", SEED, true, ASSAY_OPT_SET, "N", "the seed of inputs, weights and cotangents"},
    {"inputs", INPUTS, true, ASSAY_OPT_INPUTS, "FILE",
     "take inputs, weights and cotangents from this file where it has them"},
    {"weights", WEIGHTS, true, ASSAY_OPT_WEIGHTS, "FILE[:LAYER]",
     "take the weights from a checkpoint of Hugging Face (docs/hugging-face.md)"},
    {"precision", PRECISION, true, ASSAY_OPT_PRECISION | ASSAY_OPT_PROFILE | ASSAY_OPT_FUZZ, "NAME",
     "profile: f64, f32, bf16, bf16_router, bf16_sums, f16, tf32, tpu_default, fp8_e4m3_block128, or a FILE.yml with "
     "your own"},
    {"false-alarm", FALSE_ALARM, true, ASSAY_OPT_PRECISION | ASSAY_OPT_FUZZ, "P",
     "probability that a correct backend fails (default 1e-6)"},
    {"verbose", 'v', false, ASSAY_OPT_PRECISION | ASSAY_OPT_VERIFY | ASSAY_OPT_FUZZ, NULL, "every tensor in detail"},
    {"staged", STAGED, false, ASSAY_OPT_STAGED, NULL, "judge each stage too, from the candidate's own inputs to it"},
    {"json", JSON_FILE, true, ASSAY_OPT_REPORTS | ASSAY_OPT_JSON, "FILE", "write the report as JSON"},
    {"junit", JUNIT_FILE, true, ASSAY_OPT_REPORTS, "FILE", "write the report as JUnit XML"},
    {"html", HTML_FILE, true, ASSAY_OPT_REPORTS, "FILE", "write the report as one HTML page, with pictures"},
    {"backend", BACKEND, true, ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ, "SPEC",
     "a shared object (./libmine.so), or a command with {request} and {candidate}"},
    {"serve", SERVE, false, ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ, NULL,
     "the command is started once, without placeholders, and reads requests (docs/your-kernel.md)"},
    {"timeout", TIMEOUT, true, ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ, "SECONDS",
     "time limit of one run of the backend (default 300)"},
    {"memory", MEMORY, true, ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ, "SIZE",
     "memory limit of each process of the backend, as 8G or 512M"},
    {"keep", KEEP, true, ASSAY_OPT_BACKEND, "DIR", "keep golden, request and candidate files in this folder"},
    {"known", KNOWN_FILE, true, ASSAY_OPT_KNOWN, "FILE",
     "known failures, lines of a case and a reason: run, reported apart, an error when one passes"},
    {"known", KNOWN_FILE, true, ASSAY_OPT_FUZZ, "FILE",
     "known failures, lines fuzz/OP:TENSOR:HOW and a reason: counted apart (docs/fuzzing.md)"},
    {"tag", TAG, true, ASSAY_OPT_CHOOSE, "TAG[,TAG]", "only cases with one of these tags (repeatable)"},
    {"op", OP, true, ASSAY_OPT_CHOOSE, "OP[,OP]", "only cases of one of these operations (repeatable)"},
    {"exclude", EXCLUDE, true, ASSAY_OPT_CHOOSE, "WORD[,WORD]",
     "no cases with this tag, of this operation, or whose name this glob matches (repeatable)"},
    {"no-mesh", NO_MESH, false, ASSAY_OPT_CHOOSE, NULL, "no cases on more than one device"},
    {"shard", SHARD, true, ASSAY_OPT_CHOOSE, "I/N",
     "part I of N, of about the same work: for N jobs beside each other"},
    {"json", JSON, false, ASSAY_OPT_LIST, NULL, "as JSON"},
    {"mutants", MUTANTS, false, ASSAY_OPT_LIST, NULL, "the mutants of assay power instead of cases"},
    {"recipe", RECIPE, false, ASSAY_OPT_RECIPE, NULL,
     "inputs and weights that the seed makes as their recipe and digest, without elements"},
    {"materialise", MATERIALISE, false, ASSAY_OPT_MATERIALISE, NULL, "write the elements that a golden has recipes of"},
    {"certify", CERTIFY, false, ASSAY_OPT_CERTIFY, NULL, "certify in binary128, and store the certificate"},
    {"mutants", MUTANTS, false, ASSAY_OPT_CERTIFY, NULL, "store which mutants the golden detects (assay power)"},
    {"equivalence", EQUIVALENCE, true, ASSAY_OPT_EQUIVALENCE, "NAME", "one of them, or all (default)"},
    {"budget", BUDGET, true, ASSAY_OPT_CERTIFY | ASSAY_OPT_VERIFY, "N",
     "certify N elements of each sketch of a gradient (default 8), or all; 0: outputs alone"},
    {"resume", RESUME, false, ASSAY_OPT_RESUME, NULL,
     "a stack a layer at a time: what is done stays in PATH.journal, and a run that was stopped goes on there"},
    {"layer", LAYER, true, ASSAY_OPT_RESUME, "N",
     "of a stack's golden: layer N as a golden of its own, with error scales"},
    {"layers", LAYERS, true, ASSAY_OPT_VERIFY, "LIST",
     "compute only these layers of a stack again, each from its own input: 3,60 or 0-2,60"},
    {"write", WRITE, true, ASSAY_OPT_WRITE, "FOLDER",
     "write the candidate of each mutant that has an effect as FOLDER/MUTANT.h5 (one golden)"},
    {"op", FUZZ_OP, true, ASSAY_OPT_FUZZ, "OP", "cases of this operation alone"},
    {"time", FUZZ_TIME, true, ASSAY_OPT_FUZZ, "TIME", "how long cases are drawn: 90, 90s, 10m, 1h (default 60)"},
    {"cases", FUZZ_CASES, true, ASSAY_OPT_FUZZ, "N", "how many cases are drawn, in place of a time"},
    {"failures", FUZZ_FAILURES, true, ASSAY_OPT_FUZZ, "N", "end when so many different failures were found"},
    {"seed", FUZZ_SEED, true, ASSAY_OPT_FUZZ, "N", "the same cases again: what is drawn follows from it (default 1)"},
    {"draw-only", DRAW_ONLY, false, ASSAY_OPT_FUZZ, NULL,
     "run nothing: write the --cases that are drawn to the folder of -o"},
    {"output", 'o', true, ASSAY_OPT_FUZZ, "DIR", "write each failure's case, golden and command to this folder"},
    {"trust", TRUST, false, ASSAY_OPT_TRUST, NULL, "take goldens without a look at their digests"},
    {"ranks", RANKS, true, ASSAY_OPT_RANKS, "N[,N]",
     "what so many ranks of mpirun would each do, send and hold (docs/large.md)"},
    {"graph", GRAPH, false, ASSAY_OPT_GRAPH, NULL, "the steps of the case in its place, in the order of the data flow"},
    {"svg", SVG_FILE, true, ASSAY_OPT_GRAPH, "FILE", "write a picture of the steps (one case)"},
    {"threads", THREADS, true, COMMON, "N", "threads (default: all cores); the same bits for any number"},
    {"engine", ENGINE, true, COMMON, "NAME", "reference (default) or blas"},
    {"quiet", 'q', false, COMMON, NULL, "no progress"},
    {"color", COLOR, true, COMMON, "WHEN", "auto (default), always or never"},
    {"help", 'h', false, COMMON, NULL, "this text"},
};
enum { ROWS = sizeof rows / sizeof *rows };

static bool taken(const assay_option_row *row, unsigned allowed)
{
    return row->group == COMMON || (row->group & allowed) != 0;
}

static assay_status parse_number(assay_context *ctx, const char *name, const char *text, double least, double most,
                                 double *out)
{
    char *end = NULL;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(value >= least && value <= most)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--%s is \"%s\", expected a number from %g to %g", name, text, least,
                          most);
    }
    *out = value;
    return ASSAY_OK;
}

static assay_status parse_threads(assay_context *ctx, const char *text, int *threads)
{
    enum { MOST = 1024 };
    char *end = NULL;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 1 || value > MOST) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--threads is \"%s\", expected a whole number from 1 to %d", text,
                          MOST);
    }
    *threads = (int)value;
    return ASSAY_OK;
}

static assay_status parse_budget(assay_context *ctx, const char *text, int64_t *budget)
{
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (strcmp(text, "all") == 0) {
        *budget = ASSAY_BUDGET_ALL;
    } else if (end == text || *end != '\0' || errno != 0 || value < 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--budget is \"%s\", expected a whole number from 0 up, or all", text);
    } else {
        *budget = value;
    }
    return ASSAY_OK;
}

static assay_status parse_whole(assay_context *ctx, const char *name, const char *text, int64_t least, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--%s is \"%s\", expected a whole number from %lld up", name, text,
                          (long long)least);
    }
    *out = value;
    return ASSAY_OK;
}

/* "8,64,512" */
static assay_status parse_ranks(assay_context *ctx, const char *text, assay_options *o)
{
    enum { MOST = sizeof o->ranks / sizeof *o->ranks };
    const int64_t most = 1 << 20;
    char *end = NULL;
    o->rank_count = 0;
    for (const char *at = text;; at = end + 1) {
        const long long value = strtoll(at, &end, 10);
        const bool well = end != at && (*end == ',' || *end == '\0') && value >= 1 && value <= most;
        if (!well || o->rank_count == MOST) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "--ranks is \"%s\", expected up to %d whole numbers from 1 to %" PRId64 ", as 8,64,512",
                              text, MOST, most);
        }
        o->ranks[o->rank_count++] = value;
        if (*end == '\0') return ASSAY_OK;
    }
}

/* A number of seconds, minutes or hours. */
static assay_status parse_time(assay_context *ctx, const char *text, double *seconds)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}};
    char *end = NULL;
    const double value = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0 || !(value > 0 && value <= 1e6)) continue;
        *seconds = value * units[i].seconds;
        return ASSAY_OK;
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "--time is \"%s\", expected a time above 0, as 90, 90s, 10m or 1h", text);
}

/* A number of megabytes or gigabytes. */
static assay_status parse_memory(assay_context *ctx, const char *text, int64_t *bytes)
{
    char *end = NULL;
    const double value = strtod(text, &end);
    const double unit = strcmp(end, "M") == 0 ? 1 << 20 : strcmp(end, "G") == 0 ? 1 << 30 : 0;
    if (end == text || unit == 0 || !(value * unit >= 1 << 20 && value * unit <= 1e18)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--memory is \"%s\", expected a size from 1M up, as 512M or 8G", text);
    }
    *bytes = (int64_t)(value * unit);
    return ASSAY_OK;
}

static assay_status parse_shard(assay_context *ctx, const char *text, assay_options *o)
{
    enum { MOST = 10000 };
    char *slash = NULL, *end = NULL;
    const long shard = strtol(text, &slash, 10);
    const long shards = *slash == '/' ? strtol(slash + 1, &end, 10) : 0;
    if (slash == text || end == NULL || *end != '\0' || shard < 1 || shards > MOST || shard > shards) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--shard is \"%s\", expected I/N with 1 <= I <= N <= %d", text, MOST);
    }
    o->shard = (int)shard;
    o->shards = (int)shards;
    return ASSAY_OK;
}

static assay_status parse_color(assay_context *ctx, const char *text, bool *color)
{
    if (strcmp(text, "always") == 0) {
        *color = true;
    } else if (strcmp(text, "never") == 0) {
        *color = false;
    } else if (strcmp(text, "auto") != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--color is \"%s\", expected auto, always or never", text);
    }
    return ASSAY_OK;
}

static assay_status parse_container(assay_context *ctx, const char *text, const char **container)
{
    char name[32];
    snprintf(name, sizeof name, "x.%.28s", text);
    if (!assay_fixture_is_file_name(name) || strchr(text, '.') != NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--container is \"%s\", expected h5, safetensors or npz", text);
    }
    *container = text;
    return ASSAY_OK;
}

static assay_status add_set(assay_context *ctx, assay_options *options, const char *key, const char *text)
{
    size_t size = strlen(key) + strlen(text) + 1;
    char *assignment = malloc(size);
    void *more = realloc(options->sets, (size_t)(options->set_count + 1) * sizeof *options->sets);
    if (more != NULL) options->sets = more;
    if (assignment == NULL || more == NULL) {
        free(assignment);
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the options");
    }
    snprintf(assignment, size, "%s%s", key, text);
    options->sets[options->set_count++] = assignment;
    return ASSAY_OK;
}

/* Options that are said, or not. */
static bool take_flag(assay_options *o, int letter)
{
    const struct {
        int letter;
        bool *flag;
    } flags[] = {{'q', &o->quiet},           {'h', &o->help},
                 {'v', &o->verbose},         {JSON, &o->json},
                 {RECIPE, &o->recipe},       {MATERIALISE, &o->materialise},
                 {CERTIFY, &o->certify},     {MUTANTS, &o->mutants},
                 {RESUME, &o->resume},       {TRUST, &o->trust},
                 {DRAW_ONLY, &o->draw_only}, {NO_MESH, &o->filter.no_mesh},
                 {STAGED, &o->staged},       {SERVE, &o->serve},
                 {GRAPH, &o->graph}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (flags[i].letter != letter) continue;
        *flags[i].flag = true;
        return true;
    }
    return false;
}

/* Options whose value is kept as it stands. */
static bool take_text(assay_options *o, int letter, const char *value)
{
    const struct {
        int letter;
        const char **text;
    } texts[] = {{'o', &o->output},
                 {LAYERS, &o->layers},
                 {ENGINE, &o->engine},
                 {EQUIVALENCE, &o->equivalence},
                 {INPUTS, &o->inputs},
                 {WEIGHTS, &o->weights},
                 {PRECISION, &o->precision},
                 {JSON_FILE, &o->json_file},
                 {JUNIT_FILE, &o->junit_file},
                 {HTML_FILE, &o->html_file},
                 {KNOWN_FILE, &o->known_file},
                 {BACKEND, &o->backend},
                 {KEEP, &o->keep},
                 {WRITE, &o->folder},
                 {SVG_FILE, &o->svg_file},
                 {FUZZ_OP, &o->fuzz_op}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].letter != letter) continue;
        *texts[i].text = value;
        return true;
    }
    return false;
}

static assay_status take(assay_context *ctx, assay_options *o, int letter, const char *value)
{
    if (take_flag(o, letter) || take_text(o, letter, value)) return ASSAY_OK;
    switch (letter) {
    case LAYER:
        return parse_whole(ctx, "layer", value, 0, &o->layer);
    case BUDGET:
        return parse_budget(ctx, value, &o->budget);
    case TAG:
        return assay_words_add(ctx, &o->filter.tags, "tag", value);
    case OP:
        return assay_words_add(ctx, &o->filter.ops, "op", value);
    case EXCLUDE:
        return assay_words_add(ctx, &o->filter.excludes, "exclude", value);
    case SHARD:
        return parse_shard(ctx, value, o);
    case RANKS:
        return parse_ranks(ctx, value, o);
    case SET:
        return add_set(ctx, o, "", value);
    case SEED:
        return add_set(ctx, o, "seed=", value);
    case CONTAINER:
        return parse_container(ctx, value, &o->container);
    case THREADS:
        return parse_threads(ctx, value, &o->threads);
    case COLOR:
        return parse_color(ctx, value, &o->color);
    case MEMORY:
        return parse_memory(ctx, value, &o->memory);
    case FALSE_ALARM:
        return parse_number(ctx, "false-alarm", value, 1e-300, 0.5, &o->false_alarm);
    case FUZZ_TIME:
        return parse_time(ctx, value, &o->fuzz_seconds);
    case FUZZ_CASES:
        return parse_whole(ctx, "cases", value, 1, &o->fuzz_cases);
    case FUZZ_FAILURES:
        return parse_whole(ctx, "failures", value, 1, &o->fuzz_failures);
    case FUZZ_SEED:
        return parse_whole(ctx, "seed", value, 0, &o->fuzz_seed);
    default:
        return parse_number(ctx, "timeout", value, 1e-3, 1e9, &o->timeout);
    }
}

/* getopt's tables from the rows that the command takes. */
static void build_tables(unsigned allowed, struct option *longs, char *shorts)
{
    int count = 0;
    *shorts++ = ':'; /* a missing value is told apart from an unknown option */
    for (int i = 0; i < ROWS; i++) {
        if (!taken(&rows[i], allowed)) continue;
        longs[count++] =
            (struct option){rows[i].name, rows[i].takes_value ? required_argument : no_argument, NULL, rows[i].letter};
        if (rows[i].letter <= UCHAR_MAX) {
            *shorts++ = (char)rows[i].letter;
            if (rows[i].takes_value) *shorts++ = ':';
        }
    }
    longs[count] = (struct option){0};
    *shorts = '\0';
}

/* getopt's place: a long option is the word before optind; of short ones, which may share a word, it gives the letter.
 */
static assay_status refuse_option(assay_context *ctx, char **argv, bool value_missing)
{
    char letter[3] = {'-', (char)optopt, '\0'};
    bool is_short = optopt > 0 && optopt <= UCHAR_MAX;
    const char *option = is_short ? letter : argv[optind - 1];
    if (value_missing) return assay_fail(ctx, ASSAY_BAD_INPUT, "option %s needs a value", option);
    return assay_fail(ctx, ASSAY_BAD_INPUT, "unknown option %s; see assay %s --help", option, argv[0]);
}

assay_status assay_options_parse(assay_context *ctx, int argc, char **argv, unsigned allowed, assay_options *options)
{
    struct option longs[ROWS + 1];
    char shorts[2 * ROWS + 2];
    assay_status status = ASSAY_OK;
    *options = (assay_options){.threads = assay_launch_cores(),
                               .engine = "reference",
                               .container = "h5",
                               .color = assay_launch_shows_output(),
                               .false_alarm = ASSAY_FALSE_ALARM,
                               .timeout = ASSAY_TIMEOUT,
                               .fuzz_seed = 1,
                               .budget = ASSAY_BUDGET_UNSAID,
                               .layer = -1,
                               .argv = argv,
                               .argc = argc};
    build_tables(allowed, longs, shorts);
    opterr = 0;
    optind = 1;
    for (;;) {
        int letter = getopt_long(argc, argv, shorts, longs, NULL);
        if (letter == -1) break;
        if (letter == ':' || letter == '?') return refuse_option(ctx, argv, letter == ':');
        TRY(take(ctx, options, letter, optarg));
    }
    options->arguments = argv + optind;
    options->argument_count = argc - optind;
cleanup:
    return status;
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
    assay_status status = ASSAY_OK;
    for (int i = 0; i < options->set_count; i++) TRY(assay_case_set(ctx, c, options->sets[i]));
cleanup:
    return status;
}

const assay_option_row *assay_options_next(unsigned allowed, const assay_option_row *after)
{
    for (const assay_option_row *row = after == NULL ? rows : after + 1; row < rows + ROWS; row++) {
        if (taken(row, allowed)) return row;
    }
    return NULL;
}

char assay_option_letter(const assay_option_row *row)
{
    return row->letter <= UCHAR_MAX ? (char)row->letter : '\0';
}

void assay_options_print_help(unsigned allowed)
{
    printf("\noptions:\n");
    for (const assay_option_row *row = NULL; (row = assay_options_next(allowed, row)) != NULL;) {
        char left[64], letter[5] = "    ";
        if (assay_option_letter(row) != '\0') snprintf(letter, sizeof letter, "-%c, ", assay_option_letter(row));
        snprintf(left, sizeof left, "%s--%s%s%s", letter, row->name, row->takes_value ? " " : "",
                 row->takes_value ? row->value : "");
        printf("  %-26s %s\n", left, row->help);
    }
}
