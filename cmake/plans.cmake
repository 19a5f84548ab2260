# The plan tables of src/ops/plans/ as C arrays (src/ops/plan.h: plan_texts). Every build holds them:
# a build without CUDA uses none, but its tests read all.
function(corun_add_plans target)
  file(GLOB tables CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/plans/*.plan)
  set(out ${CMAKE_BINARY_DIR}/generated/plan_texts.c)
  string(REPLACE ";" "|" list "${tables}")
  add_custom_command(OUTPUT ${out} DEPENDS ${tables} ${CMAKE_SOURCE_DIR}/cmake/write_plans.cmake VERBATIM
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} "-DTABLES=${list}" -P ${CMAKE_SOURCE_DIR}/cmake/write_plans.cmake)
  target_sources(${target} PRIVATE ${out})
endfunction()
