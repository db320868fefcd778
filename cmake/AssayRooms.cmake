# Rooms of the tree that a build can do without: -DASSAY_WITHOUT="fuzz;ranks". Of a room that is left out no file is compiled; the
# files without_ROOM.c are, which refuse in its place. A room's row names its files.
set(ASSAY_ROOMS fuzz ranks hugging_face)
set(ASSAY_ROOM_fuzz "/harness/fuzz/|/cmd_fuzz\\.c$")
set(ASSAY_ROOM_ranks "/harness/ranks/ranks\\.c$") # and the module with MPI
set(ASSAY_ROOM_hugging_face "/cases/hugging_face\\.c$|/harness/plan/model_weights[a-z_]*\\.c$")
set(ASSAY_WITHOUT "" CACHE STRING "rooms that are left out, of ${ASSAY_ROOMS}; tests of harness are built with all of them alone")
foreach(room IN LISTS ASSAY_WITHOUT)
  if(NOT room IN_LIST ASSAY_ROOMS)
    message(FATAL_ERROR "ASSAY_WITHOUT has \"${room}\", expected some of ${ASSAY_ROOMS}")
  endif()
endforeach()

function(assay_leave_out sources)
  foreach(room IN LISTS ASSAY_ROOMS)
    if(room IN_LIST ASSAY_WITHOUT)
      list(FILTER ${sources} EXCLUDE REGEX "${ASSAY_ROOM_${room}}")
    else()
      list(FILTER ${sources} EXCLUDE REGEX "/without_${room}\\.c$")
    endif()
  endforeach()
  set(${sources} ${${sources}} PARENT_SCOPE)
endfunction()
