# The page of `corun serve` as a C array, with its Content-Security-Policy (src/app/serve_page.h).
function(corun_add_page target)
  if(CORUN_SERVER)
    set(page ${CMAKE_SOURCE_DIR}/src/app/page.html)
    set(out ${CMAKE_BINARY_DIR}/generated/page.c)
    add_custom_command(OUTPUT ${out} DEPENDS ${page} ${CMAKE_SOURCE_DIR}/cmake/write_page.cmake VERBATIM
      COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DPAGE=${page} -P ${CMAKE_SOURCE_DIR}/cmake/write_page.cmake)
    target_sources(${target} PRIVATE ${out})
  endif()
endfunction()
