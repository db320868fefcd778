#include "harness/operations/paths.h"

#include <string.h>

bool assay_path_in(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

bool assay_path_ends(const char *path, const char *name)
{
    const size_t length = strlen(path), tail = strlen(name);
    return length >= tail && strcmp(path + length - tail, name) == 0 &&
           (length == tail || path[length - tail - 1] == '/');
}

bool assay_path_is_given(const char *path)
{
    return assay_path_in(path, "inputs") || assay_path_in(path, "weights") || assay_path_in(path, "cotangents");
}

bool assay_path_is_required(const char *path)
{
    return assay_path_in(path, "outputs") || assay_path_in(path, "gradients");
}

bool assay_path_is_result(const char *path)
{
    return assay_path_is_required(path) || assay_path_in(path, "checkpoints") || assay_path_in(path, "routing");
}

bool assay_path_is_choice(const char *path)
{
    return assay_path_in(path, "routing") && assay_path_ends(path, "selected_experts");
}
