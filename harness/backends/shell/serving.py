"""The two ways in which assay starts a backend: a command for each request, and a server for all of them (docs/your-kernel.md)."""
import sys
import traceback

from request import Unsupported

UNSUPPORTED = 77


def serve(answer):
    """A request a line, REQUEST<TAB>CANDIDATE; the answer is a line that begins with "assay: "."""
    for line in sys.stdin:
        try:
            answer(*line.rstrip("\n").split("\t"))
            print("assay: done", flush=True)
        except Unsupported as reason:
            print("assay: unsupported", reason, flush=True)
        except Exception as error:  # whatever a library raises is this case's failure, not the next one's
            traceback.print_exc()
            print("assay: failed", " ".join(f"{type(error).__name__}: {error}".split())[:1000], flush=True)


def add_arguments(parser):
    parser.add_argument("request", nargs="?")
    parser.add_argument("candidate", nargs="?")
    parser.add_argument("--serve", action="store_true", help="what it does without paths: a server for assay run --serve")


def start(parser, options, answer):
    """By the options of add_arguments; answer(request, candidate) writes the candidate, or raises Unsupported."""
    if options.request is None:
        serve(answer)
        return
    if options.serve or options.candidate is None:
        parser.error("expected both request and candidate, or neither: a server")
    try:
        answer(options.request, options.candidate)
    except Unsupported as reason:
        print(reason)
        sys.exit(UNSUPPORTED)
