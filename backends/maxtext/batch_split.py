"""The op batch_split by MaxText's own models/deepseek_batchsplit.py, on as many devices as the case's mesh has.

What a processor lacks is replaced: init_splash_kernel's kernel, which wants heads of 128, by the two reference functions of the same file
(kernels/attention/splash_attention_kernel.py: attention_reference and the backward pass of its custom form), so tpu_flash_attention has
transpositions and shards of MaxText's, and a plain softmax. use_gather_mosaic_kernel is off. Routing without groups is one group.
"""
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from maxtext.kernels.attention import splash_attention_kernel as splash
from maxtext.models import deepseek_batchsplit as bs
from maxtext.models.deepseek_batchsplit_fp8 import quantized_psum_scatter

AXES = ("data", "fsdp", "expert")
ACTIVATIONS = P(AXES, None, None)
# dimensions that lie over fsdp (f) and over expert (e), by what gather_weights and reduce_scatter_ws_grad say
BUNDLE = {
    "pre_attn_norm": "-", "wq_a": "f-", "wq_b": "f--", "q_norm": "-", "wkv_a": "f-", "wkv_b": "f--", "kv_norm": "-", "out": "--f",
    "post_attn_norm": "-", "gate": "f-", "bias": "-", "routed_wi_0": "ef-", "routed_wi_1": "ef-", "routed_wo": "e-f",
    "shared_wi_0": "f-", "shared_wi_1": "f-", "shared_wo": "-f"}
ATTENTION = ("wq_a_weights", "wq_b_weights", "q_norm_scale_weights", "wkv_a_weights", "wkv_b_weights", "kv_norm_scale_weights", "out_weights")
MOE = ("post_attn_scale", "gate_kernel", "gate_bias", "routed_w0", "routed_w1", "routed_wo", "shared_w0", "shared_w1", "shared_wo")
ROUTE = ("post_attn_scale", "shared_w0", "shared_w1", "shared_wo", "gate_kernel", "gate_bias")
EXPERTS = {"routed_w0", "routed_w1", "routed_wo", "kernel", "w0", "w1", "wo"}
WHOLE = {"q_norm_scale_weights", "kv_norm_scale_weights", "pre_attn_scale", "scale", "post_attn_scale", "gate_bias", "routing_bias"}


class PlainAttention:
    """In the place of the splash kernel: heads of one row of the batch, causal."""

    def __init__(self, length, dtype):
        self.mask, self.dtype = np.tri(length, dtype=bool), dtype

    def manual_fwd(self, q, k, v, segments, sinks):
        def head(q, k, v):
            out, (lse,) = splash.attention_reference(self.mask, q, k, v, None, save_residuals=True)
            return out.astype(self.dtype), lse

        return jax.vmap(head)(q, k, v)

    def manual_bwd(self, q, k, v, out, lse, d_out, segments, sinks):
        def head(q, k, v, out, lse, d_out):
            return splash._attention_reference_custom_bwd(
                splash.DEFAULT_MASK_VALUE, False, "flash", None, (self.mask, q, k, v, None, out, lse), d_out)[1:4]

        return jax.vmap(head)(q, k, v, out, lse, d_out)


class Call:
    """One case. Tensors of shards are [M, ...], and weights whole, as assay has them."""

    def __init__(self, request, dtype):
        s = self.s = request.settings
        words = s.words("mesh") if "mesh" in s.text else []
        sizes = dict(zip(words[::2], map(int, words[1::2])))
        self.sizes = [sizes.get(a, 1) for a in AXES]
        self.shards, self.parts = int(np.prod(self.sizes)), self.sizes[2]
        s.need(set(sizes) <= set(AXES) and self.shards <= len(jax.devices()), "a mesh of other axes or more devices")
        s.need(s.text.get("function", "").startswith("quantized") or not s.text.get("quant_recipe", ""), "fp8_full: its grouped product is tokamax's kernel for TPUs")
        s.need(not s.text.get("function", "").startswith("quantized") or s["dtype"] == dtype.name, "scales of codes have the case's type")
        devices = np.array(jax.devices()[:self.shards]).reshape(self.sizes)
        self.mesh = jax.sharding.Mesh(devices, AXES, axis_types=(AxisType.Explicit,) * 3)
        self.manual = jax.sharding.Mesh(devices, AXES)
        self.dtype, self.wide = dtype, jnp.float64 if dtype == "float64" else jnp.float32
        self.microbatches = s.count("batch_split_factor")
        self.length = s.count("sequence")
        grouped = s.count("n_routing_groups") > 1
        self.groups = {
            "n_routing_groups": s.count("n_routing_groups") if grouped else 1,
            "topk_routing_group": s.count("topk_routing_group") if grouped else 1, "top_k_in_group": s.count("top_k_in_group")}
        self.selection = {
            "num_experts_per_tok": s.count("num_experts_per_tok"), "routed_scaling_factor": s.number("routed_scaling_factor"), **self.groups}
        self.sorting = {"expert_axis_name": "expert", "use_gather_mosaic_kernel": False}
        self.epsilon = {"epsilon": s.number("normalization_layer_epsilon"), "dtype": dtype}
        self.config = SimpleNamespace(
            quantization="", merge_gating_gmm=s.true("merge_gating_gmm"), dtype=dtype, batch_split_factor=self.microbatches,
            use_gather_mosaic_kernel=False, num_experts=s.count("num_experts"), num_query_heads=s.count("base_num_query_heads"),
            max_target_length=self.length, param_scan_axis=s.count("layer_axis"), rope_max_timescale=s.number("rope_max_timescale"),
            **self.selection, **{k: s.count(k) for k in (
                "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "max_position_embeddings", "original_max_position_embeddings")},
            **{k: s.number(k) for k in ("rope_factor", "mscale", "beta_fast", "beta_slow", "normalization_layer_epsilon")})
        self.attention = PlainAttention(self.length, dtype)
        # the splash kernel adds up in float32, or wider
        self.inputs, self.weights, self.cotangents = ({
            path[len(prefix):]: self.number(path, value) for path, value in request.tensors.items() if path.startswith(prefix)
        } for prefix in ("inputs/", "weights/", "cotangents/"))
        self.swap = jax.jit(bs.initialize_yarn_mask, static_argnums=0)(self.config.qk_rope_head_dim)

    def number(self, path, value):
        if value.dtype.kind == "i":
            return jnp.asarray(value, jnp.int32)
        wide = path.endswith(("yarn_freqs", "inputs/freqs", "lse", "logsumexp"))
        return jnp.asarray(value, self.wide if wide else self.dtype)

    # ---- functions over shards: every tensor of shards is varying, as within MaxText's shard_map ----

    def spread(self, name, weight):
        """A weight as each shard has it: [M, ...]."""
        if name in EXPERTS:
            parts = weight.reshape(self.parts, -1, *weight.shape[1:])
            return parts[jnp.arange(self.shards) % self.parts]
        return jnp.broadcast_to(weight, (self.shards, *weight.shape))

    def over_shards(self, function, tensors):
        def own(tensors):
            return jax.tree.map(lambda y: y[None], function(**jax.tree.map(lambda x: x[0], tensors)))

        return jax.shard_map(own, mesh=self.manual, in_specs=P(AXES), out_specs=P(AXES), check_vma=False)(tensors)

    # ---- functions of the whole mesh: arrays [M b, ...], and what is gathered is "reduced" ----

    def rows(self, tensor, rank=None):
        """[M, b, ...] as one array over the shards."""
        flat = np.asarray(tensor).reshape(-1, *tensor.shape[2:])
        return jax.device_put(flat, NamedSharding(self.mesh, P(AXES, *(None,) * (flat.ndim - 1))))

    def microbatch_rows(self, tensor):
        return [self.rows(tensor[:, i]) for i in range(self.microbatches)]

    def angles(self, tensor):
        return self.rows(tensor)[:, :, None, :]

    def unused_out(self):
        """A remat function computes the output too, which nobody takes: its case has no such weight."""
        return jnp.zeros((self.config.num_query_heads, self.s.count("v_head_dim"), self.s.count("base_emb_dim")), self.dtype)

    def gathered(self, name):
        weight = self.weights[name] if name in self.weights else self.unused_out()
        if name in WHOLE:
            return jax.device_put(weight, NamedSharding(self.mesh, P(*(None,) * weight.ndim)))
        expert = name in EXPERTS
        axes = AXES[:2] if expert else AXES
        first = P("expert" if expert else None, *(None,) * (weight.ndim - 1))
        to = P(*first, reduced=set(axes))
        return jax.jit(jax.shard_map(lambda w: jax.lax.pcast(w, axes, to="reduced"), mesh=self.mesh, in_specs=first, out_specs=to))(
            jax.device_put(weight, NamedSharding(self.mesh, first)))

    def pieces(self, array):
        """What each shard has of an array, [M, ...]."""
        shards = sorted(array.addressable_shards, key=lambda s: s.device.id)
        return np.stack([np.asarray(s.data) for s in shards])

    def array(self, pieces, spec):
        """The array of which each shard has this. What several shards have is one and the same, but for sums that are still to be made."""
        sharding = NamedSharding(self.mesh, spec)
        shape = [n * (1 if a is None else self.mesh.shape[a]) for n, a in zip(pieces.shape[1:], spec.partitions + (None,) * pieces.ndim)]
        pieces, first = np.asarray(pieces), {}
        parts = NamedSharding(self.mesh, P(*spec.partitions)).devices_indices_map(tuple(shape))
        for place, piece in zip(np.ndindex(*self.sizes), pieces):
            part = parts[self.mesh.devices[place]], *(i for i, axis in zip(place, AXES) if axis in spec.unreduced)
            self.s.need(np.array_equal(first.setdefault(part, piece), piece, equal_nan=True), "copies of one array differ from shard to shard")
        return jax.make_array_from_single_device_arrays(
            tuple(shape), sharding, [jax.device_put(p, d) for p, d in zip(pieces, self.mesh.devices.ravel())])

    def by_shard(self, array):
        """[M b, ...] as [M, b, ...]."""
        return np.asarray(array).reshape(self.shards, -1, *array.shape[1:])

    def by_microbatch(self, arrays):
        return np.stack([self.by_shard(a) for a in arrays], 1)

    def weight_gradients(self, gradients):
        """By name: of each shard where they are not yet added."""
        return {n: np.asarray(g) if n in WHOLE else self.pieces(g) for n, g in gradients.items()}


def bundle_spec(name, kinds, **more):
    return P(*({"f": "fsdp", "e": "expert", "-": None}[d] if d in kinds else None for d in BUNDLE[name]), **more)


def tree(leaves):
    """MaxText's tuples of weights, from leaves by name."""
    w = leaves.__getitem__
    return ((w("pre_attn_norm"), tuple(map(w, ("wq_a", "wq_b", "q_norm", "wkv_a", "wkv_b", "kv_norm", "out")))),
            (w("post_attn_norm"), (w("gate"), w("bias")), tuple(map(w, ("routed_wi_0", "routed_wi_1", "routed_wo"))),
             tuple(map(w, ("shared_wi_0", "shared_wi_1", "shared_wo")))))


def leaves(bundle):
    return dict(zip(BUNDLE, jax.tree.leaves(bundle)))


def scattered(c, prefix, kinds="fe", **more):
    return tree({n: c.array(c.inputs[prefix + n], bundle_spec(n, kinds, **(more if "f" in BUNDLE[n] else {}))) for n in BUNDLE})


# ---- one shard's functions ----


def local_functions(c):
    """By name: weights, and the function, which gives its results by name."""
    config, dtype = c.config, c.dtype
    product = {"config": config, "dtype": dtype}
    heads = {"qk_nope_head_dim": config.qk_nope_head_dim, "num_query_heads": config.num_query_heads}
    shards = {"num_experts": config.num_experts, "num_expert_shards": c.parts}

    def named(*names):
        return lambda results: dict(zip(names, results))

    def gmm(inputs, group_sizes, kernel):
        return {"output": bs.gmm(inputs, kernel, group_sizes, preferred_element_type=dtype, config=config)}

    def key_value(low_rank_main, key_rope, wkv_b_weights):
        return named("key", "value")(bs.get_key_value(low_rank_main, key_rope[:, :, None], wkv_b_weights, **heads))

    def route(x, selected_experts, weights, group_sizes):
        results = bs.route(x, selected_experts, weights, group_sizes, **c.sorting, **shards)
        return named("x", "selected_experts", "weights", "group_sizes")(results)

    def shared_expert_and_route(inputs, **weights):
        results = bs.shared_expert_and_route(
            inputs, *(weights[w] for w in ROUTE), **shards, **c.selection, **c.sorting, **product,
            normalization_layer_epsilon=config.normalization_layer_epsilon)
        return named("x", "y", "selected_experts", "weights", "group_sizes")(results)

    def unroute_ubatch(moe_inputs, routed_expert_out, shared_expert_out, selected_experts):
        outputs, kept = bs.unroute_ubatch_fn(
            moe_inputs, routed_expert_out, shared_expert_out, selected_experts, **c.sorting, target_length=c.length)
        return {"outputs": outputs, **kept}

    return {
        "split": lambda x: {"microbatches": jnp.stack(bs.split(x, c.microbatches))},
        "merge": lambda microbatches: {"x": bs.merge(list(microbatches), c.microbatches)},
        "rms_norm": lambda x, scale: {"y": bs.rms_norm(x, scale, **c.epsilon)},
        "yarn": lambda inputs, freqs: {"output": bs.yarn(
            inputs, freqs[:, :, None], pairwise_swap_and_negate_mask=c.swap, fprop_dtype=dtype)},
        "get_key_value": key_value,
        "shared_expert": lambda inputs, shared_w0, shared_w1, shared_wo: {"y": bs.shared_expert(inputs, shared_w0, shared_w1, shared_wo)},
        "expert_group_mask": lambda gate_logits: {"mask": bs.expert_group_mask(gate_logits, **c.groups)},
        "expert_indices_and_weights": lambda gate_logits, pre_bias_logits: named("indices", "weights")(
            bs.expert_indices_and_weights(gate_logits, pre_bias_logits, **c.selection)),
        "expert_selection": lambda x, routing_kernel, routing_bias: named("selected_experts", "weights", "group_sizes")(
            bs.expert_selection(x, routing_kernel, routing_bias, num_experts=config.num_experts, **c.selection)),
        "route": route,
        "route_impl": lambda x, selected_experts: {"x": bs.route_impl(x, selected_experts, "expert", False)},
        "unroute": lambda x, selected_experts: {"x": bs.unroute(x, selected_experts, **c.sorting)},
        "gmm": gmm,
        "compute_gating": lambda x, group_sizes, w0, w1: named("layer_w0", "layer_w1")(bs.compute_gating(x, w0, w1, group_sizes, **product)),
        "compute_linear": lambda layer_w0, layer_w1, group_sizes, weights, wo: {
            "layer_wo": bs.compute_linear(layer_w0, layer_w1, wo, group_sizes, weights, **product)},
        "shared_expert_and_route": shared_expert_and_route,
        "unroute_ubatch_fn": unroute_ubatch,
        "quantized_psum_scatter": lambda x: {"out": quantized_psum_scatter(x, "expert", 0, True)},
    }


def local_backwards(c):
    """The module's own backward functions."""
    def unroute_ubatch(selected_experts, outputs_grad):
        back = bs.unroute_ubatch_fn_remat(selected_experts, **c.sorting)
        made = bs.unroute_ubatch_fn_bwd(outputs_grad, back)
        return dict(zip(("moe_inputs_grad", "routed_expert_out_grad", "shared_expert_out_grad"), made))

    return {
        "route_impl_bwd": lambda selected_experts, x_grad: {"x_grad": bs.route_impl_bwd("expert", False, selected_experts, x_grad)[0]},
        "unroute_bwd": lambda selected_experts, x_grad: {"x_grad": bs.unroute_impl_bwd("expert", False, selected_experts, x_grad)[0]},
        "unroute_ubatch_fn_bwd": unroute_ubatch,
    }


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def run_local(c, function):
    forwards = local_functions(c)

    def forward(arguments, weights, cotangents):
        floats = {n: a for n, a in arguments.items() if is_float(a)}
        others = {n: a for n, a in arguments.items() if not is_float(a)}

        def whole(floats, weights):
            made = c.over_shards(forwards[function], {**floats, **others, **{n: c.spread(n, w) for n, w in weights.items()}})
            return {n: made[n] for n in cotangents}, made

        _, back, made = jax.vjp(whole, floats, weights, has_aux=True)
        d_inputs, d_weights = back({n: d.astype(made[n].dtype) for n, d in cotangents.items()})
        return made, d_inputs, d_weights

    made, d_inputs, d_weights = jax.jit(forward)(c.inputs, c.weights, c.cotangents)
    return {**{"outputs/" + n: v for n, v in made.items()}, **{"gradients/inputs/" + n: v for n, v in d_inputs.items()},
            **{"gradients/weights/" + n: v for n, v in d_weights.items()}}


def run_local_backward(c, function):
    """By jax.vjp of the function, as the module's own remat functions do it: gradients of weights are those of each shard."""
    name = function[:-len("_bwd")]
    forward = local_functions(c)[name]
    given = {n: a for n, a in c.inputs.items() if not n.endswith("_grad")}
    cotangents = {n[:-len("_grad")]: a for n, a in c.inputs.items() if n.endswith("_grad")}
    if name == "route":  # ids are the rolled ones of all shards: these are a shard's own again; x and weights do not matter, as it is linear
        tokens = given["selected_experts"].shape[1] // c.parts
        here = np.arange(c.shards) % c.parts
        ids = np.asarray(given["selected_experts"]) + (here * (c.config.num_experts // c.parts))[:, None, None]
        ids = np.stack([i[tokens * e :][:tokens] for i, e in zip(ids % c.config.num_experts, here)])
        given = {"selected_experts": jnp.asarray(ids), "x": jnp.zeros((c.shards, tokens, cotangents["x"].shape[-1]), c.dtype),
                 "weights": jnp.zeros(ids.shape, c.dtype),
                 "group_sizes": jnp.stack([jnp.bincount(i.ravel(), length=c.config.num_experts) for i in ids])}
    elif name == "yarn":
        given["inputs"] = jnp.zeros_like(cotangents["output"])
    elif name == "quantized_psum_scatter":
        given["x"] = jnp.zeros((c.shards, c.parts * cotangents["out"].shape[1], cotangents["out"].shape[2]), c.dtype)
    elif name == "get_key_value":
        given["key_rope"] = jnp.zeros((*given["low_rank_main"].shape[:-1], c.config.qk_rope_head_dim), c.dtype)
    weights = {n: c.spread(n, w) for n, w in c.weights.items()}

    def backward(given, weights, cotangents):
        floats = {n: a for n, a in (given | weights).items() if is_float(a)}
        others = {n: a for n, a in given.items() if not is_float(a)}

        def run(floats):
            made = c.over_shards(forward, {**floats, **others})
            return {n: made[n] for n in cotangents}

        made, back = jax.vjp(run, floats)
        return back({n: d.astype(made[n].dtype) for n, d in cotangents.items()})[0]

    gradients = jax.jit(backward)(given, weights, cotangents)
    return {f"outputs/{n}_grad": g.sum(0, dtype=g.dtype) if n in WHOLE else g for n, g in gradients.items()}


# ---- functions of the mesh ----


def mla_arguments(c):
    config = c.config
    return {
        "qk_nope_head_dim": config.qk_nope_head_dim, "qk_rope_head_dim": config.qk_rope_head_dim, "rope_factor": config.rope_factor,
        "max_position_embeddings": config.max_position_embeddings, "mscale": config.mscale, "dtype": c.dtype, "config": config,
        "original_max_position_embeddings": config.original_max_position_embeddings, "mesh": c.mesh, "activation_pspec": ACTIVATIONS,
        "pairwise_swap_and_negate_mask": c.swap}


def whole_mla_arguments(c):
    return mla_arguments(c) | {"kv_lora_rank": c.config.kv_lora_rank, "num_query_heads": c.config.num_query_heads, "splash_kernel": c.attention}


def moe_arguments(c):
    factor = c.s.number("capacity_factor")
    return c.selection | c.sorting | {
        "mesh": c.mesh, "num_experts": c.config.num_experts, "num_expert_shards": c.parts, "config": c.config, "dtype": c.dtype,
        "normalization_layer_epsilon": c.config.normalization_layer_epsilon, "activation_pspec": ACTIVATIONS}, factor if factor > 0 else 2


def projection(c, function):
    """query_projection and kv_projection, which need the mesh for the sharding of their norms."""
    backward = function.endswith("_bwd")
    name = function[:-len("_bwd")] if backward else function
    query = name == "query_projection"
    weights = ATTENTION[:3] if query else ATTENTION[3:6]
    x, results = ("inputs_q", ["query"]) if query else ("inputs", ["key", "value"])
    more = mla_arguments(c)
    if query:
        more["epsilon"] = c.config.normalization_layer_epsilon
    else:
        for key in ("qk_rope_head_dim", "rope_factor", "max_position_embeddings", "mscale", "original_max_position_embeddings"):
            del more[key]
        more |= {"kv_lora_rank": c.config.kv_lora_rank, "kv_norm_epsilon": c.config.normalization_layer_epsilon,
                 "num_query_heads": c.config.num_query_heads}
    cotangents = tuple(c.rows(c.inputs[r + "_grad"] if backward else c.cotangents[r]) for r in results)

    def run(rows, angles, weights, cotangents):
        made, back = jax.vjp(lambda rows, *w: getattr(bs, name)(rows, angles, *w, **more), rows, *weights)
        return (made,) if query else made, back(cotangents[0] if query else cotangents)

    made, (d_rows, *d_weights) = jax.jit(run)(
        c.rows(c.inputs[x]), c.angles(c.inputs["yarn_freqs"]), [c.gathered(w) for w in weights], cotangents)
    of_weights = c.weight_gradients(dict(zip(weights, d_weights)))
    return answer(c, function, dict(zip(results, map(c.by_shard, made))), {x: c.by_shard(d_rows)}, of_weights)


def added(c, name, gradient):
    """A weight's gradient over all shards."""
    if name in WHOLE:
        return gradient
    if name not in EXPERTS:
        return gradient.sum(0, dtype=gradient.dtype)
    same = gradient.reshape(-1, c.parts, *gradient.shape[1:]).sum(0, dtype=gradient.dtype)
    return same.reshape(-1, *same.shape[2:])


def answer(c, function, made, d_inputs, d_weights):
    """Results by their paths, of a function or of its backward."""
    if function.endswith("_bwd"):
        return {f"outputs/{n}_grad": g for n, g in (d_inputs | d_weights).items()}
    return {**{"outputs/" + n: v for n, v in made.items()}, **{"gradients/inputs/" + n: g for n, g in d_inputs.items()},
            **{"gradients/weights/" + n: added(c, n, g) for n, g in d_weights.items()}}


def flash(c, function):
    more = {"mesh": c.mesh, "splash_kernel": c.attention, "activation_pspec": ACTIVATIONS}
    q, k, v = (c.rows(c.inputs[n]) for n in ("query", "key", "value"))
    made = {}
    if function == "tpu_flash_attention":
        out, lse = jax.jit(lambda q, k, v: bs.tpu_flash_attention(q, k, v, **more))(q, k, v)
        made, d_out = {"attention_output": c.by_shard(out), "logsumexp": c.by_shard(lse)}, c.rows(c.cotangents["attention_output"])
    else:
        out, lse, d_out = (c.rows(c.inputs[n]) for n in ("attention_output", "logsumexp", "attention_output_grad"))
    back = jax.jit(lambda *a: bs.tpu_flash_attention_bwd(*a, **more))(d_out, q, k, v, out, lse)
    return answer(c, function, made, dict(zip(("query", "key", "value"), map(c.by_shard, back))), {})


def mla(c, function):
    more = whole_mla_arguments(c) | {
        "epsilon": c.config.normalization_layer_epsilon, "kv_norm_epsilon": c.config.normalization_layer_epsilon}
    rows, angles = c.rows(c.inputs["inputs"]), c.angles(c.inputs["yarn_freqs"])
    weights = tuple(c.gathered(w) for w in ATTENTION)
    made = {}
    if function == "mla":
        out, kept = jax.jit(lambda *a: bs.mla(*a, **more))(rows, angles, weights)
        made = {"out": c.by_shard(out), **{n: c.by_shard(a) for n, a in kept.items()}}
        kept, d_out = (kept["attn_out"], kept["lse"]), c.rows(c.cotangents["out"])
    elif function == "mla_remat":
        zeros = jnp.zeros((*c.inputs["inputs"].shape[:3], c.config.num_query_heads, c.s.count("v_head_dim")), c.dtype)
        kept = c.rows(zeros), c.rows(jnp.zeros((*zeros.shape[:2], zeros.shape[3], zeros.shape[2]), c.wide))
    else:
        kept, d_out = (c.rows(c.inputs["attn_out"]), c.rows(c.inputs["lse"])), c.rows(c.inputs["out_grad"])
    if function == "mla_remat":
        def again(rows, angles, weights, kept):
            _, backs = bs.mla_remat((rows, *kept), angles, weights, **more)
            return {n: backs[2].keywords[n] for n in ("query", "key", "value")}

        return answer(c, function, {n: c.by_shard(a) for n, a in jax.jit(again)(rows, angles, weights, kept).items()}, {}, {})

    def backward(rows, angles, weights, kept, d_out):
        _, backs = bs.mla_remat((rows, *kept), angles, weights, **more)
        return bs.mla_bwd(d_out, backs)

    d_rows, d_weights = jax.jit(backward)(rows, angles, weights, kept, d_out)
    return answer(c, function, made, {"inputs": c.by_shard(d_rows)}, c.weight_gradients(dict(zip(ATTENTION, d_weights))))


def mla_with_norms(c, function):
    more = whole_mla_arguments(c) | {"normalization_layer_epsilon": c.config.normalization_layer_epsilon}
    rows = c.microbatch_rows(c.inputs["inputs" if function == "mla_with_norms" else "layer_inputs"])
    angles = [c.angles(c.inputs["yarn_freqs"][:, i]) for i in range(c.microbatches)]
    weights = c.gathered("pre_attn_scale"), tuple(c.gathered(w) for w in ATTENTION)
    made = {}
    if function == "mla_with_norms":
        _, kept = jax.jit(lambda *a: bs.mla_with_norms(*a, **more))(rows, weights, angles)
        made = {n: c.by_microbatch(a) for n, a in kept.items()}
        kept, d_out = {n: kept[n] for n in ("attn_out", "lse")}, c.microbatch_rows(c.cotangents["mla_out"])
    elif function == "mla_with_norms_remat":
        heads = jnp.zeros((*c.inputs["layer_inputs"].shape[:4], c.config.num_query_heads, c.s.count("v_head_dim")), c.dtype)
        kept = {"attn_out": c.microbatch_rows(heads),
                "lse": c.microbatch_rows(jnp.zeros((*heads.shape[:3], heads.shape[4], heads.shape[3]), c.wide))}

        def again(rows, weights, angles, kept):
            _, backs = bs.mla_with_norms_remat({"layer_inputs": list(rows), **kept}, weights, angles, **more)
            return {n: [b[1][2].keywords[n] for b in backs] for n in ("query", "key", "value")}

        return answer(c, function, {n: c.by_microbatch(a) for n, a in jax.jit(again)(rows, weights, angles, kept).items()}, {}, {})
    else:
        kept = {n: c.microbatch_rows(c.inputs[n]) for n in ("attn_out", "lse")}
        d_out = c.microbatch_rows(c.inputs["mla_out_grad"])

    def backward(rows, weights, angles, kept, d_out):
        _, backs = bs.mla_with_norms_remat({"layer_inputs": list(rows), **kept}, weights, angles, **more)
        return bs.mla_with_norms_bwd(list(d_out), backs)

    d_rows, (d_scale, d_weights) = jax.jit(backward)(rows, weights, angles, kept, d_out)
    of_weights = c.weight_gradients({"pre_attn_scale": d_scale, **dict(zip(ATTENTION, d_weights))})
    return answer(c, function, made, {"inputs": c.by_microbatch(d_rows)}, of_weights)


def moe_weights(c):
    w = {n: c.gathered(n) for n in MOE}
    return w["post_attn_scale"], (w["gate_kernel"], w["gate_bias"]), (w["routed_w0"], w["routed_w1"], w["routed_wo"]), (
        w["shared_w0"], w["shared_w1"], w["shared_wo"])


def waiting(c, tensors, end):
    """What the second microbatch has, whose rows another function puts back, from tensors by name + end."""
    rows = {n: c.rows(tensors[n + end]) for n in ("moe_inputs", "routed_expert_out", "shared_expert_out")}
    ids = c.rows(np.zeros((c.shards, *c.ids_shape), c.dtype))  # a gradient of ids, which nothing reads
    return rows["moe_inputs"], rows["routed_expert_out"], rows["shared_expert_out"], ids


def schedule_outputs(c, outputs):
    first, (moe_inputs, routed, shared, ids) = outputs
    return {"xs": c.by_shard(first)[:, None], "moe_inputs": c.by_shard(moe_inputs), "routed_expert_out": c.by_shard(routed),
            "shared_expert_out": c.by_shard(shared), "selected_experts": c.by_shard(ids)}


def moe(c, function):
    """route_compute_unroute under its shard_map, which is moe; with the norms and MLA before it, batch_split_schedule."""
    c.s.need(c.microbatches == 2, "moe() has specs for two microbatches")
    schedule, backward = function.startswith("batch_split_schedule"), function.endswith("_bwd")
    name = "inputs" if schedule and not backward else "layer_inputs" if schedule else "mla_out" if backward else "xs"
    rows = c.microbatch_rows(c.inputs[name])
    more, factor = moe_arguments(c)
    c.s.need(not schedule or factor == 2, "batch_split_schedule has a capacity_factor of 2 in its code")
    one_device(c)
    b = c.inputs[name].shape[2]
    c.ids_shape = (b * c.length * c.parts, c.config.num_experts_per_tok)
    weights = moe_weights(c)
    if schedule:
        weights = (c.gathered("pre_attn_scale"), tuple(c.gathered(w) for w in ATTENTION)), weights
        angles = [c.angles(c.inputs["yarn_freqs"][:, i]) for i in range(c.microbatches)]
        more = {"mesh": c.mesh, "cfg": c.config, "splash_kernel": c.attention, "activation_pspec": ACTIVATIONS,
                "pairwise_swap_and_negate_mask": c.swap}
    made = {}
    if not backward:
        if schedule:
            outputs, kept = jax.jit(lambda *a: bs.batch_split_schedule(*a, **more))(rows, weights, angles)
        else:
            outputs, kept = jax.jit(lambda *a: bs.moe(*a, capacity_factor=factor, **more))(rows, weights)
            kept["mla_out"] = rows
        made = schedule_outputs(c, outputs) | {n: c.by_microbatch(a) for n, a in kept.items() if n not in ("layer_inputs", *(
            () if schedule else ("mla_out",)))}
        tensors, end = c.cotangents, ""
    else:
        names = ("mla_out", "mlpwi_0", "mlpwi_1") + (("layer_inputs", "attn_out", "lse") if schedule else ())
        kept, tensors, end = {n: c.microbatch_rows(c.inputs[n]) for n in names}, c.inputs, "_grad"
    d_outputs = [c.rows(tensors["xs" + end][:, 0]), waiting(c, tensors, end)]

    def back(kept, d_outputs, weights, angles):
        if schedule:
            return bs.batch_split_schedule_bwd(dict(kept), list(d_outputs), weights, angles, **more)
        return bs.moe_bwd(dict(kept), list(d_outputs), weights, **more)

    d_rows, d_weights = jax.jit(back)(kept, d_outputs, weights, angles if schedule else ())
    # the tuples of weights hold the same names in the same order
    names = (("pre_attn_scale", *ATTENTION) if schedule else ()) + MOE
    of_weights = c.weight_gradients(dict(zip(names, jax.tree.leaves(d_weights))))
    return answer(c, function, made, {"xs" if not schedule else "inputs": c.by_microbatch(d_rows)}, of_weights)


def yarn_tables(c, function):
    config = c.config
    if function == "initialize_yarn_mask":
        return {"outputs/mask": c.swap.astype(c.dtype)}  # -1, 0 and 1
    freqs = jax.jit(lambda positions: bs.initialize_yarn_freqs(
        positions, config.qk_rope_head_dim, config.rope_max_timescale, config.max_position_embeddings,
        config.original_max_position_embeddings, config.beta_fast, config.beta_slow, config.rope_factor, c.mesh, ACTIVATIONS))(
            c.rows(c.inputs["positions"]))
    return {"outputs/yarn_freqs": c.by_shard(freqs[:, :, 0])}


def fetch_weights(c, function):
    params = parameters({n: c.inputs["params/" + n] for n in BUNDLE})
    return {"outputs/weights/" + n: w for n, w in leaves(bs.fetch_weights(params, c.dtype)).items()}


def parameters(p):
    """A layer's parameters as MaxText's modules have them, from weights by name."""
    kernel = lambda name: {"kernel": p[name]}
    scale = lambda name: {"scale": p[name]}
    return {
        "pre_self_attention_layer_norm": scale("pre_attn_norm"), "post_self_attention_layer_norm": scale("post_attn_norm"),
        "self_attention": {"q_norm": scale("q_norm"), "kv_norm": scale("kv_norm"),
                           **{n: kernel(n) for n in ("wq_a", "wq_b", "wkv_a", "wkv_b", "out")}},
        "DeepSeekMoeBlock_0": {
            "MoeBlock_0": {"gate": {"kernel": p["gate"], "bias": p["bias"]}, "wi_0": p["routed_wi_0"], "wi_1": p["routed_wi_1"],
                           "wo": p["routed_wo"]},
            "shared_experts": {"wi_0": kernel("shared_wi_0"), "wi_1": kernel("shared_wi_1"), "wo": kernel("shared_wo")}}}


def layer_weights(c, function):
    """One layer's weights out of all, or its gradients into all."""
    axis = c.config.param_scan_axis

    def stacked(prefix):
        placed = {}
        for n in BUNDLE:
            spec = list(bundle_spec(n, "fe"))
            spec.insert(axis, None)
            placed[n] = jax.device_put(c.inputs[prefix + n], NamedSharding(c.mesh, P(*spec)))
        return tree(placed)

    index = c.inputs["layer_idx"]
    if function == "extract_layer_weights":
        made = jax.jit(lambda w, i: bs.extract_layer_weights(w, i, axis))(stacked("all_weights/"), index)
        return {"outputs/weights/" + n: c.pieces(w) for n, w in leaves(made).items()}
    made = jax.jit(lambda w, g, i: bs.insert_layer_ws_grad(w, g, i, axis))(stacked("all_ws_grad/"), scattered(c, "ws_grad/"), index)
    return {"outputs/all_ws_grad/" + n: np.asarray(w) for n, w in leaves(made).items()}


def collectives(c, function):
    if function == "gather_weights":
        made = jax.jit(lambda w: bs.gather_weights(w, c.mesh))(scattered(c, "weights/"))
    elif function == "reduce_scatter_ws_grad":
        one_device(c)
        unreduced = {n: bundle_spec(n, "e", unreduced=set(AXES[:2] if "e" in BUNDLE[n] else AXES)) if "f" in BUNDLE[n] else P(None)
                     for n in BUNDLE}
        grads = tree({n: c.array(c.inputs["ws_grad/" + n], unreduced[n]) for n in BUNDLE})
        made = jax.jit(lambda g: bs.reduce_scatter_ws_grad(g, c.mesh))(grads)
    else:
        made = jax.jit(lambda g: bs.all_reduce_ws_grad_dcn(g, c.mesh))(scattered(c, "ws_grad/", unreduced={"data"}))
    to = "weights" if function == "gather_weights" else "ws_grad"
    return {f"outputs/{to}/{n}": c.pieces(w) for n, w in leaves(made).items()}


MESH = {
    "query_projection": projection, "kv_projection": projection, "tpu_flash_attention": flash, "mla": mla, "mla_remat": mla,
    "mla_with_norms": mla_with_norms, "mla_with_norms_remat": mla_with_norms, "route_compute_unroute": moe, "batch_split_schedule": moe,
    "initialize_yarn_mask": yarn_tables, "initialize_yarn_freqs": yarn_tables, "fetch_weights": fetch_weights,
    "extract_layer_weights": layer_weights, "insert_layer_ws_grad": layer_weights, "gather_weights": collectives,
    "reduce_scatter_ws_grad": collectives, "all_reduce_ws_grad_dcn": collectives}


# ---- the schedule as a whole: batch_split_layer and scan_batch_split_layers ----

LAYER = {
    "pre_attn_norm": "pre_self_attention_layer_norm/scale", "post_attn_norm": "post_self_attention_layer_norm/scale",
    "q_norm": "self_attention/q_norm/scale", "kv_norm": "self_attention/kv_norm/scale",
    **{n: f"self_attention/{n}/kernel" for n in ("wq_a", "wq_b", "wkv_a", "wkv_b", "out")}, "gate": "moe/gate/kernel", "bias": "moe/gate/bias",
    **{"routed_" + n: "moe/" + n for n in ("wi_0", "wi_1", "wo")}, **{f"shared_{n}": f"moe/shared_experts/{n}/kernel" for n in ("wi_0", "wi_1", "wo")}}


def run_schedule(request, dtype):
    """deepseek_layer and deepseek_stack under the schedule; a stack's layers lie along axis 0 (param_scan_axis)."""
    s, t = request.settings, request.tensors
    stack = request.op.endswith("stack")
    s.need(s.count("batch_split_factor") == 2, "moe() has specs for two microbatches")
    s.need(not stack or s.count("first_num_dense_layers") == 0, "no dense layers before the schedule here")
    s.need(not any("selected_experts" in p for p in t), "a layer has its router's choice")
    c = Call(request, jnp.dtype(dtype))
    one_device(c)
    layers = s.count("base_num_decoder_layers") if stack else 1

    def placed(name):
        of_layers = [jnp.asarray(t[f"weights/layers/{i}/" * stack + "weights/" * (not stack) + LAYER[name]], c.dtype) for i in range(layers)]
        spec = bundle_spec(name, "fe")
        value = jnp.stack(of_layers) if stack else of_layers[0]
        return jax.device_put(value, NamedSharding(c.mesh, P(None, *spec.partitions) if stack else spec))

    rows = NamedSharding(c.mesh, P(AXES, None, None))
    x, dy = (jax.device_put(jnp.asarray(t[p], c.dtype), rows) for p in ("inputs/x", "cotangents/y"))
    positions = jax.device_put(jnp.asarray(t["inputs/positions"]), NamedSharding(c.mesh, P(AXES, None)))
    more = {"mesh": c.mesh, "cfg": c.config} | ({"num_layers": layers} if stack else {})
    function = bs.scan_batch_split_layers if stack else bs.batch_split_layer
    original, bs.init_splash_kernel = bs.init_splash_kernel, lambda config: c.attention
    try:
        with jax.set_mesh(c.mesh):
            def run(x, weights, dy):
                y, back = jax.vjp(lambda x, w: function(x, parameters(w), positions, **more), x, weights)
                return y, back(dy)

            y, (d_x, d_weights) = jax.jit(run)(x, {n: placed(n) for n in BUNDLE}, dy)
    finally:
        bs.init_splash_kernel = original
    made = {"outputs/y": np.asarray(y), "gradients/inputs/x": np.asarray(d_x)}
    for name, path in LAYER.items():
        for i in range(layers):
            g = np.asarray(d_weights[name])
            made["gradients/weights/" + (f"layers/{i}/" if stack else "") + path] = g[i] if stack else g
    return made


def one_device(c):
    c.s.need(c.shards > 1, "JAX 0.12.0.1 does not lower sums that are still to be made (unreduced) on a mesh of one device")


def run(request, dtype):
    dtype = jnp.dtype(dtype)
    function = request.settings["function"].replace("moe", "route_compute_unroute")
    name = function[:-len("_bwd")] if function.endswith("_bwd") else function
    c = Call(request, dtype)
    if name in MESH:
        with jax.set_mesh(c.mesh):
            made = MESH[name](c, function)
    elif function in local_backwards(c):
        made = {"outputs/" + n: v for n, v in jax.jit(lambda tensors: c.over_shards(local_backwards(c)[function], tensors))(c.inputs).items()}
    elif function.endswith("_bwd"):
        made = run_local_backward(c, function)
    elif function.endswith("_remat"):
        made = run_local(c, function[:-len("_remat")])
    else:
        made = run_local(c, function)
    # route() rolls ids by a float, num_experts / num_expert_shards, so they come back as floats
    return {p: made[p].astype(np.int32) if p.endswith(("/selected_experts", "/indices", "/group_sizes")) else made[p] for p in request.expects}
