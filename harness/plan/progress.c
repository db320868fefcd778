#include "harness/plan/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "oracle/base/clock.h"

#define INTERVAL 0.2 /* seconds between lines */
#define DELAY 0.5    /* short work shows nothing */
#define SAYS_LEFT 10 /* seconds after which what is left is guessed */

void assay_progress_start(assay_progress *p, bool quiet, const char *what, int64_t total)
{
    double t = assay_clock();
    *p = (assay_progress){
        .shown = !quiet && isatty(STDERR_FILENO), .what = what, .total = total, .started = t, .last = t};
}

/* "3 min"; nothing where it is too early to say. */
static void left_text(const assay_progress *p, double elapsed, char text[32])
{
    const double worked = (double)p->done, left = (double)(p->total - p->done);
    text[0] = '\0';
    if (worked <= 0 || elapsed < SAYS_LEFT) return;
    const double seconds = elapsed * left / worked;
    if (seconds < 90) {
        snprintf(text, 32, ", %.0f s left", seconds);
    } else {
        snprintf(text, 32, ", %.0f min left", seconds / 60);
    }
}

void assay_progress_add(assay_progress *p, int64_t amount, const char *detail)
{
    char left[32];
    p->done += amount;
    if (!p->shown) return;
    double t = assay_clock();
    if (t - p->started < DELAY || t - p->last < INTERVAL) return;
    p->last = t;
    double share = p->total > 0 ? (double)p->done / (double)p->total : 0.0;
    left_text(p, t - p->started, left);
    /* past the stream, which keeps what a case prints until its turn comes where ranks share the cases */
    dprintf(STDERR_FILENO, "\r\033[K%s  %3.0f %%  %.0f s%s  %s", p->what, 100.0 * share, t - p->started, left, detail);
}

void assay_progress_end(assay_progress *p)
{
    if (p->shown && p->last > p->started) dprintf(STDERR_FILENO, "\r\033[K");
}
