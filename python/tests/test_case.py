"""Cases, and verdicts on kernels that are right and wrong in every way."""
from __future__ import annotations

import concurrent.futures
import copy
import gc
import json
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import assay
import numpy as np
import pytest
import torch
import torch_moe
from assay import _library as lib

NAME = "moe/deepseek3-tiny-sparse"


def results(case: assay.Case, **config: object) -> dict[str, torch.Tensor]:
    """Of the block of examples/, told another configuration than the case's: a bug."""
    given = case.inputs(torch, requires_grad=True)
    outputs = torch_moe.moe(given, {**case.config, **config})
    return {**outputs, **case.backward(outputs, given)}


def test_config() -> None:
    case = assay.case(NAME, sequence=17, sparse_matmul=False, mesh={"expert": 1}, inputs={"x": {"distribution": "normal", "scale": 2}}, precision="f32")
    config = case.config
    assert (case.name, case.op, case.precision) == (NAME, "moe", "f32")
    assert (config["sequence"], config["num_experts"], config["sparse_matmul"]) == (17, 16, False)
    assert config["routed_scaling_factor"] == 2.5 and config["mlp_activations"] == ["silu", "linear"]
    assert config["dtype"] == "bfloat16" and config["mesh.expert"] == 1
    assert "sequence: 17" in case.yaml and "scale: 2" in case.yaml and NAME in repr(case)
    assert case.expected["outputs/y"] == assay.Expected((2, 17, 64), True, False)
    assert case.expected["routing/selected_experts"] == assay.Expected((2, 17, 8), False, True)
    assert list(case.cotangents()) == ["cotangents/y"]


@pytest.mark.parametrize(
    "name, key, value",
    [
        ("gqa/qwen3", "query_pre_attn_scalar", 1 / math.sqrt(8)),
        ("moe/deepseek3-groups", "group_score", "top2_sum"),
        ("moe/deepseek3-groups", "norm_topk_prob", True),
    ],
)
def test_config_is_resolved(name: str, key: str, value: Any) -> None:
    """What a case leaves open has the value that is computed with, as in its YAML and in a golden."""
    case = assay.case(name)
    assert case.config[key] == value
    assert f"  {key}: {json.dumps(value)}\n".replace('"', "") in case.yaml


def test_names() -> None:
    every, whole = assay.names("moe/*"), assay.names("moe/*", exclude="mesh")
    assert 100 < len(whole) < len(every) and set(whole) < set(every)
    assert {name.split("/")[0] for name in assay.names(["gmm/*", "mla/*"], exclude=["gmm"])} == {"mla"}
    assert not any("tiny" in name for name in assay.names("moe/*", exclude=["*tiny*"]))
    assert len(assay.names()) > 700


def test_ways_to_say_which(tmp_path: Path) -> None:
    text = "case: mine/norm\nop: rms_norm\nmodel: {base_emb_dim: 8}\nbatch: 1\nsequence: 3\nseed: 7\n"
    file = tmp_path / "norm.yml"
    file.write_text(text)
    mapping = {"case": "mine/norm", "op": "rms_norm", "model": {"base_emb_dim": 8}, "batch": 1, "sequence": 3, "seed": 7}
    golden = tmp_path / "norm.h5"
    assay.case(text).save(golden)
    values = [assay.case(what).golden("outputs/y") for what in (text, file, str(file), mapping, golden)]
    for value in values:
        np.testing.assert_array_equal(value, values[0])


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: assay.case("moe/none-such"), "moe/none-such"),
        (lambda: assay.case(NAME, squence=17), "squence"),
        (lambda: assay.case(NAME, sequence="many"), "many"),
        (lambda: assay.case(NAME, precision="bf17"), "bf17"),
        (lambda: assay.case({"case": "x", "op": "none"}), "op"),
        (lambda: assay.case(NAME).golden("outputs/z"), "outputs/z"),
        (lambda: assay.case(NAME).check({"outputs/y": np.zeros(3)}, precision="bf17"), "bf17"),
        (lambda: assay.case(NAME).check({"outputs/y": "text"}), "outputs/y is str"),
        (lambda: assay.case(NAME).check({"outputs/y\0z": np.zeros(3)}), "without zero bytes"),
        (lambda: assay.case(NAME + "\0x"), "without zero bytes"),
        (lambda: assay.case(NAME, precision=3), "3: expected a text"),
        (lambda: assay.case(NAME, threads=1 << 32), "threads is 4294967296"),
        (lambda: assay.cases("none/*"), "none/\\*: expected a case"),
        (lambda: assay.cases("mla/*", exclude="mla"), "without mla"),
        (lambda: assay.case(NAME).backward({}, {"inputs/x": torch.zeros(1)}), "requires_grad=True"),
        (lambda: assay.case(NAME).backward({}, assay.case(NAME).inputs(torch, requires_grad=True)), "no output with a graph"),
    ],
)
def test_bad_input(make, words: str) -> None:
    with pytest.raises(assay.BadInput, match=words):
        make()


def test_right() -> None:
    case = assay.case(NAME)
    report = case.check(results(case))
    assert (report.verdict, report.first_wrong, report.bugs) == ("PASS", "", [])
    assert "PASS" in str(report) and report.json["verdict"] == "PASS" and "<html" in report.html
    assert json.dumps(report.json)


@pytest.mark.parametrize(
    "name, config, bug",
    [
        (NAME, {"routed_scaling_factor": 1.0}, "scaling_missing"),
        ("moe/deepseek3-groups", {"n_routing_groups": -1}, "groups_ignored"),
        ("moe/deepseek3-groups", {"group_score": "max"}, "group_score_other"),
        ("moe/gpt-oss-clamp", {"mlp_activations_limit": 0.0}, "clamp_missing"),
        ("moe/prefused-shards2", {"w13_reorder_size": 1}, ""),
    ],
)
def test_wrong_and_named(name: str, config: dict[str, object], bug: str) -> None:
    case = assay.case(name)
    with pytest.raises(assay.Mismatch) as failure:
        case.check(results(case, **config), precision="bf16")
    report = failure.value.report
    assert report.verdict == "FAIL" and report.first_wrong in case.expected
    assert bug in report.bugs or bug == ""
    text = str(failure.value)
    assert text.splitlines()[0] == failure.value.headline
    assert report.message in failure.value.headline and bug in failure.value.headline
    assert "known bugs:" in text and report.text(verbose=True) != report.text()


def broken(change: str, good: dict[str, torch.Tensor]) -> dict[str, object]:
    y = good["outputs/y"].detach()
    if change == "shape":
        return {**good, "outputs/y": y.transpose(0, 1)}
    if change == "nan":
        holes = y.clone()
        holes[1, 3, 5] = float("nan")
        return {**good, "outputs/y": holes}
    if change == "missing":
        return {path: tensor for path, tensor in good.items() if path != "gradients/weights/wo"}
    if change == "coarse":
        return {**good, "outputs/y": assay.bits(np.zeros(y.shape, np.uint8), "float8_e4m3fn")}
    if change == "element":
        spoilt = y.clone()
        spoilt[0, 2, 7] += 1
        return {**good, "outputs/y": spoilt}
    if change == "index":
        return {**good, "routing/selected_experts": good["routing/selected_experts"] * 0 + 99}
    if change == "gradient":
        return {**good, "gradients/weights/gate/kernel": torch.zeros_like(good["gradients/weights/gate/kernel"])}
    raise AssertionError(change)


@pytest.mark.parametrize(
    "change, first, words",
    [
        ("shape", "outputs/y", "shape"),
        ("nan", "outputs/y", "NaN"),
        ("missing", "gradients/weights/wo", "missing"),
        ("coarse", "outputs/y", "float8_e4m3fn"),
        ("element", "outputs/y", r"\[0,2,7\]"),
        ("index", "routing/selected_experts", "99"),
        ("gradient", "gradients/weights/gate/kernel", "beyond their threshold"),
    ],
)
def test_wrong_in_every_way(change: str, first: str, words: str) -> None:
    case = assay.case(NAME)
    with pytest.raises(assay.Mismatch, match=words) as failure:
        case.check(broken(change, results(case)))
    assert failure.value.report.first_wrong == first


Y = np.zeros((2, 8, 64), np.float32)


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda case: {"y": Y}, "^y: no result of the case, did you mean outputs/y[?]$"),
        (lambda case: {"outputs/yy": Y}, "^outputs/yy: .*did you mean outputs/y[?]$"),
        (lambda case: {"selected_experts": Y}, "did you mean routing/selected_experts[?]$"),
        (lambda case: {"weights/wo": Y}, "did you mean gradients/weights/wo[?]$"),
        (lambda case: {"outputs/attention": Y}, "^outputs/attention: no result of the case; case.expected lists"),
        (lambda case: {"checkpoints/mlpwi_0": Y}, "^checkpoints/mlpwi_0: the case asks for no such checkpoint; .*checkpoints=\"all\"$"),
        (lambda case: {"checkpoints/none": Y}, "^checkpoints/none: no result of the case"),
        (lambda case: {"outputs/y": None}, "^outputs/y is None, expected a tensor"),
        (lambda case: {"outputs/y": Y, "gradients/inputs/x": None}, "^gradients/inputs/x is None, .* give zeros$"),
        (lambda case: Y, "^check: a ndarray, expected a dict by path, as {\"outputs/y\": y}$"),
        (lambda case: torch.zeros(3), "^check: a Tensor, expected a dict"),
        (lambda case: (Y, Y), "^check: a tuple, expected a dict"),
        (lambda case: None, "^check: None, expected a dict"),
        (lambda case: {0: Y}, "^check: 0 is a int, expected a path"),
        (lambda case: {"outputs/y": Y.astype(np.int64)}, "^outputs/y is int64, expected the float type"),
        (lambda case: case.backward(torch.zeros(3), case.inputs(torch, requires_grad=True)), "^backward: outputs: a Tensor, expected a dict"),
        (lambda case: case.backward({"y": torch.zeros(3)}, case.inputs(torch, requires_grad=True)), "^backward: .* y: .*mean outputs/y"),
        (lambda case: case.backward({}, torch.zeros(3)), "^backward: inputs: a Tensor, expected a dict"),
    ],
)
def test_no_results_at_all(wrong, words: str) -> None:
    case = assay.case(NAME)
    with pytest.raises(assay.BadInput, match=words):
        case.check(wrong(case))


def test_forgotten_gradients_are_said() -> None:
    case = assay.case("mlp/silu", explain=False)
    y = {"outputs/y": case.golden("outputs/y")}
    with pytest.raises(assay.Mismatch, match=r"gradients/weights/wo/kernel: missing: never written, nor is any gradient \(.*gradients=False\)"):
        case.check(y, "f64")
    with pytest.raises(assay.Mismatch) as failure:
        case.check({**y, "gradients/inputs/x": case.golden("gradients/inputs/x")}, "f64")
    assert "gradients=False" not in str(failure.value)


def test_backward_of_a_case_without_gradients() -> None:
    case = assay.case("mla/exact-flat")
    given = case.inputs(torch, requires_grad=True)
    assert not any(tensor.requires_grad for tensor in given.values())
    assert case.backward({"outputs/y": torch.zeros(3)}, given) == {}
    part = assay.case("mlp/silu", gradients=["inputs/x"])
    given = {path: tensor.detach().requires_grad_() for path, tensor in part.inputs(torch).items()}
    outputs = {"outputs/y": sum(tensor.sum() for tensor in given.values()).expand(part.expected["outputs/y"].shape)}
    assert list(part.backward(outputs, given)) == ["gradients/inputs/x"]


def test_refused_options_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    behind: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", behind.append)
    for options in ({"cache": 3}, {"threads": "many"}, {"false_alarm": "none"}, {"threads": 1 << 32}, {"precision": 3}, {"nothing": 1}):
        with pytest.raises((assay.BadInput, TypeError)):
            lib.Test("mlp/silu", **options)
    gc.collect()
    assert behind == []


def test_without_gradients() -> None:
    case = assay.case(NAME)
    y = torch_moe.moe(case.inputs(torch), case.config)
    case.check(y, gradients=False)
    with pytest.raises(assay.Mismatch, match="missing"):
        case.check(y)


def test_inputs_of_the_users_own(tmp_path: Path) -> None:
    x = np.full((2, 16, 64), 3, np.float32)
    file = tmp_path / "mine.safetensors"
    write_checkpoint(file, {"inputs/x": x})
    np.savez(tmp_path / "mine.npz", **{"inputs/x": x})
    for inputs in (file, np.load(tmp_path / "mine.npz"), {"inputs/x": torch.tensor(x)}):
        case = assay.case("rms_norm/deepseek", inputs=inputs)
        np.testing.assert_array_equal(case.inputs(torch)["inputs/x"].float(), x)
        np.testing.assert_allclose(case.golden("outputs/y")[0, 0], case.inputs(torch)["weights/scale"].double(), rtol=1e-6)
    twin = pickle.loads(pickle.dumps(case))
    case.close()
    np.testing.assert_array_equal(twin.inputs()["inputs/x"], case.inputs()["inputs/x"])
    with pytest.raises(assay.BadInput, match="none.safetensors"):
        assay.case("rms_norm/deepseek", inputs=tmp_path / "none.safetensors").inputs()
    with pytest.raises(assay.BadInput, match="mine.npz: npz is no container of assay; use .h5 or .safetensors"):
        assay.case("rms_norm/deepseek", inputs=tmp_path / "mine.npz").inputs()


def test_arrays_of_numpy_load(tmp_path: Path) -> None:
    """All that a case gives, through a file of numpy's and back: bfloat16 as ml_dtypes' comes out of one, codes and indices too."""
    for name in ("gmm/mxfp4-weights", "unpermute/exact"):
        case = assay.case(name)
        given = {**case.inputs(), **case.cotangents()}
        np.savez(tmp_path / "given.npz", **{path: array.view("V2") if array.dtype == np.uint16 else array for path, array in given.items()})
        loaded = {path: array for path, array in np.load(tmp_path / "given.npz").items()}
        for path, array in loaded.items():
            if array.dtype == np.uint8:
                loaded[path] = assay.bits(array, "float4_e2m1fn" if path == "weights/rhs" else "float8_e8m0fnu")
        again = assay.case(name, inputs=loaded, seed=99)
        for path, array in {**again.inputs(), **again.cotangents()}.items():
            np.testing.assert_array_equal(array, given[path])


def write_checkpoint(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensor.tobytes() for tensor in tensors.values()))


def test_weights_of_a_checkpoint(tmp_path: Path) -> None:
    shapes = {"gate_proj": (160, 64), "up_proj": (160, 64), "down_proj": (64, 160)}
    for number in (1, 2):
        numbers = np.random.default_rng(number)
        mine = {f"mlp.{name}.weight": numbers.integers(-8, 9, shape).astype(np.float32) / 32 for name, shape in shapes.items()}
        write_checkpoint(tmp_path / f"{number}.safetensors", mine)
        case = assay.case("mlp/silu", weights=tmp_path / f"{number}.safetensors", cache=tmp_path / "cache")
        given = {path: tensor.double().numpy() for path, tensor in case.inputs(torch).items()}
        np.testing.assert_array_equal(given["weights/wi_0/kernel"], mine["mlp.gate_proj.weight"].T)
        np.testing.assert_array_equal(given["weights/wo/kernel"], mine["mlp.down_proj.weight"].T)
        gate, up = given["inputs/x"] @ given["weights/wi_0/kernel"], given["inputs/x"] @ given["weights/wi_1/kernel"]
        right = (gate / (1 + np.exp(-gate)) * up) @ given["weights/wo/kernel"]  # of these, not of others in the cache
        np.testing.assert_allclose(case.golden("outputs/y"), right, rtol=1e-9, atol=1e-9)
    case.save(tmp_path / "saved.h5")
    assert assay.case(str(tmp_path / "saved.h5")).golden("outputs/y").tobytes() == case.golden("outputs/y").tobytes()
    del mine["mlp.up_proj.weight"]
    write_checkpoint(tmp_path / "less.safetensors", mine)
    with pytest.raises(assay.BadInput, match="up_proj"):
        assay.case("mlp/silu", weights=tmp_path / "less.safetensors")
    with pytest.raises(assay.BadInput, match="nothing can be set in a golden"):
        assay.case(str(tmp_path / "saved.h5"), weights=tmp_path / "1.safetensors")


def test_only_some_are_required(tmp_path: Path) -> None:
    case = assay.case(NAME)
    good = results(case)
    some = {path: good[path] for path in ("outputs/y", "gradients/inputs/x")}
    report = case.check(some, only=["outputs/*", "gradients/inputs/x"])
    required = {tensor["path"] for tensor in report.json["tensors"] if tensor["required"]}
    assert required == set(some)
    with pytest.raises(assay.Mismatch, match="gradients/inputs/x: missing"):
        case.check({"outputs/y": good["outputs/y"]}, only=["outputs/y", "gradients/inputs/*"])
    with pytest.raises(assay.Mismatch, match="gradients/weights/wo"):  # given, and so judged
        case.check({**some, "gradients/weights/wo": good["gradients/weights/wo"] * 2}, only="outputs/y")
    with pytest.raises(assay.BadInput, match="outputs/z, which matches no output"):
        case.check(some, only=["outputs/y", "outputs/z"])
    bias = "gradients/weights/gate/bias"  # 0, whatever the kernel does
    with pytest.raises(assay.Mismatch, match="VACUOUS"):
        case.check({path: good[path] for path in [bias]}, only=bias)
    case.save(tmp_path / "golden.h5")
    assay.case(tmp_path / "golden.h5").check({"outputs/y": good["outputs/y"]}, gradients=False)


def test_stages() -> None:
    with assay.case("mla/small", staged=True, checkpoints="all") as case:
        right = {path: case.golden(path).astype(np.float32) for path, of in case.expected.items() if not of.integer}
        assert "every stage by itself too" in case.check(right, "f32").text()
        for path in ("checkpoints/mla_kv", "checkpoints/attention_out"):
            report = case.judge({**right, path: right[path] * np.float32(1.05)}, "f32")
            assert (report.verdict, report.first_wrong) == ("FAIL", path)
        forward = {path: tensor for path, tensor in right.items() if not path.startswith("gradients/")}
        assert "every stage by itself too" in case.check(forward, "f32", gradients=False).text()
        assert "every stage by itself too" in case.check(forward, "f32", only="outputs/y").text()
    with pytest.raises(assay.BadInput, match="spread over a mesh"):
        with assay.case("mla/mesh-heads2", staged=True) as case:
            case.judge({"outputs/y": case.golden("outputs/y")})


def test_precision_decides() -> None:
    case = assay.case(NAME)
    good = results(case)
    case.check(good, precision="bf16")
    with pytest.raises(assay.Mismatch, match="coarser"):
        case.check(good, precision="f32")


def test_unused_inputs_have_the_gradient_0() -> None:
    case = assay.case("rms_norm/deepseek")
    given = case.inputs(torch, requires_grad=True)
    gradients = case.backward({"outputs/y": given["inputs/x"] * 1}, given)
    assert gradients["gradients/weights/scale"].abs().sum() == 0
    assert gradients["gradients/inputs/x"].equal(case.cotangents(torch)["cotangents/y"])


def test_unsupported_is_a_skip() -> None:
    with pytest.raises(assay.Unsupported, match="unsupported: no groups"):
        assay.case(NAME).unsupported("no groups")


def test_threads() -> None:
    """Cases of one process side by side, as pytest plugins with threads run them."""
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            case = assay.case(NAME, seed=seed)
            assert case.judge({"outputs/y": case.golden("outputs/y")}, gradients=False).verdict == "PASS"
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_threads_share_a_case(tmp_path: Path) -> None:
    case = assay.case("mlp/silu", cache="", explain=False)
    right = {path: assay.case("mlp/silu", cache="").golden(path).astype(np.float32) for path in case.expected}
    verdicts: list[str] = []
    threads = [threading.Thread(target=lambda: verdicts.extend(case.judge(right).verdict for _ in range(8))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == ["PASS"] * 64


def test_no_cache(tmp_path: Path) -> None:
    cache = tmp_path / "goldens"
    assay.case(NAME, cache=cache).golden("outputs/y")
    assert len(list(cache.iterdir())) > 0
    assay.case(NAME, cache="").golden("outputs/y")
    assert assay.version().startswith("0.")


def test_program(tmp_path: Path) -> None:
    """As the wheel's: python3 -m assay passes on arguments and status."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$@"\nexit 3\n')
    for mode, status in ((0o755, 3), (0o644, 1)):
        program.chmod(mode)
        environment = {**os.environ, "ASSAY_PROGRAM": str(program)}
        done = subprocess.run([sys.executable, "-m", "assay", "list", "moe/*"], env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert (done.stdout == "list moe/*\n") == (status == 3) and (f"{program}: Permission denied" in done.stderr) == (status == 1)


def test_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias of deviation 40 hides what the last row chooses."""
    path = tmp_path / "crowded.yml"
    path.write_text("case: mine/crowded\nop: program\nsizes: {T: 8, E: 6, K: 1}\ninputs: {x: [T, E]}\nweights: {bias: {axes: [E], scale: 40}}\n"
                    'steps:\n  b: add(x, bias)\n  ids: top_k(b, "E->K")\noutputs:\n  y: pick(x, ids)\n')
    case = assay.case(path, precision="f32")
    monkeypatch.setenv("ASSAY_PROGRAM", str(tmp_path / "none"))
    with pytest.raises(assay.BadInput, match="power: .*none: No such file"):
        case.power()
    program = Path(os.environ.get("ASSAY_LIBRARY", "")).parents[1] / "harness" / "assay"
    if program.exists():
        monkeypatch.setenv("ASSAY_PROGRAM", str(program))
        found = case.power()
        assert "step:b:first_alone" in found["detected"] and "step:b:last_row_stale" in found["not here"]
        assert not found["passes"] and "step:b:doubled" not in sum(found.values(), [])


def test_vanished_numbers_excuse_no_others() -> None:
    """float32 has 0 for products below 1e-45; that says nothing of ordinary rows of the same tensor."""
    case = assay.case("gmm/ragged", dtype="float32", precision="f32", gradients=["none"], inputs={"lhs": {"distribution": "row_powers", "low": -130, "high": 0}})
    y = case.golden("outputs/y")
    flushed = np.where(np.abs(y) < 1e-37, 0, y).astype(np.float32)
    assert case.judge({"outputs/y": flushed}).verdict in ("PASS", "NOT COMPARABLE")
    coarse = case.judge({"outputs/y": np.where(np.abs(y) < 1e-37, 1.01 * y, y).astype(np.float32)})
    assert coarse.verdict == "NOT COMPARABLE" and coarse.message.endswith((" times the threshold", "which must be equal")), coarse.message
    assert case.judge({"outputs/y": np.where(np.abs(y) > 1e-6, np.float32(1.5) * flushed, flushed)}).verdict == "FAIL"


def test_what_is_no_path_of_a_result() -> None:
    case = assay.case(NAME)
    for path in (None, 3, "outputs/z"):
        with pytest.raises(assay.BadInput):
            case.golden(path)  # type: ignore[arg-type]


def test_backward_says_a_wrong_shape() -> None:
    case = assay.case("rms_norm/one-row")
    given = case.inputs(torch, requires_grad=True)
    with pytest.raises(assay.BadInput, match="backward: outputs/y: shape is .*, expected"):
        case.backward({"outputs/y": given["inputs/x"].reshape(-1)}, given)


def test_copies() -> None:
    """What a process pool and `copy` make of a case, of a report and of a Mismatch."""
    with assay.case("rms_norm/one-row", explain=False) as case:
        given = {path: np.zeros(of.shape, np.float32) for path, of in case.expected.items()}
        with pytest.raises(assay.Mismatch) as failure:
            case.check(given, precision="f32")
        report = failure.value.report
        for again in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
            other = again(case)
            assert other is not case and other.yaml == case.yaml and repr(other) == repr(case)
            said = again(report)
            assert said is not report and (said.verdict, said.message, said.json, said.html) == (report.verdict, report.message, report.json, report.html)
            for form in ((False, False), (True, True)):
                assert said.text(*form) == report.text(*form)
            error = again(failure.value)
            assert str(error) == str(failure.value) and error.headline == failure.value.headline and error.report.case == report.case
        assert pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(report)))).json == report.json
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(assay.Mismatch, match="FAIL rms_norm/one-row"):
            pool.submit(case.check, given, precision="f32").result()
