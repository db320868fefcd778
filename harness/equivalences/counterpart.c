#include "harness/equivalences/counterpart.h"

#include <stdio.h>
#include <string.h>

#include "oracle/moe/prefused.h"

static const char *const halves[] = {"wi_0", "wi_1"};

/* The path with the component `from` replaced by `to`; false where it has none. */
static bool renamed(const char *path, const char *from, const char *to, char *out)
{
    const size_t length = strlen(from);
    for (const char *at = strstr(path, from); at != NULL; at = strstr(at + 1, from)) {
        const bool begins = at > path && at[-1] == '/', ends = at[length] == '/' || at[length] == '\0';
        if (!begins || !ends) continue;
        snprintf(out, ASSAY_PATH_SIZE, "%.*s%s%.100s", (int)(at - path), path, to, at + length);
        return true;
    }
    return false;
}

bool assay_path_names_half(const char *path)
{
    char other[ASSAY_PATH_SIZE], whole[ASSAY_PATH_SIZE];
    snprintf(whole, sizeof whole, "/%.120s", path); /* a key of `inputs:` may begin with it */
    return renamed(whole, "wi", "", other) || renamed(whole, "wi_0", "", other) || renamed(whole, "wi_1", "", other);
}

/* wi of the tensor's form is wi_0 and wi_1 here. */
static bool find_halves(const assay_tensor_set *tensors, const assay_tensor_spec *spec, assay_counterpart *found)
{
    char path[ASSAY_PATH_SIZE];
    found->hidden = found->width / 2;
    found->layouts.theirs = 0;
    for (int i = 0; i < 2; i++) {
        if (!renamed(spec->path, "wi", halves[i], path)) return false;
        found->origin[i] = assay_tensor_set_find(tensors, path);
        if (found->origin[i] == NULL || 2 * found->origin[i]->count != assay_shape_count(&spec->shape)) return false;
    }
    return true;
}

/* wi_0 or wi_1 of the tensor's form lies in wi here. */
static bool find_whole(const assay_tensor_set *tensors, const assay_tensor_spec *spec, assay_layouts layouts,
                       assay_counterpart *found)
{
    char path[ASSAY_PATH_SIZE];
    found->hidden = found->width;
    found->layouts = (assay_layouts){.theirs = layouts.theirs};
    found->origin[1] = NULL;
    for (int i = 0; i < 2; i++) {
        if (!renamed(spec->path, halves[i], "wi", path)) continue;
        found->half = i;
        found->origin[0] = assay_tensor_set_find(tensors, path);
        return found->origin[0] != NULL && found->origin[0]->count == 2 * assay_shape_count(&spec->shape);
    }
    return false;
}

/* A shape that is the same by chance has other labels. */
static bool same_axes(const assay_tensor_spec *a, const assay_tensor_spec *b)
{
    bool same = assay_shape_equal(&a->shape, &b->shape);
    for (int i = 0; same && i < a->shape.rank; i++) same = strcmp(a->labels[i], b->labels[i]) == 0;
    return same;
}

static int64_t shards_of_part(int64_t shards, int64_t parts)
{
    return shards > parts ? shards / parts : 1;
}

/* A tensor of the shared expert is the last of that of all experts here. */
static bool find_last_expert(const assay_tensor_set *tensors, const assay_tensor_spec *spec, assay_layouts layouts,
                             assay_counterpart *found)
{
    static const char folder[] = "shared_experts/";
    char path[ASSAY_PATH_SIZE], whole[ASSAY_PATH_SIZE];
    const char *at = strstr(spec->path, folder), *end = strstr(spec->path, "/kernel");
    if (at == NULL || end == NULL) return false;
    const char *name = at + sizeof folder - 1;
    snprintf(path, sizeof path, "%.*s%.*s", (int)(at - spec->path), spec->path, (int)(end - name), name);
    found->origin[0] = assay_tensor_set_find(tensors, path);
    for (int i = 0; i < 2 && found->origin[0] == NULL; i++) {
        if (!renamed(path, halves[i], "wi", whole)) continue;
        found->origin[0] = assay_tensor_set_find(tensors, whole);
        found->hidden = found->width;
        found->layouts = (assay_layouts){.theirs = layouts.theirs};
        found->half = i;
    }
    if (found->origin[0] == NULL) return false;
    const int64_t experts = found->origin[0]->spec.shape.dims[0], size = found->origin[0]->count / experts;
    found->first = (experts - 1) * size;
    return size == (found->hidden > 0 ? 2 : 1) * assay_shape_count(&spec->shape);
}

/* All experts here are one more than those of the tensor's form. */
static bool find_first_experts(const assay_tensor *here, const assay_tensor_spec *spec)
{
    const assay_shape *shape = &spec->shape;
    if (here == NULL || shape->rank < 1 || here->spec.shape.rank != shape->rank) return false;
    const bool more = strcmp(spec->labels[0], "E") == 0 && strcmp(here->spec.labels[0], "E+n") == 0;
    return more && here->count / here->spec.shape.dims[0] * shape->dims[0] == assay_shape_count(shape);
}

/* A kernel that is whole in the tensor's form lies on shards here. */
static bool find_on_shards(const assay_case *one, const assay_tensor *same, const assay_tensor_spec *spec,
                           assay_counterpart *found)
{
    static const char *const names[] = {
        [ASSAY_MLP_WI] = "wi", [ASSAY_MLP_WI_0] = "wi_0", [ASSAY_MLP_WI_1] = "wi_1", [ASSAY_MLP_WO] = "wo"};
    assay_context ctx = {0};
    if (!one->config.weights_on_shards || same == NULL || spec->shape.rank != 3 || same->spec.shape.rank != 4)
        return false;
    for (int weight = 0; weight <= ASSAY_MLP_WO; weight++) {
        if (names[weight] == NULL || !assay_path_ends(spec->path, names[weight])) continue;
        found->weight = weight;
        found->on_shards = assay_moe_config_of(&ctx, one, &found->block.moe) == ASSAY_OK &&
                           assay_sharding_of(&ctx, one, &found->block.sharding) == ASSAY_OK;
    }
    return found->on_shards;
}

/* The shard, and what it has of the rows. */
static bool is_row_axis(const char *label)
{
    static const char *const rows[] = {"shard", "b", "f*b", "T"};
    bool found = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) found |= strcmp(rows[i], label) == 0;
    return found;
}

/* The same numbers of all shards, one after the other, on more or fewer of them. */
static bool same_rows(const assay_tensor_spec *a, const assay_tensor_spec *b)
{
    bool same = a->shape.rank == b->shape.rank && a->shape.rank > 1 && strcmp(a->labels[0], "shard") == 0 &&
                assay_shape_count(&a->shape) == assay_shape_count(&b->shape);
    for (int i = 0; same && i < a->shape.rank; i++) {
        same = strcmp(a->labels[i], b->labels[i]) == 0 &&
               (is_row_axis(a->labels[i]) || a->shape.dims[i] == b->shape.dims[i]);
    }
    return same;
}

/* The same tokens, of sequences of other lengths. */
static bool same_tokens(const assay_tensor_spec *a, const assay_tensor_spec *b)
{
    bool same = a->shape.rank == b->shape.rank && a->shape.rank > 1 && strcmp(a->labels[0], "B") == 0 &&
                strcmp(a->labels[1], "S") == 0 && assay_shape_count(&a->shape) == assay_shape_count(&b->shape);
    for (int i = 0; same && i < a->shape.rank; i++)
        same = strcmp(a->labels[i], b->labels[i]) == 0 && (i < 2 || a->shape.dims[i] == b->shape.dims[i]);
    return same;
}

/* Likewise [B,N,S] here and [B S,N,1] there, or [B,N,1] in both. */
static bool heads_of_tokens(const assay_tensor_spec *here, const assay_tensor_spec *spec)
{
    const int64_t *a = here->shape.dims, *b = spec->shape.dims;
    bool same = here->shape.rank == 3 && spec->shape.rank == 3 && a[0] * a[2] == b[0] && a[1] == b[1] && b[2] == 1;
    for (int i = 0; same && i < 3; i++) same = here->labels[i][0] == "BNS"[i] && spec->labels[i][0] == "BNS"[i];
    return same;
}

bool assay_find_counterpart(const assay_tensor_set *tensors, const assay_tensor_spec *spec, assay_layouts layouts,
                            assay_counterpart *found)
{
    const assay_tensor *same = assay_tensor_set_find(tensors, spec->path);
    const int64_t width = assay_row_length(&spec->shape);
    *found = (assay_counterpart){.origin = {same, NULL}, .width = width, .layouts = layouts};
    if (layouts.own != layouts.theirs && assay_path_is_prefused(spec->path)) found->hidden = width / 2;
    if (!assay_path_ends(spec->path, "wi")) {
        found->layouts.own = shards_of_part(layouts.own, layouts.parts);
        found->layouts.theirs = shards_of_part(layouts.theirs, layouts.parts);
    }
    if (same != NULL &&
        (same_axes(&same->spec, spec) || same_rows(&same->spec, spec) || same_tokens(&same->spec, spec)))
        return true;
    if (same != NULL && heads_of_tokens(&same->spec, spec)) {
        found->tokens = same->spec.shape.dims[2];
        found->width = spec->shape.dims[1];
        return true;
    }
    if (find_on_shards(layouts.one, same, spec, found)) return true;
    if (find_first_experts(same, spec)) return true;
    assay_counterpart last = *found;
    if (find_last_expert(tensors, spec, layouts, &last)) {
        *found = last;
        return true;
    }
    return find_halves(tensors, spec, found) || find_whole(tensors, spec, layouts, found);
}

static int64_t reversed_place(const assay_counterpart *c, int64_t index)
{
    const assay_tensor_spec *spec = &c->origin[0]->spec;
    int64_t place = 0, step = 1;
    for (int axis = spec->shape.rank - 1; axis >= 0; axis--) {
        const int64_t size = spec->shape.dims[axis], at = index % size;
        const bool reversed =
            spec->labels[axis][1] == '\0' && strchr(c->layouts.reversed, spec->labels[axis][0]) != NULL;
        place += step * (reversed ? size - 1 - at : at);
        step *= size;
        index /= size;
    }
    return place;
}

int assay_counterpart_at(const assay_counterpart *c, int64_t index, int64_t *at)
{
    const int64_t row = index / c->width, place = index % c->width, hidden = c->hidden;
    if (c->on_shards) {
        const bool down = c->weight == ASSAY_MLP_WO;
        const int64_t rows = down ? c->block.moe.moe_mlp_dim : c->block.moe.emb_dim;
        *at = quad_kernel_place(&c->block.moe, &c->block.sharding, c->weight, row / rows, down ? place : row % rows,
                                down ? row % rows : place);
        return 0;
    }
    if (c->tokens > 0) {
        *at = (row / c->tokens * c->width + place) * c->tokens + row % c->tokens;
        return 0;
    }
    *at = c->first + (c->layouts.reversed == NULL ? index : reversed_place(c, index));
    if (hidden == 0) return 0;
    const int64_t column =
        c->layouts.own > 0 ? assay_prefused_column(place, hidden, c->layouts.own) : c->half * hidden + place;
    const bool whole = c->layouts.theirs > 0;
    *at = c->first + (whole ? row * 2 * hidden + assay_prefused_place(column, hidden, c->layouts.theirs)
                            : row * hidden + column % hidden);
    return whole ? 0 : (int)(column / hidden);
}

assay_status assay_counterpart_read(assay_context *ctx, const assay_tensor_set *tensors, assay_layouts layouts,
                                    assay_tensor *to)
{
    assay_counterpart found;
    if (!assay_find_counterpart(tensors, &to->spec, layouts, &found)) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s is not there", to->spec.path);
    }
    for (int64_t i = 0; i < to->count; i++) {
        int64_t at = 0;
        const int origin = assay_counterpart_at(&found, i, &at);
        if (to->indices != NULL) to->indices[i] = found.origin[origin]->indices[at];
        if (to->values != NULL) to->values[i] = found.origin[origin]->values[at];
    }
    to->written = to->count;
    return ASSAY_OK;
}
