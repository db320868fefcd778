/* What a process must not leave behind: temporary folders, and files that have not got their final name. */
#pragma once

/* Removes what lies there, with all that is below a folder. A signal handler may call it. */
void assay_remove_tree(const char *path);

/* Notes a path that this process would leave behind if a signal ended it. Returns its place; -1: there is none left, and
 * only the next start removes it. */
int assay_leftover_path(const char *path);
/* Notes a line (a socket) to a process that ends everything it started once the line is shut, and then closes its own end. */
int assay_leftover_line(int descriptor);
/* It is gone, or where it belongs; -1 is safe. */
void assay_leftover_done(int place);

/* Ends what hangs on lines, then removes the paths: those that this process noted, not those of the one it is a copy of. A
 * signal handler may call it. */
void assay_leftovers_remove(void);

typedef enum assay_lock_state {
    ASSAY_LOCK_HELD,
    ASSAY_LOCK_TAKEN,  /* another process has it */
    ASSAY_LOCK_UNKNOWN /* the file system has none */
} assay_lock_state;

/* Locks a file or a folder until every copy of the descriptor is closed, of whatever the process dies. Does not wait. */
assay_lock_state assay_lock(int descriptor);
