/* Numbers and texts as YAML that any reader takes for what they are. */
#pragma once

#include <stddef.h>

/* The shortest of 15 to 17 digits that reads back to the same double; always with a point: "1.0e-06". */
void assay_yaml_number_text(double x, char *text, size_t size);

/* A text as it is where it is plainly one, else in double quotes. 4 bytes for each of `value` and 3 are enough. */
void assay_yaml_quoted_text(const char *value, char *text, size_t size);
