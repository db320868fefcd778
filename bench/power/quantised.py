"""Cases whose operands are codes with scales (quant_formats), and those of quantising itself, by the family of their formats."""
import fnmatch
from pathlib import Path

from arithmetic import VARIANTS
from cases import PROFILES
from runs import Task, listed, numbers

ROWS_WEIGHTS = {"fp8": ("fp8_e4m3_1x128", "fp8_e4m3_128x128"), "mxfp8": ("mxfp8_e4m3", "mxfp8_e4m3"),
                "mxfp4": ("mxfp8_e4m3", "mxfp4"), "nvfp4": ("nvfp4", "nvfp4")}
# Sums that are no rounded float32 ones, as profiles of one's own: fp8 as on Hopper, the others cut off at 24 bits.
HERE = Path(__file__).parent
OWN_PROFILES = {family: (str(HERE / ("sums_13_bits.yml" if family == "fp8" else "sums_cut_off.yml")),) for family in ROWS_WEIGHTS}
PROJECTIONS = ("wq_a", "wkv_a", "wq_b", "wkv_b", "out")
KERNELS = {"mlp": ("wi_0/kernel", "wi_1/kernel", "wo/kernel"), "moe": ("wi_0", "wi_1", "wo"),
           "mla": tuple(name + "/kernel" for name in PROJECTIONS)}
# in formats for which the catalogue has no case of the operation
ALSO = (("mlp/nvfp4", ("mxfp8", "mxfp4")), ("moe/nvfp4", ("mxfp8", "mxfp4")), ("mla/nvfp4", ("mxfp8", "mxfp4")))
OF_BITS = ("quantize", "dequantize")
QUICK = ("gmm/nvfp4", "mlp/fp8", "moe/nvfp4", "mla/fp8", "quantize/mxfp4-ocp", "dequantize/nvfp4")


def other_formats(case, family):
    """The words that give a case of the catalogue the formats of another family."""
    rows, weights = ROWS_WEIGHTS[family]
    formats = {"inputs/x": rows} | {"weights/" + name: weights for name in KERNELS[case.split("/")[0]]}
    return tuple(word for path, name in formats.items() for word in ("--set", f"quant_formats.{path}={name}"))


def chosen(assay):
    """(case, operation, family, words, whether a recipe quantises what its kernel computed): what the catalogue has, then what it has not.
    A case of two formats is of the first."""
    for c in listed(assay):
        family = next((f for f in ROWS_WEIGHTS if f in c["tags"]), None)
        if family and ("quantized" in c["tags"] or c["op"] in OF_BITS):
            yield c["case"], c["op"], family, (), {"requantized", "recipe"} <= set(c["tags"])
    for case, families in ALSO:
        yield from ((case, case.split("/")[0], family, other_formats(case, family), False) for family in families)


def tasks(assay, pattern, runs, mutants_too, quick):
    """What quantises has one right answer: a run for each golden. The other operations have runs as tasks() in runs.py has."""
    made = []
    for case, op, family, words, inside in chosen(assay):
        if not fnmatch.fnmatch(case, pattern) or (quick and case not in QUICK):
            continue
        exact = op in OF_BITS
        for index, drawn in enumerate(numbers(-(-runs // len(VARIANTS)) if exact else runs, 1 if exact else len(VARIANTS))):
            seed = 1000 + index if index else 0
            made.append(Task(assay, case, seed, PROFILES[:1] if exact else PROFILES, drawn, mutants_too and index == 0,
                             family=family, words=words, own_profiles=() if exact or inside else OWN_PROFILES[family]))
    return made
