# assay_library(NAME [SOURCES ...] [DEPENDS ...]): one folder of the tree as a static library; without SOURCES, every .c in it.
# assay_tests(LABEL [DEPENDS ...] [APART ...]): the tests/test_*.c of a folder as one program, LABEL_tests, which ctest runs once for
#   each of them; those that are linked in another way are programs of their own, which the caller changes (APART). What they share
#   (each .c there with a header of its name) is the library assay_LABEL_test. The programs' allocation calls go through tests/support,
#   which can make the Nth one fail, and they have no instruction set above ASSAY_ISA.

set(ASSAY_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Werror)
# No contraction: a multiply and an add are fused where fma() is written and nowhere else.
set(ASSAY_FLAGS ${ASSAY_WARNINGS} -ffp-contract=off -fno-math-errno)

# passive: on tiny shapes threads would spend their time spinning, and more of them than there are cores.
# ignore_noninstrumented_modules: the OpenMP run time is not instrumented for tsan, its users are.
# quarantine_size_mb: of the 256 MB of freed memory that are else kept from use, each page is a new one, a sixth of the time.
# suppressions: leaks of others.
# KMP_DUPLICATE_LIB_OK: LLVM's OpenMP run time keeps a file in /dev/shm by each process's number. A killed process leaves it, sometimes
# empty; whoever has that number later takes it for another run time's and aborts.
set(ASSAY_TEST_ENVIRONMENT "OMP_WAIT_POLICY=passive;ASAN_OPTIONS=quarantine_size_mb=16;TSAN_OPTIONS=ignore_noninstrumented_modules=1;KMP_DUPLICATE_LIB_OK=TRUE;LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/support/leaks.txt:print_suppressions=0")

function(assay_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  endif()
  assay_leave_out(ARG_SOURCES)
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
  target_compile_options(${name} PRIVATE ${ASSAY_FLAGS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS})
  set_property(GLOBAL APPEND PROPERTY ASSAY_LIBRARIES ${name})
endfunction()

function(assay_test_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
  target_compile_options(${name} PRIVATE ${ASSAY_FLAGS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} assay_test_support)
endfunction()

function(assay_tests label)
  cmake_parse_arguments(ARG "" "" "DEPENDS;APART" ${ARGN})
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/test_*.c)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/*.h)
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "h$" "c" source ${header})
    if(EXISTS ${source})
      list(APPEND shared ${source})
    endif()
  endforeach()
  if(shared)
    add_library(assay_${label}_test STATIC ${shared})
    target_compile_options(assay_${label}_test PRIVATE ${ASSAY_FLAGS})
    target_link_libraries(assay_${label}_test PUBLIC ${ARG_DEPENDS} assay_test_support)
    list(PREPEND ARG_DEPENDS assay_${label}_test)
  endif()
  set(together ${tests})
  foreach(name IN LISTS ARG_APART)
    list(REMOVE_ITEM together ${CMAKE_CURRENT_SOURCE_DIR}/tests/${name}.c)
    assay_test_program(${name} SOURCES tests/${name}.c DEPENDS ${ARG_DEPENDS})
  endforeach()
  assay_test_program(${label}_tests SOURCES ${together} DEPENDS ${ARG_DEPENDS})
  foreach(test IN LISTS tests)
    get_filename_component(name ${test} NAME_WE)
    if(name IN_LIST ARG_APART)
      add_test(NAME ${name} COMMAND ${name})
    else()
      add_test(NAME ${name} COMMAND ${label}_tests ${name})
    endif()
    file(STRINGS ${test} labels REGEX "^TEST_LABELS")
    string(REGEX MATCHALL "[a-z]+" labels "${labels}")
    if(NOT "catalogue" IN_LIST labels)
      list(APPEND labels units)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "${label};${labels}" TIMEOUT 1200 ENVIRONMENT "${ASSAY_TEST_ENVIRONMENT}")
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tests}) # their labels
endfunction()
