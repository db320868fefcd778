# Style sheets as texts of a C source, without line breaks and what stands before them:
# cmake -P style_sheets.cmake OUTPUT FILE.css...   makes   const char assay_FILE_style_sheet[];
math(EXPR last "${CMAKE_ARGC} - 1")
set(texts "")
foreach(i RANGE 4 ${last})
  get_filename_component(name ${CMAKE_ARGV${i}} NAME_WLE)
  file(READ ${CMAKE_ARGV${i}} text)
  string(REGEX REPLACE "\n *" "" text "${text}")
  string(APPEND texts "\nconst char assay_${name}_style_sheet[] = \"${text}\";\n")
endforeach()
file(WRITE ${CMAKE_ARGV3} "/* Made by compare/style_sheets.cmake. */\n#include \"compare/style_sheets.h\"\n${texts}")
