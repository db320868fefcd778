"""Functions of transformers as they stand, as programs (docs/programs.md): traced, and held against themselves in float32.

usage: traced.py [WORD]: of those whose name has the word
"""
import importlib
import sys
import types
import warnings

warnings.filterwarnings("ignore")

import assay
import torch
from torch.func import functional_call
from transformers.activations import ACT2FN
from transformers.loss.loss_utils import ForCausalLMLoss

N = torch.randn
POSITIONS = torch.arange(6, dtype=torch.int32)[None]
COUNTS = {"positions": 100, "ids": 50, "labels": 50}
FAR = torch.finfo(torch.float32).min
MASK = torch.full((6, 6), FAR).triu(1)[None, None]
HEADS = types.SimpleNamespace(num_key_value_groups=2, training=False)
QKV = {"q": N(2, 4, 6, 8), "k": N(2, 2, 6, 8), "v": N(2, 2, 6, 8)}
QKP = {"q": N(2, 4, 6, 8), "k": N(2, 2, 6, 8), "positions": POSITIONS}
DELTA = {"query": N(1, 8, 2, 4), "key": N(1, 8, 2, 4), "value": N(1, 8, 2, 4), "g": N(1, 8, 2), "beta": N(1, 8, 2)}
CASES = []


def of(model):
    return importlib.import_module(f"transformers.models.{model}.modeling_{model}")


def config(name, **keys):
    made = getattr(importlib.import_module("transformers"), name)(**{"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
                                                                     "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 50, **keys})
    made._attn_implementation = "eager"
    return made


def case(name, function, example):
    CASES.append((name, function, example, []))


def module(name, made, example, call=None):
    """Its parameters are arguments, its buffers stay."""
    names = [n for n, _ in made.named_parameters()]
    short = {n: f"w{i}" for i, n in enumerate(names)}

    def function(**given):
        weights = {n: given[short[n]] for n in names}
        result = functional_call(made, weights, (), {n: given[n] for n in example}) if call is None else \
            call(lambda *args, **keys: functional_call(made, weights, args, keys), **{n: given[n] for n in example})
        return result[0] if isinstance(result, tuple) else result

    CASES.append((name, function, {**example, **{short[n]: p.detach() for n, p in made.named_parameters()}}, list(short.values())))


def llama():
    m, c = of("llama"), config("LlamaConfig")
    rotary = m.LlamaRotaryEmbedding(c)
    module("LlamaRMSNorm", m.LlamaRMSNorm(16), {"hidden_states": N(2, 6, 16)})
    module("LlamaMLP", m.LlamaMLP(c), {"x": N(2, 6, 32)})
    case("LlamaRotaryEmbedding", lambda q, k, positions: m.apply_rotary_pos_emb(q, k, *rotary(q, positions)), QKP)
    case("apply_rotary_pos_emb", m.apply_rotary_pos_emb, {"q": N(2, 4, 6, 8), "k": N(2, 2, 6, 8), "cos": N(2, 6, 8), "sin": N(2, 6, 8)})
    case("repeat_kv", lambda x: m.repeat_kv(x, 3) * 1, {"x": N(2, 2, 6, 8)})
    case("eager_attention_forward", lambda q, k, v: m.eager_attention_forward(HEADS, q, k, v, None, 0.35)[0], QKV)
    case("eager_attention_forward, causal", lambda q, k, v: m.eager_attention_forward(HEADS, q, k, v, MASK, 0.35)[0], QKV)
    x = {"x": N(2, 6, 32), "positions": POSITIONS}
    module("LlamaAttention", m.LlamaAttention(c, 0), x, lambda f, x, positions: f(x, rotary(x, positions), MASK))
    module("LlamaDecoderLayer", m.LlamaDecoderLayer(c, 0), x, lambda f, x, positions: f(x, attention_mask=MASK, position_embeddings=rotary(x, positions)))
    module("LlamaModel", m.LlamaModel(c), {"ids": torch.randint(0, 50, (2, 6))}, lambda f, ids: f(input_ids=ids, use_cache=False).last_hidden_state)
    case("ForCausalLMLoss", lambda logits, labels: ForCausalLMLoss(logits, labels, 50), {"logits": N(2, 6, 50), "labels": torch.randint(0, 50, (2, 6))})


def activations():
    for name in ("gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_accurate", "laplace", "leaky_relu", "mish", "quick_gelu", "relu", "relu2", "relu6",
                 "sigmoid", "silu", "tanh", "prelu", "xielu"):
        act = ACT2FN[name]
        case("ACT2FN " + name, lambda x, act=act: act(x), {"x": N(5, 7)})


def rotations():
    m = of("gptj")

    def gptj(x, positions):
        sin, cos = m.create_sinusoidal_positions(100, 8)[positions].chunk(2, dim=-1)
        return m.apply_rotary_pos_emb(x, sin, cos)

    case("gptj rotary", gptj, {"x": N(2, 6, 4, 8), "positions": torch.cat([POSITIONS, POSITIONS + 3])})
    rotary = of("llama").LlamaRotaryEmbedding(config("LlamaConfig"))
    case("apply_rotary_pos_emb_interleave", lambda q, k, positions: of("deepseek_v3").apply_rotary_pos_emb_interleave(q, k, *rotary(q, positions)), QKP)
    for model, name, prefix, keys in (("cohere", "CohereConfig", "Cohere", {}), ("glm", "GlmConfig", "Glm", {}), ("gpt_neox", "GPTNeoXConfig", "GPTNeoX", {"rotary_pct": 0.5})):
        turn, own = of(model).apply_rotary_pos_emb, getattr(of(model), prefix + "RotaryEmbedding")(config(name, **keys))
        case(prefix + "RotaryEmbedding", lambda q, k, positions, turn=turn, own=own: turn(q, k, *own(q, positions)), QKP)
    case("apply_rotary_pos_emb_vision", of("qwen2_vl").apply_rotary_pos_emb_vision, {"q": N(6, 4, 8), "k": N(6, 4, 8), "cos": N(6, 8), "sin": N(6, 8)})


def norms():
    for model, name in (("gemma2", "Gemma2RMSNorm"), ("qwen3_next", "Qwen3NextRMSNorm"), ("t5", "T5LayerNorm"), ("cohere", "CohereLayerNorm"), ("olmo", "OlmoLayerNorm")):
        module(name, getattr(of(model), name)(16), {"x": N(2, 6, 16)}, lambda f, x: f(x))
    module("Qwen3NextRMSNormGated", of("qwen3_next").Qwen3NextRMSNormGated(16), {"hidden_states": N(2, 6, 16), "gate": N(2, 6, 16)})
    case("l2norm", of("qwen3_next").l2norm, {"x": N(2, 6, 4, 8)})
    module("Llama4TextL2Norm", of("llama4").Llama4TextL2Norm(), {"x": N(2, 6, 16)})


def experts():
    keys = {"n_routed_experts": 8, "num_local_experts": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    m = of("deepseek_v3")
    module("DeepseekV3TopkRouter", m.DeepseekV3TopkRouter(config("DeepseekV3Config", n_group=4, topk_group=2, **keys)), {"x": N(6, 32)}, lambda f, x: f(x)[1])
    module("Qwen3MoeTopKRouter", of("qwen3_moe").Qwen3MoeTopKRouter(config("Qwen3MoeConfig", **keys)), {"x": N(6, 32)}, lambda f, x: f(x)[1])
    module("GptOssTopKRouter", of("gpt_oss").GptOssTopKRouter(config("GptOssConfig", **keys)), {"x": N(6, 32)}, lambda f, x: f(x)[1])
    case("load_balancing_loss_func", lambda gate: of("mixtral").load_balancing_loss_func((gate,), 8, 2), {"gate": N(12, 8)})
    module("MixtralSparseMoeBlock", of("mixtral").MixtralSparseMoeBlock(config("MixtralConfig", **keys)), {"x": N(2, 6, 32)}, lambda f, x: f(x))


def attention():
    case("gemma2 eager_attention_forward", lambda q, k, v: of("gemma2").eager_attention_forward(HEADS, q, k, v, None, scaling=0.3, softcap=20.0)[0], QKV)

    def sunk(q, k, v, sinks):
        own = types.SimpleNamespace(num_key_value_groups=2, training=False, sinks=sinks)
        return of("gpt_oss").eager_attention_forward(own, q, k, v, None, 0.35)[0]

    case("gpt_oss eager_attention_forward", sunk, {**QKV, "sinks": N(4)})
    m = of("qwen3")
    rotary = m.Qwen3RotaryEmbedding(config("Qwen3Config"))
    module("Qwen3Attention", m.Qwen3Attention(config("Qwen3Config"), 0), {"x": N(2, 6, 32), "positions": POSITIONS}, lambda f, x, positions: f(x, rotary(x, positions), MASK))
    bucket = of("t5").T5Attention._relative_position_bucket
    case("T5Attention._relative_position_bucket", lambda w: w[bucket(torch.arange(6)[None] - torch.arange(6)[:, None])] * 1, {"w": N(32, 4)})
    case("build_alibi_tensor", lambda s, ids: s + of("bloom").build_alibi_tensor(ids, 4, torch.float32).reshape(2, 4, 1, 6), {"s": N(2, 4, 6, 6), "ids": torch.ones(2, 6, dtype=torch.int64)})


def others():
    m = of("qwen3_next")
    case("torch_recurrent_gated_delta_rule", lambda **x: m.torch_recurrent_gated_delta_rule(**x, initial_state=None, output_final_state=False)[0], DELTA)
    case("torch_chunk_gated_delta_rule", lambda **x: m.torch_chunk_gated_delta_rule(**x, chunk_size=4)[0], DELTA)
    case("segment_sum", lambda x: torch.exp(of("mamba2").segment_sum(x)), {"x": N(2, 3, 5)})
    case("reshape_into_chunks", lambda x: of("mamba2").reshape_into_chunks(x, 2, 4), {"x": N(2, 6, 3)})
    case("bloom_gelu_forward", of("bloom").bloom_gelu_forward, {"x": N(5, 7)})
    module("Phi3MLP", of("phi3").Phi3MLP(config("Phi3Config", pad_token_id=0)), {"hidden_states": N(2, 6, 32)})


def verdict(function, example, weights):
    """ok, what it was refused for, or what it gives that the program does not."""
    try:
        made = assay.trace(function, example, weights=weights, integers={n: COUNTS[n] for n in example if n in COUNTS}, dtype="float32").case("f32")
    except assay.BadInput as why:
        return "refused: " + str(why).split("site-packages/")[-1]
    given = {path.split("/")[1]: x if x.is_floating_point() else x.long() for path, x in made.inputs(torch).items() if "constant" not in path}
    result = function(**given)
    results = {f"outputs/y{i}": y for i, y in enumerate(result)} if isinstance(result, tuple) else {"outputs/y": result}
    try:
        made.check(results, gradients=False)
    except assay.Mismatch as wrong:
        return "FAIL: " + wrong.headline
    return "ok"


def main():
    for section in (llama, activations, rotations, norms, experts, attention, others):
        section()
    chosen = [c for c in CASES if not sys.argv[1:] or sys.argv[1] in c[0]]
    found = []
    for name, function, example, weights in chosen:
        found.append(verdict(function, example, weights))
        print(f"{name:40} {found[-1]}", flush=True)
    print(f"{found.count('ok')} of {len(found)} pass")
    return any(f.startswith("FAIL") for f in found)


if __name__ == "__main__":
    sys.exit(main())
