/* The targets under libFuzzer. FUZZ_SEEDS=FOLDER writes the target's seeds there instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

enum { MOST_LINES = 1 << 14, LONGEST_LINE = 240 };

/* Lines that get into the place of others: of all seeds, and words. */
typedef struct pool {
    char *lines[MOST_LINES];
    int count;
} pool;
static pool lines, words;
static const fuzz_target *target;

static void take_lines(pool *p, const char *text)
{
    while (*text != '\0' && p->count < MOST_LINES) {
        const size_t length = strcspn(text, "\n");
        if (length > 0 && length < LONGEST_LINE) p->lines[p->count++] = strndup(text, length);
        text += length + (text[length] == '\n');
    }
}

static const char word_list[] =
    "0\n1\n2\n3\n-1\n8\n64\n4096\n2147483647\n2147483648\n4294967296\n1e18\n1e308\n-0.0\n1e400\n.nan\n.inf\n-.inf\n"
    "null\n~\ntrue\nfalse\n[]\n{}\n\"\"\nall\nnone\n*\n?\n&a 1\n*a\n!!str 1\n9223372036854775807\n|\n>\n---\n\t\n"
    "1.5\n0x10\n1_0\n[[\n]\n{\n-9223372036854775808\n<<\n...\n%YAML\n1e-320\n\"\\u0000\"\n18446744073709551615\n"
    "9007199254740993\n";

static void read_seeds(int argc, char **argv)
{
    char path[4096];
    for (int i = 1; i < argc; i++) {
        for (int number = 0; argv[i][0] != '-' && number < 10000; number++) {
            size_t size = 0;
            snprintf(path, sizeof path, "%s/seed-%04d", argv[i], number);
            if (access(path, R_OK) != 0) break;
            uint8_t *data = fuzz_read(path, &size);
            char *text = fuzz_text(data, size);
            take_lines(&lines, text);
            free(text);
            free(data);
        }
    }
}

/* A bug that is found by whoever looks: three letters, and a byte is written behind the end. */
static void try_planted(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    if (copy == NULL) return;
    const bool found = size > 2 && data[0] == 'b' && data[1] == 'u' && data[2] == 'g';
    *(volatile uint8_t *)(copy + size + found) = 1;
    free(copy);
}

static void plant_seed(fuzz_corpus *corpus)
{
    fuzz_seed_text(corpus, "a bug");
}

static const fuzz_target planted = {"planted", try_planted, plant_seed, false};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *seeds = getenv("FUZZ_SEEDS"), *name = getenv("FUZZ_TARGET");
    if (getenv("FUZZ_LIST") != NULL) {
        for (int i = 0; fuzz_targets[i] != NULL; i++) puts(fuzz_targets[i]->name);
        exit(0);
    }
    target = name != NULL && strcmp(name, planted.name) == 0 ? &planted : fuzz_target_by_name(name);
    if (target == NULL) {
        fprintf(stderr, "fuzz: FUZZ_TARGET is no target: %s\n", name == NULL ? "" : name);
        exit(2);
    }
    if (seeds != NULL) {
        target->seeds(&(fuzz_corpus){.folder = seeds});
        exit(0);
    }
    if (target->lines) read_seeds(*argc, *argv);
    take_lines(&words, word_list);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    target->try(data, size);
    return 0;
}

static unsigned draw(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Puts `with` in the place of [from, to). */
static size_t replace(uint8_t *data, size_t size, size_t most, size_t from, size_t to, const char *with)
{
    const size_t length = strlen(with), behind = size - to;
    if (from + length + behind > most) return size;
    memmove(data + from + length, data + to, behind);
    memcpy(data + from, with, length);
    return from + length + behind;
}

/* The line around a place. */
static void line_at(const uint8_t *data, size_t size, size_t place, size_t *from, size_t *to)
{
    *from = *to = place;
    while (*from > 0 && data[*from - 1] != '\n') --*from;
    while (*to < size && data[*to] != '\n') ++*to;
}

static bool is_of_word(uint8_t c)
{
    return strchr(" ,:[]{}\"'\n=\t", c) == NULL && c != '\0';
}

static void word_at(const uint8_t *data, size_t size, size_t place, size_t *from, size_t *to)
{
    *from = *to = place;
    while (*from > 0 && is_of_word(data[*from - 1])) --*from;
    while (*to < size && is_of_word(data[*to])) ++*to;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    const unsigned what = draw(&seed) % 8;
    if (!target->lines || what < 2 || size == 0) return LLVMFuzzerMutate(data, size, most);
    size_t from, to;
    const size_t place = draw(&seed) % size;
    const char *line = lines.count > 0 ? lines.lines[draw(&seed) % (unsigned)lines.count] : "a: 1";
    char text[LONGEST_LINE + 2];
    line_at(data, size, place, &from, &to);
    switch (what) {
    case 2: /* away with the line */
        return replace(data, size, most, from, to < size ? to + 1 : to, "");
    case 3: /* another in its place */
        return replace(data, size, most, from, to, line);
    case 4: /* one before it */
        snprintf(text, sizeof text, "%s\n", line);
        return replace(data, size, most, from, from, text);
    case 5: /* it again, elsewhere */
        snprintf(text, sizeof text, "%.*s\n", (int)(to - from < LONGEST_LINE ? to - from : LONGEST_LINE), data + from);
        line_at(data, size, draw(&seed) % size, &from, &to);
        return replace(data, size, most, from, from, text);
    case 6: { /* a word of another line */
        size_t first, last;
        const size_t length = strlen(line);
        word_at((const uint8_t *)line, length, draw(&seed) % length, &first, &last);
        snprintf(text, sizeof text, "%.*s", (int)(last - first), line + first);
        word_at(data, size, place, &from, &to);
        return replace(data, size, most, from, to, text);
    }
    default:
        word_at(data, size, place, &from, &to);
        return replace(data, size, most, from, to, words.lines[draw(&seed) % (unsigned)words.count]);
    }
}
