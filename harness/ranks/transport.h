/* Messages between the processes of one run. harness/ranks/mpi has them by MPI, in a module of its own that is opened
 * where mpirun started the program; the program itself needs no MPI. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Messages from one rank to another arrive in the order in which they were sent. What fails ends all ranks, with exit status 2. */
typedef struct assay_transport {
    void *self;
    int rank, size;
    /* One message of two parts; returns at once. */
    void (*send)(void *self, int to, const void *head, size_t bytes, const void *data, size_t more);
    bool (*has)(void *self, int from);                  /* whether one is there */
    void *(*take)(void *self, int from, size_t *bytes); /* waits for it; the caller frees it */
    void (*close)(void *self);                          /* after the last one */
} assay_transport;

/* What the module exports under this name: opens the transport; false: it cannot. */
typedef bool assay_transport_opener(assay_transport *transport);
#define ASSAY_TRANSPORT_OPENER "assay_transport_open"
