/* Messages between the processes of one run. harness/ranks/mpi has them by MPI, in a module of its own that is opened
 * where mpirun started the program; the program itself needs no MPI. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Messages from one rank to another with one tag arrive in the order in which they were sent. Two threads of the first
 * rank call it at the same time, one thread of the others. False: the message did not go or come, and none will any more:
 * probe then says that there is one, and its sender is a rank, so that nobody waits for it. */
typedef struct assay_transport {
    void *self;
    int rank, size;
    /* Returns when `data` may be changed, which may be when it has arrived. At most 2^30 bytes. */
    bool (*send)(void *self, int to, int tag, const void *data, size_t bytes);
    /* Whether a message with that tag is there, of any rank where *from is -1; its sender and size. */
    bool (*probe)(void *self, int tag, int *from, size_t *bytes);
    bool (*receive)(void *self, int from, int tag, void *data, size_t bytes);
    /* After the last message. */
    void (*close)(void *self);
    /* Says why, and ends all ranks at once, with exit status 2. */
    void (*abort)(void *self, const char *reason);
} assay_transport;

/* What the module exports under this name: opens the transport, or says why it cannot. */
typedef bool assay_transport_opener(assay_transport *transport, char *message, size_t size);
#define ASSAY_TRANSPORT_OPENER "assay_transport_open"
