/* Files that appear whole or not at all, and replace what was there only then. */
#pragma once

#include <stddef.h>

#include "oracle/base/status.h"

/* A file while it grows: without a name, and gone with the process, where the file system can do that; else beside its
 * target as .NAME.partial-XXXXXXXX, locked; what dead processes left there under such names is removed. Its permissions are those of any new file. Starts zeroed. */
typedef struct assay_whole_file {
    char *path, *partial; /* the final name, and one beside it; NULL: there is no file */
    int descriptor;       /* for reading and writing, anywhere in the file */
    bool named;           /* whether it has the partial name */
    int place;            /* oracle/base/leftovers.h */
} assay_whole_file;

/* Refuses a path that is not the name of a file, or names something else than an ordinary one. */
assay_status assay_whole_file_create(assay_context *ctx, const char *path, assay_whole_file *file);
/* The file is on the disk and in its place, or removed. On success only the folder's own entry may still be lost when
 * the machine fails. */
assay_status assay_whole_file_finish(assay_context *ctx, assay_whole_file *file);
void assay_whole_file_abandon(assay_whole_file *file); /* nothing is left; safe on a zeroed struct and after finish */

/* All three: a file of this text. */
assay_status assay_write_whole_file(assay_context *ctx, const char *path, const char *text);
