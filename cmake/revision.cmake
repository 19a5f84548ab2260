# The source revision, shown by `corun --version` and never compared. Written at build time so that
# it follows a new commit without a fresh configure.
set(CORUN_REVISION_HEADER ${CMAKE_BINARY_DIR}/generated/revision.h)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/generated)
add_custom_target(corun_revision BYPRODUCTS ${CORUN_REVISION_HEADER}
  COMMAND ${CMAKE_COMMAND} -DOUT=${CORUN_REVISION_HEADER} -DSRC=${CMAKE_SOURCE_DIR}
    -P ${CMAKE_SOURCE_DIR}/cmake/write_revision.cmake)

# The digest of the numeric sources: what was measured with others is measured again.
set(CORUN_SOURCES_HEADER ${CMAKE_BINARY_DIR}/generated/sources.h)
file(GLOB_RECURSE CORUN_NUMERIC_SOURCES CONFIGURE_DEPENDS src/ops/*.[ch] src/ops/*.cu src/ops/*.cuh
  src/base/num.h src/base/philox.h src/base/pool.[ch] src/step/*.h src/model/*.[ch])
add_custom_command(OUTPUT ${CORUN_SOURCES_HEADER}
  COMMAND ${CMAKE_COMMAND} -DOUT=${CORUN_SOURCES_HEADER} -DSRC=${CMAKE_SOURCE_DIR}
    "-DTOOLS=${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} ${CMAKE_SYSTEM_PROCESSOR} ${CMAKE_BUILD_TYPE} ${CMAKE_C_FLAGS} ${CORUN_SANITIZE} ${CORUN_BREAK}"
    -P ${CMAKE_SOURCE_DIR}/cmake/write_sources.cmake
  DEPENDS ${CORUN_NUMERIC_SOURCES} ${CMAKE_SOURCE_DIR}/cmake/write_sources.cmake
    ${CMAKE_SOURCE_DIR}/CMakeLists.txt ${CMAKE_SOURCE_DIR}/cmake/isa.cmake ${CMAKE_SOURCE_DIR}/cmake/cuda.cmake
  VERBATIM)
add_custom_target(corun_sources DEPENDS ${CORUN_SOURCES_HEADER})
