"""Results of PyTorch: those that a request asks for, gradients by autograd from its cotangents, and how they are stored."""
import numpy as np
import torch

from request import Bfloat16, Unsupported


def with_gradients(made, tensors, expects, optional=()):
    """Of outputs by path those that are expected, with the routing's, and the gradients of `tensors`. What begins with a word of `optional` may be missing."""
    ends = [(value, tensors["cotangents" + path[7:]]) for path, value in made.items() if "cotangents" + path[7:] in tensors]
    ends = [(value, d.to(value.dtype)) for value, d in ends if value.requires_grad]
    if ends and any(path.startswith("gradients/") for path in expects):
        torch.autograd.backward(*zip(*ends))
    results = {path: value for path, value in made.items() if path.startswith("routing/") or path in expects}
    for path in expects:
        of = tensors.get(path.removeprefix("gradients/"))
        if path.startswith("gradients/") and of is not None:
            results[path] = torch.zeros_like(of) if of.grad is None else of.grad
        if path not in results and not path.startswith(tuple(optional)):
            raise Unsupported("no " + path)
    return results


def stored(tensor):
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return Bfloat16(tensor.view(torch.int16).numpy().view(np.uint16))
    return (tensor.int() if tensor.dtype == torch.int64 else tensor).numpy()
