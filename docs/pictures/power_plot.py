"""What `ci/power` printed, as a plot: power_plot.py OUT.svg < printed. The rows "all" of its tables of false alarms and usable power."""
import re
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "assay", "font.size": 10})
import matplotlib.pyplot as plt


def all_row(text, title):
    """Shares in percent, by rule."""
    table = re.search(re.escape(title) + r".*?\n\n(\|.*?)\n\n", text, re.S).group(1).splitlines()
    rules = [cell.strip() for cell in table[0].split("|")[2:-1]]
    row = next(line for line in table if line.startswith("| all "))
    shares = []
    for cell in row.split("|")[2:-1]:
        part, whole = re.search(r"(\d+) of (\d+)", cell).groups()
        shares.append(100 * int(part) / int(whole))
    return dict(zip(rules, shares))


def main():
    text = sys.stdin.read()
    alarms, usable = all_row(text, "False alarms:"), all_row(text, "Usable power:")
    rules = [rule for rule in alarms if rule != "TOSA"]  # it applies to one operation alone
    figure, axes = plt.subplots(figsize=(7.5, 3.2))
    for place, rule in enumerate(reversed(rules)):
        axes.barh(place + 0.2, usable[rule], 0.36, color="#3b7dbd")
        axes.barh(place - 0.2, alarms[rule], 0.36, color="#c62828")
        axes.text(usable[rule] + 1, place + 0.2, f"{usable[rule]:.1f} %", va="center")
        axes.text(alarms[rule] + 1, place - 0.2, f"{alarms[rule]:.1f} %", va="center")
    axes.set_yticks(range(len(rules)), reversed(rules))
    axes.set_xlim(0, 110)
    axes.set_xlabel("blue: wrong kernels rejected, where the rule rejects no correct one, in %\nred: correct kernels rejected, in %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(sys.argv[1], metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
