#include "compare/printable.h"

#include <libxml/chvalid.h>
#include <libxml/xmlstring.h>
#include <stdbool.h>
#include <string.h>

const char *assay_printable(const char *from, char to[ASSAY_PRINTABLE_SIZE])
{
    int written = 0;
    while (*from != '\0') {
        int length = (int)strnlen(from, 4);
        int character = xmlGetUTF8Char((const unsigned char *)from, &length);
        bool shown = character >= 0x20 && character != 0x7f && xmlIsCharQ((unsigned)character);
        if (!shown) length = 1;
        if (written + length >= ASSAY_PRINTABLE_SIZE) break;
        if (shown) {
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
