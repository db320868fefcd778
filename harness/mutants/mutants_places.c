/* The places of tensors that rows of the table name: where the numbers of a place come from, or ASSAY_CHANGED. And what
 * becomes of single numbers. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/moe/prefused.h"

static int64_t number_of(const assay_places *p)
{
    return (int64_t)p->number;
}

/* Gate and up may be side by side: columns of each. */
static int64_t hidden_width(const assay_places *p)
{
    return p->count / (assay_path_ends(p->tensor->spec.path, "wi") ? 2 : 1);
}

int64_t assay_all_but_first_columns_of_h(const assay_places *p, int64_t i)
{
    const int64_t hidden = hidden_width(p), own = hidden / number_of(p);
    const bool fused = p->count > hidden;
    const int64_t column = fused ? assay_prefused_column(i, hidden, p->m->c->config.w13_reorder_size) : i;
    return column % hidden >= own ? ASSAY_CHANGED : i;
}

enum { TILE = 512 };

bool assay_is_swizzled(const assay_mutation *m, const assay_tensor *tensor)
{
    return strcmp(m->c->config.quant_scale_layout.text, "swizzled_128x4") == 0 && tensor->count % TILE == 0;
}

static bool swizzles(const assay_places *p)
{
    return assay_is_swizzled(p->m, p->tensor);
}

/* Of [E,J,N] scales of a byte. Where tensor cores have them each expert's N rows are padded with zeros to a multiple of
 * 128. */
int64_t assay_unpadded_offsets(const assay_places *p, int64_t i)
{
    enum { ROWS = 128 };
    const assay_tensor_spec *spec = &p->tensor->spec;
    const int axis = assay_contracted_axis(p->tensor);
    if (spec->role != ASSAY_ROLE_WEIGHT || axis != 1 || spec->type == ASSAY_FLOAT32) return i;
    const int64_t rows = assay_axes_product(&spec->shape, 2, spec->shape.rank), blocks = spec->shape.dims[1];
    const int64_t padded = (rows + ROWS - 1) / ROWS * ROWS;
    if (padded == rows) return i;
    const int64_t expert = i / rows / blocks, block = i / rows % blocks, place = expert * rows + i % rows;
    const int64_t from = place / padded, row = place % padded;
    return row < rows ? (from * blocks + block) * rows + row : ASSAY_CHANGED;
}

/* --- shards: docs/expert-parallelism.md --- */

/* A shard's columns of gate meet those that the shard after has of up. */
int64_t assay_up_of_next_shard(const assay_places *p, int64_t i)
{
    const int64_t hidden = hidden_width(p), first = p->count - hidden;
    if (first > 0 && p->m->c->config.w13_reorder_size > 1) return i; /* fused_shards_other does the like */
    return i < first ? i : first + (i - first + hidden / number_of(p)) % hidden;
}

/* The shard of a replica whose place is f, t, p, n. */
static int64_t shard_at(const assay_case *c, int64_t f, int64_t t, int64_t p, int64_t n)
{
    return ((f * c->mesh_fsdp_transpose + t) * c->mesh_expert + p) * c->mesh_mlp_tensor + n;
}

/* E over expert, then fsdp, is read as over fsdp, then expert. */
int64_t assay_expert_axes_exchanged(const assay_places *places, int64_t i)
{
    const assay_case *c = places->m->c;
    const int64_t fsdp = c->mesh_fsdp, expert = c->mesh_expert, inner = c->mesh_mlp_tensor;
    if (!c->config.shard_exp_on_fsdp || fsdp == 1 || expert == 1) return i;
    const int64_t n = i % inner, p = i / inner % expert, t = i / inner / expert % c->mesh_fsdp_transpose;
    const int64_t part = p * fsdp + i / inner / expert / c->mesh_fsdp_transpose;
    return shard_at(c, part / expert, t, part % expert, n);
}

/* Gate and up of shards g0 u0, g1 u1 are gathered as g0 u0 g1 u1, of which the first half is taken for gate. */
int64_t assay_halves_concatenated(const assay_places *places, int64_t i)
{
    const assay_case *c = places->m->c;
    const int64_t parts = c->mesh_fsdp_transpose * c->mesh_mlp_tensor, own = assay_tensor_width(places->tensor) / 2;
    const int64_t size = places->count / places->tensor->spec.shape.dims[0], piece = i / own;
    if (parts == 1) return i;
    const int64_t shard = i / size, n = shard % c->mesh_mlp_tensor;
    const int64_t p = shard / c->mesh_mlp_tensor % c->mesh_expert;
    const int64_t t = shard / c->mesh_mlp_tensor / c->mesh_expert % c->mesh_fsdp_transpose;
    const int64_t f = shard / c->mesh_mlp_tensor / c->mesh_expert / c->mesh_fsdp_transpose;
    const int64_t listed = piece % 2 * parts + t * c->mesh_mlp_tensor + n, part = listed / 2;
    const int64_t from = shard_at(c, f, part / c->mesh_mlp_tensor, p, part % c->mesh_mlp_tensor);
    return from * size + i % size / (2 * own) * 2 * own + listed % 2 * own + i % own;
}

/* --- heads --- */

/* Where the heads of ('model', 'expert') should be lie those of ('expert', 'model'): both axes split them (head_shards.h). */
int64_t assay_head_axes_exchanged(const assay_places *p, int64_t i)
{
    const int64_t experts = p->m->c->mesh_expert, models = p->m->c->mesh_mlp_tensor;
    const int64_t block = p->count / (experts * models), shard = i / block;
    return (shard % experts * models + shard / experts) * block + i % block;
}

/* --- numbers --- */

/* Positions stay in what the operation accepts. */
static double position(const assay_places *p, double before, double after)
{
    return after < (double)p->m->c->config.max_position_embeddings ? after : before;
}

/* Padding stays padding. */
double assay_group_of_first_row(const assay_places *p, int64_t i, double number)
{
    const int64_t block = 2 * p->m->c->config.mk_alignment_for_contiguous_layout;
    const int32_t first = p->tensor->indices[i / block * block];
    return first < 0 || number < 0 ? number : first;
}

/* Rows of padding are of the group before them; where they hold NaN there is no such product. */
double assay_contracted_padding(const assay_places *p, int64_t i, double number)
{
    const assay_tensor *lhs = assay_tensor_set_find(p->m->tensors, "inputs/lhs");
    const int64_t rows = lhs->spec.shape.dims[lhs->spec.shape.rank - 2], was = (int64_t)number;
    const int64_t alignment = p->m->c->config.mk_alignment_for_contiguous_layout;
    if (assay_path_ends(p->tensor->spec.path, "m_indices"))
        return was < 0 && i % alignment > 0 ? p->tensor->indices[i - 1] : number;
    if (assay_path_ends(p->tensor->spec.path, "masked_m")) return (double)rows;
    const int64_t aligned = (was + alignment - 1) / alignment * alignment;
    return (double)(aligned < rows ? aligned : rows);
}

/* Of the expert whose number it is, in a tensor [E,...]. */
static double replicas_of(const assay_places *p, int64_t i)
{
    char path[ASSAY_PATH_SIZE];
    const char *of_layer = strstr(p->tensor->spec.path, "layers/"), *block = strstr(p->tensor->spec.path, "moe/");
    const int length = of_layer != NULL && block != NULL ? (int)(block - of_layer) : 0;
    snprintf(path, sizeof path, "inputs/%.*sphysical_to_logical_map", length, of_layer != NULL ? of_layer : "");
    const assay_tensor *map = assay_tensor_set_find(p->m->tensors, path);
    const int64_t expert = i / (p->count / p->m->c->config.num_experts);
    double replicas = 0;
    for (int64_t k = 0; map != NULL && k < map->count; k++) replicas += map->indices[k] == expert;
    return map != NULL ? replicas : 1;
}

/* --- the table: each row is a function --- */

#define LOST ASSAY_CHANGED
#define PLACE(name, place)                                                                                             \
    int64_t assay_##name(const assay_places *p, int64_t i)                                                             \
    {                                                                                                                  \
        const assay_case *c = p->m->c;                                                                                 \
        const int64_t n = p->count, k = number_of(p), half = n / 2, tail = k > 0 ? n % k : 0;                          \
        const int64_t width = assay_tensor_width(p->tensor), reorder = c->config.w13_reorder_size;                     \
        const int64_t tokens = c->sequence, heads = c->config.base_num_query_heads;                                    \
        (void)i, (void)half, (void)tail, (void)width, (void)reorder, (void)tokens, (void)heads;                        \
        return place;                                                                                                  \
    }
#define NUMBER(name, becomes)                                                                                          \
    double assay_##name(const assay_places *p, int64_t i, double number)                                               \
    {                                                                                                                  \
        const assay_case *c = p->m->c;                                                                                 \
        const int64_t n = p->count, width = assay_tensor_width(p->tensor);                                             \
        const double by = p->m->row->by;                                                                               \
        (void)i, (void)number, (void)c, (void)n, (void)width, (void)by;                                                \
        return becomes;                                                                                                \
    }
#include "harness/mutants/rows/places.inc"
