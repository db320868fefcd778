"""The same function in PyTorch and in JAX is the same program: the numbers of one of the catalogue, bit for bit."""
import assay
import numpy as np
import pytest


def swiglu_torch(x, token_scale, gate, up):
    g = x @ gate
    u = x @ up
    return {"h": torch.nn.functional.silu(g) * u * token_scale[:, None]}


def swiglu_jax(x, token_scale, gate, up):
    g = x @ gate
    u = x @ up
    return {"h": jax.nn.silu(g) * u * token_scale[:, None]}


def cross_entropy_torch(x, target, head):
    logits = x @ head
    return {"loss": torch.logsumexp(logits, -1) - logits.gather(-1, target.long()[:, None])[:, 0]}


def cross_entropy_jax(x, target, head):
    logits = x @ head
    return {"loss": jax.nn.logsumexp(logits, -1) - jax.numpy.take_along_axis(logits, target[:, None], -1)[:, 0]}


def lora(x, w, a, b):
    low = x @ a
    return x @ w + (low @ b) * 2


def merge_states_torch(first, second, first_lse, second_lse):
    d = first_lse - second_lse
    p = torch.sigmoid(d)
    q = torch.sigmoid(-d)
    lse = torch.maximum(first_lse, second_lse) + torch.nn.functional.softplus(-d.abs())
    return {"out": first * p[..., None] + second * q[..., None], "lse": lse}


def merge_states_jax(first, second, first_lse, second_lse):
    d = first_lse - second_lse
    p = jax.nn.sigmoid(d)
    q = jax.nn.sigmoid(-d)
    lse = jax.numpy.maximum(first_lse, second_lse) + jax.nn.softplus(-jax.numpy.abs(d))
    return {"out": first * p[..., None] + second * q[..., None], "lse": lse}


def sinkhorn(e):
    a = e / e.sum(1, keepdims=True)
    b = a / a.sum(0, keepdims=True)
    c = b / b.sum(1, keepdims=True)
    return c / c.sum(0, keepdims=True)


def hyper_connections_torch(streams, mixing):
    return torch.einsum("ij,tjd->tid", sinkhorn(torch.exp(mixing)), streams)


def hyper_connections_jax(streams, mixing):
    return jax.numpy.einsum("ij,tjd->tid", sinkhorn(jax.numpy.exp(mixing)), streams)


def top_k_softmax_torch(x, gate, experts):
    logits = x @ gate
    best, ids = torch.topk(logits, 3)
    weights = torch.softmax(best, -1)
    return {"y": torch.einsum("tk,tkf->tf", weights, experts[ids]), "ids": ids}


def top_k_softmax_jax(x, gate, experts):
    logits = x @ gate
    best, ids = jax.lax.top_k(logits, 3)
    weights = jax.nn.softmax(best)
    return {"y": jax.numpy.einsum("tk,tkf->tf", weights, experts[ids]), "ids": ids}


def causal_conv_torch(x, taps):
    x = x.transpose(1, 2)
    y = torch.nn.functional.conv1d(x, taps[:, None], padding=3, groups=x.shape[1])[..., : x.shape[2]]
    return torch.nn.functional.silu(y).transpose(1, 2)


def causal_conv_jax(x, taps):
    y = jax.lax.conv_general_dilated(x, taps[:, None], (1,), [(3, 0)], dimension_numbers=("NTC", "OIT", "NTC"), feature_group_count=x.shape[-1])
    return jax.nn.silu(y)


def add_norm_torch(x, residual, scale):
    s = x + residual
    return {"sum": s, "y": s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6) * scale}


def add_norm_jax(x, residual, scale):
    s = x + residual
    return {"sum": s, "y": s * jax.lax.rsqrt((s * s).mean(-1, keepdims=True) + 1e-6) * scale}


torch = jax = None
CASES = {  # the seed, what is fused, and how some inputs are filled
    "swiglu": (8, [], ""),
    "add-norm": (9, [], ""),
    "cross-entropy": (10, ["logits"], ""),
    "lora": (11, [], ""),
    "causal-conv": (12, [], ""),
    "merge-states": (13, ["d", "p", "q"], "_lse: {axes: [T, N], distribution: normal, scale: 3}"),
    "hyper-connections": (14, [], ""),
    "top-k-softmax": (21, [], ""),
}


def example_of(case, library):
    """Tensors as the case has them, by the names of arguments."""
    given = {path.split("/")[1]: x for path, x in case.inputs().items()}
    if library == "torch":
        return {name: torch.as_tensor(x) for name, x in given.items()}
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in given.items()}


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_a_function_is_a_program_of_the_catalogue(name, library):
    globals()[library] = pytest.importorskip(library)
    seed, fused, fill = CASES[name]
    base = name.replace("-", "_")
    function = globals().get(base) or globals()[f"{base}_{library}"]
    settings = {"dtype": "float64", "profiles": "f64", "checkpoints": "none"}
    case = assay.case("program/" + name, precision="f64", **settings)
    weights = [path.split("/")[1] for path in case.inputs() if path.startswith("weights/")]
    axes = {"first_lse": "TN", "second_lse": "TN"} if fill else {}
    keys = {**settings, "seed": seed, **({"fused": fused} if fused else {})}
    traced = assay.trace(function, example_of(case, library), weights=weights, integers={"target": 151}, axes=axes, name="program/" + name, **keys)
    mine = assay.Program(str(traced).replace("_lse: {axes: [T, N]}", fill)).case("f64")
    given, wanted = mine.inputs(), case.inputs()
    assert list(given) == list(wanted) and list(mine.expected) == list(case.expected)
    for path in wanted:
        np.testing.assert_array_equal(given[path], wanted[path], err_msg=path)
    for path in case.expected:
        np.testing.assert_array_equal(mine.golden(path), case.golden(path), err_msg=f"{path} of\n{traced}")
