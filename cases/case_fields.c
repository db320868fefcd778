/* The keys of a case but for op, model, config and inputs. */
#include <ctype.h>
#include <string.h>

#include "cases/case_internal.h"

enum { MOST_SHARDS = 1 << 20 };

/* Keys of whole numbers and of lists. Those of mesh and positions have the mapping before the dot. */
static const struct {
    const char *key;
    size_t offset;
    int64_t least, most;
} NUMBERS[] = {
    {"batch", offsetof(assay_case, batch), 1, INT32_MAX},
    {"sequence", offsetof(assay_case, sequence), 1, INT32_MAX},
    {"mesh.data", offsetof(assay_case, mesh_data), 1, MOST_SHARDS},
    {"mesh.fsdp", offsetof(assay_case, mesh_fsdp), 1, MOST_SHARDS},
    {"mesh.fsdp_transpose", offsetof(assay_case, mesh_fsdp_transpose), 1, MOST_SHARDS},
    {"mesh.expert", offsetof(assay_case, mesh_expert), 1, MOST_SHARDS},
    {"mesh.tensor", offsetof(assay_case, mesh_tensor), 1, MOST_SHARDS},
    {"mesh.mlp_tensor", offsetof(assay_case, mesh_mlp_tensor), 1, MOST_SHARDS},
    {"sketch_above", offsetof(assay_case, sketch_above), 0, INT64_C(1) << 50},
    {"positions.start", offsetof(assay_case, position_start), 0, INT32_MAX},
    {"positions.step", offsetof(assay_case, position_step), 0, INT32_MAX},
    {"only_layer", offsetof(assay_case, only_layer), 0, INT32_MAX},
    {"drawn_above", offsetof(assay_case, drawn_above), 0, INT64_C(1) << 50},
};
enum { NUMBER_COUNT = sizeof NUMBERS / sizeof *NUMBERS };

static const struct {
    const char *key;
    size_t offset;
} LISTS[] = {
    {"tags", offsetof(assay_case, tags)},
    {"gradients", offsetof(assay_case, gradients)},
    {"checkpoints", offsetof(assay_case, checkpoints)},
    {"profiles", offsetof(assay_case, profiles)},
};
enum { LIST_COUNT = sizeof LISTS / sizeof *LISTS };

/* A fixture is stored under the case's name, so it must be a path that stays below a folder, and no glob. */
static bool is_case_name(const char *name)
{
    for (const char *p = name; *p != '\0'; p++) {
        if (!isalnum((unsigned char)*p) && strchr("_/.-+", *p) == NULL) return false;
        bool starts_section = p == name || p[-1] == '/';
        if (starts_section && !isalnum((unsigned char)*p)) return false;
    }
    return name[0] != '\0' && name[strlen(name) - 1] != '/';
}

static assay_status read_name(const assay_yaml *y, const yaml_node_t *node, assay_case *c)
{
    char name[ASSAY_PATH_SIZE];
    MUST(assay_yaml_text(y, node, "case", name, sizeof name));
    if (!is_case_name(name)) {
        return assay_yaml_refuse_value(
            y, node, "case",
            "a name such as moe/my-case: letters, digits, _ . - +, parts that begin with one of the first two");
    }
    memcpy(c->name, name, sizeof name);
    return ASSAY_OK;
}

/* Of no tensor that is drawn: integers, and scales, which have neither 0 nor a sign. */
static bool is_no_grid(assay_dtype type)
{
    return type == ASSAY_INT32 || type == ASSAY_FLOAT8_E8M0FNU;
}

assay_status assay_case_read_dtype(const assay_yaml *y, const yaml_node_t *node, const char *what, assay_dtype *type)
{
    char name[ASSAY_TEXT_SIZE];
    assay_dtype read;
    MUST(assay_yaml_text(y, node, what, name, sizeof name));
    if (assay_dtype_from_name(name, &read) && !is_no_grid(read)) {
        *type = read;
        return ASSAY_OK;
    }
    const char *names[ASSAY_DTYPE_COUNT + 1] = {NULL};
    for (int i = 0, count = 0; i < ASSAY_DTYPE_COUNT; i++) {
        if (!is_no_grid((assay_dtype)i)) names[count++] = assay_dtype_name((assay_dtype)i);
    }
    return assay_yaml_refuse_choice(y, node, what, names);
}

static assay_status read_fill(const assay_yaml *y, const yaml_node_t *node, assay_distribution *fill)
{
    char name[ASSAY_TEXT_SIZE];
    assay_distribution read;
    MUST(assay_yaml_text(y, node, "fill", name, sizeof name));
    if (!assay_distribution_from_name(name, &read) || (read != ASSAY_NORMAL && read != ASSAY_BELL)) {
        return assay_yaml_refuse_value(y, node, "fill", "normal or bell (single tensors: inputs)");
    }
    *fill = read;
    return ASSAY_OK;
}

assay_status assay_case_read_field(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *value,
                                   bool *known)
{
    *known = true;
    for (int i = 0; i < NUMBER_COUNT; i++) {
        if (strcmp(key, NUMBERS[i].key) != 0) continue;
        int64_t *number = (int64_t *)(void *)((char *)c + NUMBERS[i].offset);
        return assay_yaml_integer(y, value, key, NUMBERS[i].least, NUMBERS[i].most, number);
    }
    for (int i = 0; i < LIST_COUNT; i++) {
        if (strcmp(key, LISTS[i].key) != 0) continue;
        return assay_yaml_list(y, value, key, (assay_text_list *)(void *)((char *)c + LISTS[i].offset));
    }
    if (strcmp(key, "case") == 0) return read_name(y, value, c);
    if (strcmp(key, "description") == 0) {
        return assay_yaml_text(y, value, key, c->description, sizeof c->description);
    }
    if (strcmp(key, "seed") == 0) return assay_yaml_seed(y, value, key, &c->seed);
    if (strcmp(key, "dtype") == 0) return assay_case_read_dtype(y, value, key, &c->dtype);
    if (strcmp(key, "fill") == 0) return read_fill(y, value, &c->fill);
    *known = false;
    return ASSAY_OK;
}

void assay_case_offer_fields(assay_nearest *nearest)
{
    static const char *const OTHERS[] = {"case", "description", "seed", "dtype", "fill"};
    for (int i = 0; i < NUMBER_COUNT; i++) assay_nearest_offer(nearest, NUMBERS[i].key);
    for (int i = 0; i < LIST_COUNT; i++) assay_nearest_offer(nearest, LISTS[i].key);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) assay_nearest_offer(nearest, OTHERS[i]);
}
