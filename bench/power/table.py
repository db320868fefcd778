"""The study's results as Markdown."""
from peers import RULES
from runs import BELOW_A_UNIT

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


def run_rejected(run, staged=False):
    return run["staged_verdict" if staged else "verdict"] not in ("PASS", "VACUOUS")


def mutant_rejected(mutant, staged=False):
    """By a tensor, or by all of them together. Of an operation without stages, checkpoints change nothing."""
    return mutant["fails"] or mutant["tensors_failed"] > 0 or mutant["outcome"] == "detected" or (staged and mutant["by_stage"] == "detected")


def count(records, name, detected):
    said = [r for r in (rejects(record, name, detected) for record in records) if r is not None]
    return sum(said), len(said)


def speaking(records, detected):
    """The rules that have something to say of some record."""
    return [name for name in NAMES if count(records, name, detected)[1]]


def rows(first, groups, detected, form):
    names = speaking([r for _, records in groups for r in records], detected)
    lines = [f"| {first} | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for label, records in groups:
        lines.append(f"| {label} | " + " | ".join(form(*count(records, n, detected)) for n in names) + " |")
    return lines


def grouped(records, key):
    """In the order of first appearance, and all of them."""
    groups = {}
    for record in records:
        groups.setdefault(record[key], []).append(record)
    return [*groups.items(), ("all", records)] if len(groups) > 1 else list(groups.items())


def passed_share(records, name):
    rejected, said = count(records, name, mutant_rejected)
    return "-" if not said else "" if rejected == said else share(said - rejected, said)


def let_pass(mutants, key):
    """Mutants of which some rule lets a fifth pass: by rule, and by profile or family for assay."""
    groups_of = list(dict.fromkeys(m[key] for m in mutants))
    names = speaking(mutants, mutant_rejected)
    columns = ["assay at " + p for p in groups_of] + names[1:]
    lines = ["| mutant | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    groups = {}
    for m in mutants:
        groups.setdefault(m["mutant"], []).append(m)
    for name, records in groups.items():
        counts = [count(records, n, mutant_rejected) for n in names]
        if not any(said and said - rejected >= said / 5 for rejected, said in counts):
            continue
        cells = [passed_share([r for r in records if r[key] == p], "assay") for p in groups_of]
        cells += [passed_share(records, n) for n in names[1:]]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def usable(mutants, runs, label, key):
    """A rule shows nothing where it rejects a correct run too: such detections taken away."""
    red = {(n, r["case"], r["profile"]) for r in runs for n in NAMES if rejects(r, n, run_rejected)}

    def form(name, records):
        said = [(r, v) for r in records if (v := rejects(r, name, mutant_rejected)) is not None]
        return percent(sum(v and (name, r["case"], r["profile"]) not in red for r, v in said), len(said))

    names = speaking(mutants, mutant_rejected)
    lines = [f"| {label} | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for group, records in grouped(mutants, key):
        lines.append(f"| {group} | " + " | ".join(form(n, records) for n in names) + " |")
    return lines


def failures(runs):
    lines = []
    for r in runs:
        if run_rejected(r) or run_rejected(r, True):
            seed = f" --seed {r['seed']}" if r["seed"] else ""
            other = "" if r["same_choice"] else " (other experts chosen)"
            lines.append(f"- `{r['case']}{seed}`, {r['profile']}, variant {r['number']} ({r['variant']['name']}){other}: "
                         + (r["message"] if run_rejected(r) else r["staged_message"]))
    return lines


def passing(mutants, staged):
    """Which mutants pass where, with checkpoints where staged."""
    groups = {}
    for m in mutants:
        if not mutant_rejected(m, staged):
            groups.setdefault(m["mutant"], []).append(f"{m['case']} at {m['profile']}")
    return [f"- `{name}`: " + ", ".join(places) for name, places in groups.items()]


def with_checkpoints(runs, mutants, label, key):
    """What `compare --staged` says of candidates with checkpoints, beside what `compare` says of the same without."""
    lines = ["", "With checkpoints: candidates that give them, judged by `assay compare --staged`.", "",
             f"| {label} | false alarms without | with | mutants detected without | with |", "| --- |" + " --- |" * 4]
    made_of = dict(grouped(mutants, key))
    for group, some in grouped(runs, key):
        cells = [share(sum(run_rejected(r, s) for r in some), len(some)) for s in (False, True)]
        made = made_of.get(group, [])
        cells += [percent(sum(mutant_rejected(m, s) for m in made), len(made)) for s in (False, True)]
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    if lost := passing(mutants, True):
        lines += ["", "Mutants that pass with checkpoints too:", "", *lost]
    return lines


def markdown(runs, mutants, skipped, staged, quantised):
    label, key = ("format", "family") if quantised else ("profile", "profile")
    apart = [m for m in mutants if m["mutant"] in BELOW_A_UNIT]
    mutants = [m for m in mutants if m["mutant"] not in BELOW_A_UNIT]
    cases = len({r["case"] for r in runs})
    lines = [f"{len(runs)} correct runs of {cases} cases; {len(mutants)} mutants with an effect.", "", *skipped]
    lines += ["False alarms: correct runs that a rule rejects.", ""]
    lines += rows(label, grouped(runs, key), run_rejected, share)
    lines += ["", "The same by operation.", ""]
    lines += rows("operation", grouped(runs, "op"), run_rejected, share)
    if mutants:
        lines += ["", "Power: mutants that a rule rejects.", ""]
        lines += rows(label, grouped(mutants, key), mutant_rejected, percent)
        lines += ["", "Usable power: the same, where the rule accepts every correct run of the same case and profile.", ""]
        lines += usable(mutants, runs, label, key)
        strict = sum(m["outcome"] == "detected" for m in mutants)
        lines += ["", "Held to a stricter count, by which each tensor that a mutant changes must say so by itself "
                      f"(docs/power.md), assay detects {percent(strict, len(mutants))}."]
        if tried := [m for m in apart if m["outcome"] != "-"]:
            lines += ["", "Not counted is `truncated`, which changes less than a unit of the type: assay rejects "
                          f"{share(sum(map(mutant_rejected, tried)), len(tried))}."]
        lines += ["", "Mutants of which a rule lets a fifth or more pass; empty: none.", "", *let_pass(mutants, key)]
        if quantised and (lost := passing(mutants, False)):
            lines += ["", "Mutants that assay lets pass:", "", *lost]
    if staged:
        lines += with_checkpoints(runs, mutants, label, key)
    other = sum(not r["same_choice"] for r in runs)
    if other:
        lines += ["", f"{other} correct runs chose other experts than the golden, near ties of their seeds."]
    if lost := failures(runs):
        lines += ["", "False alarms of assay:", "", *lost]
    return "\n".join(lines)
