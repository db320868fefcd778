#include "compare/json.h"

#include <math.h>

#include "compare/printable.h"

bool json_put(cJSON *into, const char *key, cJSON *item)
{
    const bool put = key == NULL ? cJSON_AddItemToArray(into, item) : cJSON_AddItemToObject(into, key, item);
    if (!put) cJSON_Delete(item);
    return put;
}

bool json_text(cJSON *into, const char *key, const char *text)
{
    char shown[ASSAY_PRINTABLE_SIZE];
    return json_put(into, key, cJSON_CreateString(assay_printable(text, shown)));
}

bool json_number(cJSON *into, const char *key, double value)
{
    if (isnan(value)) return json_text(into, key, "nan");
    if (isinf(value)) return json_text(into, key, value > 0 ? "inf" : "-inf");
    return json_put(into, key, cJSON_CreateNumber(value));
}

bool json_bool(cJSON *into, const char *key, bool value)
{
    return json_put(into, key, cJSON_CreateBool(value));
}

cJSON *json_object(cJSON *into, const char *key)
{
    cJSON *object = cJSON_CreateObject();
    return json_put(into, key, object) ? object : NULL;
}

cJSON *json_list(cJSON *into, const char *key)
{
    cJSON *list = cJSON_CreateArray();
    return json_put(into, key, list) ? list : NULL;
}

cJSON *json_document(const char *format)
{
    cJSON *root = cJSON_CreateObject();
    if (json_text(root, "format", format) && json_number(root, "format_version", 1)) return root;
    cJSON_Delete(root);
    return NULL;
}
