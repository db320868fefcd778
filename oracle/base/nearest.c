#include "oracle/base/nearest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 128, LEAST_PART = 4 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Insertions, deletions and replacements of letters that turn one into the other (Levenshtein). */
static int edit_distance(const char *a, const char *b)
{
    int row[LONGEST + 1];
    int length = (int)strlen(b);
    for (int j = 0; j <= length; j++) row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= length; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = least(replaced, 1 + least(row[j], row[j - 1]));
        }
    }
    return row[length];
}

void assay_nearest_offer(assay_nearest *nearest, const char *name)
{
    size_t length = strlen(nearest->word);
    if (length > LONGEST || strlen(name) > LONGEST) return;
    for (int i = 0; i < nearest->count; i++) {
        if (strcmp(nearest->names[i], name) == 0) return;
    }
    /* Part of a name is near however long the rest: emb_dim for base_emb_dim. */
    bool part = length >= LEAST_PART && strstr(name, nearest->word) != NULL;
    int distance = part ? 1 : edit_distance(nearest->word, name);
    if (distance > 1 + (int)length / 4) return;

    int place = nearest->count;
    while (place > 0 && nearest->distances[place - 1] > distance) place--;
    if (place >= nearest->most) return;
    if (nearest->count < nearest->most) nearest->count++;
    for (int i = nearest->count - 1; i > place; i--) {
        nearest->names[i] = nearest->names[i - 1];
        nearest->distances[i] = nearest->distances[i - 1];
    }
    nearest->names[place] = name;
    nearest->distances[place] = distance;
}

void assay_nearest_text(const assay_nearest *nearest, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < nearest->count && used < size; i++) {
        const char *before = i == 0 ? ", did you mean " : i + 1 < nearest->count ? ", " : " or ";
        const char *after = i + 1 < nearest->count ? "" : "?";
        used += (size_t)snprintf(text + used, size - used, "%s%s%s", before, nearest->names[i], after);
    }
}
