/* How ranks begin. */
#define _GNU_SOURCE /* sched_getaffinity, environ */

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/ranks/ranks.h"

static int number_of(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text == NULL ? otherwise : atoi(text);
}

/* Open MPI's mpirun says how many there are; with srun --mpi=pmix a process has a rank alone. */
bool assay_launch_is_shared(void)
{
    return number_of("OMPI_COMM_WORLD_SIZE", getenv("PMIX_RANK") != NULL ? 2 : 1) > 1;
}

int assay_launch_rank(void)
{
    return number_of("OMPI_COMM_WORLD_RANK", number_of("PMIX_RANK", 0));
}

int assay_launch_cores(void)
{
    cpu_set_t set;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    long cores = online > 0 ? online : 1;
    if (!assay_launch_is_shared()) return (int)cores;
    cores /= number_of("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < cores) cores = CPU_COUNT(&set);
    return cores > 0 ? (int)cores : 1;
}

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
