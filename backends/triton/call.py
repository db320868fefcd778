"""The tensors of one case, as PyTorch has them, and the results that it asks for."""
import numpy as np
import torch

from request import Request


class Call:
    def __init__(self, request: Request, dtype: torch.dtype):
        self.s, self.dtype, self.op, self.expects = request.settings, dtype, request.op, request.expects
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.t = {path: self.tensor(path, value) for path, value in request.tensors.items()}

    def tensor(self, path, value):
        """What a router sees and makes stays wide, as the profiles say."""
        made = torch.from_numpy(np.array(value))
        if not made.is_floating_point():
            return made
        router = "/gate/" in path or path.endswith(("inputs/logits", "cotangents/weights", "_loss"))
        made = made.to(self.wide if router else self.dtype)
        return made.requires_grad_(path.startswith(("inputs/", "weights/")))

    def under(self, prefix):
        return {path[len(prefix):]: tensor for path, tensor in self.t.items() if path.startswith(prefix)}

    def forward_only(self):
        self.s.need(not any(path.startswith("gradients/") for path in self.expects), "no backward")
