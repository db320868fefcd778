#!/usr/bin/env python3
"""assay's reader of config.json and checkpoints, held by transformers' own writer.

    from_checkpoint.py ASSAY [MODEL...]

For each model below: a tiny model is made at random and saved by save_pretrained (config.json, model.safetensors); `assay generate` takes both
(--set model=config.json --weights model.safetensors:model.layers.N), and the model, loaded by from_pretrained, is differentiated in
float64 at the same inputs, with its inner casts to float32 replaced (backend.py --wide-casts). Outputs and gradients must agree to 1e-10 of
the largest element. --keep DIR keeps the files. Exit status 1 where one does not that KNOWN does not name, or one does that it names.
"""
import argparse
import copy
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "harness/backends/shell"))

import h5py
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, masking_utils
from transformers.utils.logging import disable_progress_bar

from backend import WideCasts

DEEPSEEK = dict(hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6,
                qk_rope_head_dim=4, v_head_dim=10, vocab_size=32, first_k_dense_replace=1, max_position_embeddings=16384, rms_norm_eps=1e-6,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, eos_token_id=1, bos_token_id=0)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
PLAIN = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=32, num_experts_per_tok=2,
             max_position_embeddings=4096, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


def without(keys, name):
    return {other: value for other, value in keys.items() if other != name}


LITE = dict(without(DEEPSEEK, "first_k_dense_replace"), mlp_layer_types=["dense", "sparse"])
MIXED = dict(PLAIN, intermediate_size=48, moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=2, n_group=4, topk_group=2,
             routed_scaling_factor=2.5, norm_topk_prob=True)
EXPERTS = dict(PLAIN, intermediate_size=48, moe_intermediate_size=16, num_experts=8)
MOE_ALONE = ("glm4_moe", "qwen2_moe", "qwen3_next", "minimax_m2", "exaone_moe", "laguna", "hunyuan_v1_moe", "afmoe", "mellum")
BLOCKS = {"minimax_m2": ".block_sparse_moe"}  # what its checkpoints call .mlp

# model type, keys, layer (None: all of them, a stack), first position
MODELS = {
    "deepseek_v3": ("deepseek_v3", dict(DEEPSEEK, n_group=4, topk_group=2), 1, 0),
    "deepseek_v3-dense": ("deepseek_v3", dict(DEEPSEEK, n_group=4, topk_group=2), 0, 0),
    "deepseek_v3-late": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1), 1, 9000),
    "deepseek_v3-yarn": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1, max_position_embeddings=163840,
                                             rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)), 1, 5000),
    "deepseek_v3-yarn-short": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1, max_position_embeddings=4096,
                                                   rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)), 1, 5),
    "deepseek_v3-yarn-no-mscale": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1, rope_parameters=YARN), 1, 5000),
    "deepseek_v3-yarn-two-mscales": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1,
                                                         rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.707)), 1, 5000),
    "deepseek_v3-epsilon": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1, rms_norm_eps=1e-3), 1, 0),
    "deepseek_v3-epsilon-said": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1, rms_norm_eps=1e-3), 1, 0),
    "deepseek_v3-stack": ("deepseek_v3", dict(DEEPSEEK, n_group=4, topk_group=2, num_hidden_layers=3), None, 9000),
    "deepseek_v3-not-divided": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1, norm_topk_prob=False), 1, 0),
    "deepseek_v3-no-q-lora": ("deepseek_v3", dict(DEEPSEEK, n_group=1, topk_group=1, q_lora_rank=None), 1, 0),
    "deepseek_v2": ("deepseek_v2", dict(DEEPSEEK, topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=16.0), 1, 0),
    "deepseek_v2-greedy": ("deepseek_v2", dict(DEEPSEEK, topk_method="greedy", n_group=1, topk_group=1, q_lora_rank=None), 1, 0),
    "deepseek_v2-yarn": ("deepseek_v2", dict(DEEPSEEK, topk_method="greedy", n_group=1, topk_group=1,
                                             rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707)), 1, 5000),
    "deepseek_v2-divided": ("deepseek_v2", dict(DEEPSEEK, topk_method="greedy", n_group=1, topk_group=1, norm_topk_prob=True), 1, 0),
    "glm4_moe": ("glm4_moe", dict(PLAIN, intermediate_size=48, moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=1, n_group=1,
                                  topk_group=1, first_k_dense_replace=1, routed_scaling_factor=2.5, use_qk_norm=True), 1, 0),
    "mixtral": ("mixtral", dict(PLAIN, intermediate_size=24, num_local_experts=4), 1, 0),
    "mixtral-stack": ("mixtral", dict(PLAIN, intermediate_size=24, num_local_experts=4), None, 0),
    "qwen3_moe": ("qwen3_moe", dict(PLAIN, intermediate_size=48, moe_intermediate_size=16, num_experts=8, norm_topk_prob=True), 1, 0),
    "qwen3_moe-not-divided": ("qwen3_moe", dict(PLAIN, intermediate_size=48, moe_intermediate_size=16, num_experts=8), 1, 0),
    "sarvam_mla": ("sarvam_mla", dict(DEEPSEEK, n_group=1, topk_group=1), 1, 9000),
    "glm4_moe_lite": ("glm4_moe_lite", dict(LITE, n_group=1, topk_group=1), 1, 9000),
    "glm4_moe_lite-dense": ("glm4_moe_lite", dict(LITE, n_group=4, topk_group=2), 0, 0),
    "glm4_moe_lite-stack": ("glm4_moe_lite", dict(LITE, n_group=4, topk_group=2), None, 9000),
    "dots1": ("dots1", dict(MIXED, first_k_dense_replace=1), 1, 3000),
    "dots1-dense": ("dots1", dict(MIXED, first_k_dense_replace=1), 0, 0),
    "dots1-stack": ("dots1", dict(MIXED, first_k_dense_replace=1), None, 3000),
    "hy_v3": ("hy_v3", dict(PLAIN, intermediate_size=48, moe_intermediate_size=16, num_experts=8, num_shared_experts=1, router_scaling_factor=2.826,
                            mlp_layer_types=["dense", "sparse"]), 1, 3000),
    "hy_v3-stack": ("hy_v3", dict(PLAIN, intermediate_size=48, moe_intermediate_size=16, num_experts=8, num_shared_experts=1, router_scaling_factor=2.826,
                                  mlp_layer_types=["dense", "sparse"]), None, 0),
    "sarvam_moe": ("sarvam_moe", dict(MIXED, first_k_dense_replace=1, use_qk_norm=True), 1, 3000),
    "sarvam_moe-no-norm": ("sarvam_moe", dict(MIXED, first_k_dense_replace=1, use_qk_norm=False), 1, 0),
    "solar_open": ("solar_open", without(MIXED, "intermediate_size"), 1, 3000),
    "solar_open-stack": ("solar_open", without(MIXED, "intermediate_size"), None, 3000),
    "qwen2_moe": ("qwen2_moe", dict(EXPERTS, shared_expert_intermediate_size=32, norm_topk_prob=True), 1, 0),
    "qwen3_next": ("qwen3_next", dict(EXPERTS, shared_expert_intermediate_size=16, norm_topk_prob=True, linear_num_key_heads=2, linear_num_value_heads=2,
                                      linear_key_head_dim=8, linear_value_head_dim=8), 1, 0),
    "minimax_m2": ("minimax_m2", dict(PLAIN, num_local_experts=8, intermediate_size=16), 1, 0),
    "exaone_moe": ("exaone_moe", dict(EXPERTS, num_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True), 1, 0),
    "laguna": ("laguna", dict(without(EXPERTS, "rope_parameters"), shared_expert_intermediate_size=16, moe_routed_scaling_factor=2.5), 1, 0),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", dict(without(PLAIN, "num_experts_per_tok"), num_experts=8, moe_topk=2, intermediate_size=16), 1, 0),
    "afmoe": ("afmoe", dict(EXPERTS, num_shared_experts=1, route_scale=2.5, num_dense_layers=1), 1, 0),
    "mellum": ("mellum", dict(without(EXPERTS, "rope_parameters"), norm_topk_prob=True), 1, 0),
    "gpt_oss": ("gpt_oss", dict(PLAIN, intermediate_size=16, num_local_experts=4, sliding_window=3, max_position_embeddings=131072,
                                rope_parameters=dict(YARN, rope_theta=150000.0, factor=32.0, truncate=False)), 0, 5000),
    "gpt_oss-global": ("gpt_oss", dict(PLAIN, intermediate_size=16, num_local_experts=4, sliding_window=3, max_position_embeddings=131072,
                                       rope_parameters=dict(YARN, rope_theta=150000.0, factor=32.0, truncate=False)), 1, 5000),
    "gpt_oss-stack": ("gpt_oss", dict(PLAIN, intermediate_size=16, num_local_experts=4, sliding_window=3, max_position_embeddings=131072,
                                      rope_parameters=dict(YARN, rope_theta=150000.0, factor=32.0, truncate=False)), None, 5000),
    "gpt_oss-no-rope": ("gpt_oss", dict(PLAIN, intermediate_size=16, num_local_experts=4, sliding_window=3, max_position_embeddings=131072,
                                        rope_parameters=None), 0, 5000),
}
KNOWN = {
    "deepseek_v3-epsilon": "transformers keeps 1e-6 in the latents' norms; -said has latent_norm_epsilon",
    "deepseek_v3-yarn-two-mscales": "no operation has two of them",
    "deepseek_v3-not-divided": "no operation has it",
    "deepseek_v2-divided": "no operation has it; transformers' router does not look at norm_topk_prob",
}
BATCH, TOKENS = 2, 7


def save(kind, keys, folder):
    """With norms, biases and sinks that are not their first values, on the grid of bfloat16."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **copy.deepcopy(keys))  # it writes into what it is given
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    for name, tensor in model.state_dict().items():
        norm = "norm" in name
        tensor.copy_((torch.randn_like(tensor) * (0.1 if norm or "bias" in name else 0.2) + norm).bfloat16().float())
    if kind == "sarvam_moe":  # its checkpoints fuse queries, keys and values: here is what the module has
        config.save_pretrained(folder)
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, str(pathlib.Path(folder) / "model.safetensors"), {"format": "pt"})
    else:
        model.save_pretrained(folder)


def case_of(kind, layer, start, folder, more):
    op = "moe" if kind in MOE_ALONE else "decoder_stack" if layer is None else "decoder_layer"
    lines = [f"case: mine/{kind}", f"op: {op}", f"batch: {BATCH}", f"sequence: {TOKENS}", "model: config.json", "dtype: float32",
             "profiles: [f32]", f"positions: {{start: {start}, step: 1}}"] + more
    path = pathlib.Path(folder) / "case.yml"
    path.write_text("\n".join(lines) + "\n")
    return op, path


def answers(folder, golden, op, layer):
    """What the saved model's layer gives at the golden's inputs."""
    with WideCasts():
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).double().model
        with h5py.File(golden) as f:
            x = torch.from_numpy(f["inputs/x"][()].astype(np.float64)).requires_grad_()
            dy = torch.from_numpy(f["cotangents/y"][()].astype(np.float64))
            positions = torch.from_numpy(f["inputs/positions"][()].astype(np.int64)) if "inputs/positions" in f else None
        model.config._experts_implementation = "eager"
        if op == "moe":
            y = model.layers[layer].mlp(x)
        else:
            y = x
            for i in range(len(model.layers)) if layer is None else [layer]:
                windowed = getattr(model.config, "layer_types", None) is not None and model.config.layer_types[i] == "sliding_attention"
                make = masking_utils.create_sliding_window_causal_mask if windowed else masking_utils.create_causal_mask
                mask = make(config=model.config, inputs_embeds=y, attention_mask=None, cache=None, position_ids=None)
                y = model.layers[i](y, attention_mask=mask, position_embeddings=model.rotary_emb(y, positions))
        y.backward(dy)
    made = {"outputs/y": y, "gradients/inputs/x": x.grad}
    begin = "layers." if layer is None else f"layers.{layer}." + ("mlp." if op == "moe" else "")
    return made, {name.removeprefix("layers.") if layer is None else name[len(begin):]: p.grad
                  for name, p in model.named_parameters() if name.startswith(begin)}


def ours_of(name):
    """Which of our gradients a parameter's is, and how it lies: 't' is transposed."""
    table = {"input_layernorm.weight": "pre_self_attention_layer_norm/scale",
             "post_attention_layernorm.weight": "post_self_attention_layer_norm/scale",
             "q_a_layernorm.weight": "self_attention/q_norm/scale", "kv_a_layernorm.weight": "self_attention/kv_norm/scale",
             "q_norm.weight": "self_attention/query_norm/scale", "k_norm.weight": "self_attention/key_norm/scale",
             "q_a_proj.weight": "self_attention/wq_a/kernel", "q_b_proj.weight": "self_attention/wq_b/kernel",
             "kv_a_proj_with_mqa.weight": "self_attention/wkv_a/kernel", "kv_b_proj.weight": "self_attention/wkv_b/kernel",
             "q_proj.weight": "self_attention/query/kernel", "k_proj.weight": "self_attention/key/kernel",
             "v_proj.weight": "self_attention/value/kernel", "o_proj.weight": "self_attention/out/kernel",
             "q_proj.bias": "self_attention/query/bias", "k_proj.bias": "self_attention/key/bias", "v_proj.bias": "self_attention/value/bias",
             "o_proj.bias": "self_attention/out/bias", "sinks": "self_attention/sinks",
             "gate.weight": "moe/gate/kernel", "router.weight": "moe/gate/kernel", "router.bias": "moe/gate/bias",
             "router.gate.weight": "moe/gate/kernel", "gate.wg.weight": "moe/gate/kernel", "shared_expert_gate.weight": "moe/shared_expert_gate/kernel",
             "shared_experts.gate_proj.weight": "moe/shared_experts/wi_0/kernel", "shared_experts.up_proj.weight": "moe/shared_experts/wi_1/kernel",
             "shared_experts.down_proj.weight": "moe/shared_experts/wo/kernel", "mlp.gate_proj.weight": "mlp/wi_0/kernel",
             "mlp.up_proj.weight": "mlp/wi_1/kernel", "mlp.down_proj.weight": "mlp/wo/kernel"}
    name = name.replace("shared_expert.", "shared_experts.").replace("shared_mlp.", "shared_experts.")
    return next((path for end, path in table.items() if name == end or name.endswith("." + end)), None)


def gradients_of(parameters, names, kind):
    """By our paths, in our layout."""
    made = {}

    def put(path, value):
        path = f"layers/{number}/{path}" if number else path
        found = [n for n in names if n.startswith("gradients/weights/") and (n == "gradients/weights/" + path or "moe/" + n[18:] == path)]
        if found and value is not None:
            made[found[0]] = value
        return bool(found)

    for name, grad in parameters.items():
        number = name.split(".")[0] if name[0].isdigit() else ""
        if "experts.gate_up_proj" in name and "shared" not in name:
            end = "_bias" if name.endswith("_bias") else ""
            if kind == "gpt_oss":
                put("moe/wi_0" + end, grad[..., ::2])
                put("moe/wi_1" + end, grad[..., 1::2])
            else:
                gate, up = grad.transpose(1, 2).chunk(2, -1)
                put("moe/wi_0", gate)
                put("moe/wi_1", up)
        elif "experts.down_proj" in name and "shared" not in name:
            end = "_bias" if name.endswith("_bias") else ""
            put("moe/wo" + end, grad if kind == "gpt_oss" else grad.transpose(1, 2))
        else:
            path = ours_of(name)
            if path is None or not put(path, grad if grad is None or grad.dim() < 2 else grad.t()):
                print(f"    the model's parameter {name} has no gradient of the golden")
    return made


def hold(assay, name, folder, more):
    kind, keys, layer, start = MODELS[name]
    save(kind, keys, folder)
    op, case = case_of(kind, layer, start, folder, more)
    golden = str(pathlib.Path(folder) / "golden.h5")
    where = f"{folder}/model.safetensors:model" + ("" if layer is None else f".layers.{layer}") + (BLOCKS.get(kind, ".mlp") if op == "moe" else "")
    done = subprocess.run([assay, "generate", str(case), "--weights", where, "-o", golden], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"REFUSED  {name}: {done.stderr.strip()}")
        return False
    made, parameters = answers(folder, golden, op, layer)
    with h5py.File(golden) as f:
        names = []
        f.visititems(lambda path, item: names.append(path) if isinstance(item, h5py.Dataset) else None)
        made.update(gradients_of(parameters, names, kind))
        worst = (0.0, "nothing")
        for path, value in made.items():
            ours = f[path][()].astype(np.float64)
            theirs = value.detach().numpy().reshape(ours.shape)
            largest = np.abs(ours).max() or 1.0
            worst = max(worst, (float(np.abs(ours - theirs).max() / largest), path))
        missing = [n for n in names if n.startswith("gradients/") and n not in made and np.abs(f[n][()]).max() > 0]
    agrees = worst[0] < 1e-10 and not missing
    print(f"{'agrees ' if agrees else 'DIFFERS'}  {name}: {len(made)} tensors, the worst {worst[1]} by {worst[0]:.2g} of the largest element"
          + (f"; not held: {' '.join(missing)}" if missing else ""))
    return agrees


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("assay")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--keep", help="the folder in which files stay")
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    wrong = 0
    for name in options.models or MODELS:
        folder = pathlib.Path(options.keep or tempfile.mkdtemp()) / name
        folder.mkdir(parents=True, exist_ok=True)
        kind, keys, layer, _ = MODELS[name]
        said = {"latent_norm_epsilon": 1e-6} if name.endswith("-said") else {}
        dense = keys.get("first_k_dense_replace", keys.get("mlp_layer_types", []).count("dense"))
        if kind not in MOE_ALONE and layer is not None and 0 < dense <= layer:
            said["first_num_dense_layers"] = 0  # a layer alone is dense or not by this key
        if name == "gpt_oss-global":
            said["attention_type"] = "global"
        more = [f"config: {json.dumps(said)}"] if said else []
        agrees = hold(options.assay, name, folder, more)
        if name in KNOWN:
            print(f"    {'known, and agrees' if agrees else 'known'}: {KNOWN[name]}")
        wrong += agrees == (name in KNOWN)
        if not options.keep:
            shutil.rmtree(folder.parent)
    print(f"{wrong} unexplained" if wrong else "every model agrees, or is known")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
