/* The command line: one table of options, of which each command takes some. */
#pragma once

#include "cases/case_filter.h"
#include "harness/ranks/ranks.h"
#include "oracle/base/status.h"

/* Which options a command takes; the common ones (threads, engine, quiet, color, help) go without saying. */
enum {
    ASSAY_OPT_OUTPUT = 1 << 0,      /* -o, --output */
    ASSAY_OPT_SET = 1 << 1,         /* --set, --seed */
    ASSAY_OPT_INPUTS = 1 << 2,      /* --inputs */
    ASSAY_OPT_PRECISION = 1 << 3,   /* --precision, --false-alarm, -v */
    ASSAY_OPT_REPORTS = 1 << 4,     /* --json FILE, --junit FILE, --html FILE */
    ASSAY_OPT_BACKEND = 1 << 5,     /* --backend, --serve, --timeout, --memory, --keep */
    ASSAY_OPT_LIST = 1 << 6,        /* --json, --mutants, --steps */
    ASSAY_OPT_CERTIFY = 1 << 7,     /* --certify, --budget, --mutants */
    ASSAY_OPT_VERIFY = 1 << 8,      /* --budget, -v */
    ASSAY_OPT_EQUIVALENCE = 1 << 9, /* --equivalence */
    ASSAY_OPT_KNOWN = 1 << 10,      /* --known */
    ASSAY_OPT_JSON = 1 << 11,       /* --json FILE */
    ASSAY_OPT_WRITE = 1 << 12,      /* --write, --mutants */
    ASSAY_OPT_PROFILE = 1 << 13,    /* --precision alone */
    ASSAY_OPT_CHOOSE = 1 << 14,     /* --tag, --op, --exclude, --no-mesh, --shard */
    ASSAY_OPT_CONTAINER = 1 << 15,  /* --container */
    ASSAY_OPT_WEIGHTS = 1 << 16,    /* --weights */
    /* --set, --container, --backend, --serve, --timeout, --memory, --precision, --false-alarm, and all of --op ... -o */
    ASSAY_OPT_FUZZ = 1 << 17,
    ASSAY_OPT_RECIPE = 1 << 18,      /* --recipe */
    ASSAY_OPT_MATERIALISE = 1 << 19, /* --materialise */
    ASSAY_OPT_STAGED = 1 << 20,      /* --staged */
    ASSAY_OPT_TRUST = 1 << 21,       /* --trust */
    ASSAY_OPT_GRAPH = 1 << 22,       /* --graph, --svg */
    ASSAY_OPT_ALL = 1 << 23,         /* --all */
    ASSAY_OPT_TOLERANCE = 1 << 24,   /* --audit, --runs, --snippet */
    ASSAY_OPT_BETWEEN = 1 << 25,     /* --other-precision, --replay, --timeout, --memory */
    ASSAY_OPT_HOSTILE = 1 << 26      /* --hostile */
};

/* Of --false-alarm, and of --timeout in seconds. */
#define ASSAY_FALSE_ALARM 1e-6
#define ASSAY_TIMEOUT 300.0

typedef struct assay_options {
    int threads;
    const char *engine;
    bool quiet, color, json, verbose;
    const char *equivalence, *output, *inputs, *weights, *precision, *json_file, *junit_file, *html_file, *known_file,
        *svg_file, *backend, *keep, *folder;
    const char *other_precision, *replay; /* of between */
    const char *audit;                    /* of tolerance: a rule; NULL: the smallest are found */
    bool snippet;
    int64_t runs;             /* of correct kernels; 0: not said */
    const char *mutants_like; /* of power: a pattern; NULL: not said */
    const char *container;    /* the ending of files in a folder: h5, safetensors */
    double false_alarm, timeout;
    int64_t memory; /* of a backend's process, in bytes; 0: not said */
    bool certify, mutants, steps, serve, staged, recipe, materialise, trust, draw_only, graph, all, hostile;
    assay_case_filter filter;
    int shard, shards;     /* 1 to shards; 0, 0: all of it */
    const char *fuzz_op;   /* of fuzz: one operation, or NULL */
    double fuzz_seconds;   /* how long; 0: not said */
    int64_t fuzz_cases;    /* how many; 0: not said */
    int64_t fuzz_failures; /* it ends with so many; 0: not so */
    int64_t fuzz_seed;
    int64_t budget;    /* harness/certify/certificate.h */
    const char **sets; /* --set and --seed in their order, as key=value */
    int set_count;
    char **arguments; /* what is not an option */
    int argument_count;
    bool help;
    char **argv; /* the whole command line, for "reproduce with" */
    int argc;
    assay_ranks *ranks; /* processes that share the cases; NULL: this one has them all */
} assay_options;

/* `allowed`: the sum of ASSAY_OPT_ values. Refuses what it does not know, a missing or bad value. */
assay_status assay_options_parse(assay_context *ctx, int argc, char **argv, unsigned allowed, assay_options *options);
void assay_options_free(assay_options *options);

/* Applies --set and --seed to a case. */
assay_status assay_options_apply(assay_context *ctx, const assay_options *options, assay_case *c);

/* A row of the table. */
typedef struct assay_option_row assay_option_row;
struct assay_option_row {
    const char *name;
    char letter; /* of `-v`; '\0': it has none */
    unsigned group;
    const char *value, *help; /* value: its name; NULL: it has none */
    assay_status (*parse)(assay_context *ctx, const assay_option_row *row, const char *value, assay_options *options);
    size_t field;       /* of assay_options, where it is one */
    double least, most; /* of a number */
};

/* The options in `allowed` and the common ones, one after the other; NULL begins and ends them. */
const assay_option_row *assay_options_next(unsigned allowed, const assay_option_row *after);

/* The help text of the options in `allowed`, to standard output. */
void assay_options_print_help(unsigned allowed);
