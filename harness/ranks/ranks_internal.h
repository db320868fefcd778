/* What the two sides of harness/ranks share. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "harness/ranks/ranks.h"

/* From and to the first rank. A PUT is a header and, where it has bytes, a body of that tag. */
enum { TAG_NEXT = 1, TAG_PUT, TAG_BODY, TAG_OVER, TAG_REPLY, TAG_DATA, TAG_DATA_BODY, TAG_END, TAG_THROUGH };

enum {
    NO_PIECE = -1,
    LONGEST_MESSAGE = 1 << 22, /* bytes; what is longer goes in parts */
};

typedef enum put_kind { PUT_DATA, PUT_SINK, PUT_DONE } put_kind;

/* What a rank puts of a piece, or that it is done with it. */
typedef struct put_header {
    int64_t piece, bytes;
    put_kind kind;
    int what;
    assay_status status;
    char path[ASSAY_PATH_SIZE]; /* of a write to the sink */
} put_header;

/* For a piece of which run of which session a rank asks; {0, 0}: it does not. */
typedef struct wish {
    int64_t session, run;
} wish;

/* A rank has done its part of a session, or of all. */
typedef struct over_message {
    int64_t session;     /* LAST_SESSION: there will be none any more */
    assay_status status; /* of what no piece has said */
    char message[ASSAY_MESSAGE_SIZE];
} over_message;

typedef struct end_message {
    int64_t broadcasts; /* of the session: whoever has fewer waits for them, and passes them on */
    bool last;
} end_message;

#define LAST_SESSION INT64_MAX

/* A put that waits for its turn. */
typedef struct queued_put {
    struct queued_put *next;
    put_header header;
    char data[];
} queued_put;

typedef struct put_queue {
    queued_put *first, *last;
} put_queue;

/* Of the first rank; what the thread and the others' pieces need is under the lock. */
typedef struct first_rank {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    bool started, stopping;
    bool dropping; /* what is put is of no use any more */
    bool ended;    /* so is the session */
    int64_t session, run, count,
        next;           /* the session's how many-eth call of run(), its pieces, the next that nobody has */
    int64_t taken;      /* the piece whose turn it is to be taken */
    int *owners;        /* [count] of those that somebody has */
    wish *wishes;       /* [size] */
    put_queue *queues;  /* [size] */
    int64_t queued;     /* bytes in them */
    over_message *over; /* [size]: the last of each rank; [0]: what failed here */
    int64_t
        *through; /* [size]: the last session of which a rank has passed all on; the next one's data come after it */
} first_rank;

struct assay_rank_group {
    assay_transport transport;
    assay_ranks ranks;
    /* What is put of the piece at hand, or that it is done: to the first rank. */
    assay_status (*give)(assay_context *ctx, assay_ranks *ranks, const put_header *header, const void *data);
    int64_t session, run; /* so many there were, this one too */
    int64_t broadcasts;   /* of the session, that were sent or came */
    bool ended;           /* of another rank: the first has ended the session, and sent */
    int64_t expected;     /* so many broadcasts */
    bool last;            /* it was the last */
    bool reported;        /* of another rank: its failure was that of a piece */
    bool gone;            /* of another rank: it is through with the last session */
    atomic_bool lost;     /* a message was, or its sense: the ranks have nothing to say to each other any more */
    char *spare;          /* [LONGEST_MESSAGE], of whom receives: for what nobody here keeps */
    first_rank first;
};

/* Between looks at what has come: a rank that waits long looks less often. */
typedef struct rank_wait {
    int looks;
} rank_wait;
void rank_wait_pause(rank_wait *wait);

/* In parts; false where the transport fails, and the group is lost then. Receiving without `data`: nobody keeps it. */
bool rank_send(assay_rank_group *group, int to, int tag, const void *data, int64_t bytes);
bool rank_receive(assay_rank_group *group, int from, int tag, void *data, int64_t bytes);
assay_status rank_lost(assay_context *ctx);
/* Of what came: whether it is as ranks send it; the group is lost where not. */
bool rank_is_sound(assay_rank_group *group, bool sound);
/* Of so many bytes, those of the message that begins there. */
int64_t rank_part_of(int64_t bytes, int64_t first);

/* The data of a broadcast to the ranks that this one passes it on to. */
bool rank_pass_on(assay_rank_group *group, const void *data, int64_t bytes);
/* From `parent`, past this rank. */
bool rank_relay(assay_rank_group *group, int parent, int64_t bytes);

/* Works on a piece, and says that it is done, and how. */
assay_status rank_work(assay_context *ctx, assay_ranks *ranks, const assay_pieces *pieces, int64_t number,
                       assay_status *worked);

assay_status first_rank_start(assay_context *ctx, assay_rank_group *group);
void first_rank_stop(assay_rank_group *group);
void first_rank_end_session(assay_rank_group *group, bool last);
assay_status first_rank_run(assay_context *ctx, assay_ranks *ranks, const assay_pieces *pieces);
assay_status first_rank_give(assay_context *ctx, assay_ranks *ranks, const put_header *header, const void *data);
