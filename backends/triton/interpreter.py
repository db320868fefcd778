"""Triton's interpreter, and what has to be put in it before kernels for GPUs run. Import this before what uses Triton.

Two things that the compiler does, and the interpreter of 3.9 does not:
- an argument that is a float is a float32 scalar in the kernel. The interpreter leaves a Python float, on which `.to(...)` fails;
- functions of CUDA's libdevice. The interpreter calls their empty Python declarations, which return None: here they are numpy's.
"""
import os

os.environ["TRITON_INTERPRET"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # without a GPU vLLM has no Triton, but where its devices are hidden
os.environ["LIGER_FUSED_MOE_AUTOTUNE"] = "0"  # Liger's own switch: one size of tiles, none is measured

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

FUNCTIONS = {"exp": np.exp, "log1p": np.log1p, "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "tanh": np.tanh}


def elementwise(function):
    def call(x):
        return tl.tensor(interpreter.interpreter_builder.unary_op(x.handle, function), x.type)

    return call


of_interpreter = interpreter._implicit_cvt


def argument_of_kernel(value):
    if isinstance(value, float):
        return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
    return of_interpreter(value)


for name, function in FUNCTIONS.items():
    setattr(libdevice, name, elementwise(function))
interpreter._implicit_cvt = argument_of_kernel
