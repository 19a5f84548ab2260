cmake_policy(VERSION 3.25)
execute_process(COMMAND git describe --always --dirty --abbrev=12 WORKING_DIRECTORY ${SRC}
  OUTPUT_VARIABLE rev OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT rev)
  set(rev "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define CORUN_REVISION \"@rev@\"\n" @ONLY)
