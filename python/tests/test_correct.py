"""assert_correct: a kernel against a reference, in one line."""
import assay
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
EXAMPLE = {"x": torch.ones(16, 48), "scale": torch.ones(48), "w": torch.ones(48, 24)}


def reference(x, scale, w):
    return F.silu((x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale) @ w)


def kernel(x, scale, w):
    return reference(x.float(), scale.float(), w.float()).bfloat16()


def without_scale(x, scale, w):
    return reference(x.float(), torch.ones_like(scale).float(), w.float()).bfloat16() + 0 * scale.sum()


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 40), torch.nn.Linear(40, 16, bias=False)
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh")) * self.factor + x


class Rounded(Wide):
    def forward(self, x):
        return fused(x, self.up.weight, self.up.bias, self.down.weight)


def fused(x, up_weight, up_bias, down_weight):
    h = F.gelu(x.float() @ up_weight.float().T + up_bias.float(), approximate="tanh")
    return (h @ down_weight.float().T * 2 + x.float()).bfloat16()


@pytest.mark.parametrize("example", [EXAMPLE, tuple(EXAMPLE.values())])
def test_a_function_and_its_kernel(example):
    report = assay.assert_correct(kernel, reference, example, precision="bf16", weights=["scale", "w"], seeds=2)
    assert report.verdict == "PASS" and "gradients/weights/w" in str(report)


def test_what_is_wrong_is_said():
    with pytest.raises(assay.Mismatch, match="outputs/y"):
        assay.assert_correct(without_scale, reference, EXAMPLE, precision="bf16", weights=["scale", "w"])
    with pytest.raises(AssertionError, match="gradients/weights/scale"):  # of the gradient alone
        assay.assert_correct(lambda x, s, w: kernel(x, s.detach(), w) + 0 * s.sum(), reference, EXAMPLE, precision="bf16", weights=["scale", "w"])


def test_a_module_is_a_reference_and_a_kernel():
    wide = Wide()
    program = assay.trace(wide, torch.ones(6, 16))
    assert "up_weight: {axes:" in str(program) and "factor" not in str(program)
    for own in (Rounded().bfloat16(), fused):
        assert assay.assert_correct(own, wide, torch.ones(6, 16), precision="bf16").verdict == "PASS"
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda x, up_weight, up_bias, down_weight: fused(x, up_weight, 0 * up_bias, down_weight), wide, torch.ones(6, 16), precision="bf16")


def test_layers_of_a_sequence():
    make = lambda: torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.SiLU())  # noqa: E731
    assert "gradients/weights/layer_0_weight" in str(assay.assert_correct(make(), make(), torch.ones(5, 8), precision="f32"))


class Named(torch.nn.Module):
    """The sequence under other names."""

    def __init__(self, width=12):
        super().__init__()
        self.up = torch.nn.Linear(8, width)

    def forward(self, hidden):
        return torch.nn.functional.silu(self.up(hidden))


def test_a_module_with_names_of_its_own():
    reference = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.SiLU())
    kernels = [Named()] + ([torch.compile(reference, backend="eager"), torch.compile(Named(), backend="eager")] if hasattr(torch, "compile") else [])
    for kernel in kernels:
        assert assay.assert_correct(kernel, reference, torch.ones(5, 8), precision="bf16").verdict == "PASS"
    with pytest.raises(assay.BadInput, match=r"the kernel's parameters are \{'up_weight': \(13, 8\).*expected those of the reference"):
        assay.assert_correct(Named(13), reference, torch.ones(5, 8), precision="bf16")
    with pytest.raises(assay.BadInput, match="the kernel has no argument layer_0_weight, expected the parameters of the reference as arguments: layer_0_weight, layer_0_bias"):
        assay.assert_correct(lambda input: reference(input), reference, torch.ones(5, 8), precision="bf16")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_errors_to_one_side_in_float32_are_no_fault(approximate):
    def reference(x):
        return torch.nn.functional.gelu(x, approximate=approximate)

    for scale in (1.0, 2.0**-9):  # where all errors of PyTorch's own erf and tanh have one sign
        report = assay.assert_correct(reference, reference, {"x": torch.ones(64, 300)}, precision="f32", gradients=False, fills={"x": {"scale": scale}})
        assert report.verdict == "PASS"


def test_a_list_for_a_tensor_is_said():
    with pytest.raises(assay.BadInput, match="the kernel gives a tuple or a list, and the reference one tensor"):
        assay.assert_correct(lambda x: [x * 2], lambda x: x * 2, {"x": torch.ones(3, 4)}, gradients=False)
    with pytest.raises(assay.BadInput, match="the kernel gives one tensor, and the reference several: y0, y1"):
        assay.assert_correct(lambda x: x * 2, lambda x: (x * 2, x + 1), {"x": torch.ones(3, 4)}, gradients=False)


def test_without_gradients():
    with torch.no_grad():
        assay.assert_correct(lambda *given: kernel(*given).detach(), reference, EXAMPLE, precision="bf16", gradients=False)
    with pytest.raises(assay.BadInput, match="no result of the kernel has a graph, expected one for its gradients, or gradients=False"):
        assay.assert_correct(lambda *given: kernel(*given).detach(), reference, EXAMPLE, precision="bf16")


@pytest.mark.parametrize("example,line", [
    (tuple(EXAMPLE.values()) * 2, r"the example has 6 tensors, expected at most 3: x, scale, w"),
    ({"x": torch.ones(2, 3)}, "missing a required argument: 'scale'"),
])
def test_refused(example, line):
    with pytest.raises(assay.BadInput, match=line):
        assay.assert_correct(kernel, reference, example)


def loss_of(x, w):
    h = x * w
    return {"loss": h.square().mean(), "h": h}


@pytest.mark.parametrize("store, verdict", [(torch.float32, "PASS"), (torch.bfloat16, "FAIL")])
def test_a_loss_in_float32_beside_gradients_in_bfloat16(store, verdict):
    def own(x, w):
        made = loss_of(x.float(), w.float())
        return {"loss": made["loss"].to(store), "h": made["h"].bfloat16()}

    call = lambda: assay.assert_correct(own, loss_of, {"x": torch.ones(16, 48), "w": torch.ones(48)}, precision="bf16", weights=["w"], types={"loss": "float32", "w": "float32"})  # noqa: E731
    if verdict == "PASS":
        assert "outputs/loss" in str(call()) and "float32" in str(call())
    else:
        with pytest.raises(assay.Mismatch, match="type is bfloat16, coarser than profile bf16 allows: float32 or finer"):
            call()
    with pytest.raises(assay.BadInput, match="types has los, expected an argument or a result: x, w, loss, h"):
        assay.trace(loss_of, {"x": torch.ones(4, 4), "w": torch.ones(4)}, types={"los": "float32"})


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="no fp8 in this PyTorch")
@pytest.mark.parametrize("casts", ["drop", "keep"])
def test_a_cast_to_fp8_is_judged_as_codes(casts):
    fp8 = torch.float8_e4m3fn
    example = {"n": torch.ones(16, 64), "s": torch.ones(16, 1)}
    fills = {"s": {"distribution": "uniform", "low": 1.0, "high": 2.0}}
    reference = lambda n, s: (n / s).to(fp8)  # noqa: E731
    for own in (lambda n, s: (n.float() / s.float()).to(fp8), lambda n, s: (n.float() * (1 / s.float())).bfloat16().to(fp8)):
        report = assay.assert_correct(own, reference, example, precision="bf16", gradients=False, fills=fills, casts=casts)
        assert "numbers of fp8" in str(report)
    for own in (lambda n, s: n.float() / s.float(), lambda n, s: (n.float() / s.float()).to(torch.float8_e5m2), lambda n, s: (n.float() / s.float() * 1.02).to(fp8)):
        with pytest.raises(assay.Mismatch):
            assay.assert_correct(own, reference, example, precision="bf16", gradients=False, fills=fills, casts=casts)


def test_one_result_of_a_case(tmp_path):
    case = assay.case("rms_norm/deepseek", precision="bf16")
    case.save(tmp_path / "golden.h5")
    right = torch.tensor(case.golden("outputs/y")).bfloat16()
    for what in (case, "rms_norm/deepseek", tmp_path / "golden.h5"):
        assert assay.assert_close(right, what).verdict == "PASS"
        with pytest.raises(assay.Mismatch, match="outputs/y"):
            assay.assert_close(right * 1.02, what, "outputs/y", precision="bf16")
    assay.assert_close(case.golden("gradients/weights/scale").astype("float32"), case, "gradients/weights/scale")
    with pytest.raises(assay.BadInput, match="y: no result of the case, did you mean outputs/y"):
        assay.assert_close(right, case, "y")


@pytest.mark.parametrize("gate", [(9, 3), (9, 1)])
def test_a_scan_as_one_step(gate):
    def token_by_token(a, x):
        h, made = torch.zeros(3), []
        for t in range(9):
            h = a[t] * h + x[t]
            made.append(h)
        return torch.stack(made)

    fills = {"a": {"distribution": "uniform", "low": 0.0, "high": 1.0}}
    example = {"a": torch.ones(gate), "x": torch.ones(9, 3)}
    assert assay.assert_correct(token_by_token, lambda a, x: assay.step("linear_scan", a, x), example, precision="f32", fills=fills).verdict == "PASS"


def rotated(x):
    angle = torch.arange(8.0)[:, None] * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    cosine, sine, (a, b) = angle.cos().to(x.dtype), angle.sin().to(x.dtype), x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


ALONE = {
    "exp": torch.exp, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "sine": torch.sin, "logsumexp": lambda x: torch.logsumexp(x, -1), "expm1": torch.expm1, "erf": torch.erf,
    "softmax": lambda x: (lambda e: e / e.sum(-1, keepdim=True))(torch.exp(x - x.amax(-1, keepdim=True))), "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "sums": lambda x: torch.addcdiv(x, x, 2 + x.square(), value=0.5) + x.norm(1, -1, True) + x.norm(float("inf"), -1, True) + torch.addmm(x, x[:, :8].mT, x, beta=0.5, alpha=2) + x[0].dot(x[1]),
    "mse": lambda x: ((x[:, :8] - x[:, 8:]) ** 2).mean(), "copies": lambda x: x.repeat_interleave(3, 0).unsqueeze(1).expand(-1, 2, -1), "rotated": rotated,
}


@pytest.mark.parametrize("name", ALONE)
def test_a_function_passes_against_itself(name):
    """As it is, in 16 bits: what its operators store is not what a kernel in float32 does."""
    for precision in ("bf16", "f16") if hasattr(torch, "func") else ("bf16",):  # older ones have no float16 on processors
        assert assay.assert_correct(lambda x: ALONE[name](x), lambda x: ALONE[name](x), {"x": torch.ones(8, 16)}, precision=precision).verdict == "PASS"
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda x: 0.98 * ALONE[name](x), lambda x: ALONE[name](x), {"x": torch.ones(8, 16)}, precision="bf16")


def test_whole_numbers_have_the_type_of_the_example_and_arguments_the_order_of_the_reference():
    def loss(x, target):
        return F.cross_entropy(x, target)

    example = {"target": torch.zeros(8, dtype=torch.long), "x": torch.ones(8, 30)}
    assert assay.assert_correct(lambda *given: loss(*given), loss, example, precision="f32", integers={"target": 30}).verdict == "PASS"


def router(x, gate):
    best, ids = torch.softmax(x @ gate, -1).topk(2, -1)
    return best / best.sum(-1, keepdim=True), ids


def second(x, gate):  # the third best in the place of the second
    best, ids = torch.softmax(x @ gate, -1).topk(3, -1)
    best, ids = best[:, [0, 2]], ids[:, [0, 2]]
    return best / best.sum(-1, keepdim=True), ids


def test_a_choice_that_is_returned_is_judged():
    example = {"x": torch.ones(9, 16), "gate": torch.ones(16, 8)}
    assert "routing/" in str(assay.assert_correct(router, router, example, precision="f32", weights=["gate"]))
    with pytest.raises(assay.Mismatch, match="routing/"):
        assay.assert_correct(second, router, example, precision="f32", weights=["gate"])
    for kernel in (router, second):
        assert assay.evaluate(kernel, router, shapes=example, weights=["gate"], precision="f32", trials=2).correct == (kernel is router)


def test_any_of_equal_numbers_may_be_chosen():
    """Many of what is drawn in bfloat16 are."""
    def best(x):
        return x.topk(4, -1)

    def last(x):
        values, ids = torch.sort(x.flip(-1), stable=True, dim=-1, descending=True)
        return values[:, :4], x.shape[-1] - 1 - ids[:, :4]

    assert (torch.randn(64, 64).bfloat16().sort(-1)[0].diff() == 0).any()
    for kernel in (lambda x: best(x), last):
        assert assay.assert_correct(kernel, best, {"x": torch.ones(64, 64)}, precision="bf16").verdict == "PASS"


@pytest.mark.parametrize("typed", [{}, {"types": {"lse": "bfloat16"}}])
def test_an_lse_has_the_type_that_the_function_gives(typed):
    def own(x):
        return {"y": torch.softmax(x, -1), "lse": torch.logsumexp(x, -1)}

    def wide(x):
        return {"y": torch.softmax(x, -1), "lse": torch.logsumexp(x.float(), -1)}

    example = {"x": torch.randn(6, 32)}
    for kernel in (own, wide):
        assert assay.assert_correct(kernel, own, example, precision="bf16", seeds=2, **typed).verdict == "PASS"
    with pytest.raises(assay.Mismatch, match="outputs/lse: type is bfloat16, coarser"):
        assay.assert_correct(own, wide, example, precision="bf16")


@pytest.mark.parametrize("norm", [lambda x: torch.nn.functional.group_norm(x, 6), lambda x: torch.nn.functional.group_norm(x, 3),
                                  lambda x: torch.nn.functional.instance_norm(x.reshape(5, 3, 2)),
                                  lambda x: torch.nn.functional.batch_norm(x, None, None, training=True)])
def test_norms_of_few_numbers_pass_as_pytorch_computes_them(norm):
    """x times a factor minus the mean times that: a group of one number comes out as noise of 1 / sqrt(epsilon)."""
    def norms(x, w):
        return norm(x @ w) + 1.5

    example = {"x": torch.randn(5, 8), "w": torch.randn(8, 6)}
    assert assay.assert_correct(lambda *given: norms(*given), norms, example, precision="f32", seeds=3).verdict == "PASS"
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda x, w: norm(x @ w) + 1.52, norms, example, precision="f32")


def test_complex_results_are_two():
    def turned(x, angle):
        return torch.polar(torch.ones_like(angle), angle) * x

    example = {"x": torch.randn(6), "angle": torch.randn(6)}
    report = assay.assert_correct(lambda *given: turned(*given), turned, example, precision="f32")
    assert "outputs/y_real" in str(report) and "outputs/y_imag" in str(report)
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda *given: turned(*given).conj(), turned, example, precision="f32")


def test_every_few_places_are_written():
    def turned(x):
        y = torch.empty_like(x)
        y[:, 0::2], y[:, 1::2] = -x[:, 1::2], x[:, 0::2]
        return y

    example = {"x": torch.randn(6, 8)}
    assert assay.assert_correct(lambda x: turned(x), turned, example, precision="f32").verdict == "PASS"
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda x: -turned(x), turned, example, precision="f32")


def substituted(x, first=1):
    """Rows of a triangle one by one, as references of chunked delta rules have them."""
    a = -(0.1 * x @ x.transpose(-1, -2)).tril(-1)
    for i in range(first, x.shape[-2]):
        row, before = a[..., i, :i].clone(), a[..., :i, :i].clone()
        a[..., i, :i] = row + (row.unsqueeze(-1) * before).sum(-2)
    return a @ x + x


def test_forward_substitution_is_solved_at_once():
    example = {"x": torch.ones(2, 60, 4)}  # more rows than axes have letters
    for precision in ("f32", "bf16"):
        assert "gradients/inputs/x" in str(assay.assert_correct(lambda x: substituted(x), substituted, example, precision=precision))
        with pytest.raises(assay.Mismatch):
            assay.assert_correct(lambda x: substituted(x, 30), substituted, example, precision=precision)
    inverse = lambda x: torch.linalg.solve_triangular(torch.eye(60) + (0.1 * x.float() @ x.float().transpose(-1, -2)).tril(-1), x.float(), upper=False, unitriangular=True)  # noqa: E731
    assay.assert_correct(inverse, substituted, example, precision="f32", gradients=False)


def test_a_result_that_the_function_rounds():
    """Has its type at wider precisions too, and so has its cotangent."""
    reference = lambda q, s: {"y": (q * s[:, None]).bfloat16(), "total": q.sum()}  # noqa: E731
    example = {"q": torch.ones(6, 32), "s": torch.ones(6)}
    for precision in ("f32", "f16", "bf16"):
        assert assay.assert_correct(reference, reference, example, precision=precision).verdict == "PASS"
    with pytest.raises(assay.Mismatch, match="outputs/total"):
        assay.assert_correct(lambda q, s: {**reference(q, s), "total": q.bfloat16().float().sum()}, reference, example, precision="f32", gradients=False)


def test_numbers_that_item_gives_are_of_what_they_were_read_of():
    def scaled(x):
        return x / x.abs().max().item()

    def turned(x):  # what Python computes of them is the example's
        return x * (1 / x.abs().max().item())

    example = {"x": torch.randn(6, 8)}
    assert assay.assert_correct(lambda x: x / x.abs().amax().detach(), scaled, example, precision="f32", seeds=2).verdict == "PASS"
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(lambda x: x / x.max().detach(), scaled, example, precision="f32", seeds=4)
    with pytest.raises(assay.BadInput, match="it computes what no program has"):
        assay.assert_correct(turned, turned, example, precision="f32")


@pytest.mark.skipif(not hasattr(torch.nn, "attention"), reason="PyTorch before 2.3 gives NaN")
def test_a_query_that_a_mask_hides_everything_from_has_zeros():
    mask = torch.ones(8, 8, dtype=torch.bool).tril(-1)

    def attended(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def mean(q, k, v):
        return torch.softmax((q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, -1e30), -1) @ v

    example = tuple(torch.randn(2, 2, 8, 8) for _ in range(3))
    assert assay.assert_correct(lambda *given: attended(*given), attended, example, precision="f32", gradients=False).verdict == "PASS"
    with pytest.raises(assay.Mismatch):
        assay.assert_correct(mean, attended, example, precision="f32", gradients=False)
