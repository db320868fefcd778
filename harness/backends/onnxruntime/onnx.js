// A graph of ONNX operators as the bytes of a model. Field numbers are those of onnx.proto3.
"use strict";

const TYPES = { float32: 1, int32: 6, int64: 7, bool: 9, float16: 10 };
const MICROSOFT = "com.microsoft";

function varint(value) {
    const bytes = [];
    let rest = BigInt.asUintN(64, BigInt(value));
    for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
    return Buffer.from([...bytes, Number(rest)]);
}

const integer = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(Buffer.byteLength(value)), Buffer.from(value)]);

function float(field, value) {
    const four = Buffer.alloc(4);
    four.writeFloatLE(value);
    return Buffer.concat([varint((field << 3) | 5), four]);
}

// A string, a list of integers, a float (written as {float: x}), or an integer.
function attribute(name, value) {
    let fields;
    if (typeof value === "string") fields = [bytes(4, value), integer(20, 3)];
    else if (Array.isArray(value)) fields = [...value.map((v) => integer(8, v)), integer(20, 7)];
    else if (typeof value === "object") fields = [float(2, value.float), integer(20, 1)];
    else fields = [integer(3, value), integer(20, 2)];
    return bytes(5, Buffer.concat([bytes(1, name), ...fields]));
}

const value = (field, name, type) => bytes(field, Buffer.concat([bytes(1, name), bytes(2, bytes(1, integer(1, TYPES[type])))]));

class Graph {
    constructor(type, byExp = false) {
        this.type = type; // of what is computed: float32 or float16
        this.byExp = byExp; // silu and sigmoid
        this.nodes = [];
        this.inputs = {};
        this.outputs = {};
    }

    name() {
        this.names = (this.names ?? 0) + 1;
        return `t${this.names}`;
    }

    // An input of the model: {type, dims, data}. Floats become of the graph's type.
    input(tensor) {
        const name = this.name();
        this.inputs[name] = tensor;
        return tensor.type === "float32" && this.type !== "float32" ? this.add("Cast", [name], { to: TYPES[this.type] }) : name;
    }

    integers(values, type = "int64") {
        const data = type === "int64" ? BigInt64Array.from(values.map(BigInt)) : Int32Array.from(values);
        return this.input({ type, dims: [values.length], data });
    }

    scalar(number) {
        return this.input({ type: "float32", dims: [], data: Float32Array.of(number) });
    }

    // The first output's name; an absent input is "". `more` names further outputs.
    add(operator, inputs, attributes = {}, domain = "", more = []) {
        const output = this.name();
        this.nodes.push(bytes(1, Buffer.concat([...inputs.map((name) => bytes(1, name)), ...[output, ...more].map((name) => bytes(2, name)),
            bytes(4, operator), ...Object.entries(attributes).map(([key, v]) => attribute(key, v)), bytes(7, domain)])));
        return output;
    }

    microsoft(operator, inputs, attributes = {}) {
        return this.add(operator, inputs, attributes, MICROSOFT);
    }

    reshape(name, dims) {
        return this.add("Reshape", [name, this.integers(dims)]);
    }

    model() {
        const graph = Buffer.concat([...this.nodes, bytes(2, "assay"),
            ...Object.entries(this.inputs).map(([name, tensor]) => value(11, name, tensor.type)),
            ...Object.values(this.outputs).map(([name, type]) => value(12, name, type))]);
        const opset = (domain, version) => bytes(8, Buffer.concat([bytes(1, domain), integer(2, version)]));
        return Buffer.concat([integer(1, 10), bytes(7, graph), opset("", 21), opset(MICROSOFT, 1)]);
    }
}

module.exports = { Graph, TYPES };
