/* Which cases are meant, beyond their names. */
#pragma once

#include "cases/case.h"

/* Zeroed: every case. */
typedef struct assay_case_filter {
    assay_text_list tags;     /* a case has one of them; none: any case */
    assay_text_list ops;      /* its operation is one of them; none: any */
    assay_text_list excludes; /* it has none of these: a tag, an operation, or a glob over names */
    bool no_mesh;             /* it lies on one device */
} assay_case_filter;

bool assay_case_filter_is_set(const assay_case_filter *filter);
bool assay_case_filter_matches(const assay_case_filter *filter, const assay_case *c);

/* Refuses a word that no case of the catalogue and none of `cases` has, with the nearest that there are: a slip of the pen
 * would choose other cases than were meant. */
assay_status assay_case_filter_check(assay_context *ctx, const assay_case_filter *filter, const assay_case *cases,
                                     int count);

/* Adds the words of `text`, which has commas between them. An empty one is refused; `option` is for messages. */
assay_status assay_words_add(assay_context *ctx, assay_text_list *words, const char *option, const char *text);
