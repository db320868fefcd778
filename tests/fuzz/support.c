#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "oracle/arithmetic/arithmetic.h"
#include "tests/fuzz/fuzz.h"

const fuzz_target *const fuzz_targets[] = {
    &fuzz_case_yaml,     &fuzz_case_set,    &fuzz_profile_yaml, &fuzz_model,   &fuzz_known,
    &fuzz_weights_index, &fuzz_safetensors, &fuzz_hdf5,         &fuzz_request, &fuzz_candidate,
    &fuzz_served,        &fuzz_parcel,      &fuzz_weights,      &fuzz_program, NULL};

const fuzz_target *fuzz_target_by_name(const char *name)
{
    for (int i = 0; name != NULL && fuzz_targets[i] != NULL; i++) {
        if (strcmp(fuzz_targets[i]->name, name) == 0) return fuzz_targets[i];
    }
    return NULL;
}

void fuzz_require(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "fuzz: not as it must be: %s\n", what);
    abort();
}

void fuzz_check(const assay_context *ctx, assay_status status)
{
    if (status == ASSAY_OK) return;
    if (status == ASSAY_INTERNAL) fprintf(stderr, "fuzz: %s\n", ctx->message);
    fuzz_require(status != ASSAY_INTERNAL, "input caused an internal error");
    fuzz_require(ctx->message[0] != '\0', "a refusal says nothing");
    fuzz_require(memchr(ctx->message, '\0', sizeof ctx->message) != NULL, "a message has no end");
    if (strchr(ctx->message, '\n') != NULL) fprintf(stderr, "fuzz: %s\n", ctx->message);
    fuzz_require(strchr(ctx->message, '\n') == NULL, "a message has two lines");
}

assay_context fuzz_context(void)
{
    return assay_context_default(1);
}

static char folder[64];

static void remove_folder(void)
{
    char command[sizeof folder + 16];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) fprintf(stderr, "fuzz: %s stays\n", folder);
}

const char *fuzz_path(const char *name)
{
    static char path[256];
    if (folder[0] == '\0') {
        struct stat found;
        snprintf(folder, sizeof folder, "%s/assay-tries-XXXXXX", stat("/dev/shm", &found) == 0 ? "/dev/shm" : "/tmp");
        fuzz_require(mkdtemp(folder) != NULL, "no folder for files");
        atexit(remove_folder);
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

const char *fuzz_file(const char *name, const void *data, size_t size)
{
    const char *path = fuzz_path(name);
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    fuzz_require(file >= 0 && write(file, data, size) == (ssize_t)size, "a file cannot be written");
    close(file);
    return path;
}

uint8_t *fuzz_read(const char *path, size_t *size)
{
    enum { MOST = 1 << 20 };
    uint8_t *data = malloc(MOST);
    FILE *file = fopen(path, "rbe");
    fuzz_require(data != NULL && file != NULL, path);
    *size = fread(data, 1, MOST, file);
    fclose(file);
    uint8_t *exact = realloc(data, *size + (*size == 0));
    fuzz_require(exact != NULL, "no memory");
    return exact;
}

char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    fuzz_require(text != NULL, "no memory");
    if (size > 0) memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

unsigned fuzz_byte(fuzz_bytes *bytes)
{
    return bytes->at < bytes->end ? *bytes->at++ : 0;
}

int fuzz_below(fuzz_bytes *bytes, int most)
{
    return (int)(fuzz_byte(bytes) % (unsigned)most);
}

int64_t fuzz_number(fuzz_bytes *bytes)
{
    static const int64_t edges[] = {-1,         256,       1 << 16,       INT32_MAX,     INT32_MIN, (int64_t)1 << 31,
                                    UINT32_MAX, INT64_MAX, INT64_MAX / 8, INT64_MAX - 1, INT64_MIN, (int64_t)1 << 53};
    const unsigned byte = fuzz_byte(bytes);
    if (byte < 200) return byte % 100 < 90 ? byte % 8 : byte;
    if (byte < 224) return edges[byte % (sizeof edges / sizeof *edges)];
    int64_t number = 0;
    for (unsigned i = 0; i < byte % 8 + 1; i++) number = (int64_t)((uint64_t)number << 8 | fuzz_byte(bytes));
    return number;
}

const uint8_t *fuzz_consume(fuzz_bytes *bytes, size_t most, size_t *size)
{
    const uint8_t *here = bytes->at;
    const size_t left = (size_t)(bytes->end - bytes->at);
    *size = most < left ? most : left;
    bytes->at += *size;
    return here;
}

void fuzz_consume_text(fuzz_bytes *bytes, char *text, size_t size)
{
    size_t length = 0;
    const uint8_t *from = fuzz_consume(bytes, fuzz_byte(bytes) % size, &length);
    if (length > 0) memcpy(text, from, length);
    text[length] = '\0';
    for (size_t i = 0; i < length; i++) text[i] = (char)(text[i] == '\0' ? '0' : text[i]);
}

void fuzz_seed(fuzz_corpus *corpus, const void *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/seed-%04d", corpus->folder, corpus->count++);
    FILE *file = fopen(path, "wbe");
    fuzz_require(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0, "a seed cannot be written");
}

void fuzz_seed_text(fuzz_corpus *corpus, const char *text)
{
    fuzz_seed(corpus, text, strlen(text));
}
