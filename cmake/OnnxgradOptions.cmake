# onnxgrad_options: the interface target with the flags of all our own code. Nothing is set
# directory-wide except what CMake offers only as a variable (position independence, ccache).

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_FLAGS_RELEASE "-Os -DNDEBUG") # more: onnxgrad_optimize()
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(ONNXGRAD_CCACHE ccache DOC "Compiler cache; empty to build without")
  if(ONNXGRAD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # The base directory lets checkouts share results; sloppiness is what precompiled headers need.
    set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "${ONNXGRAD_CCACHE}")
  endif()
endif()

add_library(onnxgrad_options INTERFACE)
add_library(onnxgrad::options ALIAS onnxgrad_options)
target_compile_features(onnxgrad_options INTERFACE cxx_std_20)
target_compile_options(onnxgrad_options INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion
  -fvisibility=hidden -fvisibility-inlines-hidden -ffunction-sections -fdata-sections)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  target_compile_options(onnxgrad_options INTERFACE -march=x86-64-v2) # SSE4.2; NumPy's baseline, too
endif()
if(ONNXGRAD_WARNINGS_AS_ERRORS)
  target_compile_options(onnxgrad_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these falsely on std::string and std::vector; clang-tidy's analyses and the
  # sanitizers find the true ones.
  foreach(_warning stringop-overflow stringop-overread array-bounds restrict maybe-uninitialized)
    target_compile_options(onnxgrad_options INTERFACE -Wno-${_warning})
  endforeach()
  # A shared template whose ABI changed in GCC 7 is nobody's concern here.
  target_compile_options(onnxgrad_options INTERFACE -Wno-psabi)
  # Garbage collection takes a tenth of the compiler's time; most sources need less memory than this (KiB).
  target_compile_options(onnxgrad_options INTERFACE --param=ggc-min-heapsize=600000)
endif()

if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Reported in std::stable_sort of GCC 12's library, which takes its buffer so; GCC finds ours.
  target_compile_options(onnxgrad_options INTERFACE -Wno-deprecated-declarations)
  # For ccache, which compares contents: precompiled headers without the times of their files.
  target_compile_options(onnxgrad_options INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
endif()

# Hardening of everything that reads files, feeds and sockets of others: stack protector, marks for indirect
# branches, checked copies (where the optimizer runs; sanitizers replace those functions by their own), all
# symbols bound before the first call into read-only tables. Kernels alone do without the assertions of the
# standard library (onnxgrad_add_layer): their loops index spans that the plan has checked.
set(ONNXGRAD_HARDENING -fstack-protector-strong)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND ONNXGRAD_HARDENING -fcf-protection)
endif()
if(NOT ONNXGRAD_SANITIZE)
  list(APPEND ONNXGRAD_HARDENING
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=3>)
endif()
target_compile_options(onnxgrad_options INTERFACE ${ONNXGRAD_HARDENING})
target_link_options(onnxgrad_options INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack)

if(ONNXGRAD_SANITIZE)
  # What instrumented code reads uninitialised, its run finds; GCC 12 warns of intrinsics that start
  # from an undefined vector.
  target_compile_options(onnxgrad_options INTERFACE
    -fsanitize=${ONNXGRAD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-uninitialized)
  target_link_options(onnxgrad_options INTERFACE -fsanitize=${ONNXGRAD_SANITIZE})
endif()
if(ONNXGRAD_COVERAGE)
  target_compile_options(onnxgrad_options INTERFACE --coverage)
  target_link_options(onnxgrad_options INTERFACE --coverage)
endif()
