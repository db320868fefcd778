/* compare/report.css and compare/steps.css, which style_sheets.cmake makes texts of. */
#pragma once

extern const char assay_report_style_sheet[], assay_steps_style_sheet[];
