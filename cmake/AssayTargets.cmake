# assay_library(NAME [SOURCES ...] [DEPENDS ...]): one folder of the tree as a static library; without SOURCES, every .c in it.
# assay_tests(LABEL [DEPENDS ...]): each tests/test_*.c as a test, and what they share (each .c there with a header of its
#   name) as the library assay_LABEL_test.
# assay_test(NAME SOURCES ... [DEPENDS ...] [LABELS ...]): a cmocka program that ctest runs; its allocation calls go through
# tests/support, which can make the Nth one fail, and it has no instruction set above ASSAY_ISA.

set(ASSAY_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Werror)
# No contraction: a multiply and an add are fused where fma() is written and nowhere else.
set(ASSAY_FLAGS ${ASSAY_WARNINGS} -ffp-contract=off -fno-math-errno)

# passive: on tiny shapes threads would spend their time spinning, and more of them than there are cores.
# ignore_noninstrumented_modules: the OpenMP run time is not instrumented for tsan, its users are.
# quarantine_size_mb: of the 256 MB of freed memory that are else kept from use, each page is a new one, a sixth of the time.
# KMP_DUPLICATE_LIB_OK: LLVM's OpenMP run time keeps a file in /dev/shm by each process's number. A killed process leaves it, sometimes
# empty; whoever has that number later takes it for another run time's and aborts.
set(ASSAY_TEST_ENVIRONMENT "OMP_WAIT_POLICY=passive;ASAN_OPTIONS=quarantine_size_mb=16;TSAN_OPTIONS=ignore_noninstrumented_modules=1;KMP_DUPLICATE_LIB_OK=TRUE")

function(assay_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
  target_compile_options(${name} PRIVATE ${ASSAY_FLAGS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS})
  set_property(GLOBAL APPEND PROPERTY ASSAY_LIBRARIES ${name})
endfunction()

function(assay_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
  target_compile_options(${name} PRIVATE ${ASSAY_FLAGS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} assay_test_support)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 1200 ENVIRONMENT "${ASSAY_TEST_ENVIRONMENT}")
endfunction()

function(assay_tests label)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
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
  foreach(test IN LISTS tests)
    get_filename_component(name ${test} NAME_WE)
    assay_test(${name} SOURCES ${test} DEPENDS ${ARG_DEPENDS} LABELS ${label})
  endforeach()
endfunction()
