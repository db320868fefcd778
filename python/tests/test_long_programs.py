"""Programs are bounded by memory alone."""
import numpy as np

import assay


def test_a_program_has_as_many_steps_and_outputs_as_it_wants(tmp_path):
    lines = ["  a0: tanh(x)"] + [f"  a{i}: tanh(mul(a{i - 1}, w{i % 60}))" for i in range(1, 271)]
    weights = ", ".join(f"w{i}: [D]" for i in range(60))
    outputs = "\n".join(f"  y{i}: neg(a{i * 30})" for i in range(10))
    file = tmp_path / "long.yml"
    file.write_text(f"case: mine/long\nop: program\nsizes: {{T: 3, D: 4}}\ninputs: {{x: [T, D]}}\nweights: {{{weights}}}\nsteps:\n" + "\n".join(lines) + f"\noutputs:\n{outputs}\n")
    case = assay.case(str(file), precision="f64")
    given = case.inputs(np)
    results, a = {}, np.tanh(given["inputs/x"].astype(np.float64))
    for i in range(271):
        a = np.tanh(a * given[f"weights/w{i % 60}"]) if i > 0 else a
        if i % 30 == 0:
            results[f"outputs/y{i // 30}"] = -a
    assert case.judge(results, only=["outputs/*"]).verdict == "PASS"
    results["outputs/y9"] = results["outputs/y9"] * (1 + 1e-9)
    assert case.judge(results, only=["outputs/*"]).verdict == "FAIL"
