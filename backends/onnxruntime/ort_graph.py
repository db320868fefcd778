"""A graph of ONNX operators that is built node by node, and run."""
from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

ELEMENTS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16, np.dtype(np.int32): TensorProto.INT32,
            np.dtype(np.int64): TensorProto.INT64, np.dtype(np.bool_): TensorProto.BOOL}


class Graph:
    """Tensors go by their names; an input that is absent is ""."""

    def __init__(self, dtype: type, by_exp: bool):
        self.dtype, self.by_exp = np.dtype(dtype), by_exp
        self.nodes, self.feeds, self.names = [], {}, 0

    def name(self) -> str:
        self.names += 1
        return f"t{self.names}"

    def input(self, array: np.ndarray) -> str:
        """Floats become of the graph's type."""
        array, name = np.asarray(array), self.name()
        self.feeds[name] = np.ascontiguousarray(array.astype(self.dtype) if array.dtype.kind == "f" else array).reshape(array.shape)
        return name

    def scalar(self, number: float) -> str:
        return self.input(np.array(number, np.float32))

    def integers(self, values: list[int], dtype: type = np.int64) -> str:
        return self.input(np.array(values, dtype))

    def add(self, operator: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes) -> str | list[str]:
        made = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, made, domain=domain, **attributes))
        return made[0] if outputs == 1 else made

    def microsoft(self, operator: str, *inputs: str, outputs: int = 1, **attributes) -> str | list[str]:
        return self.add(operator, *inputs, domain="com.microsoft", outputs=outputs, **attributes)

    def reshape(self, name: str, *shape: int) -> str:
        return self.add("Reshape", name, self.integers(list(shape)))

    def transpose(self, name: str, *order: int) -> str:
        return self.add("Transpose", name, perm=order)

    def float32(self, name: str) -> str:
        return self.add("Cast", name, to=TensorProto.FLOAT)

    def run(self, wanted: dict[str, str], wide: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        """The values of these tensors, by the same keys. They are of the graph's type, those of `wide` float32."""
        feeds = [helper.make_tensor_value_info(name, ELEMENTS[array.dtype], array.shape) for name, array in self.feeds.items()]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT if key in wide else ELEMENTS[self.dtype], None)
                for key, name in wanted.items()]
        model = helper.make_model(helper.make_graph(self.nodes, "assay", feeds, ends), ir_version=10,
                                  opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return dict(zip(wanted, session.run(list(wanted.values()), self.feeds)))
