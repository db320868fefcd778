"""Programs are bounded by memory alone."""
import numpy as np
import pytest

import assay


def test_a_program_has_as_many_steps_and_outputs_as_it_wants(tmp_path):
    lines = ["  a0: tanh(x)"] + [f"  a{i}: tanh(mul(a{i - 1}, w{i % 60}))" for i in range(1, 151)]
    weights = ", ".join(f"w{i}: {{axes: [D], mean: 1, scale: 0.1}}" for i in range(60))
    outputs = "\n".join(f"  y{i}: neg(a{i * 30})" for i in range(6))
    file = tmp_path / "long.yml"
    file.write_text(f"case: mine/long\nop: program\nsizes: {{T: 3, D: 4}}\ninputs: {{x: [T, D]}}\nweights: {{{weights}}}\nsteps:\n" + "\n".join(lines) + f"\noutputs:\n{outputs}\n")
    case = assay.case(str(file), precision="f64", explain=False, dtype="float64")
    given = case.inputs(np)
    results, a = {}, np.tanh(given["inputs/x"].astype(np.float64))
    for i in range(151):
        a = np.tanh(a * given[f"weights/w{i % 60}"]) if i > 0 else a
        if i % 30 == 0:
            results[f"outputs/y{i // 30}"] = -a
    report = case.judge(results, only=["outputs/*"])
    assert report.verdict == "PASS", report
    results["outputs/y5"] = results["outputs/y5"] * (1 + 1e-9)
    assert case.judge(results, only=["outputs/*"]).verdict == "FAIL"


def test_loops_over_tokens_are_traced():
    torch = pytest.importorskip("torch")

    def delta(q, k, v, decay):
        state = torch.zeros(q.shape[1], v.shape[1])
        out = []
        for t in range(len(q)):
            state = state * torch.sigmoid(decay[t])[:, None]
            state = state + k[t][:, None] * (v[t] - k[t] @ state)[None, :]
            out.append(q[t] @ state)
        return torch.stack(out)

    example = {"q": torch.zeros(24, 5), "k": torch.zeros(24, 5), "v": torch.zeros(24, 3), "decay": torch.zeros(24, 5)}
    fills = {"k": {"scale": 0.4}}
    assert assay.assert_correct(delta, delta, example, precision="f32", fills=fills).verdict == "PASS"

    def early(q, k, v, decay):  # reads the state before it is written
        return torch.cat([torch.zeros(1, v.shape[1]), delta(q, k, v, decay)[:-1]])

    with pytest.raises(assay.Mismatch):
        assay.assert_correct(early, delta, example, precision="f32", fills=fills, gradients=False)
