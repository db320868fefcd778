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
/* outputs/, gradients/, checkpoints/ or routing/ */
bool assay_path_is_result(const char *path);
/* outputs/ or gradients/: a candidate without one fails. */
bool assay_path_is_required(const char *path);
/* A choice of experts: routing/selected_experts, or that of a layer. */
bool assay_path_is_choice(const char *path);

#endif
