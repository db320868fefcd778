"""Runs what the documents tell people to type: snippets.py [DOCUMENT...], README.md and docs/*.md by default.

Every command in an indented or fenced block is run, in order, in a folder that looks like a checkout (links to it) and has the files
that a reader would have: libmine.so (the example backend, of two operations) and run_kernel.py (the numpy backend). A block under a line that ends with
"`NAME`:" is that file. A
command must end with status 0 or,
where it judges, with 1 or 3, or as "# exit status N" says. What stands below a command that begins
with "$ " must be among what it prints, "..." standing for anything. Globs over the catalogue or a folder of it are cut to one case,
and --time to 5 s. What needs an environment of ci/setup that is not here is left out. Python blocks must
compile, YAML blocks that are a case must be one, C blocks must compile."""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = {"assay", "cc", "c++", "h5ls", "h5dump", "python3", "pip", "pytest", "cmake", "pkg-config", "cp", "mkdir", "cat", "export", "for"}
# What is not run here, and why.
LEFT_OUT = [
    (r"^ci/", "a command of the tree, which CI runs by itself or which takes minutes"),
    (r"\bctest\b|explain_sweep|assay-bench", "tests and measurements"),
    (r"[A-Z]{4,}[./ ]|[A-Z]{4,}$|\[--|\.\.\.|CASE\b", "a synopsis"),
    (r"\bpip\b|--prefix|apt|\bdocker\b|\bpodman\b|find_package|dpkg|git clone", "installs something"),
    (r"6[57]1b|true.size|h5py.org", "of true size"),
    (r"Mixtral-8x7B|DeepSeek-V3:", "a checkpoint that the reader has"),
    (r"lib(gmm|decode)_(cuda|host)", "needs nvcc; the test cuda_backend builds it"),
    (r"TRITON_INTERPRET", "needs Triton"),
    (r"examples/maxtext", "needs MaxText"),
    (r"/tmp/examples|\$PREFIX", "of an installed assay: tests/install.sh"),
]
SECONDS = re.compile(r"\b\d+(\.\d+)? s\b")


def blocks(text):
    """(language, file, lines) of each block; language "" of indented ones; file: that the paragraph before ends with, as "`mlp.py`:"."""
    lines, i, before = text.splitlines(), 0, ""
    while i < len(lines):
        if lines[i].startswith("```"):
            end = next(k for k in range(i + 1, len(lines)) if lines[k].startswith("```"))
            name = re.search(r"`([\w-]+\.\w+)`[^`]*:$", before)
            yield lines[i][3:].strip(), name.group(1) if name else None, lines[i + 1:end]
            i = end + 1
        elif lines[i].startswith("    ") and (i == 0 or not lines[i - 1].strip()):
            end = i
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield "", None, [line[4:] for line in lines[i:end]]
            i = end
        else:
            before = lines[i].strip() or before
            i += 1


def commands(lines):
    """(command, shown or None): shown are the lines under a "$ "."""
    i = 0
    while i < len(lines):
        prompt = lines[i].startswith("$ ")
        command = lines[i][2:] if prompt else lines[i]
        while command.rstrip().endswith("\\") and i + 1 < len(lines):
            i += 1
            command = command.rstrip()[:-1] + lines[i].strip()
        i += 1
        words = [word for word in command.split() if "=" not in word.split("'")[0]]
        program = words[0] if words else ""
        if len(words) > 1 and words[1].endswith(":"):
            continue  # a message of the program
        if not prompt and program not in PROGRAMS and not program.startswith(("build/", "ci/", "./")):
            continue
        shown = []
        while prompt and i < len(lines) and not lines[i].startswith("$ "):
            shown.append(lines[i].rstrip())
            i += 1
        yield command, [line for line in shown if line and not line.startswith("...")] if prompt else None


def reason_to_leave_out(command):
    plain = re.sub(r"'[^']*'|\{\w+\}|ASSAY_\w+(=\S+ +)?|#.*", "", command)
    return next((why for pattern, why in LEFT_OUT if re.search(pattern, plain)), None)


def needs_a_library(command, folder):
    """An environment of ci/setup, which is not here."""
    needed = re.findall(r"build/environments/[\w-]+", command)
    return any(not os.path.exists(os.path.join(folder, path)) for path in needed)


def one_case(command):
    command = re.sub(r"--time \S+", "--time 5", command)
    command = re.sub(r"(assay \w+) '\*'", rf"\1 {FIRST['moe']}", command)
    return re.sub(r"'(\w+)/\*'|\b(\w+)/\\\*", lambda found: FIRST[found.group(1) or found.group(2)], command)


def first_cases(assay):
    first = {}
    for line in subprocess.run([assay, "list"], check=True, capture_output=True, text=True).stdout.splitlines():
        name = line.split()[0]
        first.setdefault(name.partition("/")[0], name)
    return first | {"moe": "moe/small", "mla": "mla/small"}


def run_command(command, shown, environment, folder):
    expected = re.search(r"# exit status (\d)", command)
    done = subprocess.run(["bash", "-c", one_case(command)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL)
    printed = done.stdout + done.stderr
    status = done.returncode
    judges = re.search(r"assay (run|compare|check|between|tolerance|power|verify|fuzz)\b", command)  # and may find something wrong
    lawful = [int(expected.group(1))] if expected else [0, 1, 3] if judges else [0]
    if status not in lawful:
        return f"status {status}: {printed.strip()[-400:]}"
    clean = [SECONDS.sub("N s", line.rstrip()) for line in printed.splitlines()]
    for line in shown or []:
        parts = [part.strip() for part in SECONDS.sub("N s", line).split("...") if part.strip()]
        if not any(all(part in found for part in parts) for found in clean):
            return f'does not print "{line}":\n' + "\n".join(clean[:20])
    return None


def check_block(language, lines, environment, folder):
    text = "\n".join(lines) + "\n"
    if language == "python":
        compile(text, "snippet", "exec")
    elif language == "yaml" and lines and lines[0].startswith("case:") and not reason_to_leave_out(text):
        with open(os.path.join(folder, "snippet.yml"), "w") as file:
            file.write(text)
        return run_command("assay show snippet.yml", None, environment, folder)
    elif language in ("c", "cpp"):
        with open(os.path.join(folder, f"snippet.{language}"), "w") as file:
            file.write(text)
        return run_command(f"c{'++' if language == 'cpp' else 'c'} -fsyntax-only -I include -I . snippet.{language}", None, environment, folder)
    return None


def prepare(folder):
    for entry in os.listdir(ROOT):
        if entry not in (".git", "out"):
            os.symlink(os.path.join(ROOT, entry), os.path.join(folder, entry))
    shutil.copy(os.path.join(ROOT, "build/release/harness/backends/example/libassay_example.so"), os.path.join(folder, "libmine.so"))
    os.mkdir(os.path.join(folder, "bin"))
    os.symlink("/usr/bin/python3", os.path.join(folder, "bin/python3"))  # Debian's, which has numpy and h5py
    with open(os.path.join(folder, "run_kernel.py"), "w") as file:
        file.write(f"import os, sys\nbackend = {os.path.join(ROOT, 'harness/backends/numpy/backend.py')!r}\n"
                   "os.execv('/usr/bin/python3', ['python3', backend] + sys.argv[1:])\n")


def check_document(path, environment):
    ran, left_out, wrong = 0, 0, []
    with open(path) as file:
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        environment = environment | {"PATH": os.path.join(folder, "bin") + ":" + environment["PATH"]}
        for language, name, lines in blocks(text):
            if name:
                with open(os.path.join(folder, name), "w") as file:
                    file.write("\n".join(lines) + "\n")
            try:
                trouble = check_block(language, lines, environment, folder)
            except SyntaxError as error:
                trouble = str(error)
            if trouble:
                wrong.append(f"{lines[0]}\n  {trouble}")
            if language not in ("", "sh", "bash", "console"):
                continue
            for command, shown in commands(lines):
                if reason_to_leave_out(command) or needs_a_library(command, folder):
                    left_out += 1
                    continue
                ran += 1
                trouble = run_command(command, shown, environment, folder)
                if trouble:
                    wrong.append(f"{command}\n  {trouble}")
    return ran, left_out, wrong


def main():
    documents = sys.argv[1:] or [os.path.join(ROOT, "README.md")] + sorted(
        os.path.join(ROOT, "docs", name) for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md"))
    global FIRST
    program = os.path.join(ROOT, "build/release/harness")
    FIRST = first_cases(os.path.join(program, "assay"))
    python = os.path.join(ROOT, "python")
    environment = os.environ | {"PATH": program + ":" + os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"PYTHONPATH": f"{python}:{python}/examples", "PYTEST_PLUGINS": "assay.pytest_plugin",  # as the wheel would
                    "ASSAY_LIBRARY": os.path.join(ROOT, "build/release/python/libassay.so")}
    failed, total = 0, 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        checked = list(pool.map(lambda path: check_document(path, environment), documents))
    for path, (ran, left_out, wrong) in zip(documents, checked):
        print(f"{os.path.relpath(path, ROOT)}: {ran} commands ran, {left_out} left out, {len(wrong)} wrong")
        for text in wrong:
            print(f"  WRONG  {text}")
        failed += len(wrong)
        total += ran
    print(f"{total} commands, {failed} wrong")
    return 1 if failed or total == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
