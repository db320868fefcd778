/* How this process was started. */
#define _GNU_SOURCE /* sched_getaffinity */

#include <sched.h>
#include <stdlib.h>
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
