"""The MoE block, its router and its parts: RoutedMoE, RoutedAndSharedMoE, Qwen3-Next's block, MlpBlock; gradients by jax.vjp.

Routing results come from the block's own gate and get_topk; balance losses and bias updates of the op `routing` from its permute.
On a mesh jax.lax.ragged_all_to_all, which XLA has no code of for a processor, is replaced by an all_gather of what it sends and of its
offsets, of which each shard takes what is for it. The ring of experts MaxText computes by its Pallas kernel alone, which is none of float64:
jax.lax.ragged_dot stands there in its place (exchange.py for both). Kernels of experts lie as MaxText's rules say. Kernels that a case has on
shards are joined before, and their gradients cut behind.
Logits that a case gives go through a gate whose kernel is the unit matrix, which changes no bit.
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.linen import partitioning

import config as configuration
import exchange
from maxtext.layers import linears, moe
from maxtext.layers.initializers import nd_dense_init
from maxtext.models.qwen3 import Qwen3NextSparseMoeBlock

from request import Request, Settings, Unsupported

INIT = nd_dense_init(1.0, "fan_in", "truncated_normal")
TILES = {f"{product}_tile_{pass_}_{dim}": 8
         for product in ("wi", "wo") for pass_ in ("fwd", "dlhs", "drhs") for dim in ("batch_seq", "embed_dim", "mlp_dim")}
KERNELS = ("wi", "wi_0", "wi_1", "wo")
GATED_SHARED = ("qwen3_next", "qwen3_5")


# ---- modules and their state ----


@functools.cache
def state_of(config, mesh, kind: str, hash_routing: bool):
    """(structure, state) of a module; the state has shapes alone."""

    def build():
        rngs = nnx.Rngs(params=0)
        common = {"config": config, "mesh": mesh, "rngs": rngs, "dtype": config.dtype, "weight_dtype": config.weight_dtype}
        if kind in ("routed", "router"):
            return moe.RoutedMoE(num_experts=config.num_experts, num_experts_per_tok=config.num_experts_per_tok, kernel_init=INIT,
                                 kernel_axes=("embed", None), intermediate_dim=config.moe_mlp_dim, is_hash_routing=hash_routing, **common)
        if kind == "shared":
            return moe.RoutedAndSharedMoE(kernel_init=INIT, kernel_axes=("embed", None), is_hash_routing=hash_routing, **common)
        if kind == "gated shared":
            return Qwen3NextSparseMoeBlock(config, mesh, rngs=rngs)
        return linears.MlpBlock(in_features=config.emb_dim, intermediate_dim=config.mlp_dim, activations=config.mlp_activations, kernel_init=INIT,
                                intermediate_dropout_rate=0.0, use_bias=config.mlp_bias, **common)

    with mesh, partitioning.axis_rules(config.logical_axis_rules):
        return nnx.split(nnx.eval_shape(build))


def merged(kind: str, structure, state, weights: dict):
    """The module with these weights, by their paths in MaxText; a block has no others."""
    leaves, left = [], set(weights)
    for path, variable in nnx.to_flat_state(state):
        name, shape = "/".join(map(str, path)), variable.get_value()
        if isinstance(variable, nnx.RngState):
            value = jax.random.key(0) if isinstance(variable, nnx.RngKey) else jnp.zeros(shape.shape, shape.dtype)
        elif kind == "router" and name not in weights and name.startswith("w"):  # of the experts, which it does not use
            value = jnp.zeros(shape.shape, shape.dtype)
        elif name not in weights or weights[name].shape != shape.shape:
            raise Unsupported(f"MaxText's block has {name} {shape.shape}, the case {weights[name].shape if name in weights else 'no such weight'}")
        else:
            value = weights[name]
            left.discard(name)
        leaves.append((path, variable.replace(value)))
    if left:
        raise Unsupported(f"MaxText's block has no {', '.join(sorted(left))}")
    return nnx.merge(structure, nnx.from_flat_state(leaves))


def path_in(kind: str, path: str) -> str:
    """Where MaxText has a weight that assay calls so."""
    if kind in ("mlp", "routed", "router"):
        return path
    if path.startswith("shared_expert"):
        return path.replace("shared_experts/", "shared_expert/") if kind == "gated shared" else path
    return ("routed_experts/" if kind == "gated shared" else "MoeBlock_0/") + path


def routed_of(kind: str, module):
    name = {"shared": "routed_moe", "gated shared": "routed_experts"}.get(kind)
    return module if name is None else getattr(module, name)


# ---- what MaxText has of a case ----


def check(s: Settings) -> None:
    s.need(s["decoder_block"] != "glm4_moe", "no GLM-4.5 in MaxText")
    for key, value, reason in (
            ("routing_method", "", "flashinfer's routing methods are none of MaxText's"),
            ("use_random_routing", "false", "random routing draws its own numbers"),
            ("fused_moe_func", "false", "fused_moe_func is tpu_inference's"), ("apply_router_weight_on_input", "false", "no weights on the input"),
            ("apply_routed_scaling_factor_on_output", "true", "no factor behind the sum"),
            ("num_fused_shared_experts", "0", "no shared experts as slots"),
            ("num_redundant_experts", "0", "no replicas of experts"), ("local_num_experts", "0", "no rank that has some of the experts"),
            ("w13_reorder_size", "1", "this order of gate and up is the fused path's"), ("gmm_layout", "ragged", "ragged rows alone")):
        s.need(s.text.get(key, value) == value, reason)
    names = s.words("mlp_activations")
    s.need(all(name in ("silu", "gelu", "relu", "sigmoid", "linear") for name in names), f"no activation {names}")
    s.need(s.number("router_z_loss_weight") == 0, "no z-loss of the router")
    s.need(s.number("norm_topk_epsilon") == 0, "no epsilon but its own in the sum of weights")
    s.need(s.number("load_balance_loss_weight") == 0 or s["load_balance_loss_scope"] == "sequence", "balance loss of a sequence alone")
    grouped = s.count("n_routing_groups") > 1
    s.need(not grouped or s["group_score"] == "top2_sum", "groups by their largest value are not MaxText's")
    s.need(not grouped or not s["model_name"].startswith("deepseek2"), "DeepSeek-V2 has no groups in MaxText")
    s.need(s.text.get("quant_recipe", "{}") in ("{}", "[]", "none", ""), "no training recipe here")
    s.need(not s.text.get("quant_hidden_format"), "no h that the kernel quantises")


class Call:
    """One case: MaxText's configuration, module, tensors by MaxText's paths."""

    def __init__(self, request: Request, dtype: str):
        s = self.s = request.settings
        self.request, self.dtype, self.t = request, jnp.dtype(dtype), request.tensors
        check(s)
        more = {"use_ragged_sort": False, "float32_gate_logits": dtype == "bfloat16", "float32_weight_sum": dtype != "float64", **TILES}
        if s.true("use_ring_of_experts"):
            more["megablox"] = True
        if s["decoder_block"] != "gemma4":  # whose shared expert has this width
            more["base_mlp_dim"] = s.count("base_moe_mlp_dim")
        if s.text.get("fused_moe_mlp") == "true":
            more["prefuse_moe_weights"] = True
        logits = self.t.get("inputs/logits")
        if logits is not None:
            more["moe_expert_input_dim"] = logits.shape[-1]
        devices = configuration.axes(s)
        self.on_shards = s.true("weights_on_shards")
        one = not devices or not s.true("sparse_matmul")
        s.need(one or s.number("load_balance_loss_weight") == 0 and s.number("routed_bias_update_rate") == 0,
               "of a mesh MaxText gives one balance loss and one bias update, not each shard's")
        s.need(not s.true("use_ring_of_experts") or devices.get("expert", 1) > 1, "MaxText has no ring of one device")
        if self.on_shards:
            for name in KERNELS:
                if f"weights/{name}" in self.t:
                    self.t[f"weights/{name}"] = whole(s, name, self.t[f"weights/{name}"])
        self.hash_routing = s.count("first_num_hash_layers") > 0
        s.need(s.number("routed_bias_update_rate") == 0 or s.true("routed_bias") or self.hash_routing, "MaxText has no updates without a bias")
        if self.hash_routing:
            more["vocab_size"] = self.t["weights/tid2eid"].shape[0]
        self.kind = "router" if request.op == "routing" else "routed"
        if any(path.startswith("weights/shared_experts/") for path in self.t):
            self.kind = "gated shared" if s["decoder_block"] in GATED_SHARED else "shared"
        self.config, self.mesh = configuration.load(s, dtype, sparse=True if request.op == "routing" else None, **more)
        s.need("inputs/routing_weights" not in self.t, "a block has its gate")

    def array(self, path: str):
        """The router stays wide, as MaxText's float32_gate_logits has it."""
        value = self.t[path]
        if value.dtype.kind == "i":
            return jnp.asarray(value, self.dtype if path.endswith("tid2eid") else jnp.int32)
        wide = self.dtype == jnp.bfloat16 and (path in self.request.wide or "/gate/" in path or path.endswith(("logits", "lb_loss")))
        return jnp.asarray(value, jnp.float32 if wide else self.dtype)

    def weights(self, kind: str) -> dict:
        return {path_in(kind, path.removeprefix("weights/")): self.array(path) for path in self.t if path.startswith("weights/")}


def placed(call, weights: dict) -> dict:
    """Kernels of experts over the mesh as MaxText has them, everything else on every device."""
    if call.mesh.size == 1:
        return weights
    module = routed_of(call.kind, nnx.merge(*state_of(call.config, call.mesh, call.kind, call.hash_routing)))

    def sharding(path):
        name = path.rsplit("/", 1)[-1]
        axes = {"wo": module.wo_kernel_axes}.get(name, module.wi_kernel_axes) if name in KERNELS else ()
        return jax.sharding.NamedSharding(call.mesh, module._logical_to_mesh_axes(axes))

    return {path: jax.device_put(value, sharding(path)) for path, value in weights.items()}


def pieces(s: Settings, name: str, shape: tuple):
    """Of a kernel [E,D,H], [E,D,2,H] (gate and up in one) or [E,H,D]: where each shard's piece lies, in the order of docs/expert-parallelism.md."""
    sizes = [configuration.axes(s).get(axis, 1) for axis in ("fsdp", "fsdp_transpose", "expert", "mlp_tensor")]
    for f, t, p, n in np.ndindex(*sizes):
        experts = (p * sizes[0] + f, sizes[2] * sizes[0]) if s.true("shard_exp_on_fsdp") else (p, sizes[2])
        columns = (t * sizes[3] + n, sizes[1] * sizes[3])
        width = (0, 1) if s.true("shard_exp_on_fsdp") else (f, sizes[0])
        parts = {"wo": (experts, columns, width), "wi": (experts, width, (0, 1), columns)}.get(name, (experts, width, columns))
        yield tuple(slice(i * size // count, (i + 1) * size // count) for (i, count), size in zip(parts, shape))


def whole(s: Settings, name: str, shards: np.ndarray) -> np.ndarray:
    sizes = configuration.axes(s)
    f, t, p, n = (sizes.get(axis, 1) for axis in ("fsdp", "fsdp_transpose", "expert", "mlp_tensor"))
    if name == "wi":
        shards = shards.reshape(*shards.shape[:-1], 2, -1)
    experts, width = (p * f, 1) if s.true("shard_exp_on_fsdp") else (p, f)
    counts = {"wo": (experts, t * n, width), "wi": (experts, width, 1, t * n)}.get(name, (experts, width, t * n))
    made = np.empty([count * size for count, size in zip(counts, shards.shape[1:])], shards.dtype)
    for place, shard in zip(pieces(s, name, made.shape), shards):
        made[place] = shard
    return made.reshape(*made.shape[:2], -1) if name == "wi" else made


def cut(s: Settings, name: str, kernel: np.ndarray) -> np.ndarray:
    kernel = kernel.reshape(*kernel.shape[:-1], 2, -1) if name == "wi" else kernel
    shards = np.stack([kernel[place] for place in pieces(s, name, kernel.shape)])
    return shards.reshape(*shards.shape[:-2], -1) if name == "wi" else shards


def differentiate(call, function, weights: dict, inputs: dict, cotangents: dict, fixed: dict):
    """Outputs, what came beside them, and gradients of weights and inputs. Compiled once for a configuration and its shapes."""
    with call.mesh, partitioning.axis_rules(call.config.logical_axis_rules):
        return compiled(function, call.config, call.mesh, call.kind, call.hash_routing)(placed(call, weights), inputs, cotangents, fixed)


@functools.cache
def compiled(function, config, mesh, kind: str, hash_routing: bool):
    structure, state = state_of(config, mesh, kind, hash_routing)

    def run(weights, inputs, cotangents, fixed):
        def forward(weights, inputs):
            return function(kind, merged(kind, structure, state, weights), inputs, fixed)

        outputs, back, beside = jax.vjp(forward, weights, inputs, has_aux=True)
        given = {path: cotangents[path].astype(value.dtype) if path in cotangents else jnp.zeros_like(value) for path, value in outputs.items()}
        return outputs, beside, back(given)

    return jax.jit(run)


def results(call, outputs: dict, beside: dict, gradients: tuple, names: dict) -> dict:
    """By assay's paths. names: MaxText's path of each weight's own."""
    made = {f"outputs/{path}": value for path, value in outputs.items()} | beside
    made |= {f"gradients/weights/{names[path]}": value for path, value in gradients[0].items()}
    return made | {f"gradients/inputs/{path}": value for path, value in gradients[1].items()}


# ---- moe, routing ----


def route(module, x, input_ids, forced):
    logits, before_bias = module.gate(x)
    weights, ids = module.get_topk(logits, before_bias, None, input_ids, forced)
    return logits, before_bias, weights, ids


def block(kind: str, module, inputs: dict, fixed: dict):
    x, ids, forced = inputs["x"], fixed.get("input_ids"), fixed.get("selected_experts")
    routed = routed_of(kind, module)
    _, _, weights, selected = route(routed, x.astype(routed.config.dtype), ids, forced)
    if kind == "gated shared":
        y, lb_loss = module(x, deterministic=True, forced_routed_experts=forced)
        bias_updates = None
    else:
        y, lb_loss, bias_updates = module(x, input_ids=ids, forced_routed_experts=forced)
    outputs = {"y": y, **({} if lb_loss is None else {"lb_loss": lb_loss})}
    beside = {"routing/selected_experts": selected, "routing/weights": weights}
    return outputs, beside if bias_updates is None else {**beside, "outputs/bias_updates": bias_updates}


def router(kind: str, module, inputs: dict, fixed: dict):
    x = inputs["x"] if "x" in inputs else inputs["logits"]
    forced = fixed.get("selected_experts")
    logits, before_bias, weights, selected = route(module, x, fixed.get("input_ids"), forced)
    _, order, _, sizes, _, lb_loss, bias_updates, *_ = module.permute(
        x, logits, before_bias, forced_routed_experts=forced, precomputed_topk=(weights, selected))
    outputs = {"weights": weights, **({} if lb_loss is None else {"lb_loss": lb_loss})}
    beside = {"routing/selected_experts": selected}
    if forced is None:  # with given ids MaxText counts and sorts slots without an expert among those of experts
        beside |= {"routing/group_sizes": sizes, "routing/sorted_selected_experts": order}
    return outputs, beside if bias_updates is None else {**beside, "outputs/bias_updates": bias_updates}


def run_moe(request: Request, dtype: str) -> dict:
    call = Call(request, dtype)
    weights = call.weights(call.kind)
    names = {path_in(call.kind, path.removeprefix("weights/")): path.removeprefix("weights/") for path in call.t if path.startswith("weights/")}
    inputs = {"x": call.array("inputs/x")}
    fixed = {name: call.array(f"inputs/{name}") for name in ("input_ids", "selected_experts") if f"inputs/{name}" in call.t}
    cotangents = {path.removeprefix("cotangents/"): call.array(path) for path in call.t if path.startswith("cotangents/")}
    with exchange.replaced(dtype):
        made = results(call, *differentiate(call, block, weights, inputs, cotangents, fixed), names)
    if call.on_shards:
        for name in KERNELS:
            if f"gradients/weights/{name}" in made:
                made[f"gradients/weights/{name}"] = cut(call.s, name, np.asarray(made[f"gradients/weights/{name}"]))
    return made


def run_routing(request: Request, dtype: str) -> dict:
    call = Call(request, dtype)
    weights = {path.removeprefix("weights/"): call.array(path) for path in call.t if path.startswith("weights/")}
    if "inputs/logits" in call.t:
        weights["gate/kernel"] = jnp.eye(call.t["inputs/logits"].shape[-1], dtype=call.dtype)
    inputs = {name: call.array(f"inputs/{name}") for name in ("x", "logits") if f"inputs/{name}" in call.t}
    fixed = {name: call.array(f"inputs/{name}") for name in ("input_ids", "selected_experts") if f"inputs/{name}" in call.t}
    cotangents = {path.removeprefix("cotangents/"): call.array(path) for path in call.t if path.startswith("cotangents/")}
    return results(call, *differentiate(call, router, weights, inputs, cotangents, fixed), {path: path for path in weights})


# ---- mlp ----


def gated_mlp(kind: str, module, inputs: dict, fixed: dict):
    return {"y": module(inputs["x"], deterministic=True)}, {}


def stacked(path: str, array):
    """MaxText has gate and up of one kernel on an axis of their own."""
    return array.reshape(*array.shape[:-1], 2, -1) if path.startswith("wi/") else array


class MlpCall(Call):
    def __init__(self, request: Request, dtype: str):
        s = self.s = request.settings
        check(s)
        s.need(s.number("mlp_activations_limit") == 0, "MaxText's dense MLP has no clamp")
        s.need(not configuration.axes(s), "a dense MLP on a mesh is not tried")
        self.request, self.dtype, self.t, self.kind, self.hash_routing = request, jnp.dtype(dtype), request.tensors, "mlp", False
        self.config, self.mesh = configuration.load(s, dtype, fused_mlp=s.true("fused_mlp"))


def run_mlp(request: Request, dtype: str) -> dict:
    call = MlpCall(request, dtype)
    paths = [path.removeprefix("weights/") for path in call.t if path.startswith("weights/")]
    weights = {path: stacked(path, call.array("weights/" + path)) for path in paths}
    if "wi/kernel" in weights and "wi_0/bias" in weights:
        weights["wi/bias"] = jnp.stack([weights.pop("wi_0/bias"), weights.pop("wi_1/bias")])
    cotangents = {"y": call.array("cotangents/y")} if "cotangents/y" in call.t else {}
    made = results(call, *differentiate(call, gated_mlp, weights, {"x": call.array("inputs/x")}, cotangents, {}), {path: path for path in weights})
    if "gradients/weights/wi/bias" in made:
        made["gradients/weights/wi_0/bias"], made["gradients/weights/wi_1/bias"] = made.pop("gradients/weights/wi/bias")
    shapes = {"gradients/" + path: tensor.shape for path, tensor in request.tensors.items()}
    return {path: value.reshape(shapes.get(path, value.shape)) for path, value in made.items()}


OPERATIONS = {"moe": run_moe, "routing": run_routing, "mlp": run_mlp}


def run(request: Request, dtype: str) -> dict:
    if request.op not in OPERATIONS:
        raise Unsupported(f"no {request.op} in MaxText")
    return OPERATIONS[request.op](request, dtype)
