#include "compare/printable.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the character of UTF-8 at p; 0 where there is none, and for what XML and terminals must not see. */
static int shown_bytes(const unsigned char *p)
{
    static const unsigned least[] = {0, 0x20, 0x80, 0x800, 0x10000};
    const int bytes = p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf8 ? 4 : 0;
    unsigned character = bytes < 2 ? p[0] : p[0] & (0x7fu >> bytes);
    for (int i = 1; i < bytes; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        character = character << 6 | (p[i] & 0x3fu);
    }
    const bool surrogate = character >= 0xd800 && character < 0xe000, no_character = (character | 1) == 0xffff;
    const bool shown = character >= least[bytes] && !(character >= 0x7f && character < 0xa0) && character <= 0x10ffff;
    return shown && !surrogate && !no_character ? bytes : 0;
}

const char *assay_printable(const char *from, char to[ASSAY_PRINTABLE_SIZE])
{
    int written = 0;
    while (*from != '\0') {
        const int shown = shown_bytes((const unsigned char *)from), length = shown > 0 ? shown : 1;
        if (written + length >= ASSAY_PRINTABLE_SIZE) break;
        if (shown > 0) {
            memcpy(to + written, from, (size_t)length);
        } else {
            to[written] = '?';
        }
        written += length;
        from += length;
    }
    to[written] = '\0';
    return to;
}

const char *assay_escaped(const char *from, char to[ASSAY_ESCAPED_SIZE])
{
    static const char marks[] = "&<>\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    char shown[ASSAY_PRINTABLE_SIZE];
    int written = 0;
    to[0] = '\0';
    for (const char *p = assay_printable(from, shown); *p != '\0'; p++) {
        const char plain[2] = {*p}, *mark = strchr(marks, *p);
        written += snprintf(to + written, (size_t)(ASSAY_ESCAPED_SIZE - written), "%s",
                            mark != NULL ? entities[mark - marks] : plain);
    }
    return to;
}
