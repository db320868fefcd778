/* Text from files and from backends, fit to be shown. */
#ifndef ASSAY_COMPARE_PRINTABLE_H
#define ASSAY_COMPARE_PRINTABLE_H

enum { ASSAY_PRINTABLE_SIZE = 1024 };

/* A copy with '?' in place of every control character and of every byte that is no UTF-8; cut to what fits. Returns
 * `to`. */
const char *assay_printable(const char *from, char to[ASSAY_PRINTABLE_SIZE]);

#endif
