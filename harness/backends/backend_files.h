/* The files of a backend's runs. */
#pragma once

#include <stddef.h>

#include "oracle/base/status.h"

/* What the folders of a backend's runs begin with, and end with six letters. */
#define ASSAY_RUN_FOLDER "assay-run-"

/* A folder for a backend's files that this process alone uses. Starts zeroed. */
typedef struct assay_backend_folder {
    char path[2048]; /* "": there is none */
    bool temporary;
    int lock;  /* descriptor; held as long as it is open */
    int place; /* fixtures/leftovers.h */
} assay_backend_folder;

/* `keep`, or a new temporary one where that is NULL. Refuses a folder that another process uses; what dead ones left in it of
 * a backend's runs is removed. */
assay_status assay_backend_folder_make(assay_context *ctx, const char *keep, assay_backend_folder *folder);
/* A temporary one goes, with all that is in it. Safe on a zeroed one. */
void assay_backend_folder_end(assay_backend_folder *folder);
/* Removes the temporary folders of dead processes of this user. */
void assay_backend_folders_sweep(void);
/* FOLDER/NAME.WHAT; the slashes of a case's name become dashes. */
void assay_backend_file(char *path, size_t size, const char *folder, const char *name, const char *what);

/* Something lies there, of whatever kind. */
bool assay_backend_path_exists(const char *path);
/* Removes the file that lies there, if one does. */
assay_status assay_backend_clear_place(assay_context *ctx, const char *path);

/* The last lines of a file that are not empty, as far as `text` has room; "" where it cannot be read. */
void assay_backend_last_lines(const char *log, int lines, char *text, size_t size);
/* Of a log that has a Python traceback in its last 64 KiB, the line that names the exception; else "". */
void assay_backend_exception(const char *log, char *text, size_t size);
