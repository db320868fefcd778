/* The functions of libcurl that libhdf5 names, each of which fails: files are on disks. */
#include <stddef.h>

enum { FAILED = 2 }; /* CURLE_FAILED_INIT */

int curl_global_init(long flags);
void curl_global_cleanup(void);
void *curl_easy_init(void);
int curl_easy_setopt(void *curl, int option, ...);
int curl_easy_perform(void *curl);
void curl_easy_cleanup(void *curl);
void *curl_slist_append(void *list, const char *text);
void curl_slist_free_all(void *list);

int curl_global_init(long flags)
{
    (void)flags;
    return FAILED;
}

void curl_global_cleanup(void) {}

void *curl_easy_init(void)
{
    return NULL;
}

int curl_easy_setopt(void *curl, int option, ...)
{
    (void)curl;
    (void)option;
    return FAILED;
}

int curl_easy_perform(void *curl)
{
    (void)curl;
    return FAILED;
}

void curl_easy_cleanup(void *curl)
{
    (void)curl;
}

void *curl_slist_append(void *list, const char *text)
{
    (void)list;
    (void)text;
    return NULL;
}

void curl_slist_free_all(void *list)
{
    (void)list;
}
