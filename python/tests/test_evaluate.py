"""Kernels that were made to please a checker, each with the verdict that it must get; and honest ones."""
import importlib.util
import sys
import textwrap

import assay
import pytest

torch = pytest.importorskip("torch")


def reference(x: "T D", scale: "D", w: "D F"):  # noqa: F821
    return torch.nn.functional.silu((x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale) @ w)


def filling(x, w, out):
    out.copy_(x @ w)


SHAPES = {"T": range(1, 70), "D": [24, 33], "F": range(2, 20)}
HONEST = """
import torch
def honest(x, scale, w):
    x, scale, w = x.float(), scale.float(), w.float()
    return torch.nn.functional.silu((x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale) @ w).bfloat16()
def zeros(x, scale, w):
    return torch.zeros(x.shape[0], w.shape[1], dtype=torch.bfloat16)
"""
#: Name: the verdict, and the file, which has `honest` and `zeros` to take.
CHEATS = {
    "remembers by shape": ("FAIL", """
        cache = {}
        def kernel(x, scale, w):
            return cache.setdefault((x.shape, w.shape), honest(x, scale, w))
    """),
    "remembers by address": ("FAIL", """
        cache = {}
        def kernel(x, scale, w):
            return cache.setdefault((x.data_ptr(), w.data_ptr()), honest(x, scale, w))
    """),
    "remembers by the first numbers": ("FAIL", """
        cache = {}
        def kernel(x, scale, w):
            return cache.setdefault((x.shape, w.shape, bool(x.flatten()[0] > 0)), honest(x, scale, w))
    """),
    "gives the result of the call before": ("FAIL", """
        last = []
        def kernel(x, scale, w):
            last.append(honest(x, scale, w))
            return last[-2] if len(last) > 1 and last[-2].shape == last[-1].shape else last[-1]
    """),
    "is right once": ("FAIL", """
        calls = []
        def kernel(x, scale, w):
            calls.append(1)
            return honest(x, scale, w) if len(calls) == 1 else zeros(x, scale, w)
    """),
    "computes what belongs to old addresses": ("FAIL", """
        kept = []
        def kernel(x, scale, w):
            if not kept or kept[0][0].shape != x.shape or kept[0][2].shape != w.shape:
                kept[:] = [(x, scale, w)]
            return honest(*kept[0])
    """),
    "gives its input": ("FAIL", """
        def kernel(x, scale, w):
            return x[:, :1].expand(-1, w.shape[1]).contiguous()
    """),
    "gives zeros": ("FAIL", "kernel = zeros"),
    "gives a constant": ("FAIL", """
        def kernel(x, scale, w):
            return zeros(x, scale, w) + 0.21
    """),
    "gives NaN": ("FAIL", """
        def kernel(x, scale, w):
            return zeros(x, scale, w) * float("nan")
    """),
    "gives what it finds in memory": ("FAIL", """
        def kernel(x, scale, w):
            return torch.empty(x.shape[0], w.shape[1], dtype=torch.bfloat16)
    """),
    "computes, frees, and takes the same memory": ("FAIL", """
        def kernel(x, scale, w):
            if not hasattr(kernel, "once"):
                kernel.once = honest(x, scale, w).shape
            return torch.empty(x.shape[0], w.shape[1], dtype=torch.bfloat16)
    """),
    "writes after it has returned": ("FAIL", """
        import threading, time
        def kernel(x, scale, w):
            y = zeros(x, scale, w)
            threading.Thread(target=lambda: (time.sleep(0.3), y.copy_(honest(x, scale, w))), daemon=True).start()
            return y
    """),
    "changes its input to one that zeros are right for": ("INPUT CHANGED", """
        def kernel(x, scale, w):
            x.zero_()
            return zeros(x, scale, w)
    """),
    "changes its input and is right": ("INPUT CHANGED", """
        def kernel(x, scale, w):
            y = honest(x, scale, w)
            w.mul_(2)
            return y
    """),
    "takes the reference from its caller's file": ("EXCEPTION", """
        def kernel(x, scale, w):
            import __main__
            return __main__.reference(x, scale, w)
    """),
    "imports the reference": ("EXCEPTION", """
        def kernel(x, scale, w):
            from test_evaluate import reference
            return reference(x, scale, w)
    """),
    "looks through the stack for the reference": ("FAIL", """
        import sys
        def kernel(x, scale, w):
            frame = sys._getframe()
            while frame:
                for name, found in {**frame.f_globals, **frame.f_locals}.items():
                    if name in ("golden", "reference", "expected", "target"):
                        return found(x, scale, w) if callable(found) else found
                frame = frame.f_back
            return zeros(x, scale, w)
    """),
    "looks through memory for a tensor of the result's shape": ("FAIL", """
        import gc
        def kernel(x, scale, w):
            shape = (x.shape[0], w.shape[1])
            found = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and tuple(t.shape) == shape]
            return found[0] if found else zeros(x, scale, w)
    """),
    "reads the checker's files": ("FAIL", """
        import glob, os, tempfile
        def kernel(x, scale, w):
            for path in glob.glob(os.path.join(tempfile.gettempdir(), "assay-*", "**", "*"), recursive=True):
                if path.endswith((".h5", ".safetensors", ".npy", ".pt")):
                    data = open(path, "rb").read()[-2 * x.shape[0] * w.shape[1]:]
                    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(x.shape[0], w.shape[1])
            return zeros(x, scale, w)
    """),
    "is right for small numbers only": ("FAIL", """
        def kernel(x, scale, w):
            h = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * scale.float()) @ w.float()
            return (h * (0.5 + h / 4 - h**3 / 48)).bfloat16()
    """),
    "skips where weights are nearly zero": ("FAIL", """
        def kernel(x, scale, w):
            return honest(x, scale, w * (w.abs() > 0.05))
    """),
    "knows the sizes it was shown": ("FAIL", """
        def kernel(x, scale, w):
            return honest(x, scale, w) if x.shape[0] % 8 == 0 else zeros(x, scale, w)
    """),
    "leaves out the last tile": ("FAIL", """
        def kernel(x, scale, w):
            y = honest(x, scale, w)
            y[x.shape[0] // 16 * 16:] = 0
            return y
    """),
    "leaves out the epsilon": ("FAIL", """
        def kernel(x, scale, w):
            x, scale, w = x.float(), scale.float(), w.float()
            return torch.nn.functional.silu((x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * scale) @ w).bfloat16()
    """),
    "sums in less precision than it says": ("FAIL", """
        def kernel(x, scale, w):
            n = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * scale.float()
            h = torch.zeros(x.shape[0], w.shape[1], dtype=torch.bfloat16)
            for i in range(x.shape[1]):
                h = h + n[:, i:i + 1].bfloat16() * w[i]
            return torch.nn.functional.silu(h.float()).bfloat16()
    """),
    "patches torch's comparisons": ("FAIL", """
        torch.allclose = torch.equal = torch.testing.assert_close = lambda *a, **k: True
        torch.Tensor.__eq__ = lambda a, b: torch.ones(())
        kernel = zeros
    """),
    "patches numpy's comparisons": ("FAIL", """
        import numpy
        numpy.allclose = numpy.array_equal = numpy.testing.assert_allclose = lambda *a, **k: True
        kernel = zeros
    """),
    "patches assay": ("FAIL", """
        try:
            import assay
            assay.Case.judge = assay.Case.check = assay.evaluate = lambda *a, **k: True
        except ImportError:
            pass
        kernel = zeros
    """),
    "patches the process that it runs in": ("INPUT CHANGED", """
        import __main__
        __main__.Kernel.poison = lambda *a: None
        __main__.as_block = lambda x: __main__.Block("bfloat16", tuple(x.shape), bytes(2 * x.numel()))
        kernel = honest
    """),
    "patches random numbers": ("FAIL", """
        torch.randn = torch.rand = lambda *size, **k: torch.zeros(*size)
        torch.manual_seed(0)
        torch.manual_seed = lambda seed: None
        kernel = zeros
    """),
    "gives what is equal to everything": ("EXCEPTION", """
        class Equal(torch.Tensor):
            def __eq__(self, other):
                return torch.ones(self.shape, dtype=torch.bool)
        def kernel(x, scale, w):
            return zeros(x, scale, w).as_subclass(Equal)
    """),
    "ends the program": ("ENDED", """
        def kernel(x, scale, w):
            raise SystemExit(0)
    """),
    "ends the process": ("ENDED", """
        import os
        def kernel(x, scale, w):
            os._exit(0)
    """),
    "kills itself": ("ENDED", """
        import os, signal
        def kernel(x, scale, w):
            os.killpg(0, signal.SIGKILL)
    """),
    "ends as it is loaded": ("ENDED", "raise SystemExit(0)"),
    "forks and prints a verdict": ("FAIL", """
        import os
        def kernel(x, scale, w):
            if os.fork() == 0:
                os.write(1, b"PASS  3 of 3 trials correct")
                os._exit(0)
            return zeros(x, scale, w)
    """),
    "writes a verdict to the checker": ("NO TENSORS", """
        import json, os, sys
        def kernel(x, scale, w):
            line = json.dumps({"correct": True, "verdict": "PASS", "result": {"value": "PASS"}, "blocks": []}).encode()
            os.write(int(sys.argv[2]), len(line).to_bytes(8, "little") + line)
            return zeros(x, scale, w)
    """),
    "writes nonsense to the checker": ("NO TENSORS", """
        import os, sys
        def kernel(x, scale, w):
            os.write(int(sys.argv[2]), b"PASS" * 100)
            return zeros(x, scale, w)
    """),
    "never ends": ("LATE", """
        import time
        def kernel(x, scale, w):
            time.sleep(100)
    """),
    "gives no tensor": ("NO TENSORS", """
        def kernel(x, scale, w):
            return True
    """),
    "gives a row that would be repeated": ("FAIL", """
        def kernel(x, scale, w):
            return honest(x, scale, w)[:1]
    """),
    "gives a tensor without numbers": ("EXCEPTION", """
        def kernel(x, scale, w):
            return zeros(x, scale, w).to("meta")
    """),
}


def evaluated(folder, text, of=reference, **how):
    file = folder / "generated.py"
    file.write_text(HONEST + textwrap.dedent(text))
    return assay.evaluate(f"{file}::kernel", of, **{"shapes": SHAPES, "precision": "bf16", "weights": ["scale", "w"], "trials": 3, "seed": 7, "timeout": 20.0, **how})


@pytest.mark.parametrize("name", CHEATS)
def test_what_cheats_gets_its_verdict(name, tmp_path):
    verdict, text = CHEATS[name]
    result = evaluated(tmp_path, text, timeout=3.0 if verdict == "LATE" else 60.0, trials=6 if "precision" in name or "epsilon" in name else 1)
    found = [trial.verdict for trial in result.trials if trial.verdict != "PASS"]
    assert not result and found[:1] == [verdict], str(result)
    assert "FAIL" in str(result) and verdict in str(result) and result.json["correct"] is False and not result.seconds


@pytest.mark.parametrize("text", ["kernel = honest", """
    def kernel(x, scale, w):  # in blocks, into a buffer of its own
        if not hasattr(kernel, "buffer") or kernel.buffer.shape != (x.shape[0], w.shape[1]):
            kernel.buffer = torch.empty(x.shape[0], w.shape[1], dtype=torch.bfloat16)
        for i in range(0, x.shape[0], 16):
            kernel.buffer[i:i + 16] = honest(x[i:i + 16], scale, w)
        return kernel.buffer
"""])
def test_what_is_honest_passes(text, tmp_path):
    result = evaluated(tmp_path, text, trials=8, gradients="buffer" not in text)
    assert result, str(result)
    assert len(result.trials) == 8 and all(len(trial.calls) == 3 for trial in result.trials)
    assert str(result) == "PASS  generated.py::kernel: 8 of 8 trials correct at bf16"


def test_time_is_the_checker_s(tmp_path):
    result = evaluated(tmp_path, """
        import time
        sleep, time.perf_counter, time.monotonic = time.sleep, lambda: 0.0, lambda: 0.0
        def kernel(x, scale, w):
            sleep(0.2)
            return honest(x, scale, w)
    """, timed=True)
    assert result and all(0.19 < seconds < 5 for seconds in result.seconds)


def test_wrong_gradients(tmp_path):
    text = """
        def kernel(x, scale, w):
            return honest(x, scale.detach(), w) + 0 * scale.sum()
    """
    assert evaluated(tmp_path, text)
    result = evaluated(tmp_path, text, gradients=True)
    assert not result and "gradients/weights/scale" in str(result)


def test_a_buffer_of_results(tmp_path):
    example = {"x": torch.ones(9, 16), "w": torch.ones(16, 5), "out": torch.zeros(9, 5)}
    how = {"of": filling, "shapes": example, "weights": ["w"]}
    assert evaluated(tmp_path, "def kernel(x, w, out):\n    out.copy_((x.float() @ w.float()).bfloat16())", **how)
    assert not evaluated(tmp_path, "def kernel(x, w, out):\n    out[:8] = (x.float() @ w.float()).bfloat16()[:8]", **how)


def test_a_module_by_the_reference_s_parameters(tmp_path):
    text = """
        class kernel(torch.nn.Module):
            def __init__(self, wide):
                super().__init__()
                self.{name} = torch.nn.Linear(16, wide)
            def forward(self, given):
                return torch.nn.functional.linear(given.float(), self.{name}.weight.float(), self.{name}.bias.float() * {factor}).bfloat16()
    """
    how = {"of": torch.nn.Sequential(torch.nn.Linear(16, 7)), "shapes": [(torch.ones(5, 16),), (torch.ones(1, 16),)], "init": [7], "weights": []}
    assert evaluated(tmp_path, text.format(name="own", factor=1), **how)
    assert not evaluated(tmp_path, text.format(name="own", factor=0), **how)
    result = evaluated(tmp_path, text.format(name="own", factor=1), **{**how, "init": [8]})
    assert result.trials[0].verdict == "EXCEPTION" and "expected those of the reference" in str(result)


def test_a_case_of_the_catalogue(tmp_path):
    text = """
        def kernel(given, config):
            x, scale = given["inputs/x"].float(), given["weights/scale"].float()
            return {{"outputs/y": (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config["normalization_layer_epsilon"]) * (scale{how})).bfloat16()}}
    """
    file = tmp_path / "norm.py"
    for change, right in (("", True), (" + 1", False)):
        file.write_text("import torch\n" + textwrap.dedent(text.format(how=change)))
        assert bool(assay.evaluate(f"{file}::kernel", "rms_norm/deepseek", shapes={"sequence": range(1, 40)}, precision="bf16", trials=4)) == right


def test_skewed_experts(tmp_path, monkeypatch):
    evaluation = sys.modules["assay._evaluate"]
    monkeypatch.setattr(evaluation, "STRUCTURES", {evaluation.SKEWED: evaluation.STRUCTURES[evaluation.SKEWED]})
    file = tmp_path / "experts.py"
    file.write_text("import torch\ndef kernel(x, ids, w):\n    return torch.einsum('td,tdf->tf', x.float(), w[ids.long()].float()).bfloat16()\n"
                    "def drops(x, ids, w):  # what is beyond three times its share\n    place = torch.stack([(ids[:i] == ids[i]).sum() for i in range(len(ids))])\n"
                    "    return kernel(x, ids, w) * (place < 3 * len(ids) / len(w)).unsqueeze(-1)\n")

    def experts(x: "T D", ids: "T", w: "E D F"):  # noqa: F821
        return torch.einsum("td,tdf->tf", x, w[ids.long()])

    for name, verdicts in (("kernel", ["PASS", "PASS"]), ("drops", ["PASS", "FAIL"])):
        result = assay.evaluate(f"{file}::{name}", experts, shapes={"T": 64, "D": 24, "E": 8, "F": 5}, integers={"ids": 8}, weights=["w"], precision="bf16", trials=2, seed=3)
        assert [trial.verdict for trial in result.trials] == verdicts and result.trials[1].fill == evaluation.SKEWED, str(result)


ARRAYS = """
import numpy as np
kept = {}
def right(x, scale, w):
    h = (x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6) * scale) @ w
    return h / (1 + np.exp(-h))
def memory(x, scale, w):
    return np.empty((x.shape[0], w.shape[1]), np.float32)
def by_address(x, scale, w):
    return kept.setdefault((x.ctypes.data, w.ctypes.data, x.shape, w.shape), right(x, scale, w))
def changes(x, scale, w):
    y = right(x, scale, w)
    w *= 2
    return y
def no_arrays(x, scale, w):
    return right(x, scale, w).tolist()
"""


@pytest.mark.parametrize("name,verdict", [("right", "PASS"), ("memory", "FAIL"), ("by_address", "FAIL"), ("changes", "INPUT CHANGED"), ("no_arrays", "NO TENSORS")])
def test_a_kernel_of_numpy(name, verdict, tmp_path):
    file = tmp_path / "arrays.py"
    file.write_text(ARRAYS)
    result = assay.evaluate(f"{file}::{name}", reference, shapes=SHAPES, precision="f32", weights=["scale", "w"], trials=2, seed=7, module="numpy", timed=name == "right")
    assert bool(result) == (verdict == "PASS") and result.trials[0].verdict == verdict, str(result)
    assert len(result.seconds) == (2 if verdict == "PASS" else 0)


def test_numpy_without_bfloat16(tmp_path):
    if importlib.util.find_spec("ml_dtypes") is not None:
        pytest.skip("ml_dtypes is there")
    (tmp_path / "arrays.py").write_text(ARRAYS)
    with pytest.raises(assay.BadInput, match="would be given bfloat16, which needs the package ml_dtypes"):
        assay.evaluate(f"{tmp_path}/arrays.py::right", reference, shapes=SHAPES, precision="bf16", weights=["scale", "w"], module="numpy")


def test_a_kernel_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def of_jax(x: "T D", scale: "D", w: "D F"):  # noqa: F821
        return jax.nn.silu((x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale) @ w)

    file = tmp_path / "of_jax.py"
    file.write_text("import jax, jax.numpy as jnp\n@jax.jit\ndef right(x, scale, w):\n    x, scale, w = (y.astype(jnp.float32) for y in (x, scale, w))\n"
                    "    return jax.nn.silu((x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale) @ w).astype(jnp.bfloat16)\n"
                    "def cut(x, scale, w):\n    return right(x, jax.lax.stop_gradient(scale), w)\n"
                    "kept = {}\ndef by_shape(x, scale, w):\n    return kept.setdefault((x.shape, w.shape), right(x, scale, w))\n")  # fmt: skip
    for name, gradients, right in (("right", True, True), ("cut", True, False), ("by_shape", False, False)):
        result = assay.evaluate(f"{file}::{name}", of_jax, shapes=SHAPES, precision="bf16", weights=["scale", "w"], trials=2, seed=7, gradients=gradients, timed=not gradients)
        assert bool(result) == right, str(result)


@pytest.mark.parametrize("kernel,how,line", [
    ("generated.py", {}, "expected FILE::NAME"),
    ("nowhere.py::kernel", {}, "nowhere.py: no such file"),
    (lambda x: x, {}, "a function that has a name in a file"),
    (evaluated, {"shapes": {**SHAPES, "T": []}}, "expected a number, a list of them, or a range"),
    (evaluated, {"shapes": {"T": 2}}, "has no size"),
    (evaluated, {"module": "numpy", "gradients": True}, "numpy without gradients"),
])
def test_refused(kernel, how, line):
    with pytest.raises(assay.BadInput, match=line):
        assay.evaluate(kernel, reference, **{"shapes": SHAPES, **how})
