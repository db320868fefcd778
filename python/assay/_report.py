"""What a check found."""
from __future__ import annotations

import itertools
import json
from ctypes import c_void_p
from functools import cached_property
from typing import Any

from . import _library as lib

__tracebackhide__ = True  # pytest shows the test, not these functions


class Report:
    """The verdict on results, in every form of the program. It can be copied and pickled."""

    _handle: c_void_p | None = None  # of a copy, which has all forms

    def __init__(self, handle: c_void_p, test: lib.Test, case: str):
        self._handle, self._test = handle, test
        self._texts: dict[tuple[bool, bool], str] = {}
        self.case = case  #: name of the case
        self.verdict = lib.VERDICTS[lib.call("report_verdict", handle)]  #: PASS, FAIL, VACUOUS or NOT COMPARABLE
        self.message = lib.text(lib.call("report_message", handle))  #: one line: the first wrong tensor
        self.first_wrong = lib.text(lib.call("report_first_wrong", handle))  #: its path, or ""
        bugs = lib.text(lib.call("report_bugs", handle))
        self.bugs = [bug.strip() for bug in bugs.split(",") if bug.strip()]  #: names of known bugs that give these results

    def __del__(self) -> None:
        if self._handle:
            lib.call("report_free", self._handle)

    def __getstate__(self) -> dict[str, Any]:
        for verbose, color in itertools.product((False, True), repeat=2):
            self.text(verbose, color)
        assert self.json and self.html  # made, and kept
        return {name: value for name, value in vars(self).items() if name not in ("_handle", "_test")}

    def __str__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False, color: bool = False) -> str:
        """What the terminal shows."""
        form = bool(verbose), bool(color)
        if form not in self._texts:
            self._texts[form] = lib.attempt_text("report_text", self._handle, *map(int, form))
        return self._texts[form]

    @cached_property
    def json(self) -> dict[str, Any]:
        """The report's object of docs/comparing.md."""
        value = json.loads(lib.attempt_text("report_json", self._handle))
        reports: list[dict[str, Any]] = value.get("reports", [value])
        return reports[0]

    @cached_property
    def html(self) -> str:
        """A page with pictures."""
        return lib.attempt_text("report_html", self._handle)


class Mismatch(AssertionError):
    """Results that are not those of the case. `report` has the details, its first line the first wrong tensor."""

    __module__ = "assay"  # as a failing test shows it

    def __init__(self, report: Report):
        self.report = report
        bugs = f"known bug {' or '.join(report.bugs)}: " if report.bugs else ""
        self.headline = f"{report.verdict} {report.case}  {bugs}{report.message}"
        super().__init__(f"{self.headline}\n\n{report.text()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.report,), vars(self)
