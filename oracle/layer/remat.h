/* Rematerialisation (docs/operations.md, "Rematerialisation"; MaxText remat_policy, configs/base.yml): what becomes of a named intermediate between
 * forward and backward. remat: dropped, and computed again by backward; device: kept in memory; offload: written to a
 * spill file and read back. Policies change memory and work, never a bit of a result.
 *
 * Presets (MaxText layers/decoders.py get_remat_policy): full (everything remat), custom (as the names say), and others
 * that keep or offload some products (remat.c has their names). A name that is not remat overrides a preset. A moe_ name
 * without a policy of its own follows the plain name. Refused: decoder_layer_input as remat, since backward starts from
 * it; unknown presets and policies.
 *
 * The spill file has no name: nothing is left behind, whatever ends the process. It lies in TMPDIR, or /var/tmp. */
#pragma once

#include "oracle/base/status.h"

#define ASSAY_REMAT_TABLE(X)                                                                                           \
    X(DECODER_LAYER_INPUT, decoder_layer_input)                                                                        \
    X(QUERY_WA_PROJ, query_wa_proj)                                                                                    \
    X(MLA_Q, mla_q)                                                                                                    \
    X(KV_WA_PROJ, kv_wa_proj)                                                                                          \
    X(MLA_KV, mla_kv)                                                                                                  \
    X(QKV_PROJ, qkv_proj)                                                                                              \
    X(QUERY_PROJ, query_proj)                                                                                          \
    X(KEY_PROJ, key_proj)                                                                                              \
    X(VALUE_PROJ, value_proj)                                                                                          \
    X(ATTENTION_OUT, attention_out) /* with lse */                                                                     \
    X(CONTEXT, context)             /* what a kernel of attention calls attention_out and lse: no tensor of its own */ \
    X(OUT_PROJ, out_proj)                                                                                              \
    X(MLPWI, mlpwi)                                                                                                    \
    X(MLPWI_0, mlpwi_0)                                                                                                \
    X(MLPWI_1, mlpwi_1)                                                                                                \
    X(MLPWO, mlpwo)                                                                                                    \
    X(MOE_MLPWI, moe_mlpwi)                                                                                            \
    X(MOE_MLPWI_0, moe_mlpwi_0)                                                                                        \
    X(MOE_MLPWI_1, moe_mlpwi_1)                                                                                        \
    X(MOE_MLPWO, moe_mlpwo)

typedef enum assay_remat_name {
#define X(code, name) ASSAY_REMAT_##code,
    ASSAY_REMAT_TABLE(X)
#undef X
        ASSAY_REMAT_NAMES
} assay_remat_name;

/* lse [B,N,S] has no name of its own either: it comes and goes with attention_out, which is no use to backward without
 * it. */
enum { ASSAY_REMAT_LSE = ASSAY_REMAT_NAMES, ASSAY_REMAT_SLOTS };

extern const char *const assay_remat_names[ASSAY_REMAT_NAMES]; /* "decoder_layer_input" ... */

typedef enum assay_remat_action { ASSAY_REMAT, ASSAY_DEVICE, ASSAY_OFFLOAD } assay_remat_action;

typedef struct assay_remat_policy {
    assay_remat_action action[ASSAY_REMAT_NAMES];
} assay_remat_policy;

/* texts[i]: the policy of name i, "remat", "device" or "offload"; "" for a moe_ name: as the plain one. */
assay_status assay_remat_policy_make(assay_context *ctx, assay_remat_policy *policy, const char *preset,
                                     const char *const texts[ASSAY_REMAT_NAMES]);

typedef struct assay_remat_report {
    int64_t bytes_kept;           /* in memory at the end of forward */
    int64_t bytes_offloaded;      /* written to the spill file */
    double operations_recomputed; /* by backward, of products; a multiply and an add are 2 */
} assay_remat_report;

/* Holds the intermediates of all layers from forward to backward. */
typedef struct assay_remat_store assay_remat_store;

assay_status assay_remat_open(assay_context *ctx, assay_remat_store **store, const assay_remat_policy *policy,
                              int64_t layers);
void assay_remat_close(assay_remat_store *store); /* NULL is safe */

/* Of a name, or of ASSAY_REMAT_LSE. Of attention_out: its own unless that is remat, else that of context. */
assay_remat_action assay_remat_action_of(const assay_remat_policy *policy, int slot);
/* Takes `count` values over (*values becomes NULL), as the policy says: keeps, writes, or frees them. */
assay_status assay_remat_put(assay_context *ctx, assay_remat_store *store, int64_t layer, int slot, int64_t count,
                             double **values);
/* The same with an action that is not the policy's. */
assay_status assay_remat_hold(assay_context *ctx, assay_remat_store *store, int64_t layer, int slot,
                              assay_remat_action action, int64_t count, double **values);
/* Gives them back, once; NULL where nothing is held: it must be computed again. The caller frees them. */
assay_status assay_remat_load(assay_context *ctx, assay_remat_store *store, int64_t layer, int slot, double **values);
/* Something else is kept in memory: so many bytes. */
void assay_remat_kept(assay_remat_store *store, int64_t bytes);
/* Backward has computed something again. */
void assay_remat_recomputed(assay_remat_store *store, double operations);
assay_remat_report assay_remat_report_of(const assay_remat_store *store);
