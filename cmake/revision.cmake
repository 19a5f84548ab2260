# The source revision, shown by `corun --version` and never compared. Written at build time so that
# it follows a new commit without a fresh configure.
set(CORUN_REVISION_HEADER ${CMAKE_BINARY_DIR}/generated/revision.h)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/generated)
add_custom_target(corun_revision BYPRODUCTS ${CORUN_REVISION_HEADER}
  COMMAND ${CMAKE_COMMAND} -DOUT=${CORUN_REVISION_HEADER} -DSRC=${CMAKE_SOURCE_DIR}
    -P ${CMAKE_SOURCE_DIR}/cmake/write_revision.cmake)
