# The CPU kernels: every file src/ops/cpu/k_*.c is compiled once for each instruction set of the
# target, with CPU_ISA set to the suffix of its public names. The bits are the same by definition.
include(CheckCCompilerFlag)
file(GLOB CORUN_KERNEL_SOURCES CONFIGURE_DEPENDS src/ops/cpu/k_*.c)
file(GLOB CORUN_CPU_SOURCES CONFIGURE_DEPENDS src/ops/cpu/*.c)
if(CORUN_KERNEL_SOURCES)
  list(REMOVE_ITEM CORUN_CPU_SOURCES ${CORUN_KERNEL_SOURCES})
endif()

function(corun_add_isa target isa)
  if(NOT CORUN_KERNEL_SOURCES)
    return()
  endif()
  add_library(corun_k_${isa} OBJECT ${CORUN_KERNEL_SOURCES})
  target_link_libraries(corun_k_${isa} PRIVATE corun_flags)
  target_compile_definitions(corun_k_${isa} PRIVATE CPU_ISA=${isa} CPU_ISA_${isa}=1)
  target_compile_options(corun_k_${isa} PRIVATE ${ARGN})
  if(CORUN_FUZZ) # no parser reaches them, and clang needs many minutes for their loops there
    target_compile_options(corun_k_${isa} PRIVATE -O1)
  else()
    target_link_libraries(corun_k_${isa} PRIVATE corun_sanitize)
  endif()
  # INTERFACE: each program that links the objects links the kernels too.
  target_sources(${target} INTERFACE $<TARGET_OBJECTS:corun_k_${isa}>)
  target_compile_definitions(${target} PRIVATE CPU_HAVE_${isa}=1)
endfunction()

function(corun_add_cpu_kernels target)
  target_sources(${target} PRIVATE ${CORUN_CPU_SOURCES})
  corun_add_isa(${target} generic)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    corun_add_isa(${target} avx2 -mavx2 -mfma -mf16c)
    corun_add_isa(${target} avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
      -mprefer-vector-width=512)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    corun_add_isa(${target} neon -march=armv8-a+simd)
  endif()
endfunction()
