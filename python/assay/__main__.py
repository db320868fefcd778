"""The program: `assay` and `python3 -m assay`."""
from __future__ import annotations

import os
import sys
from pathlib import Path


def program() -> Path:
    return Path(os.environ.get("ASSAY_PROGRAM") or Path(__file__).with_name("bin") / "assay")


def main() -> None:
    try:
        os.execv(program(), ["assay", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"assay: {program()}: {error.strerror}; the wheel has the program, and ASSAY_PROGRAM says where another is")


if __name__ == "__main__":
    main()
