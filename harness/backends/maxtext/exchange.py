"""jax.lax.ragged_all_to_all where XLA has none (on processors): everybody gets everything, and takes what is for it."""
import contextlib

import jax
import jax.numpy as jnp


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


@contextlib.contextmanager
def gathered():
    """MaxText's modules look the function up in jax.lax when they are traced."""
    original, jax.lax.ragged_all_to_all = jax.lax.ragged_all_to_all, ragged_all_to_all
    try:
        yield
    finally:
        jax.lax.ragged_all_to_all = original
