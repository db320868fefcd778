#include "harness/plan/checkpoint.h"

#include <cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cases/yaml_reader.h"
#include "oracle/base/memory.h"

enum { PATH_MOST = 4096 };

typedef struct shard {
    char *path;
    assay_fixture_reader *reader; /* NULL until something of it is asked for */
} shard;

typedef struct entry {
    char name[ASSAY_PATH_SIZE];
    int shard;
} entry;

struct assay_checkpoint {
    char path[PATH_MOST]; /* of the file or of the index */
    shard *shards;
    int shard_count;
    entry *entries;
    int count;
};

/* In a folder the index, where there is one. */
static assay_status find_file(assay_context *ctx, assay_checkpoint *c, const char *path)
{
    static const char *const NAMES[] = {"model.safetensors.index.json", "model.safetensors"};
    struct stat about;
    if (strlen(path) >= PATH_MOST - 64) return assay_fail(ctx, ASSAY_BAD_INPUT, "--weights: path too long");
    snprintf(c->path, sizeof c->path, "%s", path);
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) return ASSAY_OK;
    for (int i = 0; i < 2; i++) {
        snprintf(c->path, sizeof c->path, "%s/%s", path, NAMES[i]);
        if (stat(c->path, &about) == 0) return ASSAY_OK;
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the folder has no %s and no %s", path, NAMES[0], NAMES[1]);
}

static assay_status add_shard(assay_context *ctx, assay_checkpoint *c, const char *path, int *index)
{
    for (*index = 0; *index < c->shard_count; (*index)++) {
        if (strcmp(c->shards[*index].path, path) == 0) return ASSAY_OK;
    }
    MUST(assay_grow(ctx, c->path, c->shard_count + 1, sizeof *c->shards, &c->shards));
    char *copy = strdup(path);
    if (copy == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for %s", c->path);
    c->shards[c->shard_count++] = (shard){.path = copy};
    return ASSAY_OK;
}

static assay_status open_shard(assay_context *ctx, assay_checkpoint *c, int index)
{
    shard *s = &c->shards[index];
    return s->reader != NULL ? ASSAY_OK : assay_fixture_open(ctx, s->path, &s->reader);
}

static assay_status new_entries(assay_context *ctx, assay_checkpoint *c, int count)
{
    c->entries = calloc((size_t)count + 1, sizeof *c->entries);
    if (c->entries == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "%s: no memory for %d names", c->path, count);
    return ASSAY_OK;
}

static assay_status list_file(assay_context *ctx, assay_checkpoint *c)
{
    int index = 0;
    MUST(add_shard(ctx, c, c->path, &index));
    MUST(open_shard(ctx, c, index));
    const assay_fixture_reader *reader = c->shards[index].reader;
    MUST(new_entries(ctx, c, assay_fixture_count(reader)));
    for (c->count = 0; c->count < assay_fixture_count(reader); c->count++) {
        memcpy(c->entries[c->count].name, assay_fixture_spec(reader, c->count)->path, ASSAY_PATH_SIZE);
    }
    return ASSAY_OK;
}

/* Code of ours reads these. Who names an HDF5 file has it examined first. */
static bool is_safetensors(const char *name)
{
    static const char ending[] = ".safetensors";
    const size_t length = strlen(name);
    return length >= sizeof ending && strcmp(name + length - (sizeof ending - 1), ending) == 0;
}

/* weight_map: names of tensors, and names of files beside the index. */
static assay_status list_map(assay_context *ctx, assay_checkpoint *c, const cJSON *map)
{
    const cJSON *item;
    const char *slash = strrchr(c->path, '/');
    const int folder = slash != NULL ? (int)(slash - c->path) + 1 : 0;
    MUST(new_entries(ctx, c, cJSON_GetArraySize(map)));
    cJSON_ArrayForEach(item, map)
    {
        char path[2 * PATH_MOST];
        entry *e = &c->entries[c->count];
        if (!cJSON_IsString(item) || strchr(item->valuestring, '/') != NULL || strlen(item->valuestring) >= PATH_MOST ||
            !is_safetensors(item->valuestring) || strlen(item->string) >= sizeof e->name) {
            MUST(assay_fail(ctx, ASSAY_BAD_INPUT,
                            "%s: weight_map has \"%.80s\", expected the name of a .safetensors file beside it", c->path,
                            item->string));
        }
        snprintf(path, sizeof path, "%.*s%s", folder, c->path, item->valuestring);
        MUST(add_shard(ctx, c, path, &e->shard));
        snprintf(e->name, sizeof e->name, "%s", item->string);
        c->count++;
    }
    return ASSAY_OK;
}

static assay_status list_index(assay_context *ctx, assay_checkpoint *c)
{
    assay_status status;
    char *text = NULL;
    cJSON *json = NULL;
    size_t size = 0;
    status = assay_read_text_file(ctx, c->path, &text, &size);
    if (status == ASSAY_IO) status = ASSAY_BAD_INPUT;
    TRY(status);
    json = cJSON_ParseWithLength(text, size);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    if (!cJSON_IsObject(map)) {
        TRY(assay_fail(ctx, ASSAY_BAD_INPUT, "%s: expected JSON with a weight_map, as of model.safetensors.index.json",
                       c->path));
    }
    TRY(list_map(ctx, c, map));
cleanup:
    cJSON_Delete(json);
    free(text);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

assay_status assay_checkpoint_open(assay_context *ctx, const char *path, assay_checkpoint **checkpoint)
{
    assay_status status;
    assay_checkpoint *c = calloc(1, sizeof *c);
    *checkpoint = NULL;
    if (c == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "%s: no memory to open it", path);
    TRY(find_file(ctx, c, path));
    const char *dot = strrchr(c->path, '.');
    TRY(dot != NULL && strcmp(dot, ".json") == 0 ? list_index(ctx, c) : list_file(ctx, c));
    qsort(c->entries, (size_t)c->count, sizeof *c->entries, by_name);
    for (int i = 1; i < c->count; i++) {
        if (strcmp(c->entries[i - 1].name, c->entries[i].name) == 0)
            TRY(assay_fail(ctx, ASSAY_BAD_INPUT, "%s has %s twice", c->path, c->entries[i].name));
    }
    *checkpoint = c;
    c = NULL;
cleanup:
    assay_checkpoint_close(c);
    return status;
}

void assay_checkpoint_close(assay_checkpoint *c)
{
    if (c == NULL) return;
    for (int i = 0; i < c->shard_count; i++) {
        assay_fixture_close(c->shards[i].reader);
        free(c->shards[i].path);
    }
    free(c->shards);
    free(c->entries);
    free(c);
}

int assay_checkpoint_count(const assay_checkpoint *checkpoint)
{
    return checkpoint->count;
}

const char *assay_checkpoint_name(const assay_checkpoint *checkpoint, int index)
{
    return checkpoint->entries[index].name;
}

int assay_checkpoint_find(const assay_checkpoint *c, const char *name)
{
    int low = 0, high = c->count;
    while (low < high) {
        const int middle = low + (high - low) / 2, order = strcmp(c->entries[middle].name, name);
        if (order == 0) return middle;
        if (order < 0) low = middle + 1;
        if (order > 0) high = middle;
    }
    return -1;
}

assay_status assay_checkpoint_spec(assay_context *ctx, assay_checkpoint *c, int index, const assay_tensor_spec **spec)
{
    const entry *e = &c->entries[index];
    MUST(open_shard(ctx, c, e->shard));
    *spec = assay_fixture_find(c->shards[e->shard].reader, e->name);
    if (*spec != NULL) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has no %s, which %s says it has", c->shards[e->shard].path, e->name,
                      c->path);
}

assay_status assay_checkpoint_read(assay_context *ctx, assay_checkpoint *c, int index, int64_t first, int64_t count,
                                   double *out)
{
    const entry *e = &c->entries[index];
    const assay_status status = open_shard(ctx, c, e->shard);
    return status == ASSAY_OK ? assay_fixture_read(ctx, c->shards[e->shard].reader, e->name, first, count, out)
                              : status;
}
