# libassay: oracle, cases, fixtures, and tests in process, in one shared library; its headers, a pkg-config file and a
# CMake package.
include(CMakePackageConfigHelpers)
add_library(assay_shared SHARED cmake/empty.c)
set_target_properties(
  assay_shared PROPERTIES OUTPUT_NAME assay EXPORT_NAME assay VERSION ${PROJECT_VERSION} SOVERSION 0
                          LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/assay.map)
target_include_directories(
  assay_shared PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/assay>)
target_link_options(assay_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/assay.map)
target_link_libraries(
  assay_shared
  PRIVATE -Wl,--whole-archive assay_base assay_arithmetic assay_tables assay_ops assay_moe assay_mesh assay_layer assay_cases assay_fixtures
          assay_compare assay_harness -Wl,--no-whole-archive)
install(TARGETS assay_shared EXPORT assay LIBRARY)
add_dependencies(assay assay_shared) # what builds the program can install it: its library is made of the same objects
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(folder oracle/base oracle/arithmetic oracle/ops oracle/graph oracle/blocks oracle/moe oracle/mesh oracle/layer cases fixtures)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/assay/${folder} FILES_MATCHING PATTERN "*.h" PATTERN "*.inc"
          PATTERN tests EXCLUDE)
endforeach()

file(RELATIVE_PATH ASSAY_PREFIX_FROM_PC "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/") # so that --prefix may be any folder
configure_file(cmake/assay.pc.in ${CMAKE_BINARY_DIR}/assay.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/assay.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# find_package(assay) gives the target assay::assay.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/assay)
install(EXPORT assay NAMESPACE assay:: FILE assayConfig.cmake DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/assayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/assayConfigVersion.cmake DESTINATION ${package})

# A program that knows <assay.h> alone, as a user would write it.
add_executable(test_libassay tests/test_libassay.c)
target_link_libraries(test_libassay PRIVATE assay_shared PkgConfig::CMOCKA m)
add_test(NAME test_libassay COMMAND test_libassay)

# The same after an installation, with what pkg-config and CMake say.
separate_arguments(ASSAY_C_FLAGS NATIVE_COMMAND "${CMAKE_C_FLAGS}")
add_test(NAME install COMMAND ${CMAKE_SOURCE_DIR}/tests/install.sh ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER} ${ASSAY_C_FLAGS})
