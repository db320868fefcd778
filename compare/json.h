/* Reports as JSON: an object is one put after the other, joined by &&. What is put into NULL, and what there is no memory for, is false,
 * or NULL, which takes nothing. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Under the key, or at the end of a list where the key is NULL. The item is taken, or freed. */
bool json_put(cJSON *into, const char *key, cJSON *item);
bool json_text(cJSON *into, const char *key, const char *text); /* as printable.h has it */
bool json_number(cJSON *into, const char *key, double value);   /* NaN and infinities are texts */
bool json_bool(cJSON *into, const char *key, bool value);
cJSON *json_object(cJSON *into, const char *key);
cJSON *json_list(cJSON *into, const char *key);
/* What a file begins with: its format, of version 1. */
cJSON *json_document(const char *format);
