"""The weights of a golden as checkpoints of Hugging Face have them, written without the program's own table.

usage: hugging_face_export.py GOLDEN FORM OUT.safetensors [PREFIX [WRONG]]

FORM says how experts lie: split (an expert's own tensors), mixtral, fused (transformers 5), plain (the same, not
transposed), vllm, gpt_oss, mxfp4, fp8 (split, with scales). WRONG: transposed, swapped, missing, left_over, misshapen,
scaled.
Beside OUT come OUT.h5, the weights under their own paths, and for fp8 and mxfp4 they are what the checkpoint holds."""

import json
import sys
from pathlib import Path
from typing import Callable

import h5py
import numpy as np

Tensors = dict[str, tuple[str, np.ndarray]]  # safetensors' type, numbers


def bf16_bits(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Tensors) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, (kind, values) in tensors.items():
        blob = (bf16_bits(values) if kind == "BF16" else values).tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def linear(kernel: np.ndarray, inputs: int = 1) -> np.ndarray:
    """[out, in] of a kernel whose first axes are its inputs."""
    return kernel.reshape(int(np.prod(kernel.shape[:inputs])), -1).T.copy()


def attention(w: Callable[[str], np.ndarray | None], put: Callable[..., None]) -> None:
    names = {"wq_a": "q_a_proj", "wq_b": "q_b_proj", "wkv_a": "kv_a_proj_with_mqa", "wkv_b": "kv_b_proj",
             "query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
    for ours, theirs in names.items():
        put(f"self_attn.{theirs}.weight", w(f"{ours}/kernel"), lambda k, o=ours: linear(k, 2 if o == "out" else 1))
        put(f"self_attn.{theirs}.bias", w(f"{ours}/bias"), lambda b: b.reshape(-1))
    for ours, theirs in {"q_norm": "q_a_layernorm", "kv_norm": "kv_a_layernorm", "query_norm": "q_norm",
                         "key_norm": "k_norm"}.items():
        put(f"self_attn.{theirs}.weight", w(f"{ours}/scale"), lambda s: s)
    put("self_attn.sinks", w("sinks"), lambda s: s)


def fused_attention(w: Callable[[str], np.ndarray | None], put: Callable[..., None], heads: int) -> None:
    """One kernel of ours, three of theirs."""
    for kind, suffix in (("kernel", "weight"), ("bias", "bias")):
        whole = w(f"qkv_proj/{kind}")
        if whole is None:
            continue
        shared = (whole.shape[-2] - heads) // 2
        parts = np.split(whole, [heads, heads + shared], axis=-2)
        for name, part in zip("qkv", parts):
            put(f"self_attn.{name}_proj.{suffix}", part, linear if kind == "kernel" else lambda b: b.reshape(-1))


def interleave(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    stacked = np.stack([a, b], axis=axis + 1)
    shape = list(a.shape)
    shape[axis] *= 2
    return stacked.reshape(shape)


MX_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def to_mxfp4(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks and scales of numbers [..., in], and the numbers that these stand for."""
    blocks = values.reshape(*values.shape[:-1], -1, 32)
    exponents = np.floor(np.log2(np.abs(blocks).max(-1, keepdims=True))) - 2
    codes = np.abs(blocks[..., None] / 2.0**exponents[..., None] - MX_VALUES).argmin(-1)
    codes = np.where(codes == 8, 0, codes)
    pairs = codes.reshape(*codes.shape[:-1], 16, 2)
    numbers = (MX_VALUES[codes] * 2.0**exponents).reshape(values.shape)
    return (pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8), (exponents[..., 0] + 127).astype(np.uint8), numbers


def to_fp8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """e4m3 bits and a float32 scale for each 128 x 128 of a matrix, and what they stand for in bfloat16."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    table = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent.astype(float) - 7))
    table = np.where(codes & 128, -table, table)
    table[[127, 255]] = np.inf
    rows, columns = (-(-n // 128) for n in values.shape)
    bits, scales = np.zeros(values.shape, np.uint8), np.zeros((rows, columns), np.float32)
    numbers = np.zeros(values.shape, np.float32)
    for r in range(rows):
        for c in range(columns):
            place = np.s_[128 * r:128 * r + 128, 128 * c:128 * c + 128]
            scales[r, c] = np.abs(values[place]).max() / 448 * 1.37
            bits[place] = np.abs(values[place][..., None] / scales[r, c] - table).argmin(-1)
            numbers[place] = table[bits[place]].astype(np.float32) * scales[r, c]
    raw = numbers.view(np.uint32).astype(np.uint64)  # to nearest, ties to even
    return bits, scales, ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def experts(form: str, w: Callable[[str], np.ndarray | None], put: Callable[..., None], raw: Callable[..., None],
            changed: dict[str, np.ndarray], block: str, shards: int) -> None:
    gate, up, down = w("wi_0"), w("wi_1"), w("wo")
    if gate is None and w("wi") is not None:  # gate and up of each shard side by side
        e, d, width = w("wi").shape
        halves = w("wi").reshape(e, d, shards, 2, width // 2 // shards)
        gate, up = (halves[..., i, :].reshape(e, d, width // 2) for i in (0, 1))
    if gate is None:
        return
    turn = lambda k: k.transpose(0, 2, 1).copy()
    if form in ("split", "mixtral"):
        names = ("w1", "w3", "w2") if form == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        for name, kernels in zip(names, (gate, up, down)):
            for e, kernel in enumerate(kernels):
                put(f"{block}.experts.{e}.{name}.weight", kernel, linear)
    elif form == "fp8":
        for name, ours, kernels in (("gate_proj", "wi_0", gate), ("up_proj", "wi_1", up), ("down_proj", "wo", down)):
            changed[ours] = kernels.copy()
            for e, kernel in enumerate(kernels):
                bits, scales, numbers = to_fp8(linear(kernel))
                raw(f"{block}.experts.{e}.{name}.weight", "F8_E4M3", bits)
                raw(f"{block}.experts.{e}.{name}.weight_scale_inv", "F32", scales)
                changed[ours][e] = numbers.T
    elif form in ("fused", "vllm"):
        names = ("gate_up_proj", "down_proj") if form == "fused" else ("w13_weight", "w2_weight")
        put(f"{block}.experts.{names[0]}", np.concatenate([turn(gate), turn(up)], axis=1), lambda k: k)
        put(f"{block}.experts.{names[1]}", down, turn)
    elif form == "plain":
        put(f"{block}.experts.gate_up_proj", np.concatenate([gate, up], axis=2), lambda k: k)
        put(f"{block}.experts.down_proj", down, lambda k: k)
    elif form == "gpt_oss":
        put(f"{block}.experts.gate_up_proj", interleave(gate, up, 2), lambda k: k)
        put(f"{block}.experts.down_proj", down, lambda k: k)
    elif form == "mxfp4":
        for name, kernel in (("gate_up_proj", interleave(turn(gate), turn(up), 1)), ("down_proj", turn(down))):
            blocks, scales, numbers = to_mxfp4(kernel)
            raw(f"{block}.experts.{name}_blocks", "U8", blocks)
            raw(f"{block}.experts.{name}_scales", "U8", scales)
            if name == "down_proj":
                changed["wo"] = turn(numbers)
            else:
                changed["wi_0"], changed["wi_1"] = turn(numbers[:, 0::2]), turn(numbers[:, 1::2])
    if form in ("gpt_oss", "mxfp4"):
        put(f"{block}.experts.gate_up_proj_bias", interleave(w("wi_0_bias"), w("wi_1_bias"), 1), lambda b: b)
        put(f"{block}.experts.down_proj_bias", w("wo_bias"), lambda b: b)


def mlp(w: Callable[[str], np.ndarray | None], put: Callable[..., None], block: str) -> None:
    fused = w("wi/kernel")
    halves = (None, None) if fused is None else np.split(fused, 2, axis=-1)
    for ours, theirs, half in (("wi_0", "gate_proj", halves[0]), ("wi_1", "up_proj", halves[1]),
                               ("wo", "down_proj", None)):
        put(f"{block}.{theirs}.weight", w(f"{ours}/kernel") if half is None else half, linear)


def spoil(tensors: Tensors, wrong: str) -> None:
    names = [n for n in tensors if any(part in n for part in ("up_proj", ".w3.", "w13", "q_proj", "q_b_proj"))]
    name = ([n for n in names if ".experts." in n] or names)[-1]
    kind, values = tensors[name]
    if wrong == "transposed":  # the same shape where it is square
        tensors[name] = kind, np.ascontiguousarray(values.swapaxes(-1, -2))
    elif wrong == "swapped":
        other = name.replace("up_proj", "gate_proj") if "up_proj" in name else name.replace(".w3.", ".w1.")
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif wrong == "missing":
        del tensors[name]
    elif wrong == "left_over":
        tensors[name + ".lora_A"] = kind, values
    elif wrong == "misshapen":
        tensors[name] = kind, np.ascontiguousarray(values[..., :-1])
    elif wrong == "scaled":  # scales of fp8 beside numbers
        tensors[name + "_scale_inv"] = "F32", np.full([-(-size // 128) for size in values.shape], 2, np.float32)
    elif wrong == "floats":  # where bytes belong
        name = next(n for n in tensors if n.endswith("gate_up_proj_blocks"))
        tensors[name] = "F32", tensors[name][1].astype(np.float32) + 0.5


def export(golden: h5py.File, form: str, prefix: str) -> tuple[Tensors, dict[str, np.ndarray]]:
    tensors: Tensors = {}
    own: dict[str, np.ndarray] = {}
    paths: dict[str, h5py.Dataset] = {}
    golden["weights"].visititems(lambda n, d: paths.update({n: d}) if isinstance(d, h5py.Dataset) else None)
    op = golden.attrs["op"]
    yaml = golden.attrs["case_yaml"]
    heads, shards = (int(yaml.split(f"{key}:")[1].split()[0]) for key in ("base_num_query_heads", "w13_reorder_size"))
    block = "block_sparse_moe" if form == "mixtral" else "mlp"
    layers = sorted({int(n.split("/")[1]) for n in paths if n.startswith("layers/")})
    for layer in layers or [None]:
        ours = f"layers/{layer}/" if layer is not None else ""
        theirs = prefix if layer is None else f"{prefix}.layers.{layer}"

        def put(name: str, values: np.ndarray | None, how: Callable[[np.ndarray], np.ndarray]) -> None:
            if values is None:
                return
            kind = "F32" if name.endswith("e_score_correction_bias") else "BF16"
            turned = np.ascontiguousarray(how(values)).astype(np.float32)
            tensors[f"{theirs}.{name}" if theirs else name] = kind, turned

        def raw(name: str, kind: str, values: np.ndarray) -> None:
            tensors[f"{theirs}.{name}" if theirs else name] = kind, values

        def of(part: str) -> Callable[[str], np.ndarray | None]:
            return lambda n: paths[ours + part + n][()].astype(np.float64) if ours + part + n in paths else None

        whole = "layer" in op or "stack" in op
        router = "router" if form in ("gpt_oss", "mxfp4") else "gate"
        moe, attends = ("moe/", "self_attention/") if whole else ("", "")
        changed: dict[str, np.ndarray] = {}
        put("input_layernorm.weight", of("")("pre_self_attention_layer_norm/scale"), lambda s: s)
        put("post_attention_layernorm.weight", of("")("post_self_attention_layer_norm/scale"), lambda s: s)
        if whole or op in ("mla", "gqa"):
            attention(of(attends), put)
            fused_attention(of(attends), put, heads)
        if whole or op in ("moe", "routing"):
            put(f"{block}.{router}.weight", of(moe)("gate/kernel"), linear)
            bias = "bias" if router == "router" else "e_score_correction_bias"
            put(f"{block}.{router}.{bias}", of(moe)("gate/bias"), lambda b: b)
            experts(form, of(moe), put, raw, changed, block, shards)
            mlp(of(moe + "shared_experts/"), put, f"{block}.shared_experts")
        if whole or op == "mlp":
            mlp(of("mlp/" if whole else ""), put, block)
        own.update({ours + moe + name: values for name, values in changed.items()})
    return tensors, {n: own.get(n, d[()]) for n, d in paths.items()}


def main() -> None:
    path, form, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    prefix = sys.argv[4] if len(sys.argv) > 4 else "model.layers.3"
    with h5py.File(path) as golden:
        tensors, weights = export(golden, form, prefix)
    if len(sys.argv) > 5:
        spoil(tensors, sys.argv[5])
    if prefix.endswith("layers.3"):  # what is of no part of the layer
        tensors["lm_head.weight"] = "BF16", np.ones((2, 2))
        tensors[f"{prefix}.self_attn.rotary_emb.inv_freq"] = "F32", np.ones(2, np.float32)
    write_safetensors(out, tensors)
    with h5py.File(f"{out}.h5", "w") as file:
        for name, values in weights.items():
            file[f"weights/{name}"] = values


if __name__ == "__main__":
    main()
