#define _GNU_SOURCE /* environ */
#include "harness/ranks/ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A backend that uses MPI itself is not one of us. */
static void clean_environment(void)
{
    static const char *const names[] = {"OMPI_", "PMIX_", "ORTE_", "OPAL_"};
    struct stat found;
    const char *folder = getenv("OMPI_FILE_LOCATION");
    if (folder != NULL && stat(folder, &found) == 0 && S_ISDIR(found.st_mode)) setenv("TMPDIR", folder, 1);
    for (char **entry = environ; *entry != NULL;) {
        char name[256];
        bool ours = true;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            ours &= strncmp(name, names[i], strlen(names[i])) != 0;
        if (ours || unsetenv(name) != 0) entry++; /* what was unset is replaced by the next */
    }
}

static void *open_module(void)
{
    static const char *const places[] = {"libassay_mpi.so", ASSAY_MODULES "/libassay_mpi.so"};
    char program[3072], path[4096];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    void *module = NULL;
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL) *slash = '\0';
    for (size_t i = 0; module == NULL && i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s/%s", program, places[i]);
        if (access(path, F_OK) == 0) module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    return module;
}

assay_status assay_ranks_open(assay_context *ctx, assay_ranks **ranks)
{
    assay_transport transport = {0};
    assay_transport_opener *open_transport = NULL;
    *ranks = NULL;
    if (!assay_launch_is_shared()) return ASSAY_OK;
    dlerror();
    void *module = open_module();
    if (module == NULL) {
        const char *reason = dlerror();
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "mpirun has started several processes, but this assay has no MPI: %.600s",
                          reason != NULL ? reason : "libassay_mpi.so is not there (docs/large.md)");
    }
    *(void **)&open_transport = dlsym(module, ASSAY_TRANSPORT_OPENER);
    if (open_transport == NULL || !open_transport(&transport))
        return assay_fail(ctx, ASSAY_BAD_INPUT, "libassay_mpi.so is not one of ours, or MPI cannot be started");
    *ranks = calloc(1, sizeof **ranks + (size_t)transport.size * sizeof(bool));
    if (*ranks == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for %d ranks", transport.size);
    (*ranks)->transport = transport;
    clean_environment();
    return ASSAY_OK;
}

/* The two words of the first rank. */
static const char BEGIN = 'b', END = 'e';

static void tell_all(assay_ranks *ranks, char word)
{
    for (int rank = 1; rank < ranks->transport.size; rank++)
        ranks->transport.send(ranks->transport.self, rank, &word, 1, NULL, 0);
}

static void listen(assay_ranks *ranks)
{
    size_t bytes;
    char *word = ranks->transport.take(ranks->transport.self, 0, &bytes);
    ranks->ended = *word == END;
    free(word);
}

bool assay_ranks_begin(assay_ranks *ranks)
{
    if (ranks->transport.rank == 0) tell_all(ranks, BEGIN);
    if (ranks->transport.rank != 0) listen(ranks);
    return !ranks->ended;
}

bool assay_ranks_report(assay_ranks *ranks, const assay_rank_report *report, const char *data, size_t size)
{
    ranks->transport.send(ranks->transport.self, 0, report, sizeof *report, data, size);
    if (!ranks->ended && ranks->transport.has(ranks->transport.self, 0)) listen(ranks);
    return !ranks->ended;
}

assay_status assay_ranks_hear(assay_context *ctx, assay_ranks *ranks, int from, bool wait, assay_rank_report **report,
                              size_t *size)
{
    *report = NULL;
    if (!ranks->over[from] && (wait || ranks->transport.has(ranks->transport.self, from))) {
        assay_rank_report *heard = ranks->transport.take(ranks->transport.self, from, size);
        *size -= sizeof *heard;
        if (heard->number >= 0) {
            *report = heard;
            return ASSAY_OK;
        }
        const assay_status status = heard->status;
        ranks->over[from] = true;
        if (status != ASSAY_OK) assay_fail(ctx, status, "rank %d: %.900s", from, heard->message);
        free(heard);
        if (status != ASSAY_OK) return status;
    }
    return wait ? assay_fail(ctx, ASSAY_INTERNAL, "rank %d has left out a case", from) : ASSAY_OK;
}

/* Nobody needs what the others still say. */
static void hear_out(assay_ranks *ranks, int from)
{
    assay_context ctx = {0};
    assay_rank_report *report;
    size_t size;
    while (!ranks->over[from]) {
        (void)assay_ranks_hear(&ctx, ranks, from, true, &report, &size);
        free(report);
    }
}

void assay_ranks_close(assay_ranks *ranks, assay_status status, const char *message)
{
    if (ranks == NULL) return;
    if (ranks->transport.rank == 0) {
        tell_all(ranks, END);
        for (int rank = 1; rank < ranks->transport.size; rank++) hear_out(ranks, rank);
    } else {
        assay_rank_report last = {.number = -1, .status = status};
        snprintf(last.message, sizeof last.message, "%s", message);
        assay_ranks_report(ranks, &last, NULL, 0);
        while (!ranks->ended) listen(ranks);
    }
    ranks->transport.close(ranks->transport.self);
    free(ranks);
}
