/* The transport by MPI. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

#include "harness/ranks/transport.h"

extern assay_transport_opener assay_transport_open;

static bool mpi_send(void *self, int to, int tag, const void *data, size_t bytes)
{
    (void)self;
    return MPI_Send(data, (int)bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD) == MPI_SUCCESS;
}

static bool mpi_probe(void *self, int tag, int *from, size_t *bytes)
{
    (void)self;
    int there = 0, count = 0;
    MPI_Status found;
    const int source = *from < 0 ? MPI_ANY_SOURCE : *from;
    if (MPI_Iprobe(source, tag, MPI_COMM_WORLD, &there, &found) != MPI_SUCCESS || !there) return false;
    MPI_Get_count(&found, MPI_BYTE, &count);
    *from = found.MPI_SOURCE;
    *bytes = (size_t)count;
    return true;
}

static bool mpi_receive(void *self, int from, int tag, void *data, size_t bytes)
{
    (void)self;
    int count = 0;
    MPI_Status found;
    return MPI_Recv(data, (int)bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &found) == MPI_SUCCESS &&
           MPI_Get_count(&found, MPI_BYTE, &count) == MPI_SUCCESS && (size_t)count == bytes;
}

static void mpi_close(void *self)
{
    (void)self;
    MPI_Finalize();
}

static void mpi_abort(void *self, const char *reason)
{
    (void)self;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    dprintf(STDERR_FILENO, "assay: rank %d: %s\n", rank, reason);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

bool assay_transport_open(assay_transport *transport, char *message, size_t size)
{
    int level = 0, rank = 0, ranks = 1;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
        snprintf(message, size, "MPI cannot be started");
        return false;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (level < MPI_THREAD_MULTIPLE) {
        snprintf(message, size, "this MPI has no MPI_THREAD_MULTIPLE");
        MPI_Finalize();
        return false;
    }
    *transport = (assay_transport){.rank = rank,
                                   .size = ranks,
                                   .send = mpi_send,
                                   .probe = mpi_probe,
                                   .receive = mpi_receive,
                                   .close = mpi_close,
                                   .abort = mpi_abort};
    return true;
}
