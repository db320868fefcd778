"""--wide-casts: in MaxText's modules jnp.float32 is jnp.float64."""
import sys
import types

import jax.numpy as jnp


class Wide(types.ModuleType):
    """jax.numpy, but for one name."""

    float32 = jnp.float64

    def __getattr__(self, name):
        return getattr(jnp, name)


WIDE = Wide("jax.numpy")


def apply() -> None:
    """To every module of MaxText that is loaded by now."""
    for name, module in list(sys.modules.items()):
        if name.startswith("maxtext.") and getattr(module, "jnp", None) is jnp:
            module.jnp = WIDE
