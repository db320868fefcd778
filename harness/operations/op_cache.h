/* The tensors of a cache of bytes, which `kv_cache_dtype` names: what cache_append writes and attention over a cache reads. */
#pragma once

#include "harness/operations/op_work.h"
#include "oracle/ops/cache_format.h"

/* Pages, rows and heads of the cache; latents, or keys and values (those of an indexer have keys alone). */
assay_status assay_cache_streams_of(assay_context *ctx, const assay_case *c, const assay_cache_config *pages,
                                    bool latent, assay_cache_append_config *config);

/* Bytes of all pages, as they are under inputs/ or become under outputs/. */
void assay_describe_cache(assay_describer *d, const char *folder, const assay_cache_append_config *config);
assay_fill assay_cache_scale_fill(void);
/* The scale that is given beforehand, where the format has one. */
void assay_describe_scale_input(assay_describer *d, const assay_cache_stream *s);

/* The bytes, or the scales apart, of the tensor of this path, of tokens that are drawn: those with a slot, a token a slot of the
 * cache, are written by the case's rules, all other bytes are NaN. */
assay_status assay_draw_cache(assay_context *ctx, uint64_t seed, const assay_cache_append_config *config,
                              const char *path, const assay_source *in, const int32_t *slots, int32_t *wanted);

/* By their names under a folder. */
int32_t *assay_bytes_of_cache(const assay_work *w, const char *folder, const char *name);
double *assay_numbers_of_cache(const assay_work *w, const char *name);
