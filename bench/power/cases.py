"""Which cases of the catalogue the study runs: of every operation, ordinary ones and awkward ones."""

CASES = (
    "rms_norm/deepseek", "rms_norm/prime-width", "rms_norm/row-powers", "rms_norm/true-width",
    "gmm/ragged", "gmm/padded-nan-tail", "gmm/k160-n192", "gmm/float16-grid",
    "permute/deepseek3-tiny", "permute/beyond-256", "unpermute/deepseek3-tiny", "unpermute/primes",
    "routing/deepseek3-groups", "routing/mixtral", "routing/balance", "routing/sqrtsoftplus",
    "yarn_rope/deepseek", "yarn_rope/last-positions", "yarn_rope/half-split",
    "attention/deepseek", "attention/tile-and-one", "attention/padding", "attention/sharp", "attention/float32",
    "mlp/silu", "mlp/gelu-fused", "mlp/biases",
    "moe/small", "moe/deepseek3-groups", "moe/mixtral", "moe/balance", "moe/float16-grid",
    "mla_decode/flashmla-tests", "mla_decode/flashinfer-tests", "mla_decode/deepseek", "mla_decode/four-tokens", "mla_decode/splits",
    "mla_decode/fp8-tensor", "mla_decode/fp8-ds-mla", "gqa_decode/fp8",
    "gqa_decode/gpt-oss", "gqa_decode/hnd", "gqa_decode/drawn", "merge_states/two", "merge_states/splits", "merge_states/empty",
    "mla/small", "mla/late-positions", "mla/no-query-compression", "mla/padding",
    "deepseek_layer/dense", "deepseek_layer/moe", "deepseek_layer/moe-balance",
    "deepseek_stack/two-dense", "deepseek_stack/three-layers",
)
QUICK = ("rms_norm/deepseek", "gmm/ragged", "permute/deepseek3-tiny", "unpermute/primes", "routing/deepseek3-groups",
         "yarn_rope/deepseek", "attention/padding", "mlp/gelu-fused", "moe/small", "mla/small", "deepseek_layer/moe",
         "deepseek_stack/two-dense")
PROFILES = ("bf16", "f16", "f32")
FP8 = "fp8_e4m3_block128"
FP8_CASES = ("gmm/k160-n192", "mlp/silu", "moe/small", "mla/small")
