"""Stores a tensor of PyTorch in an open h5py file: of bfloat16 and fp8 its bits. torch.from_numpy(given["inputs/x"][()]).to(torch.bfloat16)
reads an input exactly."""
import torch


def store(file, path, tensor):
    tensor = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")  # PyTorch before 2.1 has no float8 to name
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        bits = tensor.view(torch.int16 if name == "bfloat16" else torch.uint8).numpy()
        file[path] = bits.view(f"uint{8 * bits.itemsize}")
        file[path].attrs["float_type"] = name
    else:
        file[path] = tensor.numpy()
