#include "harness/plan/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "oracle/base/clock.h"

#define INTERVAL 0.2 /* seconds between lines */
#define DELAY 0.5    /* short work shows nothing */

void assay_progress_start(assay_progress *p, bool quiet, const char *what, int64_t total)
{
    double t = assay_clock();
    *p = (assay_progress){
        .shown = !quiet && isatty(STDERR_FILENO), .what = what, .total = total, .started = t, .last = t};
}

void assay_progress_add(assay_progress *p, int64_t amount, const char *detail)
{
    p->done += amount;
    if (!p->shown) return;
    double t = assay_clock();
    if (t - p->started < DELAY || t - p->last < INTERVAL) return;
    p->last = t;
    double share = p->total > 0 ? (double)p->done / (double)p->total : 0.0;
    /* past the stream, which keeps what a case prints until its turn comes where ranks share the cases */
    dprintf(STDERR_FILENO, "\r\033[K%s  %3.0f %%  %.0f s  %s", p->what, 100.0 * share, t - p->started, detail);
}

void assay_progress_end(assay_progress *p)
{
    if (p->shown && p->last > p->started) dprintf(STDERR_FILENO, "\r\033[K");
}
