"""The examples in the comments of the public headers compile: headers.py [HEADER...], all of include/ by default."""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What an example takes for granted.
BEFORE = {
    "test.h": "#include <stdio.h>\nvoid my_kernel(void);\nvoid example(int32_t count, const assay_backend_tensor *results) {\n"
              "assay_backend_tensor tensor; assay_test_report *report = NULL;\n",
    "random.h": "void example(int64_t j, int64_t columns, uint16_t *out) {\n",
    "assay.h": "void example(double *y, double *rstd, const double *x, const double *scale, int64_t rows, int64_t dim) {\n",
}


def example(text):
    lines = [line[6:] for line in text.splitlines() if line.startswith(" *     ")]
    code = "\n".join(lines).replace("my_kernel(...)", "my_kernel()")
    return re.sub(r" \.\.\.$", ";", code, flags=re.M)


def main(headers):
    tried = 0
    for header in headers or glob.glob(ROOT + "/include/**/*.h", recursive=True):
        with open(header) as file:
            code = example(file.read())
        if not code:
            continue
        source = f'#include "{header}"\n{BEFORE[os.path.basename(header)]}{code}\n}}\n'
        compiled = subprocess.run(["cc", "-std=gnu17", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT}", f"-I{ROOT}/include", "-x", "c", "-"],
                                  input=source, capture_output=True, text=True)
        if compiled.returncode != 0:
            sys.exit(f"{header}: its example does not compile\n{compiled.stderr}")
        tried += 1
    print(f"{tried} examples of headers compile")
    sys.exit(tried == 0)


main(sys.argv[1:])
