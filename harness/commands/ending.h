/* A process that a signal ends leaves nothing behind (oracle/base/leftovers.h). */
#ifndef ASSAY_HARNESS_ENDING_H
#define ASSAY_HARNESS_ENDING_H

/* Handles SIGINT, SIGTERM and SIGHUP, but for those that are ignored. */
void assay_end_cleanly(void);
/* Such a handler: removes what would be left, and ends the process by the signal. */
void assay_end_by_signal(int number);

#endif
