"""The operations of docs/operations.md by JAX's, tokamax's and qwix's functions; gradients are jax.vjp's.

An operation gives (function, given, rest): function(given, rest) -> (outputs, beside), both by their paths. `given` is what is differentiated,
`beside` are results that the library gives no gradient of. Functions come from cached makers, so cases of one shape share a compilation.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import tokamax
from flax import linen

import attention_forms
import gmm_forms
import qwix_forms
from case import Case, Operation, Tensors
from request import Request, Unsupported

FORMS = ("jax", "megablox", "splash", "splash_fused", "tokamax", "tokamax_gmm", "tokamax_splash", "qwix", "qwix_reciprocal")


def gelu_exact(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def linear(x: jax.Array) -> jax.Array:
    return x


ACTIVATIONS = {"silu": jax.nn.silu, "gelu": jax.nn.gelu, "gelu_exact": gelu_exact, "relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid, "linear": linear}


@functools.cache
def rms_norm_by(form: str, epsilon: float) -> Callable:
    def norm(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        x, scale = given["inputs/x"], given["weights/scale"]
        if form == "tokamax":
            y = tokamax.layer_norm(x, scale, None, epsilon=epsilon, subtract_mean=False, implementation="xla")
        else:
            y = linen.RMSNorm(epsilon=epsilon, dtype=x.dtype, param_dtype=x.dtype).apply({"params": {"scale": scale}}, x)
        return {"outputs/y": y}, {}

    return norm


def rms_norm(c: Case) -> Operation:
    c.forms("jax", "tokamax")
    return rms_norm_by(c.form, c.s.number("normalization_layer_epsilon")), c.given, {}


@functools.cache
def mlp_by(form: str, names: tuple[str, str]) -> Callable:
    gate, up = (ACTIVATIONS[name] for name in names)

    def dense(given: Tensors, name: str, x: jax.Array) -> jax.Array:
        kernel, bias = given[f"weights/{name}/kernel"], given.get(f"weights/{name}/bias")
        if name == "wi" and "weights/wi_0/bias" in given:
            bias = jnp.concatenate([given["weights/wi_0/bias"], given["weights/wi_1/bias"]])
        module = linen.Dense(kernel.shape[-1], use_bias=bias is not None, dtype=x.dtype, param_dtype=x.dtype)
        return module.apply({"params": {"kernel": kernel} | ({} if bias is None else {"bias": bias})}, x)

    def hidden(given: Tensors, x: jax.Array) -> jax.Array:
        fused = "weights/wi/kernel" in given
        if form == "tokamax":
            kernel = given.get("weights/wi/kernel")
            weights = kernel.reshape(len(kernel), 2, -1) if fused else (given["weights/wi_0/kernel"], given["weights/wi_1/kernel"])
            return tokamax.gated_linear_unit(x, weights, activation=gate, implementation="xla")
        a, b = jnp.split(dense(given, "wi", x), 2, -1) if fused else (dense(given, "wi_0", x), dense(given, "wi_1", x))
        return gate(a) * up(b)

    def mlp(given: Tensors, rest: Tensors) -> tuple[Tensors, Tensors]:
        h = hidden(given, given["inputs/x"])
        return {"outputs/y": dense(given, "wo", h)}, {"checkpoints/mlp_intermediate": h}

    return mlp


def mlp(c: Case) -> Operation:
    s = c.s
    if c.form == "qwix":
        return qwix_forms.mlp(c, ACTIVATIONS)
    c.forms("jax", "tokamax")
    c.unquantised()
    s.need(s.number("mlp_activations_limit") == 0 and s["decoder_block"] != "gpt_oss", "no clamped unit")
    names = tuple(s.words("mlp_activations"))
    if c.form == "tokamax":
        s.need(names[1] == "linear", "gated_linear_unit has one activation")
        s.need(not any("wi" in path and path.endswith("/bias") for path in c.given), "gated_linear_unit has no biases")
    return mlp_by(c.form, names), c.given, {}


OPERATIONS: dict[str, Callable[[Case], Operation]] = {
    "rms_norm": rms_norm, "mlp": mlp, "gmm": gmm_forms.gmm, "attention": attention_forms.attention,
    "quantize": qwix_forms.quantize, "dequantize": qwix_forms.dequantize}


def traced_for(function: Callable) -> contextlib.AbstractContextManager:
    """The device that a function has to believe it is on, where it asks."""
    return jax.sharding.use_abstract_mesh(function.mesh) if hasattr(function, "mesh") else contextlib.nullcontext()


@functools.partial(jax.jit, static_argnums=0)
def forward(function: Callable, given: Tensors, rest: Tensors) -> Tensors:
    with traced_for(function):
        outputs, beside = function(given, rest)
    return outputs | beside


@functools.partial(jax.jit, static_argnums=0)
def forward_and_backward(function: Callable, given: Tensors, rest: Tensors, cotangents: Tensors) -> Tensors:
    with traced_for(function):
        outputs, backward, beside = jax.vjp(lambda given: function(given, rest), given, has_aux=True)
        (gradients,) = backward({path: cotangents[path].astype(y.dtype) for path, y in outputs.items()})
    return outputs | beside | {"gradients/" + path: gradient for path, gradient in gradients.items()}


def run(request: Request, dtype: jnp.dtype, form: str) -> dict[str, jax.Array]:
    """The results that the request expects."""
    s = request.settings
    s.need(request.op in OPERATIONS, "no " + request.op)
    s.need_no_mesh()
    c = Case(request, dtype, form)
    function, given, rest = OPERATIONS[request.op](c)
    try:
        if any(path.startswith("gradients/") for path in request.expects):
            ends = {path.replace("cotangents", "outputs", 1): value for path, value in c.tensors.items() if path.startswith("cotangents/")}
            made = forward_and_backward(function, given, rest, ends)
        else:
            made = forward(function, given, rest)
    except NotImplementedError as error:  # what the library says of itself
        raise Unsupported(str(error).splitlines()[0]) from error
    for path in request.expects:
        s.need(path in made, "no " + path)
    return {path: made[path] for path in request.expects}
