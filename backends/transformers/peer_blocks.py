"""Blocks of the catalogue's programs by code of other projects that is no package. $ASSAY_PEERS is a folder with checkouts of theirs: DeepSeek-V3.2-Exp, DeepGEMM, DeepEP, EPLB."""
import importlib.util
import os
import sys
import types
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from request import Unsupported


def peer(path, package=""):
    """A module from a file of a checkout, a new one each time: blocks replace names in it. package: whose other files it reads."""
    file = Path(os.environ.get("ASSAY_PEERS", "/nowhere"), path)
    if not file.exists():
        raise Unsupported(f"$ASSAY_PEERS has no {path}")
    spec = importlib.util.spec_from_file_location(f"{package}.{file.stem}" if package else "peer_" + file.stem, file)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def stand_in(name, **members):
    """A module that a file imports and this machine has not: kernels and processes of GPUs."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules.setdefault(name, module)


class Given(nn.Module):
    """In the place of a projection that the program does not have."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def forward(self, _):
        return self.x


def product(q, weights, k, k_scale):
    """What the kernel fp8_index computes."""
    return (torch.einsum("bmhd,bnd->bmhn", q.to(k_scale.dtype), k.to(k_scale.dtype)).relu() * weights[..., None]).sum(2) * k_scale[:, None, :]


def v32():
    stand_in("kernel", act_quant=None, fp8_gemm=None, fp8_index=None)
    model = peer("DeepSeek-V3.2-Exp/inference/model.py")
    model.Linear.dtype = torch.float64
    model.fp8_index = lambda q, weights, k, k_scale: product(q, weights[..., 0], k, k_scale[..., 0])
    model.dist = types.SimpleNamespace(broadcast=lambda x, src: None)
    return model


def caches(indexer, keys, width, dtype):
    indexer.k_cache, indexer.k_scale_cache = torch.zeros(1, keys, width, dtype=dtype), torch.zeros(1, keys, 1, dtype=torch.float64)


def sparse_attention(x, qr, main, latent, at, of, wq, wk, k_scale, k_bias, weights_proj, rotated, count):
    """The Indexer turns pairs side by side, transformers and the program halves: with the columns in another order that is the same."""
    (tokens, heads, width), keys = main.shape, len(of)
    if at.tolist() != list(range(keys - tokens, keys)) or of.tolist() != list(range(keys)):
        raise Unsupported("queries are the last tokens")
    model = v32()
    model.act_quant = lambda x, block, _: (x, torch.ones_like(x[..., :1]))  # the program's indexer is not quantised
    model.rotate_activation = lambda x: x  # nor turned: of both operands that is no change
    args = model.ModelArgs(max_batch_size=1, max_seq_len=keys, dim=x.shape[1], n_heads=heads, q_lora_rank=qr.shape[1], kv_lora_rank=width, qk_nope_head_dim=width,
                           qk_rope_head_dim=rotated, v_head_dim=width, index_n_heads=wq.shape[1], index_head_dim=wq.shape[2], index_topk=count)
    turned, rotary = model.precompute_freqs_cis(args), model.apply_rotary_emb
    pairs = torch.cat([torch.arange(rotated).reshape(2, -1).T.flatten(), torch.arange(rotated, wq.shape[2])])
    layer = model.MLA(args)
    caches(layer.indexer, keys, wq.shape[2], torch.float64)
    for name, weight in {"wq_b": wq[:, :, pairs].flatten(1).T, "wk": wk[:, pairs].T, "weights_proj": weights_proj.T}.items():
        getattr(layer.indexer, name).weight.data = weight.detach()
    layer.indexer.k_norm.weight.data, layer.indexer.k_norm.bias.data = k_scale[pairs].detach(), k_bias[pairs].detach()
    front = (0, 0, keys - tokens, 0)
    nothing = torch.zeros(keys, heads, rotated, dtype=x.dtype)
    queries = torch.cat([F.pad(main, (0, 0, 0, 0, keys - tokens, 0)), nothing], -1).flatten(1)
    layer.wq_a, layer.q_norm, layer.wq_b = Given(F.pad(qr, front)[None]), nn.Identity(), Given(queries[None])
    layer.wkv_a, layer.kv_norm, layer.wo = Given(torch.cat([latent, nothing[:, 0]], -1)[None]), nn.Identity(), nn.Identity()
    layer.wkv_b = Given(latent.repeat(1, 2 * heads)[None])
    layer.softmax_scale = width**-0.5
    chosen = []
    layer.indexer.register_forward_hook(lambda module, given, ids: chosen.append(ids))
    layer.kv_cache, layer.pe_cache = layer.kv_cache.to(x.dtype), layer.pe_cache.to(x.dtype)
    model.apply_rotary_emb = lambda x, turned: rotary(x.contiguous(), turned)  # as its cast from bfloat16 leaves x
    o = layer(x[None], 0, turned, torch.full((keys, keys), -torch.inf, dtype=x.dtype).triu(1))
    return {"o": o.reshape(keys, heads, width)[-tokens:], "routing/ids/top_k": chosen[0][0, -tokens:].int()}


def indexer_codes(q, k, weight, hadamard):
    (tokens, heads, width), keys = q.shape, len(k)
    model, cast = v32(), peer("DeepGEMM/deep_gemm/utils/math.py").per_token_cast_to_fp8
    turn = hadamard.to(q.dtype) * width**-0.5

    def act_quant(x, block, _):
        with torch._C.DisableTorchFunction():  # the cast looks at the bits of float32
            codes, scale = cast(x.float().reshape(-1, width), True)
        return codes.reshape(x.shape), scale.reshape(*x.shape[:-1], 1).double()

    model.act_quant, model.rotate_activation, model.apply_rotary_emb = act_quant, lambda x: x @ turn, lambda x, _: x
    indexer = model.Indexer(model.ModelArgs(max_batch_size=1, max_seq_len=keys, dim=1, q_lora_rank=1, qk_rope_head_dim=2, index_n_heads=heads, index_head_dim=width, index_topk=4))
    caches(indexer, keys, width, torch.float8_e4m3fn)
    front = (0, 0, keys - tokens, 0)
    indexer.wq_b, indexer.wk, indexer.k_norm = Given(F.pad(q.flatten(1), front)[None]), Given(k[None]), nn.Identity()
    indexer.weights_proj = Given(F.pad(weight, front)[None] * (heads * width) ** 0.5)
    scores = []
    index, model.fp8_index = model.fp8_index, lambda *given: scores.append(index(*given)) or scores[0]
    ids = indexer(k[None, :, :1], None, 0, None, None)[0, -tokens:]
    return {"y": scores[0][0, -tokens:].gather(-1, ids), "routing/ids/top_k": ids.int()}


def eplb(load, parts):
    expert, replica, copies = peer("EPLB/eplb.py").rebalance_experts_hierarchical(load[None].double(), 8, 1, 1, 4)
    return {"copies": copies[0], "expert": expert[0], "replica_of": replica[0], "y": (load.double() / copies[0])[expert[0]].reshape(4, 2).sum(1)}


def eplb_nodes(load, parts):
    expert, replica, copies = peer("EPLB/eplb.py").rebalance_experts_hierarchical(load[None].double(), 12, 4, 2, 4)
    each = (load.double() / copies[0])[expert[0]]
    return {"by_node": each.reshape(2, 6).sum(1).round().int(), "copies": copies[0], "expert": expert[0], "replica_of": replica[0], "y": each.reshape(2, 2, 3).sum(2)}


class OnProcessor(TorchFunctionMode):
    """DeepEP's test draws its choice of experts on a GPU; here the choice is the case's, on a processor."""

    def __init__(self, ids):
        super().__init__()
        self.ids = ids

    def __torch_function__(self, function, types, args=(), kwargs=None):
        told = {name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items()}
        return (None, self.ids.clone()) if function is torch.topk else function(*args, **told)


def without_gpu():
    """What DeepEP's own files import of it."""
    math = peer("DeepEP/deep_ep/utils/math.py")
    for name in ("deep_ep", "deep_ep.utils", "test_low_latency"):
        stand_in(name, Buffer=None, topk_idx_t=torch.int64)
    stand_in("deep_ep.utils.math", **vars(math))
    stand_in("deep_ep.utils.envs", init_dist=None, get_global_seed=None)
    stand_in("deep_ep.utils.testing", bench=None)


class Layout(Exception):
    pass


def dispatch_combine(x, back, ids):
    """What DeepEP's test of one node expects of get_dispatch_layout, before it asks the kernel."""

    class Buffer:
        is_sm90_compiled = staticmethod(lambda: False)

        def get_dispatch_layout(self, *_):
            raise Layout(sys._getframe(1).f_locals)

    without_gpu()
    test = peer("DeepEP/tests/legacy/test_intranode.py")
    test.dist = types.SimpleNamespace(all_reduce=lambda x, group: None, ProcessGroup=None)  # alone
    test.deep_ep = types.SimpleNamespace(Buffer=Buffer, topk_idx_t=torch.int64)
    args = types.SimpleNamespace(num_tokens=len(x), hidden=x.shape[1], num_topk=ids.shape[1], num_experts=8)
    try:
        with OnProcessor(ids):
            test.test_main(args, 0, 1, 4, 0, Buffer(), None)
    except Layout as made:
        layout = made.args[0]
    place = layout["token_idx_in_rank"].long()  # of token and rank, -1 where it is not sent
    received, y = x.new_zeros(back.shape), torch.zeros_like(x)
    for rank in range(4):
        sent = (place[:, rank] >= 0).nonzero()[:, 0]
        received[rank] = received[rank].index_copy(0, place[sent, rank], x[sent])
        y = y.index_add(0, sent, back[rank, place[sent, rank]])
    return {"per_expert": layout["num_tokens_per_expert"], "per_rank": layout["num_tokens_per_rank"], "in_rank": layout["is_token_in_rank"].int(), "received": received, "y": y}


class Exchange:
    """Of one rank: what others sent it, or nothing yet, and what it sends: rows of each rank behind each other. As torch.distributed."""

    def __init__(self, rank, ranks, sent=None):
        self.rank, self.ranks, self.sent, self.calls = rank, ranks, sent, []

    def get_rank(self):
        return self.rank

    def get_world_size(self):
        return self.ranks

    def all_to_all_single(self, received, rows, received_counts=None, counts=None):
        self.calls.append(rows.split(counts or 1))
        number = len(self.calls) - 1
        received.copy_(torch.cat([calls[number][self.rank] for calls in self.sent]) if self.sent else rows)


def dispatch_low_latency(x, back, weight, ids, experts=6):
    """Each expert is a rank of DeepEP's reference, and those behind the third have no tokens of their own."""
    ranks, tokens, width = x.shape
    without_gpu()
    refs = peer("DeepEP/deep_ep/utils/refs.py", "deep_ep.utils")

    def dispatch(rank, sent):
        refs.dist = Exchange(rank, experts, sent)
        own = slice(rank, rank + 1)
        made = refs.dispatch(x[own].reshape(-1, width), ids[own].reshape(-1, ids.shape[2]), weight[own].reshape(-1, ids.shape[2]), tokens, experts)
        return made, refs.dist.calls

    sent = [dispatch(rank, None)[1] for rank in range(experts)]
    count, by_rank, source = [], [], torch.full((experts, ranks * tokens), -1)
    received, y = torch.zeros_like(back), torch.zeros_like(x.reshape(-1, width))
    for rank in range(experts):
        (rows, number, weights, of, from_rank), _ = dispatch(rank, sent)
        count.append(len(rows))
        by_rank.append(from_rank[:ranks])
        source[rank, : len(of)] = of.long()
        received[rank] = F.pad(rows, (0, 0, 0, ranks * tokens - len(rows)))
        y = y.index_add(0, of.long(), back[rank, : len(of)] * (weights * (number == 0)).sum(1)[:, None])
    by_rank = torch.stack(by_rank)
    return {"count": torch.tensor(count), "by_rank": by_rank, "begin": by_rank.cumsum(1) - by_rank, "source": source, "received": received, "y": y.reshape(x.shape)}


PEERS = {"sparse-attention": (sparse_attention, {"rotated": 4, "count": 5}), "sparse-attention-odd": (sparse_attention, {"rotated": 2, "count": 3}),
         "indexer-codes": (indexer_codes, {}), "eplb": (eplb, {}), "eplb-nodes": (eplb_nodes, {}), "dispatch-combine": (dispatch_combine, {}),
         "dispatch-low-latency": (dispatch_low_latency, {})}
