/* A shared library is made of the archives behind it; CMake wants one source of its own. */
typedef int assay_shared_has_no_code_of_its_own;
