# The libraries that we stand on, each a Debian package (ci/setup installs them).
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZLIB REQUIRED zlib) # of the static HDF5
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5)
# A target with the property ASSAY_STATIC_HDF5 takes the static library, where there is one. Debian's shared one brings libcurl and 25
# libraries below it, which take longer to load than everything else of the program.
find_library(HDF5_STATIC_LIBRARY libhdf5.a PATHS ${HDF5_LIBRARY_DIRS})
find_library(SZIP_LIBRARY sz)
add_library(assay_hdf5 INTERFACE)
if(HDF5_STATIC_LIBRARY AND SZIP_LIBRARY)
  target_include_directories(assay_hdf5 INTERFACE ${HDF5_INCLUDE_DIRS})
  set(static "$<BOOL:$<TARGET_PROPERTY:ASSAY_STATIC_HDF5>>")
  target_link_libraries(assay_hdf5 INTERFACE "$<${static}:${HDF5_STATIC_LIBRARY};${SZIP_LIBRARY};${ZLIB_LINK_LIBRARIES};${CMAKE_DL_LIBS};m>"
                                             "$<$<NOT:${static}>:PkgConfig::HDF5>")
else()
  target_link_libraries(assay_hdf5 INTERFACE PkgConfig::HDF5)
endif()
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(LIBXML REQUIRED IMPORTED_TARGET libxml-2.0) # of tests alone, which read reports with it
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)
option(ASSAY_MPI "mpirun -n N assay, where Open MPI is there: a module, which the program opens then" ON)
if(ASSAY_MPI AND NOT "ranks" IN_LIST ASSAY_WITHOUT)
  find_package(MPI QUIET COMPONENTS C)
endif()
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
find_library(SLEEF_LIBRARY sleef REQUIRED)
find_path(RANDOM123_INCLUDE Random123/philox.h REQUIRED)

# binary128. GCC finds quadmath.h by itself; Clang uses GCC's, searched last.
add_library(assay_quadmath INTERFACE)
target_link_libraries(assay_quadmath INTERFACE quadmath)
include(CheckIncludeFile)
check_include_file(quadmath.h ASSAY_QUADMATH_FOUND)
if(NOT ASSAY_QUADMATH_FOUND)
  file(GLOB ASSAY_GCC_INCLUDES /usr/lib/gcc/*/*/include)
  find_path(ASSAY_QUADMATH_INCLUDE quadmath.h PATHS ${ASSAY_GCC_INCLUDES} REQUIRED)
  target_compile_options(assay_quadmath INTERFACE "SHELL:-idirafter ${ASSAY_QUADMATH_INCLUDE}")
endif()
