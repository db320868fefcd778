/* A process that ends otherwise than by returning from main leaves nothing behind (fixtures/leftovers.h). */
#pragma once

#include <stdbool.h>

/* Handles SIGINT, SIGTERM and SIGHUP, but for those that are ignored. */
void assay_end_cleanly(void);
/* Where a library below us calls exit(), or does what ends a process by SIGSEGV, SIGBUS, SIGABRT, SIGILL or SIGFPE (libhdf5
 * and OpenSSL do when memory runs out): one line on standard error, and exit status 2. Of this process alone: copies of it end as
 * they do. `command` is for the line, and lives on. A debugger's or a sanitizer's own handlers stay. */
void assay_end_by_library(const char *command);
/* From here on exit() is meant. */
void assay_end_is_meant(void);
/* For a handler that lets the work end in order: whether this signal comes more than a second after the first one. `timeout`
 * sends two at once, to the process and to its group. */
bool assay_end_is_asked_again(void);
/* Such a handler: removes what would be left, and ends the process by the signal. */
void assay_end_by_signal(int number);
