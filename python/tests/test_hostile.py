"""`assay run --hostile`: backends that were made to please a checker, each with the verdict that it must get; and honest ones."""
from __future__ import annotations

import glob
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from assay.__main__ import program

ROOT = Path(__file__).parents[2]
NUMPY = f"'{sys.executable}' '{ROOT}/harness/backends/numpy/backend.py'"
CASE = ["rms_norm/deepseek", "--set", "gradients=none", "--set", "sequence=5", "--set", "batch=1", "--precision", "bf16", "--quiet"]

# A root mean square norm, and what cheats take of it.
OBJECT = """
#include <assay/backend.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double number(const assay_backend_tensor *t, int64_t i)
{
    float f;
    const uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
    if (t->type == ASSAY_BACKEND_FLOAT32) return ((const float *)t->data)[i];
    memcpy(&f, &bits, sizeof f);
    return f;
}
static const assay_backend_tensor *find(const assay_backend_request *r, const char *path)
{
    for (int i = 0; i < r->tensor_count; i++)
        if (strcmp(r->tensors[i].path, path) == 0) return &r->tensors[i];
    abort();
}
static double clip = 1e30;
static void honest(const assay_backend_request *r, float *y)
{
    const assay_backend_tensor *x = find(r, "inputs/x"), *scale = find(r, "weights/scale");
    const int64_t width = scale->dims[0], rows = x->dims[0] * x->dims[1];
    double epsilon = 0;
    for (int i = 0; i < r->setting_count; i++)
        if (strcmp(r->settings[i].key, "normalization_layer_epsilon") == 0) epsilon = atof(r->settings[i].value);
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0;
        for (int64_t i = 0; i < width; i++) sum += fmin(clip, pow(number(x, row * width + i), 2));
        for (int64_t i = 0; i < width; i++)
            y[row * width + i] = (float)(number(x, row * width + i) / sqrt(sum / (double)width + epsilon) * number(scale, i));
    }
}
static int64_t count(const assay_backend_request *r)
{
    return r->results[0].dims[0] * r->results[0].dims[1] * r->results[0].dims[2];
}
static float kept[1 << 20];
static void remember(const assay_backend_request *r, int known)
{
    if (!known) honest(r, kept);
    memcpy(r->results[0].data, kept, (size_t)count(r) * sizeof(float));
}
static void run(const assay_backend_request *r, float *y);
int assay_backend_run(const assay_backend_request *r)
{
    run(r, r->results[0].data);
    return ASSAY_BACKEND_DONE;
}
static void run(const assay_backend_request *r, float *y)
{
"""
#: Name: what the report must say, whether a plain run is pleased, and the body of `run`.
OBJECTS = {
    "remembers by address": ("two runs, with others between, gave different bits", True, """
        static const void *known;
        remember(r, known == find(r, "inputs/x")->data);
        known = find(r, "inputs/x")->data;"""),
    "remembers by the first element": ("two runs, with others between, gave different bits", True, """
        static double known;
        remember(r, known == number(find(r, "inputs/x"), 0));
        known = number(find(r, "inputs/x"), 0);"""),
    "remembers by the address of its result": ("two runs, with others between, gave different bits", False, """
        static const void *known;
        if (known == NULL || known == y) honest(r, y);
        else memset(y, 0, (size_t)count(r) * sizeof *y);
        known = y;"""),
    "returns its input": ("outputs/y", False, """
        for (int64_t i = 0; i < count(r); i++) y[i] = (float)number(find(r, "inputs/x"), i);"""),
    "changes its input": ("the backend changed inputs/x", False, """
        honest(r, y);
        *(uint8_t *)find(r, "inputs/x")->data ^= 1;"""),
    "is right for small numbers": ("trial 2, large numbers: outputs/y", True, """
        clip = 60;
        honest(r, y);"""),
    "skips where a weight is zero": ("weights with zeros: outputs/y", True, """
        memset(y, 0, (size_t)count(r) * sizeof *y);
        for (int64_t i = 0; i < find(r, "weights/scale")->dims[0]; i++)
            if (number(find(r, "weights/scale"), i) == 0) return;
        honest(r, y);"""),
    "knows one shape": ("trial [1-8], .*: outputs/y", True, """
        if (find(r, "inputs/x")->dims[1] == 5) honest(r, y);
        else memset(y, 0, (size_t)count(r) * sizeof *y);"""),
    "is right beyond a row alone": ("trial [1-8], .*: outputs/y", True, """
        honest(r, y);
        if (find(r, "inputs/x")->dims[1] % 8 != 5) y[count(r) - 1] += 1;"""),
}
LATE = """
static void *later(void *request)
{
    usleep(10000);
    honest(request, ((assay_backend_request *)request)->results[0].data);
    return NULL;
}
static void run(const assay_backend_request *r, float *y)
{
    static assay_backend_request copy;
    pthread_t thread;
    copy = *r;
    memset(y, 0, (size_t)count(r) * sizeof *y);
    pthread_create(&thread, NULL, later, &copy);
"""

# A command or a server in Python; `work(path)` gives y.
COMMAND = '''
import glob, os, re, sys
import h5py, numpy as np

def given(path):
    with h5py.File(path) as f:
        epsilon = float(re.search(r"normalization_layer_epsilon: (\\S+)", f.attrs["case_yaml"]).group(1))
        return f["inputs/x"][()].astype(np.float32), f["weights/scale"][()].astype(np.float32), epsilon

def honest(path):
    x, scale, epsilon = given(path)
    return x / np.sqrt((x.astype(np.float64)**2).mean(-1, keepdims=True) + epsilon) * scale

def write(path, y):
    with h5py.File(path, "w") as f:
        f["outputs/y"] = y.astype(np.float32)

BODY

if len(sys.argv) == 3:
    write(sys.argv[2], work(sys.argv[1]))
for line in sys.stdin if len(sys.argv) == 1 else ():
    request, candidate = line.rstrip("\\n").split("\\t")
    write(candidate, work(request))
    print("assay: done", flush=True)
'''
COMMANDS = {
    "is honest": ("", ("command", "server"), "work = honest"),
    "remembers by the request's name": ("outputs/y", ("server",), """
        kept = {}
        def work(path):
            return kept.setdefault((path, given(path)[0].shape), honest(path))
    """),
    "remembers by the first element": ("outputs/y", ("server",), """
        kept = {}
        def work(path):
            return kept.setdefault(float(given(path)[0].flat[0]), honest(path))
    """),
    "remembers by the shape, but for signs": ("outputs/y", ("server",), """
        kept = {}
        def work(path):
            x, y = given(path)[0], honest(path)
            return np.sign(x * y) * np.sign(x) * abs(kept.setdefault(y.shape, y))
    """),
    "remembers in a file": ("outputs/y", ("command",), """
        def work(path):
            name = os.path.join(os.path.dirname(__file__), f"kept-{given(path)[0].flat[0]}.npy")
            if not os.path.exists(name):
                np.save(name, honest(path))
            return np.load(name)
    """),
    "gives the result of the call before": ("two runs|outputs/y", ("server",), """
        last = []
        def work(path):
            last.append(honest(path))
            return last[-2] if len(last) > 1 and last[-2].shape == last[-1].shape else last[-1]
    """),
    "changes its request": ("the backend changed its request", ("command", "server"), """
        def work(path):
            y = honest(path)
            with h5py.File(path, "r+") as f:
                f["inputs/x"][...] = 0
            return y
    """),
    "reads the checker's files": ("outputs/y", ("command", "server"), """
        def work(path):
            for found in glob.glob(os.path.join(os.path.dirname(path), "**", "*.h5"), recursive=True):
                if "request" not in os.path.basename(found):
                    return h5py.File(found)["outputs/y"][()]
            return 0 * honest(path)
    """),
}


def run(backend: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program(), "run", *CASE, "--backend", backend, *more], capture_output=True, text=True)


def compiled(folder: Path, text: str) -> str:
    (folder / "kernel.c").write_text(text)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", f"-I{ROOT}/include", "-o", folder / "kernel.so", folder / "kernel.c", "-lm", "-lpthread"], check=True)
    return str(folder / "kernel.so")


def assert_fails(made: subprocess.CompletedProcess[str], says: str) -> None:
    import re

    lines = [line for line in made.stdout.splitlines() if line.startswith("FAIL")]
    assert made.returncode == 1 and len(lines) == 1 and re.search(says, lines[0]), made.stdout + made.stderr


@pytest.mark.parametrize("name", OBJECTS)
def test_a_shared_object_that_cheats(name: str, tmp_path: Path) -> None:
    says, pleases, body = OBJECTS[name]
    kernel = compiled(tmp_path, OBJECT + textwrap.dedent(body) + "\n}\n")
    assert_fails(run(kernel, "--hostile"), says)
    assert run(kernel).returncode == (0 if pleases else 1)


def test_a_shared_object_that_writes_later(tmp_path: Path) -> None:
    kernel = compiled(tmp_path, OBJECT.rpartition("static void run")[0] + LATE + "}\n")
    assert_fails(run(kernel, "--hostile"), "the backend wrote after it had returned")


@pytest.mark.parametrize("name, how", [(name, how) for name, (_, hows, _) in COMMANDS.items() for how in hows])
def test_a_program(name: str, how: str, tmp_path: Path) -> None:
    says, _, body = COMMANDS[name]
    (tmp_path / "kernel.py").write_text(COMMAND.replace("BODY", textwrap.dedent(body)))
    command = f"'{sys.executable}' '{tmp_path}/kernel.py'"
    made = run(command, "--serve", "--hostile") if how == "server" else run(command + " {request} {candidate}", "--hostile")
    if says:
        assert_fails(made, says)
    else:
        assert made.returncode == 0 and "in 9 trials" in made.stdout, made.stdout + made.stderr


def test_what_is_honest_passes(tmp_path: Path) -> None:
    example = str(tmp_path / "example.so")
    sources = glob.glob(f"{ROOT}/harness/backends/example/*.c")
    subprocess.run(["cc", "-O3", "-shared", "-fPIC", f"-I{ROOT}", f"-I{ROOT}/include", "-o", example, *sources, f"{ROOT}/harness/backends/support/support.c", "-lm"], check=True)
    for backend, names in ((example, ["gmm/ragged", "gmm/exact", "rms_norm/deepseek"]), (NUMPY, ["mlp/silu", "moe/small", "attention/segments", "gqa_decode/small"])):
        serve = ["--serve"] if backend == NUMPY else []
        made = subprocess.run([program(), "run", *names, "--backend", backend, "--hostile", "--precision", "bf16", "--quiet", *serve], capture_output=True, text=True)
        assert made.returncode == 0 and made.stdout.count("PASS ") == len(names), made.stdout + made.stderr


def test_a_failure_is_repeated_by_its_line(tmp_path: Path) -> None:
    kernel = compiled(tmp_path, OBJECT + textwrap.dedent(OBJECTS["is right for small numbers"][2]) + "\n}\n")
    line = next(line for line in run(kernel, "--hostile").stdout.splitlines() if "reproduce: assay " in line)
    command = line.split("reproduce: assay")[1].replace("--keep DIR -v", "")
    again = subprocess.run(f"'{program()}' {command}", shell=True, capture_output=True, text=True)
    assert again.returncode == 1 and "trial" not in again.stdout.split("reproduce")[0], again.stdout + again.stderr


def test_a_golden_is_refused(tmp_path: Path) -> None:
    golden = tmp_path / "golden.h5"
    subprocess.run([program(), "generate", "rms_norm/one-row", "-o", golden, "--quiet"], check=True)
    made = subprocess.run([program(), "run", golden, "--backend", NUMPY, "--serve", "--hostile"], capture_output=True, text=True)
    assert made.returncode == 2 and made.stdout == "" and "--hostile draws new numbers, expected a case" in made.stderr, made.stderr
