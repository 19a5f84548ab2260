# The CUDA backend: src/ops/cuda/*.c with the C compiler, *.cu with nvcc. The CUDA runtime is linked
# in; cuBLASLt is opened when a device is (lt.c), so the same program runs where neither a driver
# nor the library exists. CORUN_CUDA: ON, OFF, or AUTO: on where nvcc 13.0 or newer is found.
set(CORUN_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF or AUTO")
set_property(CACHE CORUN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CORUN_CUDA_ARCHS 90a CACHE STRING "Architectures that nvcc compiles for; only 90a is ever run")

set(CORUN_WITH_CUDA FALSE)
if(NOT CORUN_CUDA STREQUAL "OFF")
  set(cuda_why "nvcc was not found")
  find_program(CORUN_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(CORUN_NVCC AND NOT CMAKE_CROSSCOMPILING AND NOT CORUN_SANITIZE)
    execute_process(COMMAND ${CORUN_NVCC} --version OUTPUT_VARIABLE cuda_text)
    string(REGEX MATCH "V([0-9]+\\.[0-9]+\\.[0-9]+)" cuda_match "${cuda_text}")
    set(CORUN_CUDA_VERSION "${CMAKE_MATCH_1}")
    get_filename_component(cuda_root "${CORUN_NVCC}" REALPATH)
    get_filename_component(cuda_root "${cuda_root}/../.." ABSOLUTE)
    find_path(CORUN_CUDA_INCLUDE cublasLt.h HINTS ${cuda_root}/include NO_DEFAULT_PATH)
    find_library(CORUN_CUDART NAMES libcudart_static.a NO_DEFAULT_PATH
      HINTS ${cuda_root}/lib64 ${cuda_root}/targets/x86_64-linux/lib)
    if(NOT CORUN_CUDA_VERSION OR CORUN_CUDA_VERSION VERSION_LESS 13.0)
      set(cuda_why "nvcc is ${CORUN_CUDA_VERSION}, older than 13.0")
    elseif(NOT CORUN_CUDA_INCLUDE OR NOT CORUN_CUDART)
      set(cuda_why "cublasLt.h or libcudart_static.a is missing under ${cuda_root}")
    else()
      set(CORUN_WITH_CUDA TRUE)
    endif()
  elseif(CORUN_NVCC)
    set(cuda_why "this build is for another machine or under a sanitizer")
  endif()
  if(CORUN_WITH_CUDA)
    message(STATUS "CUDA ${CORUN_CUDA_VERSION}: building the CUDA backend for ${CORUN_CUDA_ARCHS}")
  elseif(CORUN_CUDA STREQUAL "AUTO")
    message(STATUS "${cuda_why}: building the CPU engine alone")
  else()
    message(FATAL_ERROR "CORUN_CUDA is ON, but ${cuda_why}")
  endif()
endif()

# Floating-point flags: docs/numerics.md, section 6.
set(CORUN_NVCC_FLAGS --fmad=false -ftz=false -prec-div=true -prec-sqrt=true)

function(corun_add_cuda target)
  if(NOT CORUN_WITH_CUDA)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/cuda/*.c)
  file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/cuda/*.cu)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/cuda/*.h
    ${CMAKE_SOURCE_DIR}/src/ops/cuda/*.cuh)
  set(numeric ${CMAKE_BINARY_DIR}/generated/cuda_numeric.h)
  set(shared ${CMAKE_SOURCE_DIR}/src/base/num.h ${CMAKE_SOURCE_DIR}/src/base/philox.h)
  add_custom_command(OUTPUT ${numeric} VERBATIM
    DEPENDS ${sources} ${kernels} ${headers} ${shared} ${CMAKE_SOURCE_DIR}/cmake/numeric_digest.sh
    COMMAND ${CMAKE_SOURCE_DIR}/cmake/numeric_digest.sh ${numeric}
      "nvcc ${CORUN_CUDA_VERSION} ${CORUN_NVCC_FLAGS}" ${sources} ${kernels} ${headers} ${shared})
  set(gencode "")
  foreach(arch ${CORUN_CUDA_ARCHS})
    list(APPEND gencode -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  set(objects "")
  foreach(src ${kernels})
    get_filename_component(name ${src} NAME)
    set(obj ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${obj} DEPENDS ${src} DEPFILE ${obj}.d VERBATIM
      COMMENT "Building CUDA object cuda/${name}.o"
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
      COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${CORUN_NVCC} -c -std=c++17 -O3 -lineinfo ${gencode}
        ${CORUN_NVCC_FLAGS} -Werror all-warnings -D_GNU_SOURCE
        -Xcompiler -Wall,-Wextra,-Werror,-fPIC,-fno-exceptions,-fno-rtti,-ffp-contract=off
        -Xcompiler -fno-strict-aliasing,-fvisibility=hidden,-fno-threadsafe-statics
        -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/src -MD -MF ${obj}.d -o ${obj} ${src})
    list(APPEND objects ${obj})
  endforeach()
  target_sources(${target} PRIVATE ${sources} ${numeric})
  target_compile_definitions(${target} PUBLIC CORUN_CUDA=1)
  target_include_directories(${target} SYSTEM PRIVATE ${CORUN_CUDA_INCLUDE})
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/generated)
  if(objects)
    add_custom_target(corun_cuda_kernels DEPENDS ${objects})
    add_dependencies(${target} corun_cuda_kernels)
    target_sources(${target} INTERFACE ${objects})
  endif()
  target_link_libraries(${target} INTERFACE ${CORUN_CUDART} rt ${CMAKE_DL_LIBS})
endfunction()
