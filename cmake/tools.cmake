# Programs of tools/ that need more than the engine does: built where their library is found.
# oneDNN of Debian 12 (libdnnl-dev); its own package file asks for OpenCL.
find_library(CORUN_DNNL_LIBRARY dnnl)
find_path(CORUN_DNNL_INCLUDE dnnl.h)
if(CORUN_DNNL_LIBRARY AND CORUN_DNNL_INCLUDE AND NOT CMAKE_CROSSCOMPILING)
  add_executable(bench_matmul tools/bench_matmul.c)
  target_include_directories(bench_matmul PRIVATE ${CORUN_DNNL_INCLUDE})
  target_link_libraries(bench_matmul PRIVATE corun_objects ${CORUN_DNNL_LIBRARY})
endif()

# libmicrohttpd (libmicrohttpd-dev) beside the server's own transport; not in `all`.
pkg_check_modules(MICROHTTPD QUIET IMPORTED_TARGET libmicrohttpd)
if(MICROHTTPD_FOUND AND CORUN_SERVER AND NOT CMAKE_CROSSCOMPILING)
  add_executable(http_streams EXCLUDE_FROM_ALL tools/http_streams.c)
  target_link_libraries(http_streams PRIVATE corun_app corun_objects PkgConfig::MICROHTTPD)
endif()
