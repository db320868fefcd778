#define _GNU_SOURCE /* fallocate */
#include "harness/golden/moved_part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle/base/memory.h"

static const char RESULTS[] = "results", MOVED[] = "moved", TABLES[] = "moved/";
enum { COLUMNS = 3, STAYS_BYTES = 1 << 14 /* less is not worth a table */, LINE_SIZE = ASSAY_PATH_SIZE + 80 };

/* The number of the file that the part names; -1: none, the part has all that is its own. */
static int results_of(const assay_fixture_reader *part)
{
    const char *number = assay_fixture_text(part, RESULTS);
    return number == NULL ? -1 : atoi(number);
}

void assay_moving_path(const assay_moving *moving, char path[ASSAY_JOURNAL_PATH])
{
    assay_journal_results(moving->journal, moving->results, path);
}

/* Which of the files some part names. */
static assay_status find_needed(assay_context *ctx, const assay_journal *journal, int64_t layers,
                                bool needed[ASSAY_MOST_RESULTS])
{
    assay_fixture_reader *part = NULL;
    char path[ASSAY_JOURNAL_PATH];
    for (int64_t i = 0; i < 2 * layers; i++) {
        if (!assay_journal_has(journal, i / 2, i % 2 == 1)) continue;
        assay_journal_part(journal, i / 2, i % 2 == 1, path);
        MUST(assay_fixture_open(ctx, path, &part));
        const int number = results_of(part);
        if (number >= 0 && number < ASSAY_MOST_RESULTS) needed[number] = true;
        assay_fixture_close(part);
        part = NULL;
    }
    return ASSAY_OK;
}

assay_status assay_moving_is_over(assay_context *ctx, const assay_journal *journal, int64_t layers, bool *over)
{
    bool needed[ASSAY_MOST_RESULTS] = {false};
    char path[ASSAY_JOURNAL_PATH];
    const assay_status status = find_needed(ctx, journal, layers, needed);
    *over = false;
    for (int i = 0; i < ASSAY_MOST_RESULTS; i++) {
        assay_journal_results(journal, i, path);
        *over |= needed[i] && access(path, F_OK) != 0;
    }
    return status;
}

assay_status assay_moving_begin(assay_context *ctx, assay_moving *moving, const assay_journal *journal,
                                const assay_plan *plan, int64_t layers)
{
    bool needed[ASSAY_MOST_RESULTS] = {false};
    char path[ASSAY_JOURNAL_PATH];
    *moving = (assay_moving){.journal = journal, .plan = plan, .results = -1};
    MUST(find_needed(ctx, journal, layers, needed));
    for (int i = ASSAY_MOST_RESULTS - 1; i >= 0; i--) {
        if (needed[i]) continue;
        assay_journal_results(journal, i, path);
        if (unlink(path) != 0 && errno != ENOENT) return assay_fail(ctx, ASSAY_IO, "%s: %s", path, strerror(errno));
        moving->results = i;
    }
    if (moving->results >= 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: stopped too often while parts were joined", journal->folder);
}

bool assay_is_moved_table(const char *path)
{
    return strncmp(path, TABLES, sizeof TABLES - 1) == 0;
}

/* What line `index` of the part's attribute says, and where the numbers are [*ranges][COLUMNS]. */
static assay_status read_line(assay_context *ctx, assay_fixture_reader *part, int index, char path[ASSAY_PATH_SIZE],
                              char digest[72], int64_t *ranges, double **table)
{
    assay_status status;
    const char *const *lines = NULL;
    char name[32];
    assay_fixture_texts(part, MOVED, &lines);
    const char *space = strchr(lines[index], ' ');
    snprintf(name, sizeof name, "%s%d", TABLES, index);
    const assay_tensor_spec *spec = assay_fixture_find(part, name);
    *table = NULL;
    if (space == NULL || space - lines[index] >= ASSAY_PATH_SIZE || spec == NULL || spec->shape.rank != 2 ||
        spec->shape.dims[1] != COLUMNS) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "a part of the journal is damaged: \"%.100s\" is not understood",
                          lines[index]);
    }
    snprintf(path, ASSAY_PATH_SIZE, "%.*s", (int)(space - lines[index]), lines[index]);
    snprintf(digest, 72, "%.71s", space + 1);
    *ranges = spec->shape.dims[0];
    TRY(assay_alloc_f64(ctx, name, *ranges * COLUMNS, table));
    TRY(assay_fixture_read(ctx, part, name, 0, *ranges * COLUMNS, *table));
cleanup:
    if (status != ASSAY_OK) free(*table);
    if (status != ASSAY_OK) *table = NULL;
    return status;
}

static assay_status read_bytes(assay_context *ctx, int descriptor, const char *path, int64_t at, int64_t size,
                               unsigned char *out)
{
    for (int64_t done = 0; done < size;) {
        const ssize_t got = pread(descriptor, out + done, (size_t)(size - done), at + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return assay_fail(ctx, ASSAY_IO, "%s: cannot be read from the journal: %s", path, strerror(errno));
        if (got == 0) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: what the journal has of it is cut short", path);
        done += got;
    }
    return ASSAY_OK;
}

static assay_status copy_range(assay_context *ctx, int descriptor, const assay_tensor_spec *spec,
                               const double row[COLUMNS], const assay_sink *out)
{
    OWNED void *bytes = NULL;
    OWNED double *values = NULL;
    const int64_t count = (int64_t)row[1], size = count * (int64_t)assay_dtype_size(spec->type);
    MUST(assay_alloc(ctx, spec->path, size, 1, &bytes));
    MUST(read_bytes(ctx, descriptor, spec->path, (int64_t)row[2], size, bytes));
    if (spec->type == ASSAY_INT32) {
        MUST(out->write_i32(ctx, out->self, spec->path, count, bytes));
        return ASSAY_OK;
    }
    MUST(assay_alloc_f64(ctx, spec->path, count, &values));
    assay_dtype_decode(spec->type, count, bytes, values);
    return out->write(ctx, out->self, spec->path, count, values);
}

static assay_status copy_line(assay_context *ctx, const assay_moving *moving, assay_fixture_reader *part, int index,
                              int descriptor, const assay_sink *out)
{
    char path[ASSAY_PATH_SIZE], digest[72];
    int64_t ranges = 0;
    OWNED double *table = NULL;
    MUST(read_line(ctx, part, index, path, digest, &ranges, &table));
    const int of_plan = assay_plan_find(moving->plan, path);
    if (of_plan < 0) MUST(assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the golden has no %s", moving->journal->folder, path));
    for (int64_t i = 0; i < ranges; i++) {
        MUST(copy_range(ctx, descriptor, &moving->plan->specs[of_plan], table + i * COLUMNS, out));
    }
    return ASSAY_OK;
}

/* The file that the part names; -1: none. */
static assay_status open_named(assay_context *ctx, const assay_moving *moving, const assay_fixture_reader *part,
                               int flags, int *descriptor)
{
    char path[ASSAY_JOURNAL_PATH];
    const int number = results_of(part);
    *descriptor = -1;
    if (number < 0) return ASSAY_OK;
    assay_journal_results(moving->journal, number, path);
    *descriptor = open(path, flags | O_CLOEXEC);
    return *descriptor >= 0 ? ASSAY_OK : assay_fail(ctx, ASSAY_IO, "%s: %s", path, strerror(errno));
}

assay_status assay_moving_copy(assay_context *ctx, const assay_moving *moving, assay_fixture_reader *part,
                               const assay_sink *out)
{
    assay_status status;
    int descriptor = -1;
    const char *const *lines = NULL;
    const int count = assay_fixture_texts(part, MOVED, &lines);
    TRY(open_named(ctx, moving, part, O_RDONLY, &descriptor));
    for (int i = 0; i < count; i++) TRY(copy_line(ctx, moving, part, i, descriptor, out));
cleanup:
    if (descriptor >= 0) close(descriptor);
    return status;
}

/* A part that is written anew. */
typedef struct thin_part {
    const assay_moving *moving;
    assay_fixture_reader *from;
    assay_fixture_writer *golden, *to;
    const char *stays;
    char (*lines)[LINE_SIZE]; /* [count] */
    const char **texts;       /* of them */
    int count;
} thin_part;

static bool is_moved(const thin_part *thin, const assay_tensor_spec *spec)
{
    const assay_fixture_place *places;
    const int64_t bytes = assay_shape_count(&spec->shape) * (int64_t)assay_dtype_size(spec->type);
    return bytes >= STAYS_BYTES && (thin->stays == NULL || strcmp(spec->path, thin->stays) != 0) &&
           assay_plan_find(thin->moving->plan, spec->path) >= 0 &&
           assay_fixture_places(thin->golden, spec->path, &places) > 0;
}

static void add_line(thin_part *thin, const char *path)
{
    snprintf(thin->lines[thin->count], LINE_SIZE, "%s %s", path, assay_fixture_written_digest(thin->golden, path));
    thin->texts[thin->count] = thin->lines[thin->count];
    thin->count++;
}

/* Those that are moved now, and those that were before: the golden that they came from may have been damaged since. */
static assay_status list_moved(assay_context *ctx, thin_part *thin)
{
    assay_status status = ASSAY_OK;
    const char *const *lines = NULL;
    const int before = assay_fixture_texts(thin->from, MOVED, &lines), stored = assay_fixture_count(thin->from);
    thin->lines = calloc((size_t)(before + stored) + 1, sizeof *thin->lines);
    thin->texts = calloc((size_t)(before + stored) + 1, sizeof *thin->texts);
    if (thin->lines == NULL || thin->texts == NULL) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of what is moved");
    }
    for (int i = 0; i < before; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(lines[i], " "), lines[i]);
        add_line(thin, path);
        if (strcmp(thin->lines[i], lines[i]) == 0) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: what it has of %s is damaged: its digest is another",
                          thin->moving->journal->folder, path);
    }
    for (int i = 0; i < stored; i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(thin->from, i);
        if (is_moved(thin, spec)) add_line(thin, spec->path);
    }
    return status;
}

static bool is_kept(const thin_part *thin, const assay_tensor_spec *spec)
{
    return !assay_is_moved_table(spec->path) && !is_moved(thin, spec);
}

/* Where line `index` is now; declares it, or, later, writes it. */
static assay_status put_table(assay_context *ctx, const thin_part *thin, int index, bool declares)
{
    char path[ASSAY_PATH_SIZE];
    const assay_fixture_place *places = NULL;
    snprintf(path, sizeof path, "%.*s", (int)strcspn(thin->lines[index], " "), thin->lines[index]);
    const int count = assay_fixture_places(thin->golden, path, &places);
    assay_tensor_spec spec = {.type = ASSAY_FLOAT64, .shape = assay_shape_of(2, (int64_t)count, (int64_t)COLUMNS)};
    snprintf(spec.path, sizeof spec.path, "%s%d", TABLES, index);
    if (declares) return assay_fixture_declare(ctx, thin->to, &spec);
    for (int i = 0; i < count; i++) {
        const double row[COLUMNS] = {(double)places[i].first, (double)places[i].count, (double)places[i].at};
        MUST(assay_fixture_append(ctx, thin->to, spec.path, COLUMNS, row));
    }
    return ASSAY_OK;
}

static assay_status write_thin(assay_context *ctx, thin_part *thin, int64_t layer, bool backward)
{
    assay_status status;
    char number[16], path[ASSAY_JOURNAL_PATH];
    assay_journal_part(thin->moving->journal, layer, backward, path);
    snprintf(number, sizeof number, "%d", thin->moving->results);
    TRY(assay_fixture_create(ctx, path, &thin->to));
    TRY(assay_journal_sign(ctx, thin->moving->journal, layer, backward, thin->to));
    TRY(assay_fixture_set_text(ctx, thin->to, RESULTS, number));
    if (thin->count > 0) TRY(assay_fixture_set_texts(ctx, thin->to, MOVED, thin->count, thin->texts));
    for (int i = 0; i < assay_fixture_count(thin->from); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(thin->from, i);
        if (!is_kept(thin, spec)) continue;
        TRY(assay_fixture_declare(ctx, thin->to, spec));
        TRY(assay_fixture_copy_elements(ctx, thin->from, thin->to, spec->path));
    }
    for (int i = 0; i < thin->count; i++) TRY(put_table(ctx, thin, i, true));
    for (int i = 0; i < thin->count; i++) TRY(put_table(ctx, thin, i, false));
    status = assay_fixture_finish(ctx, thin->to);
    thin->to = NULL;
cleanup:
    assay_fixture_abandon(thin->to);
    thin->to = NULL;
    return status;
}

/* Gives back the disk under what the part's numbers were in before. Where the file system cannot, it stays until the end. */
static assay_status free_disk(assay_context *ctx, const thin_part *thin)
{
    assay_status status;
    int descriptor = -1;
    double *table = NULL;
    const char *const *lines = NULL;
    const int count = assay_fixture_texts(thin->from, MOVED, &lines);
    TRY(open_named(ctx, thin->moving, thin->from, O_RDWR, &descriptor));
    for (int i = 0; i < count; i++) {
        char path[ASSAY_PATH_SIZE], digest[72];
        int64_t ranges = 0;
        TRY(read_line(ctx, thin->from, i, path, digest, &ranges, &table));
        const assay_dtype type = thin->moving->plan->specs[assay_plan_find(thin->moving->plan, path)].type;
        for (int64_t r = 0; r < ranges; r++) {
            const double *row = table + r * COLUMNS;
            fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)row[2],
                      (off_t)row[1] * (off_t)assay_dtype_size(type));
        }
        free(table);
        table = NULL;
    }
cleanup:
    free(table);
    if (descriptor >= 0) close(descriptor);
    return status;
}

assay_status assay_moving_note(assay_context *ctx, const assay_moving *moving, assay_fixture_reader *part,
                               int64_t layer, bool backward, const char *stays, assay_fixture_writer *writer)
{
    assay_status status;
    thin_part thin = {.moving = moving, .from = part, .golden = writer, .stays = stays};
    TRY(list_moved(ctx, &thin));
    if (thin.count == 0) goto cleanup;
    TRY(assay_fixture_sync(ctx, writer));
    TRY(write_thin(ctx, &thin, layer, backward));
    TRY(free_disk(ctx, &thin));
cleanup:
    free(thin.lines);
    free(thin.texts);
    return status;
}
