"""What is kept in bfloat16 within a kernel that claims float32 sums: kernels in numpy, right and wrong."""
import assay
import numpy as np
import pytest


def bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def given(case):
    """Inputs and cotangents by their names, as float32."""
    tensors = {**case.inputs(), **case.cotangents()}
    return {path.split("/")[0][0] + "_" + path.split("/")[1]: (array.astype(np.uint32) << 16).view(np.float32) for path, array in tensors.items()}


def check(case, results):
    case.check({path: (bf16(x).view(np.uint32) >> 16).astype(np.uint16) for path, x in results.items()})


def product(a, b, every):
    """Partial sums in float32, or in bfloat16 every so many."""
    if every == 0:
        return a @ b
    y = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(0, a.shape[1], every):
        y = bf16(y + a[:, k : k + every] @ b[k : k + every])
    return y


def swiglu(case, every):
    t = given(case)
    x, gate, up, dh = t["i_x"], t["w_gate"], t["w_up"], t["c_h"]
    g, u = product(x, gate, every), product(x, up, every)
    s = 1 / (1 + np.exp(-g))
    dg, du = bf16(dh * u * s * (1 + g * (1 - s))), bf16(dh * g * s)
    check(case, {"outputs/h": g * s * u, "gradients/weights/gate": x.T @ dg, "gradients/weights/up": x.T @ du, "gradients/inputs/x": dg @ gate.T + du @ up.T})


def scan(case, every):
    """The state in float32, or in bfloat16 behind every so many tokens."""
    t = given(case)
    f, b, c, dy = (t[name] for name in ("i_f", "i_b", "i_c", "c_y"))
    a = (1 / (1 + np.exp(-f))).astype(np.float32)

    def states(decay, added):
        s, made = np.zeros_like(b[0]), np.zeros_like(b)
        for i in range(len(b)):
            s = decay[i] * s + added[i]
            s = bf16(s) if every and i % every == every - 1 else s
            made[i] = s
        return made

    s = states(a, b)
    late = np.concatenate([a[1:], np.zeros_like(a[:1])])
    db = states(late[::-1], (dy * c)[::-1])[::-1]
    da = db * np.concatenate([np.zeros_like(s[:1]), s[:-1]])
    check(case, {"outputs/y": s * c, "gradients/inputs/f": da * a * (1 - a), "gradients/inputs/b": db, "gradients/inputs/c": dy * s})


@pytest.mark.parametrize("name, kernel, wrong", [("program/swiglu-wide", swiglu, [16]), ("program/gated-scan", scan, [1, 16])])
def test_sums_in_bfloat16_are_seen(name, kernel, wrong):
    case = assay.case(name, precision="bf16")
    kernel(case, 0)
    for every in wrong:
        with pytest.raises(assay.Mismatch):
            kernel(case, every)
