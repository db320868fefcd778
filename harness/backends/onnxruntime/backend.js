#!/usr/bin/env node
// ONNX Runtime's processor kernels as a backend, forward only: one model of few operators for each request.
//
//     assay run 'moe/*' --serve --container safetensors --set gradients=none --precision f32 --backend 'node backend.js'
//
// An argument f16 makes every tensor float16; `f32 exp` and `f16 exp` take silu and sigmoid by Exp, which is more exact than the
// operators are. onnxruntime-node is found by NODE_PATH.
"use strict";
const readline = require("node:readline");
const ort = require("onnxruntime-node");
const { Graph } = require("./onnx");
const { Request, Unsupported, save } = require("./request");
const operations = { ...require("./operations"), ...require("./operations_attention") };

const TYPES = { f32: "float32", f16: "float16" }, TYPE = TYPES[process.argv[2] ?? "f32"];
const OPTIONS = { logSeverityLevel: 3, intraOpNumThreads: 1, interOpNumThreads: 1 };

async function answer(path, candidate) {
    const request = new Request(path);
    if (!(request.op in operations)) throw new Unsupported(`op ${request.op}`);
    for (const key of ["quant_recipe", "quant_hidden_format"]) if (request.settings[key]) throw new Unsupported(key);
    if ("quant_formats" in request.settings) throw new Unsupported("quant_formats");
    const graph = new Graph(TYPE, process.argv[3] === "exp");
    const { finish = (results) => results, ...named } = operations[request.op](graph, request);
    for (const [result, name] of Object.entries(named)) graph.outputs[result] = [].concat(name, TYPE);
    const session = await ort.InferenceSession.create(graph.model(), OPTIONS);
    const feeds = Object.entries(graph.inputs).map(([name, { type, data, dims }]) => [name, new ort.Tensor(type, data, dims)]);
    const outputs = await session.run(Object.fromEntries(feeds));
    const results = {};
    for (const [result, [name]] of Object.entries(graph.outputs)) {
        const { type, dims, data } = outputs[name];
        results[result] = type === "int64" ? { type: "int32", dims, data: Int32Array.from(data, Number) } : { type, dims, data };
    }
    await session.release();
    save(candidate, finish(results));
}

async function serve() {
    for await (const line of readline.createInterface({ input: process.stdin })) {
        try {
            await answer(...line.split("\t"));
            console.log("assay: done");
        } catch (error) {
            const why = error.message.replaceAll(/\s+/g, " ");
            console.log(error instanceof Unsupported ? `assay: unsupported ${why}` : `assay: failed ${why}`);
        }
    }
}

if (TYPE === undefined || ![undefined, "exp"].includes(process.argv[3])) {
    console.error(`backend.js: expected f32 or f16, and exp or nothing, found ${process.argv.slice(2).join(" ")}`);
    process.exit(2);
}
serve();
