"""The study's results as Markdown."""
from collections import Counter

from peers import RULES

NAMES = ["assay", *RULES]


def share(part, whole):
    return f"{part} of {whole}" if whole else "-"


def percent(part, whole):
    return f"{100 * part / whole:.1f} % ({part} of {whole})" if whole else "-"


def rejects(record, name, detected):
    """Whether a rule rejects; None where it has nothing to say."""
    if name == "assay":
        return detected(record)
    accepted = (record["accepted"] or {}).get(name)
    return None if accepted is None else not accepted


def run_rejected(run):
    return run["verdict"] not in ("PASS", "VACUOUS")


def mutant_rejected(mutant):
    return mutant["tensors_failed"] > 0


def count(records, name, detected):
    said = [r for r in (rejects(record, name, detected) for record in records) if r is not None]
    return sum(said), len(said)


def rows(first, groups, detected, form):
    lines = [f"| {first} | " + " | ".join(NAMES) + " |", "| --- |" + " --- |" * len(NAMES)]
    for label, records in groups:
        lines.append(f"| {label} | " + " | ".join(form(*count(records, n, detected)) for n in NAMES) + " |")
    return lines


def grouped(records, key):
    """In the order of first appearance, and all of them."""
    groups = {}
    for record in records:
        groups.setdefault(record[key], []).append(record)
    return [*groups.items(), ("all", records)] if len(groups) > 1 else list(groups.items())


def undetected(mutants):
    lines, effective, missed = [], Counter(), {}
    for m in mutants:
        effective[m["mutant"], m["profile"]] += 1
        if not mutant_rejected(m):
            missed.setdefault(m["mutant"], Counter())[m["profile"]] += 1
    profiles = list(dict.fromkeys(m["profile"] for m in mutants))
    lines += ["| mutant | " + " | ".join(profiles) + " |", "| --- |" + " --- |" * len(profiles)]
    for name in sorted(missed, key=lambda n: (-sum(missed[n].values()), n)):
        cells = (share(missed[name][p], effective[name, p]) for p in profiles)
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def failures(runs):
    lines = []
    for r in runs:
        if run_rejected(r):
            seed = f" --seed {r['seed']}" if r["seed"] else ""
            other = "" if r["same_choice"] else " (other experts chosen)"
            lines.append(f"- `{r['case']}{seed}`, {r['profile']}, variant {r['number']} ({r['variant']['name']}){other}: {r['message']}")
    return lines


def markdown(runs, mutants, skipped):
    cases = len({r["case"] for r in runs})
    lines = [f"{len(runs)} correct runs of {cases} cases; {len(mutants)} mutants with an effect.", "", *skipped]
    lines += ["False alarms: correct runs that a rule rejects.", ""]
    lines += rows("profile", grouped(runs, "profile"), run_rejected, share)
    lines += ["", "The same by operation.", ""]
    lines += rows("operation", grouped(runs, "op"), run_rejected, share)
    if mutants:
        lines += ["", "Power: mutants that a rule rejects.", ""]
        lines += rows("profile", grouped(mutants, "profile"), mutant_rejected, percent)
        lines += ["", "The same by operation.", ""]
        lines += rows("operation", grouped(mutants, "op"), mutant_rejected, percent)
        strict = sum(m["outcome"] == "detected" for m in mutants)
        lines += ["", f"Held to a stricter count (each tensor that a mutant changes must say so by itself, docs/mutants.md), assay "
                      f"detects {percent(strict, len(mutants))}."]
        lines += ["", "What assay lets pass, of the cases where it has an effect:", "", *undetected(mutants)]
    other = sum(not r["same_choice"] for r in runs)
    if other:
        lines += ["", f"{other} correct runs chose other experts than the golden, near ties of their seeds."]
    if lost := failures(runs):
        lines += ["", "False alarms of assay:", "", *lost]
    return "\n".join(lines)
