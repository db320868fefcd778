/* The transport by MPI, whose own errors end all ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harness/ranks/transport.h"

extern assay_transport_opener assay_transport_open;

/* Bytes of a message that arrives although its sender is at work by then; what is longer goes in parts. */
enum { LONGEST = 2048 };

/* A part on its way. */
typedef struct letter {
    struct letter *next;
    MPI_Request request;
    char text[];
} letter;

static void *need(void *memory)
{
    if (memory != NULL) return memory;
    dprintf(STDERR_FILENO, "assay: no memory for a message between ranks\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
    _exit(2);
}

static void post(letter **sent, int to, const void *data, size_t bytes)
{
    for (size_t at = 0, part; at < bytes; at += part) {
        part = bytes - at < LONGEST ? bytes - at : LONGEST;
        letter *l = need(malloc(sizeof *l + part));
        memcpy(l->text, (const char *)data + at, part);
        MPI_Isend(l->text, (int)part, MPI_BYTE, to, 0, MPI_COMM_WORLD, &l->request);
        l->next = *sent;
        *sent = l;
    }
}

static void mpi_send(void *self, int to, const void *head, size_t bytes, const void *data, size_t more)
{
    const size_t size = bytes + more;
    post(self, to, &size, sizeof size);
    post(self, to, head, bytes);
    post(self, to, data, more);
}

static bool mpi_has(void *self, int from)
{
    int there = 0;
    (void)self;
    MPI_Iprobe(from, 0, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    return there != 0;
}

static void *mpi_receive(void *self, int from, size_t *bytes)
{
    const struct timespec pause = {0, 1000000};
    MPI_Status found;
    while (!mpi_has(self, from)) nanosleep(&pause, NULL); /* MPI's own waiting takes a core */
    MPI_Recv(bytes, sizeof *bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    char *data = need(malloc(*bytes + 1));
    int count = 0;
    for (size_t at = 0; at < *bytes; at += (size_t)count) {
        MPI_Recv(data + at, LONGEST, MPI_BYTE, from, 0, MPI_COMM_WORLD, &found);
        MPI_Get_count(&found, MPI_BYTE, &count);
    }
    return data;
}

static void mpi_close(void *self)
{
    letter **sent = self, *next = NULL;
    for (letter *l = *sent; l != NULL; l = next) {
        next = l->next;
        MPI_Wait(&l->request, MPI_STATUS_IGNORE);
        free(l);
    }
    free(sent);
    MPI_Finalize();
}

bool assay_transport_open(assay_transport *transport)
{
    int level = 0;
    letter **sent = calloc(1, sizeof *sent);
    if (sent == NULL || MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
        free(sent);
        return false;
    }
    *transport =
        (assay_transport){.self = sent, .send = mpi_send, .has = mpi_has, .take = mpi_receive, .close = mpi_close};
    MPI_Comm_rank(MPI_COMM_WORLD, &transport->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &transport->size);
    return true;
}
