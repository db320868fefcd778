/* libassay: the oracle, the cases and the fixtures as a library. Tests of kernels in process have <assay/test.h>. Compile
 * with `pkg-config --cflags --libs assay`, or find_package(assay) and assay::assay.
 *
 * A first call:
 *     assay_context ctx = assay_context_default(2);
 *     assay_rms_norm_forward(&ctx, y, rstd, x, scale, rows, dim, 1e-6);
 * What can fail returns an assay_status and leaves one line in ctx.message. */
#ifndef ASSAY_H
#define ASSAY_H

#include "cases/case.h"
#include "fixtures/fixture.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/arithmetic/precision.h"
#include "oracle/base/block_format.h"
#include "oracle/base/dtype.h"
#include "oracle/base/memory.h"
#include "oracle/base/random.h"
#include "oracle/base/status.h"
#include "oracle/base/tensor.h"
#include "oracle/blocks/gqa.h"
#include "oracle/blocks/mla.h"
#include "oracle/blocks/mlp.h"
#include "oracle/graph/graph.h"
#include "oracle/layer/batch_split.h"
#include "oracle/layer/decoder_stack.h"
#include "oracle/layer/remat.h"
#include "oracle/mesh/collectives.h"
#include "oracle/mesh/expert_traffic.h"
#include "oracle/mesh/head_shards.h"
#include "oracle/moe/moe.h"
#include "oracle/moe/permute.h"
#include "oracle/moe/prefused.h"
#include "oracle/moe/replicas.h"
#include "oracle/moe/routing.h"
#include "oracle/moe/sharded_moe.h"
#include "oracle/moe/sharded_weights.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/attention.h"
#include "oracle/ops/cache_format.h"
#include "oracle/ops/cache_numbers.h"
#include "oracle/ops/decode_attention.h"
#include "oracle/ops/gated_mlp.h"
#include "oracle/ops/gmm.h"
#include "oracle/ops/gmm_layout.h"
#include "oracle/ops/merge_states.h"
#include "oracle/ops/quant_recipe.h"
#include "oracle/ops/quantised_deviation.h"
#include "oracle/ops/quantize.h"
#include "oracle/ops/requantise.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/ops/yarn_rope.h"

#endif
