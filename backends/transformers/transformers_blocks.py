"""Blocks of the catalogue's programs (`assay list 'program/*'`) by modules of transformers, PEFT and NeMo Automodel, by PyTorch's own optimisers, torchao and a kernel of SGLang. A module
takes its parameters from the request; projections that the program does not have are the identity."""
import importlib.util
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from peft.tuners.lora import LoraConfig
from peft.tuners.lora.layer import Linear, ParamWrapper
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as v32
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.gemma4 import modeling_gemma4 as gemma4
from transformers.models.glm5_next import modeling_glm5_next as glm5
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm
from transformers.models.hy_v4 import modeling_hy_v4 as hy4
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3

from peer_blocks import PEERS, Given
from request import Unsupported


class Unrounded(TorchFunctionMode):
    """Muon goes on in bfloat16, whatever it is given."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **{name: torch.float64 if value is torch.bfloat16 else value for name, value in (kwargs or {}).items()})


def streams(config_of, module, x, fn, base, scale):
    config = SimpleNamespace(hc_mult=x.shape[1], hidden_size=x.shape[2], hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6, **config_of)
    names = [name for name, _ in module(config).named_parameters()]
    return functional_call(module(config), dict(zip(sorted(names, key=lambda n: ("fn", "base", "scale").index(n.removeprefix("hc_"))), (fn, base, scale))), (x[None],))


def mhc(x, f, fn, base, scale):
    post, comb, u = streams({}, v4.DeepseekV4HyperConnection, x, fn, base, scale)
    return {"u": u[0], "y": (post.unsqueeze(-1) * f[None, :, None] + torch.matmul(comb.transpose(-1, -2), x[None]))[0]}  # as DeepseekV4DecoderLayer has it


def mhc_head(x, fn, base, scale, norm):
    u = streams({}, v4.DeepseekV4HyperHead, x, fn, base, scale)
    return {"y": functional_call(v4.DeepseekV4RMSNorm(x.shape[2], eps=1e-6), {"weight": norm}, (u[0],))}


def hyper_connections_apart(x, f, fn, base, scale):
    post, u = streams({"hc_magnitude": 2.0}, hy4.HYV4HyperConnection, x, fn, base, scale)
    return {"u": u[0], "y": (post.unsqueeze(-1) * f[None, :, None] + x)[0]}  # as HYV4DecoderLayer has it


def stepped(optimiser, w, gradient, state, **told):
    w = nn.Parameter(w.detach().clone())
    w.grad = gradient.clone()
    made = optimiser([w], **told)
    made.state[w].update(state)
    made.step()
    return w.detach(), made.state[w]


def muon(g, momentum, w):
    buffer = momentum.clone()
    with Unrounded():
        new, state = stepped(torch.optim.Muon, w, g, {"momentum_buffer": buffer}, lr=0.02, weight_decay=0.1)
        nesterov = g.lerp(state["momentum_buffer"], 0.95)
        update = torch.optim._muon._zeropower_via_newtonschulz(nesterov, (3.4445, -4.775, 2.0315), 5, 1e-7)
    return {"buffer": state["momentum_buffer"], "update": update, "weight": new}


def adamw(g, m, v, master):
    state = {"step": torch.tensor(9.0, dtype=torch.float64), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    new, state = stepped(torch.optim.AdamW, master, g, state, lr=0.001, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    return {"m": state["exp_avg"], "v": state["exp_avg_sq"], "master": new, "weight": new.bfloat16().to(new.dtype)}


def linear_cross_entropy(x, labels, head, cap, weight):
    logits = F.linear(x, head)
    logits = torch.tanh(logits / cap) * cap  # as Gemma2ForCausalLM has it
    counts = labels != -100
    penalty = weight * torch.logsumexp(logits, -1)[counts].square().sum() / counts.sum()
    return {"loss": F.cross_entropy(logits, labels, label_smoothing=0.1) + penalty, "z_loss": penalty}


def ssd(xbc, dt, z, taps, bias, dt_bias, A_log, D, norm, groups=1):
    width, heads = z.shape[-1], dt.shape[-1]
    config = SimpleNamespace(num_heads=heads, hidden_size=width, state_size=(xbc.shape[-1] - width) // 2 // groups, conv_kernel=taps.shape[1], expand=1, time_step_rank=1,
                             use_conv_bias=True, hidden_act="silu", layer_norm_epsilon=1e-5, n_groups=groups, head_dim=width // heads, chunk_size=8, use_bias=False,
                             time_step_limit=(0.0, float("inf")), time_step_min=0.001, time_step_max=0.1, time_step_floor=1e-4, layer_types=["mamba"])
    mixer = mamba2.Mamba2Mixer(config, 0).eval()
    mixer.in_proj = mixer.out_proj = nn.Identity()
    parameters = {"conv1d.weight": taps[:, None], "conv1d.bias": bias, "dt_bias": dt_bias, "A_log": A_log, "D": D, "norm.weight": norm}
    return {"y": functional_call(mixer, parameters, (torch.cat([z, xbc, dt], -1),))}


def sparse_attention(x, qr, main, latent, at, of, wq, wk, k_scale, k_bias, weights_proj, rotated, count):
    tokens, keys = len(at), len(of)
    if at.tolist() != list(range(keys - tokens, keys)) or of.tolist() != list(range(keys)):
        raise Unsupported("queries are the last tokens")
    config = SimpleNamespace(hidden_size=x.shape[1], index_n_heads=wq.shape[1], index_head_dim=wq.shape[2], qk_rope_head_dim=rotated, index_topk=count, q_lora_rank=qr.shape[1],
                             rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, head_dim=rotated, max_position_embeddings=keys)
    seen = torch.full((1, keys, keys), -torch.inf, dtype=x.dtype).triu(1)
    parameters = {"wq_b.weight": wq.flatten(1).T, "wk.weight": wk.T, "k_norm.weight": k_scale, "k_norm.bias": k_bias, "weights_proj.weight": weights_proj.T}
    turns = v32.DeepseekV32RotaryEmbedding(config)(x, of[None])
    ids = functional_call(v32.DeepseekV32Indexer(config, 0), parameters, (x[None], F.pad(qr, (0, 0, keys - tokens, 0))[None], turns, seen, of[None]))[:, keys - tokens :]
    mask = torch.full((1, tokens, keys), -torch.inf, dtype=x.dtype).scatter(-1, ids.long(), 0.0) + seen[:, keys - tokens :]
    heads = SimpleNamespace(num_key_value_groups=main.shape[1], training=False)
    o, _ = v32.eager_attention_forward(heads, main.transpose(0, 1)[None], latent[None, None], latent[None, None], mask[:, None], latent.shape[1] ** -0.5)
    return {"o": o[0], "routing/ids/top_k": ids[0]}


def kda(q, k, v, f, b, start, A_log, dt_bias, bound=None):
    config = SimpleNamespace(linear_head_dim=q.shape[2], linear_num_heads=q.shape[1], hidden_size=1, linear_lower_bound=bound)
    gate = kimi.KimiLinearForgetGate(config) if bound is None else glm5.Glm5NextTextForgetGate(config)
    gate.f_a_proj = gate.f_b_proj = nn.Identity()
    rate = A_log.reshape(1, 1, -1, 1) if bound is None else A_log
    g = functional_call(gate, {"A_log": rate, "dt_bias": dt_bias.flatten()}, (f.flatten(1)[None],))
    y, state = kimi.chunk_kimi_delta_attention(q[None], k[None], v[None], g, torch.sigmoid(b)[None], initial_state=start[None], output_final_state=True,
                                               use_qk_l2norm_in_kernel=True)
    return {"state": state[0], "y": y[0]}


def compressed_attention(x, q, own, at, of, first, wkv, wgate, bias, norm, sinks, wo):
    (tokens, heads, width), ratio = q.shape, len(bias)
    if at.tolist() != list(range(tokens)) or of.tolist() != at.tolist() or first.tolist() != [i * ratio for i in range(len(first))]:
        raise Unsupported("tokens are those from 0 on")
    config = SimpleNamespace(compress_rates={"heavily_compressed_attention": ratio}, head_dim=width, hidden_size=x.shape[1], rms_norm_eps=1e-6, max_position_embeddings=tokens,
                             num_attention_heads=heads, rope_parameters={"compress": {"rope_type": "default", "rope_theta": 160000.0, "partial_rotary_factor": 4 / width}})
    compressor = v4.DeepseekV4HCACompressor(config)
    parameters = {"kv_proj.weight": wkv.T, "gate_proj.weight": wgate.T, "position_bias": bias, "kv_norm.weight": norm}
    entries, later = functional_call(compressor, parameters, (x[None], None, at[None], None, 0))
    distance = at[:, None] - of
    near = torch.zeros(tokens, tokens, dtype=x.dtype).masked_fill((distance < 0) | (distance > 2), -torch.inf)
    keys = torch.cat([own[None, None], entries], 2)
    module = SimpleNamespace(num_key_value_groups=heads, sinks=sinks, training=False)
    o, _ = v4.eager_attention_forward(module, q.transpose(0, 1)[None], keys, keys, torch.cat([near[None, None], later], -1), width**-0.5)
    cos, sin = compressor.rotary_emb(o, position_ids=at[None], layer_type="compress")
    o = v4.apply_rotary_pos_emb(o.transpose(1, 2), cos, -sin).transpose(1, 2)
    groups, wide, narrow = wo.shape
    projection = v4.DeepseekV4GroupedLinear(wide, groups * narrow, groups)
    return {"y": functional_call(projection, {"weight": wo.transpose(1, 2).flatten(0, 1)}, (o.reshape(1, tokens, groups, -1),))[0]}


def compressed_sparse_attention(x, qr, q, own, at, first, wkv, wgate, bias, norm, index_wkv, index_wgate, index_bias, index_norm, index_wq, weights_proj, sinks, count):
    (tokens, heads, width), keys, ratio = q.shape, len(x), len(bias)
    if at.tolist() != list(range(keys - tokens, keys)) or first.tolist() != [i * ratio for i in range(len(first))]:
        raise Unsupported("queries are the last tokens")
    config = SimpleNamespace(compress_rates={"compressed_sparse_attention": ratio}, head_dim=width, hidden_size=x.shape[1], rms_norm_eps=1e-6, max_position_embeddings=keys,
                             num_attention_heads=heads, index_n_heads=index_wq.shape[1], index_head_dim=index_wq.shape[2], index_topk=count, q_lora_rank=qr.shape[1],
                             rope_parameters={"compress": {"rope_type": "default", "rope_theta": 160000.0, "partial_rotary_factor": 4 / width}})
    compressor = v4.DeepseekV4CSACompressor(config)
    parameters = {"kv_proj.weight": wkv.T, "gate_proj.weight": wgate.T, "position_bias": bias, "kv_norm.weight": norm}
    parameters |= {"indexer." + name: tensor for name, tensor in {"kv_proj.weight": index_wkv.T, "gate_proj.weight": index_wgate.T, "position_bias": index_bias,
                   "kv_norm.weight": index_norm, "q_b_proj.weight": index_wq.flatten(1).T, "scorer.weights_proj.weight": weights_proj.T}.items()}
    positions = torch.arange(keys)[None]
    entries, chosen = functional_call(compressor, parameters, (x[None], F.pad(qr, (0, 0, keys - tokens, 0))[None], positions, None, 0))
    chosen = chosen[:, :, -tokens:]
    distance = at[:, None] - positions
    near = torch.zeros(tokens, keys, dtype=x.dtype).masked_fill((distance < 0) | (distance > 2), -torch.inf)
    module = SimpleNamespace(num_key_value_groups=heads, sinks=sinks, training=False)
    together = torch.cat([own[None, None], entries], 2)
    o, _ = v4.eager_attention_forward(module, q.transpose(0, 1)[None], together, together, torch.cat([near[None, None], chosen], -1), width**-0.5)
    cos, sin = compressor.rotary_emb(o, position_ids=at[None], layer_type="compress")
    return {"y": v4.apply_rotary_pos_emb(o.transpose(1, 2), cos, -sin).transpose(1, 2)[0], "routing/ids/top_k": (chosen[0, 0] == 0).nonzero()[:, 1].reshape(tokens, -1).int()}


def compressed_blocks_attention(x, qr, q, own, before, before_qr, at, of, first, wkv, wgate, norm, wk, k_norm, source_wq, source_weights, index_wq, index_weights, sinks, wo):
    """NeMo Automodel's: the compressor and indexer of the layer before, and all of the layer, without the codes that caches hold."""
    from nemo_automodel.components.models.deepseek_v41 import attention as v41
    from nemo_automodel.components.models.common import BackendConfig

    (tokens, heads, width), keys, (groups, wide, narrow) = q.shape, len(x), wo.shape
    if at.tolist() != list(range(keys - tokens, keys)) or of.tolist() != list(range(keys)) or first.tolist() != list(range(0, keys, 2)):
        raise Unsupported("queries are the last tokens")
    v41.quantize_cache = lambda x, **_: x
    config = SimpleNamespace(hidden_size=x.shape[1], q_lora_rank=qr.shape[1], num_attention_heads=heads, head_dim=width, o_groups=groups, o_lora_rank=narrow, sliding_window=3,
                             attention_dropout=0.0, kv_source_layer_ids=[0], index_source_layer_ids=[0, 1], candidate_source_layer_id=0, index_n_heads=index_wq.shape[1],
                             index_head_dim=index_wq.shape[2], index_topk=3, candidate_topk_blocks=2, candidate_block_size=4, compress_ratios=[2, 2], qk_rope_head_dim=4,
                             compress_rope_theta=160000.0, rope_theta=10000.0, rope_scaling=None, rms_norm_eps=1e-6, torch_dtype="float64")
    padded = lambda t: F.pad(t, (0, 0) * (t.dim() - 1) + (keys - tokens, 0))[None]
    turns = v41._RotaryEmbedding(config, compressed=True)
    places = torch.arange(keys)[None]
    angles, entry_angles = turns(places), turns(first[None])
    latent = functional_call(v41._Compressor(config, ratio=2, dtype=x.dtype), {"wkv.weight": wkv.T, "wgate.weight": wgate.T, "norm.weight": norm}, (x[None],))
    state = v41.DeepseekV41AttentionState(compressed_kv=v41._apply_rope(latent, entry_angles), compression_ratio=2)
    named = {"wq_b.weight": source_wq.flatten(1).T, "weights_proj.weight": source_weights.T, "wk.weight": wk.T, "k_norm.weight": k_norm}
    told = {"query_latent": padded(before_qr), "latent": latent, "angles": angles, "compressed_angles": entry_angles, "state": state}
    state = functional_call(v41._Indexer(config, layer_idx=0, dtype=x.dtype), named, (padded(before),), told)
    layer = v41.DeepseekV41Attention(config, 1, BackendConfig(attn="eager", linear="torch", rms_norm="torch_fp32"))
    layer.wq_a, layer.q_norm, layer.wkv, layer.kv_norm, layer.wo_b = Given(padded(qr)), nn.Identity(), Given(v41._apply_rope(own[None], angles, inverse=True)), nn.Identity(), nn.Identity()
    layer.wq_b = Given(v41._apply_rope(padded(q), angles, inverse=True).flatten(2))  # both of which the layer turns
    named = {"indexer.wq_b.weight": index_wq.flatten(1).T, "indexer.weights_proj.weight": index_weights.T, "sinks_param.weight": sinks, "wo_a.weight": wo.transpose(1, 2).flatten(0, 1)}
    made = functional_call(layer, named, (x[None],), {"position_ids": places, "state": state})
    return {"y": made.hidden_states[0, -tokens:].reshape(tokens, groups, narrow), "routing/ids/top_k": made.state.topk_indices[0, -tokens:]}


def gated_attention(x, positions, q_proj, k_proj, v_proj, o_proj, q_norm, k_norm):
    heads, width, place = len(q_proj), v_proj.shape[1], torch.arange(x.shape[1])
    config = SimpleNamespace(hidden_size=x.shape[2], num_attention_heads=heads, num_key_value_heads=len(k_proj), head_dim=width, attention_dropout=0.0, attention_bias=False,
                             rms_norm_eps=1e-6, max_position_embeddings=64, _attn_implementation="eager",
                             rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})
    mask = torch.zeros(1, 1, len(place), len(place), dtype=x.dtype).masked_fill(place[:, None] < place, -torch.inf)
    parameters = {name + ".weight": w.flatten(0, 1) for name, w in (("q_proj", q_proj), ("k_proj", k_proj), ("v_proj", v_proj))}
    parameters |= {"o_proj.weight": o_proj.flatten(1), "q_norm.weight": q_norm, "k_norm.weight": k_norm}
    return {"y": functional_call(qwen3.Qwen3NextAttention(config, 0), parameters, (x, qwen3.Qwen3NextRotaryEmbedding(config)(x, positions), mask))[0]}


def gated_delta(q, k, v, a, b, start, A_log, dt_bias):
    gate = -A_log.exp() * F.softplus(a + dt_bias)  # as Qwen3NextGatedDeltaNet has it
    y, state = qwen3.torch_chunk_gated_delta_rule(q, k, v, gate, torch.sigmoid(b), initial_state=start, output_final_state=True, use_qk_l2norm_in_kernel=True)
    return {"state": state, "y": y}


def layer(x, positions, family, chunks=None, **weights):
    """Of Gemma 3 or 4 with a window of three, or of Llama 4 with chunks."""
    heads, width, _ = weights["q_proj"].shape
    sizes = {"hidden_size": x.shape[2], "intermediate_size": len(weights["gate"]), "num_attention_heads": heads, "num_key_value_heads": len(weights["k_proj"]), "head_dim": width,
             "num_hidden_layers": 2, "vocab_size": 8}
    place = torch.arange(x.shape[1])
    seen = place[:, None] >= place
    seen = seen & (chunks[:, :, None] == chunks[:, None]) if family == "llama4" else seen & (place[:, None] - place < 3)
    told = {"attention_mask": torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, -torch.inf).reshape(-1, 1, *seen.shape[-2:])}
    if family == "llama4":
        config = llama4.Llama4TextConfig(**sizes, intermediate_size_mlp=sizes["intermediate_size"], moe_layers=[], num_local_experts=2, num_experts_per_tok=1)
        made, turns = llama4.Llama4TextDecoderLayer, llama4.Llama4TextRotaryEmbedding(config)(x, positions)
        names = {"before_mlp": "post_attention_layernorm", "gate": "feed_forward.gate_proj", "up": "feed_forward.up_proj", "down": "feed_forward.down_proj"}
    else:
        kinds = {"layer_types": ["sliding_attention", "full_attention"]}
        if family == "gemma3":
            config = gemma3.Gemma3TextConfig(**sizes, **kinds, query_pre_attn_scalar=width)
            made, rotary = gemma3.Gemma3DecoderLayer, gemma3.Gemma3RotaryEmbedding
        else:
            config = gemma4.Gemma4TextConfig(**sizes, **kinds, global_head_dim=width, hidden_size_per_layer_input=0, num_kv_shared_layers=0)
            made, rotary = gemma4.Gemma4TextDecoderLayer, gemma4.Gemma4TextRotaryEmbedding
            told["shared_kv_states"] = {}
        turns = rotary(config)(x, positions, "sliding_attention")
        names = {"before_mlp": "pre_feedforward_layernorm", "behind_attention": "post_attention_layernorm", "behind_mlp": "post_feedforward_layernorm",
                 "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
    config._attn_implementation = "eager"
    names["before_attention"] = "input_layernorm"
    parameters = {f"self_attn.{name}.weight": weights[name].flatten(0, 1) for name in ("q_proj", "k_proj", "v_proj")}
    parameters["self_attn.o_proj.weight"] = weights["o_proj"].flatten(1)
    parameters.update({f"{there}.weight": weights[here] for here, there in names.items()})
    return {"y": functional_call(made(config, 0), parameters, (x,), {"position_embeddings": turns, **told})}


def glm_layer(x, positions, **w):
    heads, wide, rank = w["q_b"].shape
    latent, value, scored = w["kv_norm"].shape[0], w["o_proj"].shape[2], w["index_q"].shape
    rotated = len(w["kv_a"]) - latent
    config = glm.GlmMoeDsaConfig(hidden_size=x.shape[1], intermediate_size=len(w["gate"]), num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=rank, kv_lora_rank=latent,
                                 qk_rope_head_dim=rotated, qk_nope_head_dim=wide - rotated, v_head_dim=value, index_n_heads=scored[0], index_head_dim=scored[1], index_topk=4,
                                 num_hidden_layers=1, vocab_size=8, mlp_layer_types=["dense"], indexer_types=["full"])
    config._attn_implementation = "eager"
    names = {"before_attention": "input_layernorm", "before_mlp": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
             "q_a": "self_attn.q_a_proj", "q_norm": "self_attn.q_a_layernorm", "kv_a": "self_attn.kv_a_proj_with_mqa", "kv_norm": "self_attn.kv_a_layernorm",
             "index_k": "self_attn.indexer.wk", "k_scale": "self_attn.indexer.k_norm", "weights_proj": "self_attn.indexer.weights_proj"}
    parameters = {f"{there}.weight": w[here] for here, there in names.items()} | {"self_attn.indexer.k_norm.bias": w["k_bias"], "self_attn.o_proj.weight": w["o_proj"].flatten(1)}
    parameters |= {f"self_attn.{there}.weight": w[here].flatten(0, 1) for here, there in (("q_b", "q_b_proj"), ("kv_b", "kv_b_proj"), ("index_q", "indexer.wq_b"))}
    turns = glm.GlmMoeDsaRotaryEmbedding(config)(x, positions[None])
    layer, chosen = glm.GlmMoeDsaDecoderLayer(config, 0), []
    layer.self_attn.indexer.register_forward_hook(lambda module, given, ids: chosen.append(ids))
    told = {"attention_mask": torch.full((1, 1, len(x), len(x)), -torch.inf, dtype=x.dtype).triu(1), "position_embeddings": turns, "position_ids": positions[None]}
    y = functional_call(layer, parameters, (x[None],), told)[0][0]
    return {"y": y, "routing/ids/top_k": chosen[0][0]}


def lora(x, w, a, b, adapter=None, **factor):
    """A token is a sample of a batch, which PEFT gives an adapter by its name."""
    a, b, base = (a[None], b[None], nn.Linear(*w.shape, bias=False)) if adapter is None else (a, b, nn.Linear(*w.shape, bias=False))
    config = LoraConfig(r=a.shape[2], lora_alpha=factor["alpha"], use_rslora=factor.get("rank_stabilized", False))
    layer = Linear(base, "0", config, r=config.r, lora_alpha=config.lora_alpha)
    for i in range(1, len(a)):
        layer.update_layer(str(i), config.r, lora_alpha=config.lora_alpha, config=config)
    parameters = {"base_layer.weight": w.T}
    for i, (down, up) in enumerate(zip(a, b)):
        parameters |= {f"lora_A.{i}.weight": down.T, f"lora_B.{i}.weight": up.T}
    names = {} if adapter is None else {"adapter_names": ["__base__" if i < 0 else str(i) for i in adapter.tolist()]}
    return {"y": functional_call(layer.double(), parameters, (x,), names)}


class Experts(nn.Module):
    is_transposed = True  # [experts, in, out], in PEFT's words

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(torch.empty_like(w))

    def forward(self, x, sizes):
        return torch.cat([rows @ w for rows, w in zip(x.split(sizes.tolist()), self.w)])


def lora_experts(x, weight, group_sizes, w, a, b):
    config = LoraConfig(r=a.shape[2], lora_alpha=2 * a.shape[2])
    layer = ParamWrapper(Experts(w), "0", "w", config, r=config.r, lora_alpha=config.lora_alpha).double()
    parameters = {"base_layer.w": w, "lora_A.0.weight": a.transpose(1, 2).flatten(0, 1), "lora_B.0.weight": b.permute(2, 1, 0).flatten(1)}
    return {"y": functional_call(layer, parameters, (x, group_sizes)) * weight[:, None]}


def weighed_hidden_codes(x, weight, group_sizes, gate, up, down):
    """Codes and scales are torchao's, of h in float32; gradients go straight through."""
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

    groups = group_sizes.tolist()
    g, u = (torch.cat([rows @ w for rows, w in zip(x.split(groups), weights)]) for weights in (gate, up))
    h = F.silu(g) * u * weight[:, None]
    with torch._C.DisableTorchFunction():  # float32 is float32 here
        wide = F.pad(h.detach().float(), (0, -h.shape[1] % 32))
        scale, codes = to_mx(wide, torch.float8_e4m3fn, 32, ScaleCalculationMode.FLOOR)
        read = to_dtype(codes, scale, torch.float8_e4m3fn, 32, torch.float32)[:, : h.shape[1]].double()
    q = h + (read - h).detach()
    return {"y": torch.cat([rows @ w for rows, w in zip(q.split(groups), down)])}


def moe_align(x, ids, experts=5, block=4):
    """SGLang's kernel in Triton's interpreter; its package needs a GPU to be imported, this file does not."""
    folder = importlib.util.find_spec("sglang").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("sglang_moe_align", folder + "/test/kernels/moe_align.py")
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    rows = torch.full((32,), ids.numel(), dtype=torch.int32)
    of, padded = torch.full((8,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    kernels.moe_align_block_size_triton(ids.int(), experts, block, rows, of, padded)
    copies = torch.cat([x.repeat_interleave(ids.shape[1], 0), torch.zeros_like(x[:1])])
    return {"sorted_ids": rows, "expert_ids": of, "padded": padded[0], "y": copies[rows.long()]}


BLOCKS = {
    "mhc": (mhc, {}), "mhc-three-streams": (mhc, {}), "mhc-head": (mhc_head, {}), "hyper-connections-apart": (hyper_connections_apart, {}),
    "muon": (muon, {}), "muon-tall": (muon, {}), "adamw": (adamw, {}),
    "linear-cross-entropy": (linear_cross_entropy, {"cap": 10, "weight": 0.01}), "linear-cross-entropy-stored": (linear_cross_entropy, {"cap": 30, "weight": 0.05}),
    "ssd": (ssd, {}), "ssd-groups": (ssd, {"groups": 2}),
    "sparse-attention": (sparse_attention, {"rotated": 4, "count": 5}), "sparse-attention-odd": (sparse_attention, {"rotated": 2, "count": 3}),
    "kda": (kda, {}), "kda-bounded": (kda, {"bound": -5.0}), "compressed-attention": (compressed_attention, {}), "compressed-sparse-attention": (compressed_sparse_attention, {"count": 3}),
    "lora": (lora, {"alpha": 8}), "lora-by-token": (lora, {"alpha": 4, "rank_stabilized": True}), "lora-experts": (lora_experts, {}), "moe-align": (moe_align, {}),
    "weighed-hidden-codes": (weighed_hidden_codes, {}),
    "glm5-layer": (glm_layer, {}), "compressed-blocks-attention": (compressed_blocks_attention, {}),
    "qwen3-next-attention": (gated_attention, {}), "gated-delta-states": (gated_delta, {}),
    **{f"{family}-layer": (layer, {"family": family}) for family in ("gemma3", "gemma4", "llama4")},
}


def run_program(c):
    name, blocks = c.case.removeprefix("program/"), PEERS if c.peers else BLOCKS
    c.s.need(name in blocks, f"no module here is {c.case}")
    c.read()
    block, told = blocks[name]
    made = block(**{path.split("/")[1]: tensor for path, tensor in c.t.items() if path.startswith(("inputs/", "weights/"))}, **told)
    return {path if "/" in path else "outputs/" + path: tensor for path, tensor in made.items()}
