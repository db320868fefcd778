"""pytest plugin: expected failures, a page of the failing reports, the cache; cases are closed behind their test."""
from __future__ import annotations

import errno
import os
import re
import shlex
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from typing import Any, Collection, Generator

import pytest

from ._case import Case, Unsupported, names
from ._report import Mismatch
from ._results import meant


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("assay")
    group.addoption("--assay-known", metavar="FILE", help="expected failures, as `assay run --known` takes them: a case or glob and the reason on each line; a Mismatch is expected, no other error")
    group.addoption("--assay-html", metavar="FILE", help="write the reports of all failing cases as one page")
    group.addoption("--assay-cache", metavar="DIR", help="folder of goldens (default: $ASSAY_CACHE, else assay/ in the user's cache folder)")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config.getoption("assay_html")), "assay-failures")
    cache = config.getoption("assay_cache")
    if cache is not None:
        os.environ["ASSAY_CACHE"] = os.path.abspath(cache)


def case_of(item: pytest.Item) -> Case | None:
    """The case of a test by @assay.cases."""
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
    return case if isinstance(case, Case) else None


def read_known(path: str, existing: Collection[str]) -> list[tuple[str, str]]:
    """Globs of cases and reasons, in their order; each matches some of those that there are."""
    known: dict[str, str] = {}
    if Path(path).exists() and not Path(path).is_file():
        raise pytest.UsageError(f"--assay-known: {path} is no ordinary file")
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"--assay-known: {error}") from error
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split(None, 1)
        if not words:
            continue
        if len(words) == 1:
            raise pytest.UsageError(f"{path}:{number}: no reason, expected a case and why it fails")
        if words[0] in known:
            raise pytest.UsageError(f"{path}:{number}: the case of an earlier line again")
        if words[0].startswith("fuzz/"):  # of `assay fuzz --known`
            continue
        if not any(fnmatchcase(name, words[0]) for name in existing):
            raise pytest.UsageError(f"{path}:{number}: no case is named {words[0]}{meant(words[0], existing)}")
        known[words[0]] = words[1].strip()
    return list(known.items())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("assay_known")
    if path is None:
        return
    known = read_known(path, [*names(), *(case.what for case in map(case_of, items) if case is not None)])
    for item in items:
        case = case_of(item)
        if case is None:
            continue
        for pattern, reason in known:
            if fnmatchcase(case.what, pattern):
                item.add_marker(pytest.mark.xfail(reason=reason, raises=Mismatch, strict=True))
                break


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    error = call.excinfo.value if call.excinfo is not None else None
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.skipped and isinstance(error, Unsupported):
        report.longrepr = (str(item.path), (item.location[1] or 0) + 1, f"Skipped: {error}")
    if report.failed and isinstance(error, Mismatch):
        # Attributes of a report travel from a worker of xdist to where they are collected.
        wants_page = item.config.getoption("assay_html") is not None
        report.assay = (error.headline, error.report.html if wants_page else "")  # type: ignore[attr-defined]


class Failures:
    """What failed: a line each at the end, and their pages as one."""

    def __init__(self, path: str | None):
        self.path = None if path is None else Path(path)
        self.found: dict[str, tuple[str, str]] = {}
        if self.path is not None:  # said before an hour of tests, not behind it
            try:
                self.write("")
            except OSError as error:
                raise pytest.UsageError(f"--assay-html {self.path}: {error.strerror}") from error

    def write(self, page: str) -> None:
        """Whole, or nothing of it; an empty page tries whether it can be written."""
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        unfinished = self.path.with_name(self.path.name + ".part")
        unfinished.write_text(page, encoding="utf-8")
        if page:
            unfinished.replace(self.path)
        else:
            unfinished.unlink()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = getattr(report, "assay", None)
        if found is not None:
            self.found[report.nodeid] = found

    def pytest_sessionfinish(self) -> None:
        if self.path is None:
            return
        try:
            self.write(joined(self.found))
        except OSError as error:
            pytest.exit(f"--assay-html {self.path}: {error.strerror}", returncode=pytest.ExitCode.USAGE_ERROR)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.found:
            terminalreporter.section("assay")
        for headline, _ in self.found.values():
            terminalreporter.write_line(headline)
        if self.path is not None:
            terminalreporter.write_line(f"{summary(self.found)} in {self.path}")


def summary(found: dict[str, tuple[str, str]]) -> str:
    return f"assay: {len(found)} failing report{'' if len(found) == 1 else 's'}"


def joined(pages: dict[str, tuple[str, str]]) -> str:
    """One page: a table of what failed, then the section of each report, its anchors numbered."""
    style, rows, sections = "", "", ""
    for number, (test, (headline, page)) in enumerate(sorted(pages.items())):
        style = re.search("<style>.*?</style>", page, re.DOTALL)[0]  # type: ignore[index]
        section = re.search("<section .*</section>", page, re.DOTALL)[0]  # type: ignore[index]
        again = f"<p>reproduce: <code>python3 -m pytest {escape(shlex.quote(test))}</code></p>"
        section = section.replace("</h2>", "</h2>" + again, 1)
        sections += re.sub(r'((?:id=|href=)"#?r)\d+', rf"\g<1>{number}", section) + "\n"
        rows += f'<tr><td class="why"><a href="#r{number}">{escape(test)}</a></td><td class="why">{escape(headline)}</td></tr>\n'
    title = summary(pages)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{title}</title>{style}</head>\n'
        f'<body><h1>{title}</h1>\n<div class="wide"><table>{rows}</table></div>\n{sections}</body></html>\n'
    )


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    case = case_of(item)
    if case is not None:
        case.close()
