# Turns files into a C source, so that the program needs none of them where it is installed:
# cmake -P embed.cmake OUTPUT ARRAY COUNT FILE...   makes   assay_embedded_file ARRAY[]; int COUNT;
set(output ${CMAKE_ARGV3})
set(array ${CMAKE_ARGV4})
set(count ${CMAKE_ARGV5})
math(EXPR last "${CMAKE_ARGC} - 1")

set(texts "")
set(rows "")
set(number 0)
foreach(i RANGE 6 ${last})
  set(path ${CMAKE_ARGV${i}})
  get_filename_component(name ${path} NAME_WLE)
  file(READ ${path} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(REPLACE "0x0a," "0x0a,
" bytes "${bytes}") # a line for each of the file's
  string(APPEND texts "static const unsigned char text_${number}[] = {\n${bytes}};\n")
  string(APPEND rows "    {\"${name}\", text_${number}, sizeof text_${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()

file(WRITE ${output} "/* Made by cases/embed.cmake. */
#include \"cases/case_internal.h\"

${texts}
const assay_embedded_file ${array}[] = {
${rows}};
const int ${count} = ${number};
")
