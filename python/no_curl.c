/* The functions of libcurl that libhdf5 names: files are on disks, and who begins with curl_easy_init gets nothing. */
static void *none(void)
{
    return 0;
}

void *curl_global_init(void) __attribute__((alias("none")));
void *curl_global_cleanup(void) __attribute__((alias("none")));
void *curl_easy_init(void) __attribute__((alias("none")));
void *curl_easy_setopt(void) __attribute__((alias("none")));
void *curl_easy_perform(void) __attribute__((alias("none")));
void *curl_easy_cleanup(void) __attribute__((alias("none")));
void *curl_slist_append(void) __attribute__((alias("none")));
void *curl_slist_free_all(void) __attribute__((alias("none")));
