/* Paths of tensors. */
#ifndef ASSAY_HARNESS_OPERATIONS_PATHS_H
#define ASSAY_HARNESS_OPERATIONS_PATHS_H

#include <stdbool.h>

/* Whether the path lies in the folder. */
bool assay_path_in(const char *path, const char *folder);
/* Whether the path is that name, or ends in it after a slash. */
bool assay_path_ends(const char *path, const char *name);
/* inputs/, weights/ or cotangents/ */
bool assay_path_is_given(const char *path);

#endif
