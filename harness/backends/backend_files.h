/* The files of a backend's runs. */
#ifndef ASSAY_HARNESS_BACKEND_FILES_H
#define ASSAY_HARNESS_BACKEND_FILES_H

#include <stddef.h>

#include "oracle/base/status.h"

/* The folder for a backend's files: `keep`, or a new temporary one where that is NULL. */
assay_status assay_backend_make_folder(assay_context *ctx, const char *keep, char *folder, size_t size);
void assay_backend_remove_folder(char *folder); /* with all that is in it */
/* FOLDER/NAME.WHAT; the slashes of a case's name become dashes. */
void assay_backend_file(char *path, size_t size, const char *folder, const char *name, const char *what);

/* Something lies there, of whatever kind. */
bool assay_backend_place_is_taken(const char *path);
/* Removes the file that lies there, if one does. */
assay_status assay_backend_clear_place(assay_context *ctx, const char *path);

/* The last lines of a file that are not empty, as far as `text` has room; "" where it cannot be read. */
void assay_backend_last_lines(const char *log, int lines, char *text, size_t size);
/* Of a log that has a Python traceback in its last 64 KiB, the line that names the exception; else "". */
void assay_backend_exception(const char *log, char *text, size_t size);

#endif
