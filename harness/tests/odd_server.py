"""A server that is not right, for run.sh. usage: odd_server.py WHAT FOLDER

FOLDER has the goldens; a line for each start and end goes to the file FOLDER/log."""
import os
import shutil
import subprocess
import sys
import time

what, folder = sys.argv[1:3]
copy = os.path.join(os.path.dirname(os.path.abspath(__file__)), "copy_outputs.py")


def say(text):
    sys.stdout.write(text + "\n")  # in one piece
    sys.stdout.flush()


def note(text):
    with open(os.path.join(folder, "log"), "a") as log:
        print(text, file=log)


note("start")
print("started", file=sys.stderr, flush=True)
if what == "early":
    say("assay: done")
    time.sleep(60)
if what == "never_reads":
    time.sleep(60)
if what == "ends_at_once":
    sys.exit(0)
if what == "no_device":
    print("no device here", file=sys.stderr)
    sys.exit(77)
if what == "closes":
    os.close(1)
    time.sleep(60)
seen = []
for line in sys.stdin:
    request, candidate = line.rstrip("\n").split("\t")
    name = os.path.basename(request).split(".")[0]
    again = name in seen
    others = [other for other in seen if other != name]
    seen.append(name)
    golden = os.path.join(folder, name.replace("-", "/", 1) + ".h5")
    if what in ("dies", "dies_at_" + name):
        print("about to die", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 11)
    if what == "dies_later" and again:
        os._exit(4)
    if what == "raises":
        raise TypeError("sort() received an invalid combination\n * (int dim)\n * (name dim, bool descending)")
    if what == "hangs" or what == "hangs_at_" + name:
        subprocess.Popen(["sleep", "60"])
        time.sleep(60)
    if what == "garbage":
        say("assay: all is well")
        continue
    if what == "silent_garbage":
        say("no prefix here")
        time.sleep(60)
    if what == "unfinished_line":
        sys.stdout.write("progress 10 %")
        say("assay: done")
        time.sleep(60)
    if what == "unsupported":
        say("assay: unsupported only dense layers")
        continue
    if what == "failed":
        say("assay: failed no luck")
        continue
    if what == "says_done":
        say("assay: done")
        continue
    if what == "huge_line":
        print("x" * 300000 + "assay: done", flush=True)
    if what == "prints":
        for i in range(20000):
            print(f"line {i} of a long log " + 80 * "-")
            print(f"error {i} of a long log " + 80 * "-", file=sys.stderr)
        sys.stdout.flush()
    # right in the order in which the cases are given: wrong behind a case that comes later there
    remembers = what == "remembers" and name == "moe-small" and others[-1:] == ["rms_norm-one-row"]
    if what == "differs" and again or remembers:
        subprocess.check_call([sys.executable, copy, golden, candidate, "outputs/y"])
    elif what == "links":
        shutil.copy(golden, candidate + ".real")
        os.symlink(candidate + ".real", candidate)
    else:
        subprocess.check_call([sys.executable, copy, golden, candidate])
    say("assay: done\nassay: done" if what == "twice" else "assay: done")
    if what == "once":
        sys.exit(0)
note("end of input")
