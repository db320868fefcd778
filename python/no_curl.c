/* The functions of libcurl that libhdf5 names, each of which fails: files are on disks. */
#include <stddef.h>

enum { FAILED = 2 }; /* CURLE_FAILED_INIT */

int curl_global_init(long flags)
{
    return FAILED;
}

void curl_global_cleanup(void) {}

void *curl_easy_init(void)
{
    return NULL;
}

int curl_easy_setopt(void *curl, int option, ...)
{
    return FAILED;
}

int curl_easy_perform(void *curl)
{
    return FAILED;
}

void curl_easy_cleanup(void *curl) {}

void *curl_slist_append(void *list, const char *text)
{
    return NULL;
}

void curl_slist_free_all(void *list) {}
