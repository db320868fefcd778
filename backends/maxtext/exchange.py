"""What MaxText calls and a processor does not have.

jax.lax.ragged_all_to_all: everybody gets everything, and takes what is for it. In float64 megablox' gmm, which is of bfloat16 and float32:
jax.lax.ragged_dot of the groups that the kernel has; rows of other groups are 0, as megablox leaves them out.
"""
import contextlib

import jax
import jax.numpy as jnp

from maxtext.layers import moe


def ragged_all_to_all(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name, axis_index_groups=None):
    """Shard s sends its rows input_offsets[r] and on, send_sizes[r] of them, to shard r, where they begin at row output_offsets[r] of the output."""
    me = jax.lax.axis_index(axis_name)
    sent = jax.lax.all_gather(operand, axis_name)
    begins, sizes, places = (jax.lax.all_gather(v, axis_name)[:, me] for v in (input_offsets, send_sizes, output_offsets))
    rows = jnp.arange(output.shape[0])
    for sender in range(sent.shape[0]):
        at = rows - places[sender]
        mine = (at >= 0) & (at < sizes[sender])
        taken = jnp.take(sent[sender], jnp.clip(begins[sender] + at, 0, operand.shape[0] - 1), axis=0)
        output = jnp.where(mine[:, None], taken, output)
    return output


def ragged_gmm(lhs, rhs, group_sizes, preferred_element_type, *, group_offset, partial_sum=None, **_):
    """group_offset is 0 wherever MaxText sorts the rows of its own experts first."""
    y = jax.lax.ragged_dot(lhs, rhs, group_sizes[:rhs.shape[0]].astype(jnp.int32), preferred_element_type=preferred_element_type)
    return y if partial_sum is None else y + partial_sum


@contextlib.contextmanager
def replaced(dtype: str):
    """While MaxText's modules are traced, which look these functions up then."""
    originals = jax.lax.ragged_all_to_all, moe.mblx.gmm
    jax.lax.ragged_all_to_all = ragged_all_to_all
    if dtype == "float64":
        moe.mblx.gmm = ragged_gmm
    try:
        yield
    finally:
        jax.lax.ragged_all_to_all, moe.mblx.gmm = originals
