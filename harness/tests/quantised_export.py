"""The weights of a golden whose kernels are codes, as checkpoints of Hugging Face have them, written without the program's own table.

usage: quantised_export.py GOLDEN FORM OUT.safetensors [WRONG]

FORM: deepseek (F8_E4M3 and weight_scale_inv), gpt_oss (_blocks and _scales), modelopt (two codes a byte, weight_scale, weight_scale_2,
input_scale), f4 (the same in safetensors' F4), mx (weight and weight_scale in F8_E8M0). WRONG: see spoil. Beside OUT comes OUT.h5, the
weights as they were."""

import sys
from pathlib import Path

import h5py
import numpy as np

from hugging_face_export import bf16_bits, interleave

ATTENTION = {"wq_a": "q_a_proj", "wq_b": "q_b_proj", "wkv_a": "kv_a_proj_with_mqa", "wkv_b": "kv_b_proj", "out": "o_proj"}
NORMS = {"q_norm": "q_a_layernorm", "kv_norm": "kv_a_layernorm"}
HALVES = {"wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
Tensors = dict[str, tuple[str, list[int], bytes]]


def put(tensors: Tensors, name: str, kind: str, values: np.ndarray, shape: list[int] | None = None) -> None:
    blob = bf16_bits(values) if kind == "BF16" else values
    tensors[name] = kind, list(values.shape) if shape is None else shape, np.ascontiguousarray(blob).tobytes()


def packed(codes: np.ndarray) -> np.ndarray:
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def put_kernel(tensors: Tensors, form: str, name: str, codes: np.ndarray, scale: np.ndarray, of_tensor: float | None) -> None:
    """codes [out, in], scale in blocks of the same."""
    if form in ("modelopt", "f4"):
        if form == "f4":
            put(tensors, name, "F4", packed(codes), list(codes.shape))
        else:
            put(tensors, name, "U8", packed(codes))
        put(tensors, name + "_scale", "F8_E4M3", scale)
        put(tensors, name + "_scale_2", "F32", np.array(of_tensor, np.float32))
        put(tensors, name.removesuffix("weight") + "input_scale", "F32", np.array(1.5, np.float32))
    elif form == "mx":
        put(tensors, name, "F8_E4M3", codes)
        put(tensors, name + "_scale", "F8_E8M0", scale)
    else:
        put(tensors, name, "F8_E4M3", codes)
        put(tensors, name + "_scale_inv", "F32", scale)


def turned(values: np.ndarray, inputs: int = 1) -> np.ndarray:
    return values.reshape(int(np.prod(values.shape[:inputs])), -1).T


def write(path: Path, tensors: Tensors) -> None:
    import json
    header, blobs, at = {}, [], 0
    for name, (kind, shape, blob) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def export(w: dict[str, np.ndarray], form: str, op: str, prefix: str) -> Tensors:
    tensors: Tensors = {}

    def kernel(name: str, path: str, expert: int | None = None, inputs: int = 1, part: slice = slice(None)) -> None:
        of = lambda end: w[path + end] if expert is None else w[path + end][expert]
        if path + "_scale" not in w:
            return put(tensors, name, "BF16", turned(of(""), inputs))
        scale_2 = w.get(path + "_tensor_scale")
        put_kernel(tensors, form, name, turned(of(""), inputs)[part], turned(of("_scale"))[part],
                   None if scale_2 is None else float(scale_2[expert or 0]))

    if op == "mla":
        for ours, theirs in ATTENTION.items():
            kernel(f"{prefix}.self_attn.{theirs}.weight", f"{ours}/kernel", inputs=2 if ours == "out" else 1)
        for ours, theirs in NORMS.items():
            put(tensors, f"{prefix}.self_attn.{theirs}.weight", "BF16", w[f"{ours}/scale"])
    if op == "mlp" and "wi/kernel" in w:
        for ours, theirs in (("wi_0", "gate_proj"), ("wi_1", "up_proj")):
            half = w["wi/kernel"].shape[1] // 2
            kernel(f"{prefix}.mlp.{theirs}.weight", "wi/kernel", part=slice(half) if ours == "wi_0" else slice(half, None))
        kernel(f"{prefix}.mlp.down_proj.weight", "wo/kernel")
    elif op == "mlp":
        for ours, theirs in HALVES.items():
            kernel(f"{prefix}.mlp.{theirs}.weight", f"{ours}/kernel")
    if op != "moe":
        return tensors
    router = "router" if form == "gpt_oss" else "gate"
    put(tensors, f"{prefix}.mlp.{router}.weight", "BF16", w["gate/kernel"].T)
    if form == "gpt_oss":
        put(tensors, f"{prefix}.mlp.router.bias", "BF16", w["gate/bias"])
        turn = lambda path: w[path].transpose(0, 2, 1)
        for name, of in (("gate_up_proj", lambda end: interleave(turn("wi_0" + end), turn("wi_1" + end), 1)),
                         ("down_proj", lambda end: turn("wo" + end))):
            blocks = packed(of(""))
            put(tensors, f"{prefix}.mlp.experts.{name}_blocks", "U8", blocks.reshape(*blocks.shape[:2], -1, 16))
            put(tensors, f"{prefix}.mlp.experts.{name}_scales", "U8", of("_scale"))
        put(tensors, f"{prefix}.mlp.experts.gate_up_proj_bias", "BF16", interleave(w["wi_0_bias"], w["wi_1_bias"], 1))
        put(tensors, f"{prefix}.mlp.experts.down_proj_bias", "BF16", w["wo_bias"])
        return tensors
    put(tensors, f"{prefix}.mlp.gate.e_score_correction_bias", "F32", w["gate/bias"].astype(np.float32))
    for ours, theirs in HALVES.items():
        for e in range(len(w[ours])):
            kernel(f"{prefix}.mlp.experts.{e}.{theirs}.weight", ours, e)
        kernel(f"{prefix}.mlp.shared_experts.{theirs}.weight", f"shared_experts/{ours}/kernel")
    return tensors


def spoil(tensors: Tensors, wrong: str) -> None:
    name = next(n for n in tensors if n.endswith(("up_proj.weight", "q_b_proj.weight", "gate_up_proj_blocks")))
    scale = next(n for n in tensors if n.startswith(name.removesuffix("_blocks")) and "_scale" in n)
    kind, shape, blob = tensors[name]
    if wrong == "no_scale":
        del tensors[scale]
    elif wrong == "no_tensor_scale":
        del tensors[name + "_scale_2"]
    elif wrong == "transposed_scale":
        tensors[scale] = tensors[scale][0], tensors[scale][1][::-1], tensors[scale][2]
    elif wrong == "other_scale":
        tensors[scale] = "F32", shape, b"\0" * 4 * int(np.prod(shape))
    elif wrong == "numbers":
        tensors[name] = "BF16", shape, b"\0" * 2 * int(np.prod(shape))
    elif wrong == "other_tensor_scale":
        tensors[name + "_scale_2"] = "F32", [], np.float32(3).tobytes()
    elif wrong == "nan_scale":
        tensors[scale] = tensors[scale][0], tensors[scale][1], b"\xff" + tensors[scale][2][1:]


def main() -> None:
    path, form, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    with h5py.File(path) as golden, h5py.File(f"{out}.h5", "w") as own:
        found: dict[str, np.ndarray] = {}
        golden["weights"].visititems(lambda n, d: found.update({n: d[()]}) if isinstance(d, h5py.Dataset) else None)
        for name in list(found):  # bfloat16 as numbers
            if golden["weights"][name].attrs["float_type"] == "bfloat16":
                raw = np.empty(found[name].shape, np.uint16)
                golden["weights"][name].id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, golden["weights"][name].id.get_type())
                found[name] = (raw.astype(np.uint32) << 16).view(np.float32)
        golden.copy("weights", own)
        tensors = export(found, form, golden.attrs["op"], "model.layers.3")
    if len(sys.argv) > 4:
        spoil(tensors, sys.argv[4])
    write(out, tensors)


if __name__ == "__main__":
    main()
