"""Each family of cases/hugging_face/families.yml against the model of transformers, in float64: what a router chooses and
weighs, and what a MoE block gives, with its gradients.

usage: families.py ASSAY [MODEL_TYPE...]

A configuration is made small by the rules of the family, written by transformers, and read by assay as a case's model. The
golden's weights are put into transformers' own module. Held to 1e-10 of the largest element, and every key that the module
reads must have a rule. Exit status 1 where one differs, is refused, or is in families.yml and not here.
"""
import argparse
import importlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "harness/backends/shell"))
sys.path.append(str(ROOT / "cases/hugging_face"))

import h5py
import numpy as np
import torch
from torch import nn
from torch.func import functional_call

import read_families
from backend import WideCasts

# module and classes whose sum the block is; of a router alone it is the router's class
CLASSES = {
    "afmoe": "afmoe AfmoeSparseMoeBlock", "aria_text": "aria AriaTextMoELayer", "axk1": "axk1 AXK1TopkRouter", "axk2": "axk2 AXK2MoE",
    "bailing_hybrid": "bailing_hybrid BailingHybridMoE", "beam": "beam BeamMoE", "cohere2_moe": "cohere2_moe Cohere2MoeSparseMoeBlock",
    "deepseek_ocr2_text": "deepseek_ocr2 DeepseekOcr2TextMoe", "deepseek_v2": "deepseek_v2 DeepseekV2Moe", "deepseek_v3": "deepseek_v3 DeepseekV3MoE",
    "deepseek_v32": "deepseek_v32 DeepseekV32MoE", "deepseek_v4": "deepseek_v4 DeepseekV4TopKRouter", "dots1": "dots1 Dots1MoE",
    "dots3_note_text": "dots3_note Dots3NoteTextMoE", "exaone_moe": "exaone_moe ExaoneMoeSparseMoEBlock",
    "flex_olmo": "flex_olmo FlexOlmoSparseMoeBlock", "flint": "flint FlintSparseMoeBlock", "glm4_moe": "glm4_moe Glm4MoeMoE",
    "glm4_moe_lite": "glm4_moe_lite Glm4MoeLiteMoE", "glm4v_moe_text": "glm4v_moe Glm4vMoeTextMoE", "glm5_next_text": "glm5_next Glm5NextTextTopkRouter",
    "glm_moe_dsa": "glm_moe_dsa GlmMoeDsaMoE", "gpt_oss": "gpt_oss GptOssMLP", "granitemoe": "granitemoe GraniteMoeMoE",
    "granitemoe_swa": "granitemoe_swa GraniteMoeSWAMoE GraniteMoeSWAMLP", "granitemoehybrid": "granitemoehybrid GraniteMoeHybridMoE GraniteMoeHybridMLP",
    "granitemoeshared": "granitemoeshared GraniteMoeSharedMoE GraniteMoeSharedMLP", "hunyuan_v1_moe": "hunyuan_v1_moe HunYuanMoEV1Moe",
    "hy_v3": "hy_v3 HYV3MoE", "hy_v4": "hy_v4 HYV4MoE", "hy_v4_vl_text": "hy_v4_vl HYV4VLMoE", "inkling2_text": "inkling2 Inkling2TopKRouter",
    "inkling2_loop_text": "inkling2_loop Inkling2LoopTopKRouter", "jamba": "jamba JambaSparseMoeBlock", "jetmoe": "jetmoe JetMoeTopKGating",
    "kimi_linear": "kimi_linear KimiLinearMoE", "laguna": "laguna LagunaSparseMoeBlock", "lara_mini": "lara_mini LaraMiniSparseMoeBlock",
    "llama4_text": "llama4 Llama4TextMoe", "longcat_flash": "longcat_flash LongcatFlashMoE", "mellum": "mellum MellumSparseMoeBlock",
    "mimo_v2_flash": "mimo_v2_flash MiMoV2FlashMoE", "minimax": "minimax MiniMaxSparseMoeBlock", "minimax_m2": "minimax_m2 MiniMaxM2SparseMoeBlock",
    "minimax_m3_vl_text": "minimax_m3_vl MiniMaxM3VLTopKRouter", "mistral4": "mistral4 Mistral4MoE", "mistral_large4_text": "mistral_large4 MistralLarge4TextMoE",
    "mixtral": "mixtral MixtralSparseMoeBlock", "nemotron_h": "nemotron_h NemotronHTopkRouter", "olmoe": "olmoe OlmoeSparseMoeBlock",
    "openai_privacy_filter": "openai_privacy_filter OpenAIPrivacyFilterTopKRouter", "qwen2_moe": "qwen2_moe Qwen2MoeSparseMoeBlock",
    "qwen3_5_moe_text": "qwen3_5_moe Qwen3_5MoeSparseMoeBlock", "qwen3_moe": "qwen3_moe Qwen3MoeSparseMoeBlock", "qwen3_next": "qwen3_next Qwen3NextSparseMoeBlock",
    "qwen3_omni_moe_text": "qwen3_omni_moe Qwen3OmniMoeThinkerTextSparseMoeBlock",
    "qwen3_omni_moe_talker_text": "qwen3_omni_moe Qwen3OmniMoeTalkerTextSparseMoeBlock", "qwen3_vl_moe_text": "qwen3_vl_moe Qwen3VLMoeTextSparseMoeBlock",
    "qwen4_exp_text": "qwen4_exp Qwen4ExpTextSparseMoeBlock", "sarvam_mla": "deepseek_v3 DeepseekV3MoE", "sarvam_moe": "glm4_moe Glm4MoeMoE",
    "solar_open": "solar_open SolarOpenMoE", "step3p5": "step3p7 Step3p7SparseMoeBlock", "unlimited_ocr_text": "unlimited_ocr UnlimitedOcrTextMoe",
}
NO_MODEL = {"kimi_k2": "transformers 5.24 has no kimi_k2: it is DeepSeek-V3's model"}
SIZES = {"base_emb_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "base_moe_mlp_dim": 12, "shared_experts": 2, "shared_width": 24,
         "n_routing_groups": 4, "topk_routing_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "mlp_activations_limit": 0.75}
COMMON = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 32}
BATCH, TOKENS = 2, 7


def config_class(model_type, module):
    """By its model_type, in any of transformers' configuration files."""
    folder = {"sarvam_mla": "sarvam_mla", "sarvam_moe": "sarvam_moe"}.get(model_type, module)
    made = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    return next(c for c in vars(made).values() if isinstance(c, type) and getattr(c, "model_type", "") == model_type)


def small(family, cls):
    """Keys of a configuration: what each rule takes, small."""
    keys = {name: value for name, value in COMMON.items() if name in cls().to_dict()}
    counted = any("shared_experts" in rule.to for rule in family.rules.values())
    for name, rule in family.rules.items():
        for to in rule.to:
            if to in SIZES:
                keys[name] = SIZES["base_moe_mlp_dim"] if to == "shared_width" and counted else SIZES[to]
        if rule.required and rule.only:
            keys[name] = json.loads(rule.only[0]) if re.match(r"[\d.]+$|true$|false$|null$", rule.only[0]) else rule.only[0]
    for name in family.either:
        if name not in cls().to_dict():
            keys.pop(name, None)
    if family.name == "llama4_text":
        keys.update(num_experts_per_tok=1, intermediate_size_mlp=48)
    if family.name == "deepseek_v2":
        keys["norm_topk_prob"] = False  # transformers' router does not look at it
    if family.name == "granitemoehybrid":
        keys.update(mamba_n_heads=4, mamba_d_head=16)
    if "per_layer_config" in cls().to_dict():
        keys["per_layer_config"] = {}
    return keys


class Recorder:
    """A configuration that remembers what is read of it."""

    def __init__(self, config, names):
        self.__dict__.update(_config=config, _names=names)

    def __getattr__(self, name):
        self._names.add(name)
        return getattr(self._config, name)


class Sum(nn.Module):
    """A block, and a shared expert that its layer adds."""

    def __init__(self, parts):
        super().__init__()
        self.experts_block = parts[0]
        self.shared_experts = parts[1] if len(parts) > 1 else None

    def forward(self, x):
        y = self.experts_block(x)
        y = y[0] if isinstance(y, tuple) else y
        return (y if self.shared_experts is None else y + self.shared_experts(x)).reshape(x.shape)


def made_of(cls, config):
    if cls.__name__ == "JetMoeTopKGating":
        return cls(config.hidden_size, config.num_local_experts, config.num_experts_per_tok)
    try:
        return cls(config)
    except TypeError:
        return cls(config, 1)


def parameters_of(block, w):
    """Our tensors, as the module has them."""
    made = {}
    for name, old in list(block.named_parameters()) + list(block.named_buffers()):
        shared = "shared_experts/" if "shared" in name else ""
        end = name.split(".")[-2] if name.endswith((".weight", ".bias")) else name.split(".")[-1]
        if "shared_expert_gate" in name:
            value = w["shared_expert_gate/kernel"].reshape(1, -1)
        elif shared:
            gate, up, down = (w[f"{shared}{part}/kernel"].t() for part in ("wi_0", "wi_1", "wo"))
            value = {"gate_proj": gate, "up_proj": up, "down_proj": down, "input_linear": torch.cat([gate, up]), "output_linear": down}[end]
        elif name.endswith("gate_up_proj"):
            value = torch.cat([w["wi_0"], w["wi_1"]], -1)
            value = value if value.shape == old.shape else value.transpose(1, 2)
        elif name.endswith("gate_up_proj_bias"):
            value = torch.stack([w["wi_0_bias"], w["wi_1_bias"]], -1).flatten(-2)
        elif name.endswith("down_proj_bias"):
            value = w["wo_bias"]
        elif name.endswith("down_proj"):
            value = w["wo"] if w["wo"].shape == old.shape else w["wo"].transpose(1, 2)
        elif name.endswith("bias"):
            value = w["gate/bias"].reshape(old.shape)
        else:
            value = w["gate/kernel"].t()
        if "GptOss" in type(block.experts_block).__name__ and name.endswith("gate_up_proj"):
            value = torch.stack([w["wi_0"], w["wi_1"]], -1).flatten(-2)
        assert value.shape == old.shape, (name, value.shape, old.shape)
        made[name] = value if isinstance(old, nn.Parameter) and old.requires_grad else value.detach()
    return made


def chosen(given, tokens, k, factor):
    """Experts in ascending order with their weights, of what a router returns."""
    parts = [part for part in given if isinstance(part, torch.Tensor) and part.numel() == tokens * k]
    ids = next(part for part in parts if not part.is_floating_point()).reshape(tokens, k)
    weights = next(part for part in parts if part.is_floating_point()).reshape(tokens, k) * factor
    order = ids.argsort(-1)
    return ids.gather(1, order), weights.gather(1, order)


def jetmoe(module, x, weight):
    """Of JetMoe's gate the weights are sorted by expert."""
    logits = functional_call(module, {"layer.weight": weight}, (x,))[4]
    sorted_by, _, gates, _, _ = functional_call(module, {"layer.weight": weight}, (x,))
    weights = torch.empty(gates.numel(), dtype=gates.dtype)
    weights[sorted_by] = gates
    return weights.reshape(x.shape[0], -1), logits.topk(module.top_k, 1)[1]


def golden_of(assay, folder, op, said):
    case = folder / "case.yml"
    case.write_text(f"case: mine/family\nop: {op}\nbatch: {BATCH}\nsequence: {TOKENS}\nmodel: config.json\ndtype: float32\nprofiles: [f32]\n"
                    f"config: {json.dumps(said)}\n")
    done = subprocess.run([assay, "generate", str(case), "-o", str(folder / "golden.h5")], capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip()
    tensors = {}
    with h5py.File(folder / "golden.h5") as f:
        f.visititems(lambda path, item: tensors.update({path: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return tensors, ""


def distance(ours, theirs):
    ours, theirs = np.asarray(ours, np.float64), theirs.detach().numpy().astype(np.float64).reshape(ours.shape)
    return float(np.abs(ours - theirs).max() / (np.abs(ours).max() or 1.0))


def hold(assay, family, folder, change):
    module, *names = CLASSES[family.name].split()
    cls = config_class(family.name, module)
    config = cls(**{**small(family, cls), **change})
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    config.save_pretrained(folder)
    alone = family.is_router_alone
    golden, refusal = golden_of(assay, folder, "routing" if alone else "moe", {})
    if golden is None:
        return refusal
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    read = set()
    parts = [made_of(getattr(modeling, name), Recorder(config, read)).double().eval() for name in names]
    unknown = {getattr(cls, "attribute_map", {}).get(name, name) for name in read} - set(family.rules) - {"mlp_layer_types"}
    if unknown:
        return "transformers' module reads what has no rule: " + ", ".join(sorted(unknown))
    inputs = {path: torch.from_numpy(value.astype(np.float64)).requires_grad_() for path, value in golden.items()
              if path.startswith(("inputs/", "weights/")) and value.dtype.kind == "f"}
    w = {path[len("weights/"):]: tensor for path, tensor in inputs.items() if path.startswith("weights/")}
    x = inputs["inputs/x"]
    with WideCasts():
        if alone:
            flat, k, factor = x.reshape(-1, x.shape[-1]), golden["routing/selected_experts"].shape[-1], 1.0
            if "minimax" in family.name:
                factor = config.routed_scaling_factor  # the block multiplies the experts' sum
            if "privacy" in family.name:
                factor = k  # likewise
            block = Sum(parts)
            if family.name == "jetmoe":
                given = jetmoe(parts[0], flat, w["gate/kernel"].t())
            else:
                made = {name.removeprefix("experts_block."): value for name, value in parameters_of(block, w).items()}
                given = functional_call(parts[0], made, (flat if family.name != "deepseek_v4" else x,))
            ids, weights = chosen(given, flat.shape[0], k, factor)
            ours, mine = chosen([torch.from_numpy(golden["routing/selected_experts"].astype(np.int64)), torch.from_numpy(golden["outputs/weights"])],
                                flat.shape[0], k, 1.0)
            if not torch.equal(ours, ids):
                return "other experts are chosen"
            worst = (distance(mine.numpy(), weights), "weights")
        else:
            block = Sum(parts)
            y = functional_call(block, parameters_of(block, w), (x,))
            y.backward(torch.from_numpy(golden["cotangents/y"].astype(np.float64)))
            worst = max([(distance(golden["outputs/y"], y), "y")] +
                        [(distance(golden["gradients/" + path], tensor.grad), path) for path, tensor in inputs.items()
                         if "gradients/" + path in golden and tensor.grad is not None])
            unheld = [path for path in golden if path.startswith("gradients/") and inputs[path[len("gradients/"):]].grad is None and golden[path].any()]
            if unheld:
                return "no gradient of " + ", ".join(unheld)
    return worst if worst[0] <= 1e-10 else f"differs in {worst[1]} by {worst[0]:.2g} of the largest element"


def changes(family):
    """The small configuration, one group of experts, weights that are not divided, other forms."""
    def of(target):
        return next((name for name, rule in family.rules.items() if target in rule.to), None)

    yield "", {}
    if of("n_routing_groups"):
        method = {"topk_method": "group_limited_greedy"} if "topk_method" in family.rules and family.router in ("deepseek2", "softmax_of_all") else {}
        yield "one group", {of("n_routing_groups"): 1, of("topk_routing_group"): 1}
        if method:
            yield "groups", method
    if of("norm_topk_prob") and family.undivided:
        yield "undivided", {of("norm_topk_prob"): False}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("assay")
    parser.add_argument("families", nargs="*", metavar="MODEL_TYPE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    families, wrong = {family.name: family for family in read_families.read()}, 0
    for name in options.families or families:
        if name in NO_MODEL or name not in CLASSES:
            print(f"not held  {name}: {NO_MODEL.get(name, 'families.py has no class of it')}")
            wrong += name not in NO_MODEL
            continue
        for what, change in changes(families[name]):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = hold(options.assay, families[name], pathlib.Path(folder), change)
                except Exception as error:  # transformers refuses a configuration in many ways
                    found = f"{type(error).__name__}: {error}"
            wrong += isinstance(found, str)
            print(f"{'DIFFERS ' if isinstance(found, str) else 'agrees  '}  {name}{', ' + what if what else ''}: "
                  + (found if isinstance(found, str) else f"the worst is {found[1]} by {found[0]:.2g} of the largest element"), flush=True)
    print(f"{wrong} differ" if wrong else "every family agrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
