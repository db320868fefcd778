/* safetensors, the index of a checkpoint, npz. What begins with a letter that says so is a description from which a file is
 * made whose outer form is right, so that more than that is tried; all else is the file itself. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "harness/plan/checkpoint.h"
#include "harness/plan/model_weights.h"
#include "harness/plan/plan_make.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_file.h"

static void seed_file(fuzz_corpus *corpus, const char *name, bool small)
{
    size_t size = 0;
    fuzz_write_fixture(fuzz_path(name), small);
    uint8_t *data = fuzz_read(fuzz_path(name), &size);
    fuzz_seed(corpus, data, size);
    free(data);
}

/* '{', the rest of a header, a zero, the tensors' bytes: the header's length is put before them. */
static const char *file_with_header(const uint8_t *data, size_t size)
{
    const char *name = "model.safetensors";
    if (size == 0 || data[0] != '{') return fuzz_file(name, data, size);
    const uint8_t *zero = memchr(data, 0, size);
    const uint64_t header = zero == NULL ? size : (uint64_t)(zero - data);
    uint8_t *file = malloc(size + 8);
    fuzz_require(file != NULL, "no memory");
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(header >> 8 * i);
    memcpy(file + 8, data, header);
    if (zero != NULL) memcpy(file + 8 + header, zero + 1, size - header - 1);
    const char *path = fuzz_file(name, file, 8 + size - (zero != NULL));
    free(file);
    return path;
}

static void try_safetensors(const uint8_t *data, size_t size)
{
    fuzz_read_file(file_with_header(data, size));
}

static void safetensors_seeds(fuzz_corpus *corpus)
{
    for (int i = 0; i < 2; i++) {
        size_t size = 0;
        const char *path = fuzz_path("a.safetensors");
        seed_file(corpus, "a.safetensors", i == 0);
        uint8_t *data = fuzz_read(path, &size);
        const size_t header = data[0] | (size_t)data[1] << 8, rest = size - 8 - header;
        cJSON *json = cJSON_ParseWithLength((const char *)data + 8, header);
        char *text = cJSON_Print(json);
        const size_t length = strlen(text) + 1;
        uint8_t *seed = malloc(length + rest);
        fuzz_require(seed != NULL, "no memory");
        memcpy(seed, text, length);
        memcpy(seed + length, data + 8 + header, rest);
        fuzz_seed(corpus, seed, length + rest);
        free(seed);
        cJSON_free(text);
        cJSON_Delete(json);
        free(data);
    }
}

const fuzz_target fuzz_safetensors = {"safetensors", try_safetensors, safetensors_seeds, true};

static void try_index(const uint8_t *data, size_t size)
{
    assay_checkpoint *checkpoint = NULL;
    assay_context ctx = fuzz_context();
    static bool made;
    if (!made) fuzz_write_fixture(fuzz_path("model.safetensors"), true);
    made = true;
    const assay_status status =
        assay_checkpoint_open(&ctx, fuzz_file("model.safetensors.index.json", data, size), &checkpoint);
    fuzz_check(&ctx, status);
    for (int i = 0; status == ASSAY_OK && i < assay_checkpoint_count(checkpoint) && i < 16; i++) {
        const assay_tensor_spec *spec = NULL;
        const char *name = assay_checkpoint_name(checkpoint, i);
        double value;
        fuzz_require(assay_checkpoint_find(checkpoint, name) >= 0, "a tensor is not found by its name");
        const assay_status found = assay_checkpoint_spec(&ctx, checkpoint, i, &spec);
        fuzz_check(&ctx, found);
        if (found == ASSAY_OK) fuzz_check(&ctx, assay_checkpoint_read(&ctx, checkpoint, i, 0, 1, &value));
    }
    assay_checkpoint_close(checkpoint);
}

static void index_seeds(fuzz_corpus *corpus)
{
    fuzz_seed_text(corpus,
                   "{\"metadata\": {\"total_size\": 24},\n\"weight_map\": {\n\"outputs/y\": \"model.safetensors\",\n"
                   "\"lm_head.weight\": \"model-00002-of-00002.safetensors\"\n}}\n");
}

const fuzz_target fuzz_weights_index = {"weights_index", try_index, index_seeds, true};

/* A ZIP archive that is being made. */
typedef struct archive {
    uint8_t bytes[1 << 16], directory[1 << 13];
    size_t size, directory_size;
    unsigned count;
} archive;

static void put(uint8_t *to, size_t *size, uint64_t number, int width)
{
    for (int i = 0; i < width; i++) to[(*size)++] = (uint8_t)(i < 8 ? number >> 8 * i : 0);
}

static size_t pack(const uint8_t *from, size_t size, uint8_t *to, size_t room)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)from, .avail_in = (uInt)size, .next_out = to, .avail_out = (uInt)room};
    fuzz_require(deflateInit2(&z, 1, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
    const int end = deflate(&z, Z_FINISH);
    const size_t packed = z.total_out;
    deflateEnd(&z);
    return end == Z_STREAM_END ? packed : 0;
}

/* What is odd about a member: bits of its first byte. */
enum { DEFLATED = 1, OTHER_SUM = 2, OTHER_SIZE = 4, RAW = 8, LONG_HEADER = 16, EXTRA = 32, OTHER_LOCAL = 64 };

static void add_member(archive *a, fuzz_bytes *bytes)
{
    enum { MOST_HEADER = 200, MOST_DATA = 400 };
    static const char *const names[] = {"outputs/y.npy", "__metadata__.npy", "inputs/x.npy"};
    uint8_t npy[MOST_HEADER + MOST_DATA + 16], packed[MOST_HEADER + MOST_DATA + 64];
    char name[200];
    size_t size = 0, header_size = 0, data_size = 0;
    const unsigned odd = fuzz_byte(bytes), which = fuzz_byte(bytes);
    if (which % 4 < 3) {
        snprintf(name, sizeof name, "%s", names[which % 4]);
    } else {
        fuzz_take_text(bytes, name, sizeof name);
    }
    const uint8_t *header = fuzz_take(bytes, fuzz_byte(bytes) % MOST_HEADER, &header_size);
    const uint8_t *data = fuzz_take(bytes, fuzz_byte(bytes), &data_size);
    if (!(odd & RAW)) {
        memcpy(npy, "\x93NUMPY", 6);
        size = 6;
        put(npy, &size, odd & LONG_HEADER ? 2 : 1, 2);
        put(npy, &size, header_size, odd & LONG_HEADER ? 4 : 2);
    }
    if (header_size > 0) memcpy(npy + size, header, header_size);
    size += header_size;
    if (data_size > 0) memcpy(npy + size, data, data_size);
    size += data_size;
    const uint32_t sum = (uint32_t)crc32(0, npy, (uInt)size) + (odd & OTHER_SUM ? fuzz_byte(bytes) : 0);
    const size_t length = odd & DEFLATED ? pack(npy, size, packed, sizeof packed) : size;
    const uint64_t told = odd & OTHER_SIZE ? (uint64_t)fuzz_number(bytes) : size, at = a->size;
    uint8_t extra[64];
    size_t extra_size = 0;
    if (odd & EXTRA) { /* ZIP64 */
        put(extra, &extra_size, 1, 2);
        put(extra, &extra_size, 16, 2);
        put(extra, &extra_size, (uint64_t)fuzz_number(bytes), 8);
        put(extra, &extra_size, (uint64_t)fuzz_number(bytes), 8);
    }
    for (int central = 0; central < 2; central++) {
        uint8_t *to = central ? a->directory : a->bytes;
        size_t *used = central ? &a->directory_size : &a->size;
        put(to, used, central ? 0x02014b50 : 0x04034b50, 4);
        if (central) put(to, used, 20, 2);
        put(to, used, 20, 2);
        put(to, used, 0, 2);
        put(to, used, (odd & DEFLATED ? 8u : 0u) + (!central && odd & OTHER_LOCAL ? 1u : 0u), 2);
        put(to, used, 0, 4);
        put(to, used, sum, 4);
        put(to, used, odd & EXTRA ? UINT32_MAX : length, 4);
        put(to, used, odd & EXTRA ? UINT32_MAX : told, 4);
        put(to, used, strlen(name), 2);
        put(to, used, extra_size, 2);
        if (central) put(to, used, 0, 10);
        if (central) put(to, used, at, 4);
        memcpy(to + *used, name, strlen(name));
        *used += strlen(name);
        if (extra_size > 0) memcpy(to + *used, extra, extra_size);
        *used += extra_size;
    }
    memcpy(a->bytes + a->size, odd & DEFLATED ? packed : npy, length);
    a->size += length;
    a->count++;
}

/* 'N', then members: what is odd, its name, the header of the .npy, its elements. */
static void try_npz(const uint8_t *data, size_t size)
{
    if (size == 0 || data[0] != 'N') {
        fuzz_read_file(fuzz_file("a.npz", data, size));
        return;
    }
    static archive a;
    a = (archive){0};
    fuzz_bytes bytes = {data + 1, data + size};
    while (bytes.at < bytes.end && a.count < 12) add_member(&a, &bytes);
    const size_t at = a.size;
    memcpy(a.bytes + a.size, a.directory, a.directory_size);
    a.size += a.directory_size;
    put(a.bytes, &a.size, 0x06054b50, 4);
    put(a.bytes, &a.size, 0, 4);
    put(a.bytes, &a.size, a.count, 2);
    put(a.bytes, &a.size, a.count, 2);
    put(a.bytes, &a.size, a.directory_size, 4);
    put(a.bytes, &a.size, at, 4);
    put(a.bytes, &a.size, 0, 2);
    fuzz_read_file(fuzz_file("a.npz", a.bytes, a.size));
}

static void seed_members(fuzz_corpus *corpus, unsigned odd)
{
    static const char *const headers[] = {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n",
                                          "{'descr': '|S80', 'fortran_order': False, 'shape': (), }\n",
                                          "{'descr': '>i8', 'fortran_order': True, 'shape': (2,), }\n"};
    static const char metadata[] = "{\"kind\": \"candidate\", \"float_type:inputs/x\": \"int32\"}";
    static const size_t sizes[] = {16, 80, 16};
    uint8_t seed[1024] = "N";
    size_t size = 1;
    for (unsigned i = 0; i < 3; i++) {
        put(seed, &size, odd, 1);
        put(seed, &size, i, 1);
        put(seed, &size, strlen(headers[i]), 1);
        memcpy(seed + size, headers[i], strlen(headers[i]));
        size += strlen(headers[i]);
        put(seed, &size, sizes[i], 1);
        if (i == 1) snprintf((char *)seed + size, 81, "%-80s", metadata);
        size += sizes[i];
    }
    fuzz_seed(corpus, seed, size);
}

static void npz_seeds(fuzz_corpus *corpus)
{
    seed_file(corpus, "a.npz", true);
    seed_file(corpus, "a.npz", false);
    seed_members(corpus, 0);
    seed_members(corpus, DEFLATED);
    seed_members(corpus, LONG_HEADER);
}

const fuzz_target fuzz_npz = {"npz", try_npz, npz_seeds, false};

/* --weights of a small MLP and of a small MoE block: a header, a zero, the numbers. */
static void try_weights(const uint8_t *data, size_t size)
{
    static const char *const texts[] = {
        "case: a\nop: mlp\nconfig: {base_emb_dim: 2, base_mlp_dim: 3}\nsequence: 2\n",
        "case: a\nop: moe\nconfig: {base_emb_dim: 2, base_moe_mlp_dim: 2, num_experts: 2, num_experts_per_tok: 1, "
        "decoder_block: mixtral}\nsequence: 2\n"};
    static assay_case *cases[2];
    static assay_plan plans[2];
    char path[256];
    assay_context ctx = fuzz_context();
    for (int i = 0; i < 2 && cases[i] == NULL; i++) {
        int count = 0;
        fuzz_require(assay_cases_parse(&ctx, "a.yml", texts[i], strlen(texts[i]), &cases[i], &count) == ASSAY_OK &&
                         assay_plan_make(&ctx, &plans[i], cases[i]) == ASSAY_OK,
                     ctx.message);
    }
    snprintf(path, sizeof path, "%s", file_with_header(data, size));
    for (int i = 0; i < 2; i++) {
        assay_model_weights *weights = NULL;
        const assay_status status = assay_model_weights_open(&ctx, path, cases[i], &plans[i].list, &weights);
        fuzz_check(&ctx, status);
        for (int j = 0; status == ASSAY_OK && j < plans[i].list.count; j++) {
            double numbers[16];
            const assay_tensor_spec *spec = &plans[i].list.entries[j].spec;
            if (!assay_model_weights_has(weights, spec->path)) continue;
            const int64_t count = assay_shape_count(&spec->shape);
            fuzz_require(count <= 16, "a weight is larger than it is");
            fuzz_check(&ctx, assay_model_weights_read(&ctx, weights, spec->path, 0, count, numbers));
            fuzz_check(&ctx, assay_model_weights_read(&ctx, weights, spec->path, count - 1, 1, numbers));
        }
        assay_model_weights_close(weights);
    }
}

static void seed_weights(fuzz_corpus *corpus, int count, const char *const *names, const char *dtype, int width)
{
    char seed[4096] = "{";
    int at = 0;
    size_t size = 1;
    for (int i = 0; i < count; i++) {
        int rows = 0, columns = 0, length = 0;
        sscanf(names[i], "%d %d %n", &rows, &columns, &length);
        const int bytes = rows * columns * width;
        size += (size_t)snprintf(seed + size, sizeof seed - size,
                                 "%s\"%s\": {\"dtype\": \"%s\",\n\"shape\": [%d, %d], \"data_offsets\": [%d, %d]}\n",
                                 i > 0 ? "," : "", names[i] + length, dtype, rows, columns, at, at + bytes);
        at += bytes;
    }
    size += (size_t)snprintf(seed + size, sizeof seed - size, "}") + 1;
    memset(seed + size, 0x3c, (size_t)at);
    fuzz_seed(corpus, seed, size + (size_t)at);
}

static void weights_seeds(fuzz_corpus *corpus)
{
    static const char *const mlp[] = {
        "3 2 model.layers.0.mlp.gate_proj.weight", "3 2 model.layers.0.mlp.up_proj.weight",
        "2 3 model.layers.0.mlp.down_proj.weight", "1 1 model.layers.0.mlp.down_proj.weight_scale_inv"};
    static const char *const moe[] = {"2 2 model.layers.0.mlp.gate.weight",
                                      "2 2 model.layers.0.mlp.experts.0.gate_proj.weight",
                                      "2 2 model.layers.0.mlp.experts.0.up_proj.weight",
                                      "2 2 model.layers.0.mlp.experts.0.down_proj.weight",
                                      "2 2 model.layers.0.mlp.experts.1.gate_proj.weight",
                                      "2 2 model.layers.0.mlp.experts.1.up_proj.weight",
                                      "2 2 model.layers.0.mlp.experts.1.down_proj.weight"};
    seed_weights(corpus, 3, mlp, "F32", 4);
    seed_weights(corpus, 3, mlp, "BF16", 2);
    seed_weights(corpus, 4, mlp, "F32", 4);
    seed_weights(corpus, 4, mlp, "F8_E4M3", 1);
    seed_weights(corpus, 7, moe, "F32", 4);
    seed_weights(corpus, 7, moe, "U8", 1);
}

const fuzz_target fuzz_weights = {"weights", try_weights, weights_seeds, true};
