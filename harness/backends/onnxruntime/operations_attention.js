// Attention and what goes before it: rotations, projections. GroupQueryAttention where it has the form, else MultiHeadAttention.
"use strict";
const { Unsupported } = require("./request");

const NO_MESH = "{data: 1, fsdp: 1, expert: 1}";
const floats = (dims, data) => ({ type: "float32", dims, data: Float32Array.from(data) });

// ---- rotations: the frequencies are the shell's ----

function frequencies(request, width) {
    const s = request.settings, n = (key) => request.number(key), base = n("rope_max_timescale"), made = [];
    const correction = (turns) => width * Math.log(n("original_max_position_embeddings") / (2 * Math.PI * turns)) / (2 * Math.log(base));
    let low = correction(n("beta_fast")), high = correction(n("beta_slow"));
    if (s.rope_truncate === "true") [low, high] = [Math.floor(low), Math.ceil(high)];
    [low, high] = [Math.max(low, 0), Math.min(high, width - 1)];
    const empty = low === high || (s.rope_pairwise === "true" && low > high), span = empty ? 0.001 : high - low;
    for (let i = 0; i < width / 2; i++) {
        const frequency = base ** (-2 * i / width), ramp = Math.min(Math.max((i - low) / span, 0), 1);
        made.push(s.rope_type === "yarn" ? frequency / n("rope_factor") * ramp + frequency * (1 - ramp) : frequency);
    }
    return made;
}

// x [B,S,N,Dr] as it is laid out
function rotated(graph, request, x, [B, S, N, width], interleaved) {
    const positions = request.tensor("inputs/positions").data, table = frequencies(request, width), factor = request.number("rope_factor");
    const scaled = request.settings.rope_type === "yarn" && request.settings.rope_attention_scaling === "true" && factor > 1;
    const size = scaled ? 0.1 * Math.log(factor) + 1 : 1;
    const of = (f) => graph.input(floats([B * S, width / 2], Array.from(positions).flatMap((p) => table.map((frequency) => size * f(p * frequency)))));
    const rows = graph.input({ type: "int64", dims: [B, S], data: BigInt64Array.from(positions, (_, i) => BigInt(i)) });
    const heads = graph.add("Transpose", [x], { perm: [0, 2, 1, 3] });
    const y = graph.microsoft("RotaryEmbedding", [heads, rows, of(Math.cos), of(Math.sin)], { interleaved: Number(interleaved) });
    return graph.add("Transpose", [y], { perm: [0, 2, 1, 3] });
}

function yarn_rope(graph, request) {
    const x = request.tensor("inputs/x"), [B, S, N, width] = x.dims, s = request.settings, interleaved = s.rope_interleave === "true";
    let y = rotated(graph, request, graph.input(x), x.dims, interleaved);
    if (interleaved && s.rope_pairwise !== "true") { // first components, then second ones
        const pairs = graph.reshape(y, [B, S, N, width / 2, 2]);
        y = graph.reshape(graph.add("Transpose", [pairs], { perm: [0, 1, 2, 4, 3] }), x.dims);
    }
    return { "outputs/y": y };
}

// ---- attention ----

const blind = (request, ids, token) => ids !== null && request.settings.mask_padding === "true" && ids.data[token] === 0;

function windowOf(request) {
    return request.settings.attention_type === "global" ? 0 : request.number("sliding_window_size");
}

// [B,1,S,S]: 0 for what is seen, -infinity elsewhere; rows that see nothing are left open, since the shell writes their results.
function maskOf(request, B, S, ids, window) {
    const mask = new Float32Array(B * S * S);
    for (let b = 0; b < B; b++) for (let i = 0; i < S; i++) for (let j = 0; j < S; j++) {
        const same = ids === null || ids.data[b * S + i] === ids.data[b * S + j];
        const seen = j <= i && same && (window === 0 || i - j < window);
        mask[(b * S + i) * S + j] = seen || blind(request, ids, b * S + i) ? 0 : -Infinity;
    }
    return { type: "float32", dims: [B, 1, S, S], data: mask };
}

// That value where a token is padding; `dims` has B and S, and 1 elsewhere.
function withPadding(graph, request, name, value, dims) {
    const ids = request.tensor("inputs/segment_ids");
    if (ids === null) return name;
    const padding = graph.input({ type: "bool", dims, data: Uint8Array.from(ids.data, (_, token) => Number(blind(request, ids, token))) });
    return graph.add("Where", [padding, graph.scalar(value), name]);
}

// query [B,S,N,Dqk], key [B,S,Nkv,Dqk] and value [B,S,Nkv,Dv] -> [B,S,N*Dv]; the scale is in the query
function attend(graph, request, names, q, v) {
    const [B, S, N, Dqk] = q, [, , Nkv, Dv] = v, ids = request.tensor("inputs/segment_ids"), window = windowOf(request);
    const sinks = request.tensor("weights/sinks");
    const [query, key, value] = [[names[0], N * Dqk], [names[1], Nkv * Dqk], [names[2], Nkv * Dv]].map(([name, width]) => graph.reshape(name, [B, S, width]));
    const bias = ids === null ? "" : graph.input(maskOf(request, B, S, ids, 0));
    if (Nkv === N && sinks === null && window === 0) {
        const out = graph.microsoft("MultiHeadAttention", [query, key, value, "", "", bias],
            { num_heads: N, scale: { float: 1 }, unidirectional: ids === null ? 1 : 0 });
        return withPadding(graph, request, out, 0, [B, S, 1]);
    }
    if (Dqk !== Dv) throw new Unsupported("GroupQueryAttention: values of another width than keys");
    if (Dqk % 8 !== 0) throw new Unsupported("GroupQueryAttention: a head size that is no multiple of 8");
    const lengths = graph.integers(Array(B).fill(S - 1), "int32"), total = graph.integers([S], "int32");
    const attributes = { num_heads: N, kv_num_heads: Nkv, scale: { float: 1 } };
    if (window > 0) attributes.local_window_size = window;
    const out = graph.add("GroupQueryAttention", [query, key, value, "", "", lengths, total, "", "", "", bias, sinks === null ? "" : graph.input(sinks)],
        attributes, "com.microsoft", [graph.name(), graph.name()]);
    return withPadding(graph, request, out, 0, [B, S, 1]);
}

// What padding holds is not read.
function withoutPadding(request, tensor, ids) {
    const row = tensor.dims[2] * tensor.dims[3];
    for (let t = 0; t < tensor.dims[0] * tensor.dims[1]; t++) if (blind(request, ids, t)) tensor.data.fill(0, t * row, (t + 1) * row);
    return tensor;
}

function attention(graph, request) {
    const ids = request.tensor("inputs/segment_ids");
    const tensors = ["query", "key", "value"].map((name) => withoutPadding(request, request.tensor(`inputs/${name}`), ids));
    const [[B, S, N, width], , [, , Nkv, Dv]] = tensors.map((tensor) => tensor.dims), names = tensors.map((tensor) => graph.input(tensor));
    const out = graph.reshape(attend(graph, request, names, tensors[0].dims, tensors[2].dims), [B, S, N, Dv]);
    // [B,Nkv,N/Nkv,S,.], so that heads of keys are shared
    const heads = (name, count, each, perm) => graph.add("Transpose", [graph.reshape(name, [B, S, count, each, width])], { perm });
    const scores = graph.reshape(graph.add("MatMul", [heads(names[0], Nkv, N / Nkv, [0, 2, 3, 1, 4]), heads(names[1], Nkv, 1, [0, 2, 3, 4, 1])]), [B, N, S, S]);
    const masked = graph.add("Add", [scores, graph.input(maskOf(request, B, S, ids, windowOf(request)))]);
    const lse = graph.add("ReduceLogSumExp", [masked, graph.integers([3])], { keepdims: 0 });
    return { "outputs/attention_out": out, "outputs/lse": withPadding(graph, request, lse, -Infinity, [B, 1, S]) };
}

// ---- grouped-query attention with its projections ----

function gqa(graph, request) {
    request.need({ mesh: NO_MESH });
    const s = request.settings, x = request.tensor("inputs/x"), [B, S, D] = x.dims, width = request.number("head_dim");
    const N = request.number("base_num_query_heads"), Nkv = request.number("base_num_kv_heads") || N, input = graph.input(x);
    const projected = (name, heads) => {
        const kernel = request.tensor(`weights/${name}/kernel`), bias = request.tensor(`weights/${name}/bias`);
        const y = graph.add("MatMul", [input, graph.input({ ...kernel, dims: [D, heads * width] })]);
        const whole = bias === null ? y : graph.add("Add", [y, graph.input({ ...bias, dims: [heads * width] })]);
        return graph.reshape(whole, [B, S, heads, width]);
    };
    let parts;
    if (s.fused_qkv === "true") {
        const [key, value] = [graph.name(), graph.name()];
        parts = [graph.add("Split", [projected("qkv_proj", N + 2 * Nkv), graph.integers([N, Nkv, Nkv])], { axis: 2 }, "", [key, value]), key, value];
    } else {
        parts = [["query", N], ["key", Nkv], ["value", Nkv]].map(([name, heads]) => projected(name, heads));
    }
    for (const [i, name, heads] of [[0, "query", N], [1, "key", Nkv]]) {
        const scale = request.tensor(`weights/${name}_norm/scale`);
        if (scale !== null) {
            parts[i] = graph.add("SimplifiedLayerNormalization", [parts[i], graph.input(scale)],
                { axis: -1, epsilon: { float: request.number("normalization_layer_epsilon") }, stash_type: 1 });
        }
        parts[i] = rotated(graph, request, parts[i], [B, S, heads, width], s.rope_interleave === "true");
    }
    parts[0] = graph.add("Mul", [parts[0], graph.scalar(request.number("query_pre_attn_scalar") || width ** -0.5)]);
    const out = attend(graph, request, parts, [B, S, N, width], [B, S, Nkv, width]);
    const kernel = request.tensor("weights/out/kernel"), bias = request.tensor("weights/out/bias");
    const y = graph.add("MatMul", [out, graph.input({ ...kernel, dims: [N * width, D] })]);
    return { "outputs/y": bias === null ? y : graph.add("Add", [y, graph.input(bias)]) };
}

module.exports = { yarn_rope, attention, gqa };
