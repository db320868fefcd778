/* The places of tensors that rows of the table name: where the numbers of a place come from, or ASSAY_CHANGED. And what
 * becomes of single numbers. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/moe/permute.h"
#include "oracle/moe/prefused.h"

static int64_t number_of(const assay_places *p)
{
    return (int64_t)p->number;
}

/* --- parts --- */

static int64_t in_part(bool is_in, int64_t i)
{
    return is_in ? ASSAY_CHANGED : i;
}

int64_t assay_last_place(const assay_places *p, int64_t i)
{
    return in_part(i == p->count - 1, i);
}

int64_t assay_last_of_several(const assay_places *p, int64_t i)
{
    return p->m->c->batch > 1 ? assay_last_place(p, i) : i;
}

int64_t assay_last_or_half(const assay_places *p, int64_t i)
{
    const int64_t n = p->count, places = number_of(p);
    return in_part(i >= n - (n <= places ? n - n / 2 : places), i);
}

int64_t assay_last_tile_or_half(const assay_places *p, int64_t i)
{
    const int64_t n = p->count, tile = number_of(p), tail = n % tile;
    return in_part(i >= n - (n <= tile ? n - n / 2 : tail != 0 ? tail : tile), i);
}

int64_t assay_last_tile(const assay_places *p, int64_t i)
{
    const int64_t n = p->count, tile = number_of(p), tail = n % tile;
    return in_part(i >= n - (tail != 0 ? tail : tile < n ? tile : 1), i);
}

int64_t assay_last_shard(const assay_places *p, int64_t i)
{
    return in_part(number_of(p) > 1 && i >= p->count - p->count / number_of(p), i);
}

int64_t assay_all_but_first_shard(const assay_places *p, int64_t i)
{
    return in_part(i >= p->count / number_of(p), i);
}

int64_t assay_shard_before(const assay_places *p, int64_t i)
{
    const int64_t shards = number_of(p), before = (p->m->shard + shards - 1) % shards;
    return in_part(i / (p->count / shards) == before, i);
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
    return in_part(column % hidden >= own, i);
}

/* --- other places --- */

int64_t assay_next_place(const assay_places *p, int64_t i)
{
    return (i + 1) % p->count;
}

int64_t assay_place_before(const assay_places *p, int64_t i)
{
    return (i + p->count - 1) % p->count;
}

int64_t assay_shifted_back(const assay_places *p, int64_t i)
{
    (void)p;
    return i > 0 ? i - 1 : 0;
}

int64_t assay_next_shard(const assay_places *p, int64_t i)
{
    return (i + p->count / number_of(p)) % p->count;
}

int64_t assay_reversed(const assay_places *p, int64_t i)
{
    return p->count - 1 - i;
}

int64_t assay_ends_exchanged(const assay_places *p, int64_t i)
{
    return i == 0 || i == p->count - 1 ? p->count - 1 - i : i;
}

int64_t assay_halves_exchanged(const assay_places *p, int64_t i)
{
    const int64_t half = p->count / 2, second = p->count - half;
    return i < half ? i + second : i >= second ? i - second : i;
}

int64_t assay_first_two_exchanged(const assay_places *p, int64_t i)
{
    return i < 2 && p->count > 1 ? 1 - i : i;
}

int64_t assay_first_place(const assay_places *p, int64_t i)
{
    (void)p, (void)i;
    return 0;
}

int64_t assay_last_stale(const assay_places *p, int64_t i)
{
    return i > 0 && i == p->count - 1 ? i - 1 : i;
}

int64_t assay_alternating(const assay_places *p, int64_t i)
{
    const int64_t half = p->count / 2;
    if (p->count % 2 != 0) return i;
    return i < half ? 2 * i : 2 * (i - half) + 1;
}

/* Columns g0 u0 g1 u1 ... are taken to be there: as many shards as columns of gate. */
int64_t assay_interleaved(const assay_places *p, int64_t i)
{
    const int64_t half = p->count / 2;
    if (half < 2 || p->m->c->config.w13_reorder_size > 1) return i;
    return assay_prefused_place(i, half, half);
}

/* Gate and up of each of two tensor shards are taken to be side by side where all of gate comes first, or the reverse. */
int64_t assay_other_layout(const assay_places *p, int64_t i)
{
    const int64_t shards = p->m->c->config.w13_reorder_size, half = p->count / 2;
    if (shards == 1 && half % 2 != 0) return i;
    return shards == 1 ? assay_prefused_place(i, half, 2) : assay_prefused_column(i, half, shards);
}

int64_t assay_gate_for_up(const assay_places *p, int64_t i)
{
    const int64_t half = p->count / p->m->c->config.w13_reorder_size / 2; /* of a tensor shard */
    return i / half % 2 == 0 ? i + half : i - half;
}

/* --- matrices --- */

static int64_t columns_of(const assay_places *p)
{
    return assay_tensor_width(p->tensor);
}

int64_t assay_transposed(const assay_places *p, int64_t i)
{
    const int64_t n = columns_of(p);
    return n * n == p->count ? i % n * n + i / n : i;
}

int64_t assay_read_transposed(const assay_places *p, int64_t i)
{
    const int64_t columns = columns_of(p), rows = p->count / columns;
    return i % columns * rows + i / columns;
}

enum { TILE = 512 };

bool assay_is_swizzled(const assay_mutation *m, const assay_tensor *tensor)
{
    return strcmp(m->c->config.quant_scale_layout.text, "swizzled_128x4") == 0 && tensor->count % TILE == 0;
}

/* Where the number of a tile's row and column is, row by row, among those of the tile; and the reverse. */
int64_t assay_swizzled(const assay_places *p, int64_t i)
{
    const int64_t at = i % TILE, row = at / 4;
    if (!assay_is_swizzled(p->m, p->tensor)) return i;
    return i - at + row % 32 * 16 + row / 32 * 4 + at % 4;
}

int64_t assay_unswizzled(const assay_places *p, int64_t i)
{
    const int64_t at = i % TILE;
    if (!assay_is_swizzled(p->m, p->tensor)) return i;
    return i - at + (at / 4 % 4 * 32 + at / 16) * 4 + at % 4;
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

/* On every shard but the first a local index counts from 0, and a global one is held at the last expert. */
int64_t assay_clamped_ids(const assay_places *p, int64_t i)
{
    const int64_t local = p->count / number_of(p);
    return i < local ? i : i / local * local + local - 1;
}

int64_t assay_first_microbatch(const assay_places *p, int64_t i)
{
    return i - assay_microbatch_of(p->m->c, i);
}

/* A shard's columns of gate meet those that the shard after has of up. */
int64_t assay_up_of_next_shard(const assay_places *p, int64_t i)
{
    const int64_t hidden = hidden_width(p), first = p->count - hidden;
    if (first > 0 && p->m->c->config.w13_reorder_size > 1) return i; /* fused_shards_other does the like */
    return i < first ? i : first + (i - first + hidden / number_of(p)) % hidden;
}

/* wi [E,D,2H] in as many pieces as there are shards, each of which takes its first half for gate: of a row g0 g1 u0 u1, of
 * which the pieces should be g0 u0 and g1 u1, that reads g0 u0 as gate and g1 u1 as up. */
int64_t assay_halves_contiguous(const assay_places *p, int64_t i)
{
    const int64_t shards = number_of(p), own = p->count / 2 / shards, piece = i / own;
    if (p->m->c->config.w13_reorder_size > 1) return i; /* they are laid out for it */
    return (piece % shards * 2 + piece / shards) * own + i % own;
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
    const int64_t parts = c->mesh_fsdp_transpose * c->mesh_mlp_tensor, own = columns_of(places) / 2;
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

double assay_plus(const assay_places *p, int64_t i, double number)
{
    (void)i;
    return number + p->m->row->by;
}

double assay_finite(const assay_places *p, int64_t i, double number)
{
    (void)i;
    return isinf(number) ? p->m->row->by : number;
}

double assay_in_bf16(const assay_places *p, int64_t i, double number)
{
    (void)p, (void)i;
    return assay_dtype_round(ASSAY_BFLOAT16, number, false);
}

/* Positions stay in what the operation accepts. */
static double position(const assay_places *p, double before, double after)
{
    return after < (double)p->m->c->config.max_position_embeddings ? after : before;
}

double assay_next_position(const assay_places *p, int64_t i, double number)
{
    (void)i;
    return position(p, number, number + 1);
}

double assay_position_in_bf16(const assay_places *p, int64_t i, double number)
{
    return position(p, number, assay_in_bf16(p, i, number));
}

double assay_counted_position(const assay_places *p, int64_t i, double number)
{
    (void)number;
    return (double)(i % assay_tensor_width(p->tensor));
}

/* Padding stays padding. */
double assay_one_segment(const assay_places *p, int64_t i, double number)
{
    (void)p, (void)i;
    return number > 1 ? 1 : number;
}

/* A map of a rank's experts becomes that of one with the first ones. */
double assay_first_experts(const assay_places *p, int64_t i, double number)
{
    (void)number;
    return i < p->m->c->config.local_num_experts ? (double)i : ASSAY_NO_EXPERT;
}

double assay_group_for_none(const assay_places *p, int64_t i, double number)
{
    (void)i;
    if (number >= 0) return number;
    return p->m->row->by < 0 ? (double)(p->m->c->config.num_experts - 1) : p->m->row->by;
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

/* The padding of a tensor that is swizzled, of which the last number is, is not 0, as where a buffer is not cleared. */
double assay_padding_of_scales(const assay_places *p, int64_t i, double number)
{
    const bool is_padding = assay_is_swizzled(p->m, p->tensor) && i == p->count - 1 && number == 0;
    return is_padding ? 127 : number;
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

double assay_times_replicas(const assay_places *p, int64_t i, double number)
{
    return number * replicas_of(p, i);
}

double assay_by_replicas(const assay_places *p, int64_t i, double number)
{
    return number * (1.0 / replicas_of(p, i));
}
