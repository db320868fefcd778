"""Functions of jax.nn, flax, optax and MaxText as they stand, as programs (docs/programs.md): traced, and held against themselves in float32.

usage: traced.py [WORD]: of those whose name has the word
"""
import sys
import warnings

warnings.filterwarnings("ignore")

import assay
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from maxtext.layers import attention_op, embeddings, moe, normalizations
from maxtext.models import qwen3

COUNTS = {"position": 100, "ids": 8, "labels": 8}
CASES = []


def numbers(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def whole(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


X, PAIR = {"x": numbers(5, 8)}, {"predictions": numbers(5, 8), "targets": numbers(5, 8)}
HEADS = {"q": numbers(2, 6, 4, 8), "k": numbers(2, 6, 4, 8), "v": numbers(2, 6, 4, 8)}
TURNED = {"inputs": numbers(2, 6, 4, 8), "position": whole(2, 6)}
DELTA = {"query": numbers(1, 8, 2, 4), "key": numbers(1, 8, 2, 4), "value": numbers(1, 8, 2, 4), "g": numbers(1, 8, 2), "beta": numbers(1, 8, 2)}


def case(name, function, example, weights=()):
    CASES.append((name, function, example, weights))


def module(name, made, example):
    shapes = jax.eval_shape(lambda *given: made.init(jax.random.PRNGKey(0), *given), *example.values())["params"]
    flat, tree = jax.tree.flatten(shapes)
    names = [f"w{i}" for i in range(len(flat))]

    def function(**given):
        return made.apply({"params": jax.tree.unflatten(tree, [given[n] for n in names])}, *[given[n] for n in example])

    case("flax " + name, function, {**example, **{n: numbers(*v.shape) for n, v in zip(names, flat)}}, names)


def functions_of_jax():
    for name in ("relu", "relu6", "sigmoid", "softplus", "soft_sign", "silu", "log_sigmoid", "leaky_relu", "hard_sigmoid", "hard_silu", "hard_tanh", "elu", "celu", "selu",
                 "gelu", "glu", "squareplus", "mish", "sparse_plus", "softmax", "log_softmax", "logsumexp", "standardize"):
        case("jax.nn." + name, getattr(jax.nn, name), X)
    case("jax.nn.one_hot", lambda ids, x: jax.nn.one_hot(ids, 8) * x, {"ids": whole(5), **X})
    case("jax.nn.dot_product_attention", lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), HEADS)


def functions_of_flax():
    module("Dense", nn.Dense(6), X)
    module("DenseGeneral", nn.DenseGeneral((2, 3)), X)
    module("LayerNorm", nn.LayerNorm(), X)
    module("RMSNorm", nn.RMSNorm(), X)
    module("GroupNorm", nn.GroupNorm(num_groups=2), {"x": numbers(5, 6, 8)})
    module("Embed", nn.Embed(8, 6), {"ids": whole(5)})
    module("MultiHeadDotProductAttention", nn.MultiHeadDotProductAttention(num_heads=2), {"x": numbers(2, 6, 8)})
    case("flax dot_product_attention", nn.dot_product_attention, {"query": HEADS["q"], "key": HEADS["k"], "value": HEADS["v"]})
    case("flax make_causal_mask", lambda s: jnp.where(nn.make_causal_mask(jnp.ones((2, 6)))[:, 0], s, -1e9), {"s": numbers(2, 6, 6)})


def functions_of_optax():
    logits = {"logits": numbers(5, 8), "labels": numbers(5, 8)}
    case("optax.softmax_cross_entropy_with_integer_labels", optax.softmax_cross_entropy_with_integer_labels, {"logits": numbers(5, 8), "labels": whole(5)})
    for name in ("softmax_cross_entropy", "sigmoid_binary_cross_entropy", "sigmoid_focal_loss"):
        case("optax." + name, getattr(optax, name), logits)
    for name in ("l2_loss", "huber_loss", "cosine_similarity", "log_cosh"):
        case("optax." + name, getattr(optax, name), PAIR)
    case("optax.kl_divergence", lambda x, y: optax.kl_divergence(jax.nn.log_softmax(x), jax.nn.softmax(y)), {**X, "y": numbers(5, 8)})
    case("optax.smooth_labels", lambda x: optax.smooth_labels(x, 0.1), X)
    case("optax.global_norm", lambda x, y: optax.global_norm([x, y]), {**X, "y": numbers(3)})
    case("optax.safe_norm", lambda x: optax.safe_norm(x, 1e-6, axis=-1), X)


def functions_of_maxtext():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    keys = {"mesh": mesh, "embedding_dims": 8, "fprop_dtype": jnp.float32, "rngs": nnx.Rngs(0)}
    case("MaxText RotaryEmbedding", embeddings.RotaryEmbedding(min_timescale=1, max_timescale=10000, **keys), TURNED)
    case("MaxText LLaMARotaryEmbedding", embeddings.LLaMARotaryEmbedding(min_timescale=1, max_timescale=10000, use_scale=False, **keys), TURNED)
    case("MaxText YarnRotaryEmbedding", embeddings.YarnRotaryEmbedding(**keys), TURNED)
    positions = embeddings.PositionalEmbedding(8, 10000)
    case("MaxText PositionalEmbedding", lambda x, position: x + positions(x, position), {"x": numbers(2, 6, 8), "position": whole(2, 6)})
    norm = normalizations.RMSNorm(num_features=8, dtype=jnp.float32, weight_dtype=jnp.float32, rngs=nnx.Rngs(0))

    def rms_norm(x, scale):
        graph, _ = nnx.split(norm)
        return nnx.merge(graph, nnx.State({"scale": nnx.Param(scale)}))(x)

    case("MaxText RMSNorm", rms_norm, {**X, "scale": numbers(8)})
    case("MaxText l2norm", normalizations.l2norm, X)
    case("MaxText apply_mask_to_logits", attention_op.apply_mask_to_logits, {"logits": numbers(2, 6, 6), "mask": numbers(2, 6, 6)})
    case("MaxText jax_chunk_gated_delta_rule", lambda *x: qwen3.jax_chunk_gated_delta_rule(*x, chunk_size=4)[0], DELTA)
    case("MaxText calculate_load_balance_updates", lambda ids, x: moe.calculate_load_balance_updates(ids, 8, 0.01) + x, {"ids": whole(12, 2), "x": numbers(8)})


def verdict(function, example, weights):
    """ok, what it was refused for, or what it gives that the program does not."""
    names = list(example)
    try:
        made = assay.trace(lambda **x: function(*x.values()) if weights == () else function(**x), example, weights=weights, integers={n: COUNTS[n] for n in names if n in COUNTS}, dtype="float32").case("f32")
    except assay.BadInput as why:
        return "refused: " + str(why).split("site-packages/")[-1].split("traced.py")[-1]
    given = {path.split("/")[1]: x for path, x in made.inputs(jax).items() if "constant" not in path}
    result = function(*given.values()) if weights == () else function(**given)
    try:
        with jax.default_matmul_precision("highest"):
            made.check({f"outputs/y{i}": y for i, y in enumerate(result)} if isinstance(result, tuple) else {"outputs/y": result}, gradients=False)
    except assay.Mismatch as wrong:
        return "FAIL: " + wrong.headline
    return "ok"


def main():
    for section in (functions_of_jax, functions_of_flax, functions_of_optax, functions_of_maxtext):
        section()
    found = []
    for name, function, example, weights in [c for c in CASES if not sys.argv[1:] or sys.argv[1] in c[0]]:
        found.append(verdict(function, example, weights))
        print(f"{name:50} {found[-1]}", flush=True)
    print(f"{found.count('ok')} of {len(found)} pass")
    return any(f.startswith("FAIL") for f in found)


if __name__ == "__main__":
    sys.exit(main())
