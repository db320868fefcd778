/* Text from files and from backends, fit to be shown. */
#pragma once

enum { ASSAY_PRINTABLE_SIZE = 1024, ASSAY_ESCAPED_SIZE = 6 * ASSAY_PRINTABLE_SIZE };

/* A copy with '?' in place of every control character and of every byte that is no UTF-8; cut to what fits. Returns
 * `to`. */
const char *assay_printable(const char *from, char to[ASSAY_PRINTABLE_SIZE]);
/* The same for HTML and XML, where &, <, > and " are entities; also in an attribute. */
const char *assay_escaped(const char *from, char to[ASSAY_ESCAPED_SIZE]);
