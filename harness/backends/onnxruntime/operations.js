// assay's operations by ONNX Runtime's operators. Each function adds nodes to the graph and names its outputs; layouts of weights, rotary
// tables and masks are the shell's, what is computed with them is ONNX Runtime's.
"use strict";
const { Unsupported } = require("./request");
const { TYPES } = require("./onnx");

const product = (dims) => dims.reduce((a, b) => a * b, 1);
const NO_MESH = "{data: 1, fsdp: 1, expert: 1}";

// [.., rows, columns] by a function of (batch, row, column) of the new tensor
function arranged(dims, pick) {
    const data = new Float32Array(product(dims));
    let i = 0;
    for (let b = 0; b < dims[0]; b++) for (let r = 0; r < dims[1]; r++) for (let c = 0; c < dims[2]; c++) data[i++] = pick(b, r, c);
    return { type: "float32", dims, data };
}

function rmsNorm(graph, request, x, path) {
    return graph.add("SimplifiedLayerNormalization", [x, graph.input(request.tensor(path))],
        { axis: -1, epsilon: { float: request.number("normalization_layer_epsilon") }, stash_type: 1 });
}

function rms_norm(graph, request) {
    return { "outputs/y": rmsNorm(graph, request, graph.input(request.tensor("inputs/x")), "weights/scale") };
}

// ---- gated MLP ----

// x sigmoid(alpha x). By the operator, or by Exp: its sigmoid has an absolute error, which hides what else may be wrong.
function gate(graph, x, alpha) {
    if (!graph.byExp) return graph.microsoft("QuickGelu", [x], { alpha: { float: alpha } });
    const power = graph.add("Exp", [graph.add("Mul", [x, graph.scalar(-alpha)])]);
    return graph.add("Div", [x, graph.add("Add", [power, graph.scalar(1)])]);
}

function activation(graph, kind, x) {
    switch (kind) {
    case "silu": return gate(graph, x, 1);
    case "gelu": return graph.add("Gelu", [x], { approximate: "tanh" });
    case "gelu_exact": return graph.add("Gelu", [x]);
    case "relu": return graph.add("Relu", [x]);
    case "sigmoid": return graph.byExp ? graph.add("Reciprocal", [graph.add("Add", [graph.add("Exp", [graph.add("Neg", [x])]), graph.scalar(1)])])
        : graph.add("Sigmoid", [x]);
    case "linear": return x;
    default: throw new Unsupported(`activation ${kind}`);
    }
}

const activations = (request) => request.settings.mlp_activations.match(/\w+/g);

function gatedMlp(graph, request, x, prefix, limit) {
    const weight = (name) => graph.input(request.tensor(`${prefix}${name}/kernel`));
    const biased = (name, y) => {
        const bias = request.tensor(`${prefix}${name}/bias`);
        return bias === null ? y : graph.add("Add", [y, graph.input(bias)]);
    };
    let halves;
    if (`${prefix}wi/kernel` in request.tensors) {
        const both = graph.add("MatMul", [x, weight("wi")]), up = graph.name();
        halves = [graph.add("Split", [both], { axis: -1, num_outputs: 2 }, "", [up]), up];
    } else {
        halves = ["wi_0", "wi_1"].map((name) => graph.add("MatMul", [x, weight(name)]));
    }
    halves = halves.map((half, i) => biased(`wi_${i}`, half));
    if (limit > 0) {
        halves = [graph.add("Clip", [halves[0], "", graph.scalar(limit)]), graph.add("Clip", [halves[1], graph.scalar(-limit), graph.scalar(limit)])];
    }
    const kinds = activations(request);
    const [a, b] = request.settings.decoder_block === "gpt_oss"
        ? [gate(graph, halves[0], 1.702), graph.add("Add", [halves[1], graph.scalar(1)])]
        : [activation(graph, kinds[0], halves[0]), activation(graph, kinds[1] ?? "linear", halves[1])];
    return biased("wo", graph.add("MatMul", [graph.add("Mul", [a, b]), weight("wo")]));
}

function mlp(graph, request) {
    request.need({ mesh: NO_MESH });
    return { "outputs/y": gatedMlp(graph, request, graph.input(request.tensor("inputs/x")), "weights/", request.number("mlp_activations_limit")) };
}

// ---- MoE: the operator chooses by softmax, and has an interleaved SwiGLU ----

// Whether weights are divided by their sum over the chosen; softmax over the chosen is the same.
function normalized(request) {
    const s = request.settings;
    if (s.routing_method === "Default") return 0;
    if (["Renormalize", "RenormalizeNaive"].includes(s.routing_method)) return 1;
    request.need({ routing_method: "" });
    if (s.fused_moe_func === "true") return request.need({ routed_score_func: "softmax" }) ?? 1;
    if (s.decoder_block === "deepseek") {
        request.need({ routed_score_func: "softmax", routed_bias: "false", n_routing_groups: "-1" });
        if (!s.model_name.startsWith("deepseek2")) throw new Unsupported(`model_name: ${s.model_name}`);
        return 0;
    }
    if (["llama4", "gemma4", "deepseek4"].includes(s.decoder_block)) throw new Unsupported(`decoder_block: ${s.decoder_block}`);
    request.need({ routed_score_func: "" });
    return 1;
}

function moe(graph, request) {
    const s = request.settings;
    request.need({ mesh: NO_MESH, num_redundant_experts: "0", local_num_experts: "0", num_fused_shared_experts: "0", w13_reorder_size: "1",
        apply_router_weight_on_input: "false", use_random_routing: "false", first_num_hash_layers: "0", load_balance_loss_weight: "0.0",
        router_z_loss_weight: "0.0", routed_bias_update_rate: "0.0" });
    request.lacks("inputs/selected_experts", "inputs/expert_map", "weights/per_expert_scale", "weights/shared_expert_gate/kernel");
    const normalize = normalized(request);
    if (request.number("capacity_factor") > 0) throw new Unsupported("capacity_factor");
    const oss = s.decoder_block === "gpt_oss", kinds = activations(request);
    if (!oss && (kinds[0] !== "silu" || (kinds[1] ?? "linear") !== "linear")) throw new Unsupported(`mlp_activations: ${s.mlp_activations}`);

    const x = request.tensor("inputs/x"), D = x.dims[2], E = request.number("num_experts");
    const wi = request.tensor("weights/wi"), two = [0, 1].map((i) => request.tensor(`weights/wi_${i}`)), wo = request.tensor("weights/wo");
    const H = wo.dims[1];
    const branch = (i, e, d, h) => wi === null ? two[i].data[(e * D + d) * H + h] : wi.data[(e * D + d) * 2 * H + i * H + h];
    const fc1 = arranged([E, 2 * H, D], (e, r, d) => branch(r % 2, e, d, r >> 1));
    const fc2 = arranged([E, D, H], (e, d, h) => wo.data[(e * H + h) * D + d]);
    const biases = ["wi_0_bias", "wi_1_bias", "wo_bias"].map((name) => request.tensor(`weights/${name}`));
    let bias1 = "", bias2 = "";
    if (biases[0] !== null) {
        const both = arranged([1, E, 2 * H], (_, e, r) => biases[r % 2].data[e * H + (r >> 1)]);
        bias1 = graph.input({ ...both, dims: [E, 2 * H] });
        bias2 = graph.input(biases[2]);
    }
    const tokens = graph.input({ ...x, dims: [product(x.dims) / D, D] });
    let logits = graph.add("MatMul", [tokens, graph.input(request.tensor("weights/gate/kernel"))]);
    const bias = request.tensor("weights/gate/bias");
    if (bias !== null) logits = graph.add("Add", [logits, graph.input(bias)]);

    const limit = request.number("mlp_activations_limit");
    const attributes = { k: request.number("num_experts_per_tok"), activation_type: "swiglu", swiglu_fusion: 1, normalize_routing_weights: normalize,
        activation_alpha: { float: oss ? 1.702 : 1 }, activation_beta: { float: oss ? 1 : 0 } };
    if (limit > 0) attributes.swiglu_limit = { float: limit };
    let y = graph.microsoft("MoE", [tokens, logits, graph.input(fc1), bias1, graph.input(fc2), bias2], attributes);
    const factor = request.number("routed_scaling_factor");
    if (factor !== 1) y = graph.add("Mul", [y, graph.scalar(factor)]);
    if ("weights/shared_experts/wo/kernel" in request.tensors) y = graph.add("Add", [y, gatedMlp(graph, request, tokens, "weights/shared_experts/", 0)]);
    // which experts it chose, it does not say: it sorts its probabilities, and of equal ones takes the higher index
    const probabilities = graph.add("Softmax", [graph.add("Cast", [logits], { to: TYPES.float32 })], { axis: -1 });
    return { "outputs/y": graph.reshape(y, x.dims), probabilities: [probabilities, "float32"], finish: (results) => chosen(results, x.dims, E, attributes.k) };
}

function chosen({ probabilities, ...results }, [B, S], E, K) {
    const data = new Int32Array(B * S * K), values = probabilities.data;
    for (let t = 0; t < B * S; t++) {
        const experts = Array.from({ length: E }, (_, e) => e);
        experts.sort((a, b) => values[t * E + b] - values[t * E + a] || b - a);
        data.set(experts.slice(0, K), t * K);
    }
    return { ...results, "routing/selected_experts": { type: "int32", dims: [B, S, K], data } };
}

module.exports = { rms_norm, mlp, moe };
