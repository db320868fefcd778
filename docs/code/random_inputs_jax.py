"""`bell` of docs/random-inputs.md in JAX, with 32-bit types alone, under jit too: a fused multiply and add changes nothing."""
import math

import jax.numpy as jnp


def multiply(a, x):
    """The high and the low 32 bits of a x; `a` is a number, x an array of uint32."""
    a_low, a_high = jnp.uint32(a & 0xFFFF), jnp.uint32(a >> 16)
    x_low, x_high = x & jnp.uint32(0xFFFF), x >> jnp.uint32(16)
    first = a_high * x_low + (a_low * x_low >> jnp.uint32(16))
    second = a_low * x_high + (first & jnp.uint32(0xFFFF))
    return a_high * x_high + (first >> jnp.uint32(16)) + (second >> jnp.uint32(16)), jnp.uint32(a) * x


def words_32(key, stream, first, count):
    """Words first to first + count - 1 of a stream, both multiples of 4."""
    start = first // 4
    x0 = jnp.arange(count // 4, dtype=jnp.uint32) + jnp.uint32(start & 0xFFFFFFFF)
    x1 = (x0 < jnp.uint32(start & 0xFFFFFFFF)).astype(jnp.uint32) + jnp.uint32(start >> 32)
    x2, x3 = jnp.full_like(x0, stream), jnp.zeros_like(x0)
    for i in range(10):
        high_0, low_0 = multiply(0xD2511F53, x0)
        high_1, low_1 = multiply(0xCD9E8D57, x2)
        x0, x1 = high_1 ^ x1 ^ jnp.uint32((key + i * 0x9E3779B9) & 0xFFFFFFFF), low_1
        x2, x3 = high_0 ^ x3 ^ jnp.uint32(((key >> 32) + i * 0xBB67AE85) & 0xFFFFFFFF), low_0
    return jnp.stack([x0, x1, x2, x3], axis=-1).reshape(count)


def bells_32(key, first, count, scale, mean):
    """Elements in float32; .astype(jnp.bfloat16) rounds them to that type."""
    w = words_32(key, 0, first, count)
    total = sum((w >> jnp.uint32(shift) & jnp.uint32(255)) for shift in (0, 8, 16, 24)).astype(jnp.int32) - 510
    part, exponent = math.frexp(scale / math.sqrt(21845))
    step = math.ldexp(round(math.ldexp(part, 15)), exponent - 15)
    return jnp.float32(mean) + jnp.float32(step) * total.astype(jnp.float32)
