/* safetensors, the index of a checkpoint. What begins with a letter that says so is a description from which a file is
 * made whose outer form is right, so that more than that is tried; all else is the file itself. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
