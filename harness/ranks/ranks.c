#include "harness/ranks/ranks.h"

#include <stdio.h>
#include <stdlib.h>

bool assay_ranks_is_first(const assay_ranks *ranks)
{
    return ranks == NULL || ranks->transport.rank == 0;
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
