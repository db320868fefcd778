"""A case as this shell's operations see it: settings, and tensors in the type of the run."""
from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from request import Request

Tensors = dict[str, jnp.ndarray]
Operation = tuple[Callable[[Tensors, Tensors], tuple[Tensors, Tensors]], Tensors, Tensors]


class Case:
    def __init__(self, request: Request, dtype: jnp.dtype, form: str):
        self.s, self.dtype, self.form, self.op = request.settings, dtype, form, request.op
        self.raw, self.expects = request.tensors, request.expects
        self.tensors = {path: jnp.asarray(value, value.dtype if value.dtype.kind in "iu" else dtype) for path, value in request.tensors.items()}
        self.given = {path: value for path, value in self.tensors.items()
                      if path.startswith(("inputs/", "weights/")) and jnp.issubdtype(value.dtype, jnp.floating)}

    def forms(self, *names: str) -> None:
        self.s.need(self.form in names, f"{self.form} has no {self.op}")

    def unquantised(self) -> None:
        self.s.need("quant_formats" not in self.s.text and not self.s.text.get("quant_recipe"), "no quantised operands")
        self.s.need(not self.s.text.get("quant_hidden_format"), "no requantised h")

    def has_gradient_of(self, path: str) -> bool:
        """Whether anything comes back through this output."""
        return bool(np.any(self.raw["cotangents/" + path] != 0)) and any(p.startswith("gradients/") for p in self.expects)
