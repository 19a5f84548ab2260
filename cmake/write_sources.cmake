# Writes OUT: a digest of the sources of the arithmetic under SRC and of the files that hold their
# compiler flags, without comments and white space, and of TOOLS (compiler and options).
cmake_policy(VERSION 3.25)
file(GLOB_RECURSE files RELATIVE ${SRC} ${SRC}/src/ops/*.[ch] ${SRC}/src/ops/*.cu ${SRC}/src/ops/*.cuh
  ${SRC}/src/base/num.h ${SRC}/src/base/philox.h ${SRC}/src/base/pool.[ch] ${SRC}/src/step/*.h
  ${SRC}/src/model/*.[ch])
list(SORT files)
set(all "${TOOLS}")
foreach(f ${files})
  file(READ ${SRC}/${f} text)
  string(REGEX REPLACE "/[*]([^*]|[*]+[^*/])*[*]+/" "" text "${text}")
  string(REGEX REPLACE "//[^\n]*" "" text "${text}")
  string(REGEX REPLACE "[ \t\r\n]+" "" text "${text}")
  string(APPEND all "${f}:${text}\n")
endforeach()
foreach(f CMakeLists.txt cmake/isa.cmake cmake/cuda.cmake)
  file(READ ${SRC}/${f} text)
  string(REGEX REPLACE "#[^\n]*" "" text "${text}")
  string(REGEX REPLACE "[ \t\r\n]+" "" text "${text}")
  string(APPEND all "${f}:${text}\n")
endforeach()
string(SHA256 digest "${all}")
string(SUBSTRING ${digest} 0 32 digest)
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define CORUN_SOURCES \"@digest@\"\n" @ONLY)
