/* Other forms of attention: over a cache, with a window. */
#include "harness/equivalences/forms_internal.h"

#include <stdio.h>
#include <string.h>

#include "harness/operations/op_support.h"

/* Where heads may share keys: the kernel, and the layers that have its projections. */
static bool may_share(const assay_case *c)
{
    const unsigned components = assay_operation_by_name(c->op)->components;
    return (components & ASSAY_USES_SHARING) != 0 && (components & ASSAY_USES_DECODE) == 0;
}

static bool decodes(const assay_case *c)
{
    return (assay_operation_by_name(c->op)->components & ASSAY_USES_DECODE) != 0;
}

/* Over a cache. Splits cut pages or keys, so that they are others where these lie elsewhere. */
static bool decodes_unsplit(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return decodes(c) && m->num_kv_splits == 0 && !m->use_chunked_prefill && !m->use_indexer;
}

static int64_t most_keys(const assay_model_config *m)
{
    if (m->pagedattn_num_pages == 0 || m->pagedattn_max_pages_per_group < 1) return m->cache_length;
    return m->pagedattn_max_pages_per_group * m->pagedattn_tokens_per_page;
}

/* What the case lists of lengths and tables is of no use to a form that has others. */
static bool is_case_elsewhere(const assay_case *c)
{
    assay_case other = *c;
    other.input_count = 0;
    return form_is_case(&other);
}

static void without_pages(assay_model_config *m)
{
    m->cache_length = most_keys(m);
    m->pagedattn_num_pages = m->pagedattn_page_stride = 0;
}

bool form_other_contiguous(const assay_case *c, assay_other_form *form)
{
    without_pages(&form->c.config);
    return decodes_unsplit(c) && c->config.pagedattn_num_pages > 0 && is_case_elsewhere(&form->c);
}

/* Scales that lie behind the rows of a page leave no rows between them. */
bool form_other_pages(const assay_case *c, assay_other_form *form)
{
    assay_model_config *m = &form->c.config;
    const int64_t most = most_keys(m), size = m->pagedattn_num_pages > 0 && m->pagedattn_tokens_per_page == 3 ? 5 : 3;
    m->pagedattn_tokens_per_page = size;
    m->pagedattn_max_pages_per_group = (most + size - 1) / size;
    m->pagedattn_num_pages = c->batch * m->pagedattn_max_pages_per_group;
    m->pagedattn_page_stride = size + 1;
    if (form_is_op(c, "gqa_decode"))
        snprintf(m->kv_layout.text, sizeof m->kv_layout.text,
                 strcmp(c->config.kv_layout.text, "NHD") == 0 ? "HND" : "NHD");
    if (!decodes_unsplit(c)) return false;
    if (!is_case_elsewhere(&form->c)) m->pagedattn_page_stride = 0;
    return is_case_elsewhere(&form->c);
}

bool form_other_splits(const assay_case *c, assay_other_form *form)
{
    form->c.config.num_kv_splits = c->config.num_kv_splits == 0 ? 3 : 0;
    return decodes(c) && form_is_case(&form->c);
}

bool form_other_prefill_chunks(const assay_case *c, assay_other_form *form)
{
    assay_model_config *m = &form->c.config;
    m->use_chunked_prefill = !c->config.use_chunked_prefill;
    m->prefill_chunk_size = 3;
    return decodes(c) && form_is_case(&form->c);
}

/* Each token is a sequence that has the keys which it sees. */
bool form_other_steps(const assay_case *c, assay_other_form *form)
{
    form->c.batch = c->batch * c->sequence;
    form->c.sequence = 1;
    /* tokens of one sequence are a product's block, and its sum over them begins at 0 */
    if (c->config.cache_gradients) form->holding = ASSAY_HOLDS_SCALES;
    return decodes_unsplit(c) && c->sequence > 1 && is_case_elsewhere(&form->c);
}

/* What no token goes beyond. */
bool form_other_window(const assay_case *c, assay_other_form *form)
{
    assay_model_config *m = &form->c.config;
    const bool global = m->sliding_window_size == 0 || strcmp(m->attention_type.text, "global") == 0;
    m->sliding_window_size = c->sequence;
    snprintf(m->attention_type.text, sizeof m->attention_type.text, "%s",
             assay_says_latent(m) ? m->attention_type.text : "local_sliding");
    return may_share(c) && global && form_is_case(&form->c);
}
