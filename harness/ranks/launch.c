#define _GNU_SOURCE /* sched_getaffinity, environ */

#include "harness/ranks/launch.h"
#include "oracle/base/leftovers.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

/* What mpirun's own output goes to, where it runs on this machine; "" else. */
static void output_of_parent(int descriptor, char *target, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)getppid(), descriptor);
    const ssize_t length = readlink(link, target, size - 1);
    target[length > 0 ? length : 0] = '\0';
}

static bool parent_has_terminal(int descriptor, char *target, size_t size)
{
    output_of_parent(descriptor, target, size);
    return strncmp(target, "/dev/pts/", 9) == 0 || strncmp(target, "/dev/tty", 8) == 0;
}

bool assay_launch_shows_output(void)
{
    char target[256];
    if (!assay_launch_is_shared()) return isatty(STDOUT_FILENO) != 0;
    return assay_launch_rank() == 0 && parent_has_terminal(STDOUT_FILENO, target, sizeof target);
}

/* Progress, which mpirun would pass on through a pipe. */
static void take_terminal(void)
{
    char target[256];
    if (!parent_has_terminal(STDERR_FILENO, target, sizeof target)) return;
    const int terminal = open(target, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0) return;
    dup2(terminal, STDERR_FILENO);
    close(terminal);
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

/* mpirun ends a run with this signal, when a rank has died or when it is told to. */
static void say_end(int signal_number)
{
    static const char line[] =
        "assay: ended by mpirun: a rank has died, or the run was stopped; it leaves no file that is not whole\n";
    const ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
    const struct timespec pause = {0, 500000000}; /* mpirun passes on nothing of a process that is gone */
    assay_leftovers_remove();
    (void)written;
    nanosleep(&pause, NULL);
    _exit(128 + signal_number);
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

assay_status assay_launch_open(assay_context *ctx, assay_rank_group **group)
{
    char message[256] = "";
    assay_transport transport = {0};
    *group = NULL;
    if (!assay_launch_is_shared()) return ASSAY_OK;
    dlerror();
    void *module = open_module();
    if (module == NULL) {
        const char *reason = dlerror();
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "mpirun has started several processes, but this assay has no MPI: %.600s",
                          reason != NULL ? reason : "libassay_mpi.so is not there (docs/large.md)");
    }
    assay_transport_opener *open_transport = NULL;
    *(void **)&open_transport = dlsym(module, ASSAY_TRANSPORT_OPENER);
    if (open_transport == NULL || !open_transport(&transport, message, sizeof message)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "libassay_mpi.so: %s",
                          message[0] != '\0' ? message : "not one of ours");
    }
    if (transport.rank == 0) take_terminal();
    if (transport.rank == 0) signal(SIGTERM, say_end);
    clean_environment();
    const assay_status status = assay_rank_group_open(ctx, &transport, group);
    if (status != ASSAY_OK) transport.abort(transport.self, ctx->message); /* nobody else would learn of it */
    return status;
}
