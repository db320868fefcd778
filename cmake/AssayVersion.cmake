# Writes OUTPUT, a header with the commit of the source tree; "" where it is no repository (a release). Run at every build: the
# header changes when the commit does. cmake -DSOURCE=... -DOUTPUT=... -P
cmake_minimum_required(VERSION 3.25)
set(commit "")
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git -C ${SOURCE} describe --always --abbrev=12 --exclude=* --dirty OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define ASSAY_COMMIT \"@commit@\"\n" @ONLY)
