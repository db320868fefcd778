#include "harness/sketch/sketch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/base/random.h"

enum { LANES = 8, TILE = ASSAY_SKETCH_TILE, BITS = 64 };

static const char FOLDER[] = "/sketch/";
static const char *const NAMES[ASSAY_SKETCH_COMPONENTS] = {"rows",   "columns",    "tiles",
                                                           "blocks", "slice_rows", "slice_block"};

static int64_t tiles(int64_t size)
{
    return (size + TILE - 1) / TILE;
}

bool assay_sketch_is_for(const assay_tensor_spec *spec, int64_t above)
{
    static const char folder[] = "gradients/weights/";
    return above > 0 && strncmp(spec->path, folder, sizeof folder - 1) == 0 && spec->type != ASSAY_INT32 &&
           spec->shape.rank >= 2 && assay_shape_count(&spec->shape) > above;
}

static int64_t blocks_of(const assay_shape *shape)
{
    int64_t blocks = 1;
    for (int axis = 0; axis < shape->rank - 2; axis++) blocks *= shape->dims[axis];
    return blocks;
}

static void add_axis(assay_tensor_spec *spec, int64_t size, const char *label)
{
    spec->shape.dims[spec->shape.rank] = size;
    spec->labels[spec->shape.rank++] = label;
}

static int64_t slice_count(const assay_shape *shape, int64_t above)
{
    const int64_t rows = blocks_of(shape) * shape->dims[shape->rank - 2], columns = shape->dims[shape->rank - 1];
    return assay_smaller(assay_smaller(rows, ASSAY_SKETCH_SLICES), columns > 0 ? above / columns : 0);
}

static void call(assay_tensor_spec *spec, const char *of, assay_sketch_component component)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%.*s%s%s", (int)(sizeof path - sizeof FOLDER - 16), of, FOLDER, NAMES[component]);
    assay_tensor_call(spec, path);
}

assay_tensor_spec assay_sketch_spec(const assay_tensor_spec *of, int64_t above, assay_sketch_component component)
{
    assay_tensor_spec spec = {.type = of->type};
    const int last = of->shape.rank - 1;
    const int64_t blocks = blocks_of(&of->shape), rows = of->shape.dims[last - 1], columns = of->shape.dims[last];
    if (component == ASSAY_SKETCH_SLICE_BLOCK && blocks == 1) return spec;
    for (int axis = 0; component < ASSAY_SKETCH_SLICE_ROWS && axis < last - 1; axis++) {
        add_axis(&spec, of->shape.dims[axis], of->labels[axis]);
    }
    switch (component) {
    case ASSAY_SKETCH_ROWS:
        add_axis(&spec, rows, of->labels[last - 1]);
        break;
    case ASSAY_SKETCH_COLUMNS:
        add_axis(&spec, columns, of->labels[last]);
        break;
    case ASSAY_SKETCH_TILES:
        add_axis(&spec, tiles(rows), "row_tile");
        add_axis(&spec, tiles(columns), "column_tile");
        break;
    case ASSAY_SKETCH_BLOCKS:
        break;
    case ASSAY_SKETCH_SLICE_ROWS:
        add_axis(&spec, slice_count(&of->shape, above), "slice");
        add_axis(&spec, columns, of->labels[last]);
        break;
    case ASSAY_SKETCH_SLICE_BLOCK:
        add_axis(&spec, rows, of->labels[last - 1]);
        add_axis(&spec, columns, of->labels[last]);
        break;
    }
    const int64_t count = assay_shape_count(&spec.shape);
    if (count > 0 && (count <= above || component == ASSAY_SKETCH_BLOCKS)) call(&spec, of->path, component);
    return spec;
}

void assay_sketch_tensor_path(const char *path, char whole[ASSAY_PATH_SIZE], assay_sketch_component *component)
{
    const char *found = strstr(path, FOLDER);
    whole[0] = '\0';
    if (found == NULL) return;
    for (int i = 0; i < ASSAY_SKETCH_COMPONENTS; i++) {
        if (strcmp(found + strlen(FOLDER), NAMES[i]) != 0) continue;
        snprintf(whole, ASSAY_PATH_SIZE, "%.*s", (int)(found - path), path);
        if (component != NULL) *component = (assay_sketch_component)i;
    }
}

/* One of `count` equal ranges' numbers, by the high part of bits times the range's length. */
static int64_t drawn_below(uint64_t bits, int64_t length)
{
    return (int64_t)(((unsigned __int128)bits * (uint64_t)length) >> BITS);
}

static void draw_signs(const assay_sketch *s, uint64_t seed, assay_sketch_component component, int64_t count,
                       uint64_t *signs)
{
    assay_tensor_spec spec = {0};
    call(&spec, s->spec.path, component);
    for (int64_t i = 0; i < (count + BITS - 1) / BITS; i++) signs[i] = assay_random_bits(seed, spec.path, (uint64_t)i);
}

static void draw_slices(assay_sketch *s, uint64_t seed)
{
    const int64_t all = s->blocks * s->rows, count = s->slice_count;
    assay_tensor_spec rows = {0}, block = {0};
    call(&rows, s->spec.path, ASSAY_SKETCH_SLICE_ROWS);
    call(&block, s->spec.path, ASSAY_SKETCH_SLICE_BLOCK);
    for (int64_t i = 0; i < count; i++) {
        const int64_t first = i * all / count, end = (i + 1) * all / count;
        s->slices[i] = first + drawn_below(assay_random_bits(seed, rows.path, (uint64_t)i), end - first);
    }
    if (s->components[ASSAY_SKETCH_SLICE_BLOCK] != NULL) {
        s->slice_block = drawn_below(assay_random_bits(seed, block.path, 0), s->blocks);
    }
}

static assay_status alloc_parts(assay_context *ctx, int64_t above, assay_sketch *s)
{
    const int64_t tiles_of_block = s->row_tiles * s->column_tiles;
    int64_t total = 2 * s->columns + tiles_of_block;
    for (int i = 0; i < ASSAY_SKETCH_COMPONENTS; i++) {
        const assay_tensor_spec spec = assay_sketch_spec(&s->spec, above, (assay_sketch_component)i);
        s->sizes[i] = spec.path[0] != '\0' ? assay_shape_count(&spec.shape) : 0;
        total += s->sizes[i];
    }
    MUST(assay_alloc_zeros(ctx, s->spec.path, total, &s->memory));
    s->column_sums = s->memory;
    s->column_signs = s->memory + s->columns;
    s->tiles = s->column_signs + s->columns;
    double *next = s->tiles + tiles_of_block;
    for (int i = 0; i < ASSAY_SKETCH_COMPONENTS; i++) {
        s->components[i] = s->sizes[i] > 0 ? next : NULL;
        next += s->sizes[i];
    }
    return ASSAY_OK;
}

static assay_status alloc_draws(assay_context *ctx, assay_sketch *s)
{
    assay_status status;
    status = assay_alloc(ctx, s->spec.path, s->blocks * s->columns / BITS + 1, sizeof(uint64_t), &s->signs_of_columns);
    if (status == ASSAY_OK)
        status = assay_alloc(ctx, s->spec.path, s->blocks * s->rows / BITS + 1, sizeof(uint64_t), &s->signs_of_rows);
    if (status == ASSAY_OK) status = assay_alloc(ctx, s->spec.path, s->slice_count, sizeof(int64_t), &s->slices);
    return status;
}

assay_status assay_sketch_start(assay_context *ctx, const assay_tensor_spec *spec, int64_t above, uint64_t seed,
                                assay_sketch *s)
{
    char whole[ASSAY_PATH_SIZE];
    const int last = spec->shape.rank - 1;
    *s = (assay_sketch){.spec = *spec, .blocks = blocks_of(&spec->shape), .slice_block = -1};
    s->rows = spec->shape.dims[last - 1];
    s->columns = spec->shape.dims[last];
    s->row_tiles = tiles(s->rows);
    s->column_tiles = tiles(s->columns);
    s->count = assay_shape_count(&spec->shape);
    s->slice_count = slice_count(&spec->shape, above);
    assay_sketch_tensor_path(assay_sketch_spec(spec, above, ASSAY_SKETCH_BLOCKS).path, whole, NULL);
    if (strcmp(whole, spec->path) != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: its path is too long for a sketch", spec->path);
    }
    MUST(alloc_parts(ctx, above, s));
    MUST(alloc_draws(ctx, s));
    draw_signs(s, seed, ASSAY_SKETCH_ROWS, s->blocks * s->columns, s->signs_of_columns);
    draw_signs(s, seed, ASSAY_SKETCH_COLUMNS, s->blocks * s->rows, s->signs_of_rows);
    draw_slices(s, seed);
    return ASSAY_OK;
}

static bool is_minus(const uint64_t *signs, int64_t index)
{
    return (signs[index / BITS] >> (index % BITS) & 1) != 0;
}

/* The signs of a block's columns, as numbers. */
static void expand_signs(assay_sketch *s, int64_t block)
{
    for (int64_t i = 0; i < s->columns; i++) {
        s->column_signs[i] = is_minus(s->signs_of_columns, block * s->columns + i) ? -1 : 1;
    }
}

/* Elements of one segment of a row: at most 128 of one tile. A sum runs over 8 lanes, then over segments, then over the
 * tile's rows, so that its rounding grows with none of the lengths. */
static void add_segment(assay_sketch *s, bool minus_row, int64_t column, int64_t count, const double *x)
{
    double *of_column = s->column_sums + column;
    const double *signs = s->column_signs + column, of_row = minus_row ? -1 : 1;
    int64_t i = 0;
    for (int64_t k = 0; k < count; k++) of_column[k] += of_row * x[k];
    for (; column % LANES == 0 && i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) s->lanes[lane] += signs[i + lane] * x[i + lane];
    }
    for (; i < count; i++) s->lanes[(column + i) % LANES] += signs[i] * x[i];
}

static void end_segment(assay_sketch *s, int64_t block, int64_t row, bool minus_row, int64_t column)
{
    double sum = 0;
    for (int i = 0; i < LANES; i++) {
        sum += s->lanes[i];
        s->lanes[i] = 0;
    }
    double *rows = s->components[ASSAY_SKETCH_ROWS];
    if (rows != NULL) rows[block * s->rows + row] += sum;
    s->tiles[row / TILE * s->column_tiles + column / TILE] += minus_row ? -sum : sum;
}

/* After the last row of a tile. */
static void end_rows(assay_sketch *s, int64_t block)
{
    double *columns = s->components[ASSAY_SKETCH_COLUMNS];
    for (int64_t i = 0; i < s->columns; i++) {
        if (columns != NULL) columns[block * s->columns + i] += s->column_sums[i];
        s->column_sums[i] = 0;
    }
}

static void end_block(assay_sketch *s, int64_t block)
{
    const int64_t count = s->row_tiles * s->column_tiles;
    double sum = 0, *tiles = s->components[ASSAY_SKETCH_TILES];
    for (int64_t i = 0; i < count; i++) {
        sum += s->tiles[i];
        if (tiles != NULL) tiles[block * count + i] = s->tiles[i];
        s->tiles[i] = 0;
    }
    s->components[ASSAY_SKETCH_BLOCKS][block] = sum;
}

static void keep_slices(assay_sketch *s, int64_t block, int64_t row, int64_t column, int64_t count, const double *x)
{
    const int64_t slice = s->next_slice, index = block * s->rows + row;
    const size_t bytes = (size_t)count * sizeof *x;
    if (block == s->slice_block) memcpy(s->components[ASSAY_SKETCH_SLICE_BLOCK] + row * s->columns + column, x, bytes);
    if (slice == s->slice_count || s->slices[slice] != index) return;
    memcpy(s->components[ASSAY_SKETCH_SLICE_ROWS] + slice * s->columns + column, x, bytes);
    if (column + count == s->columns) s->next_slice++;
}

void assay_sketch_add(assay_sketch *s, int64_t count, const double *sums, const double *slices)
{
    for (int64_t done = 0; done < count;) {
        const int64_t column = s->position % s->columns, index = s->position / s->columns;
        const int64_t block = index / s->rows, row = index % s->rows;
        const int64_t end = assay_smaller((column / TILE + 1) * TILE, s->columns),
                      n = assay_smaller(end - column, count - done);
        const bool minus_row = is_minus(s->signs_of_rows, index);
        if (row == 0 && column == 0) expand_signs(s, block);
        add_segment(s, minus_row, column, n, sums + done);
        keep_slices(s, block, row, column, n, slices + done);
        if (column + n == end) end_segment(s, block, row, minus_row, column);
        if (column + n == s->columns && ((row + 1) % TILE == 0 || row + 1 == s->rows)) end_rows(s, block);
        if (column + n == s->columns && row + 1 == s->rows) end_block(s, block);
        done += n;
        s->position += n;
    }
}

void assay_sketch_add_zeros(assay_sketch *s, int64_t count)
{
    static const double zeros[TILE] = {0};
    const int64_t block = s->rows * s->columns;
    while (count > 0) {
        const bool whole = s->position % block == 0 && count >= block;
        const int64_t n = whole ? block : assay_smaller(count, TILE);
        if (!whole) assay_sketch_add(s, n, zeros, zeros);
        if (whole) s->position += block; /* its sums and slices are 0 from the start */
        while (s->next_slice < s->slice_count && s->slices[s->next_slice] < s->position / s->columns) s->next_slice++;
        count -= n;
    }
}

/* Of one element, by what the component's name says. */
static int sign_in(const assay_sketch *s, assay_sketch_component component, int64_t index, int64_t element)
{
    const int64_t column = element % s->columns, row = element / s->columns, block = row / s->rows;
    const int64_t tile_row = block * s->row_tiles + row % s->rows / TILE;
    const int of_column = is_minus(s->signs_of_columns, block * s->columns + column) ? -1 : 1;
    const int of_row = is_minus(s->signs_of_rows, row) ? -1 : 1;
    switch (component) {
    case ASSAY_SKETCH_ROWS:
        return row == index ? of_column : 0;
    case ASSAY_SKETCH_COLUMNS:
        return block * s->columns + column == index ? of_row : 0;
    case ASSAY_SKETCH_TILES:
        return tile_row * s->column_tiles + column / TILE == index ? of_row * of_column : 0;
    case ASSAY_SKETCH_BLOCKS:
        return block == index ? of_row * of_column : 0;
    case ASSAY_SKETCH_SLICE_ROWS:
        return row == s->slices[index / s->columns] && column == index % s->columns;
    case ASSAY_SKETCH_SLICE_BLOCK:
        return element == s->slice_block * s->rows * s->columns + index;
    }
    return 0;
}

void assay_sketch_signs(const assay_sketch *s, assay_sketch_component component, int64_t index, signed char *signs)
{
    for (int64_t i = 0; i < s->count; i++) signs[i] = (signed char)sign_in(s, component, index, i);
}

void assay_sketch_free(assay_sketch *s)
{
    free(s->memory);
    free(s->signs_of_columns);
    free(s->signs_of_rows);
    free(s->slices);
    *s = (assay_sketch){0};
}
