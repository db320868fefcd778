// Requests and candidates in safetensors.
"use strict";
const fs = require("node:fs");

class Unsupported extends Error {}

function floats(dtype, data) {
    if (dtype === "F32") return new Float32Array(data);
    if (dtype === "BF16") return new Float32Array(Uint32Array.from(new Uint16Array(data), (bits) => bits << 16).buffer);
    throw new Unsupported(`inputs of type ${dtype}`);
}

class Request {
    constructor(path) {
        const file = fs.readFileSync(path);
        const start = 8 + Number(file.readBigUInt64LE(0));
        const header = JSON.parse(file.subarray(8, start).toString());
        const attributes = header.__metadata__;
        delete header.__metadata__;
        this.op = attributes.op;
        this.expects = JSON.parse(attributes.expects);
        this.settings = {};
        for (const [, key, value] of attributes.case_yaml.matchAll(/^ *([a-z_0-9]+): (.*)$/gm)) this.settings[key] = value.replaceAll('"', "");
        this.tensors = {};
        for (const [name, { dtype, shape, data_offsets: [first, end] }] of Object.entries(header)) {
            const data = Uint8Array.from(file.subarray(start + first, start + end)).buffer;
            this.tensors[name] = dtype === "I32" ? { type: "int32", dims: shape, data: new Int32Array(data) }
                : { type: "float32", dims: shape, data: () => floats(dtype, data) };
        }
    }

    // null where it is not there
    tensor(path) {
        const tensor = this.tensors[path];
        if (tensor === undefined) return null;
        return { ...tensor, data: typeof tensor.data === "function" ? tensor.data() : tensor.data };
    }

    number(key) {
        return Number(this.settings[key]);
    }

    // Settings that must be so.
    need(wanted) {
        for (const [key, value] of Object.entries(wanted)) {
            if (![].concat(value).includes(this.settings[key])) throw new Unsupported(`${key}: ${this.settings[key]}`);
        }
    }

    lacks(...paths) {
        for (const path of paths) if (path in this.tensors) throw new Unsupported(path);
    }
}

// {path: {type, dims, data}}
function save(path, results) {
    const header = {}, dtypes = { float32: "F32", float16: "F16", int32: "I32" };
    let end = 0;
    const parts = Object.entries(results).map(([name, { type, dims, data }]) => {
        const part = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
        header[name] = { dtype: dtypes[type], shape: dims, data_offsets: [end, end + part.length] };
        end += part.length;
        return part;
    });
    const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    fs.writeFileSync(path, Buffer.concat([length, text, ...parts]));
}

module.exports = { Request, Unsupported, save };
