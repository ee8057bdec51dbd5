# Tests: one binary per layer, unity-built at -O1 with a precompiled header, because they are built
# often and run once.

# GCC takes a precompiled header only with the very flags that it was made with, so all test targets
# have the same: -fPIC also in executables (CMake says -fPIE there).
function(_onnxgrad_test_flags target)
  target_link_libraries(${target} PRIVATE
    onnxgrad_options fmt::fmt GTest::gmock GTest::gtest)
  target_compile_options(${target} PRIVATE -O1 -fPIC)
endfunction()

if(ONNXGRAD_BUILD_TESTS)
  add_library(onnxgrad_precompiled OBJECT "${PROJECT_SOURCE_DIR}/tests/precompiled.cpp")
  _onnxgrad_test_flags(onnxgrad_precompiled)
  target_include_directories(onnxgrad_precompiled PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  onnxgrad_precompile(onnxgrad_precompiled precompiled.h GTest)
endif()

function(_onnxgrad_test_settings target)
  _onnxgrad_test_flags(${target})
  target_precompile_headers(${target} REUSE_FROM onnxgrad_precompiled)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6 UNITY_BUILD_RELOCATABLE ON)
endfunction()

# onnxgrad_add_test_library(<name> SOURCES <file>... [DEPS <target>...])
#
# Support code that several test binaries share (the gradient checker): target onnxgrad_<name>,
# alias onnxgrad::<name>. Nothing is made when tests are off.
function(onnxgrad_add_test_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  if(NOT ONNXGRAD_BUILD_TESTS)
    return()
  endif()
  set(target onnxgrad_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(onnxgrad::${name} ALIAS ${target})
  _onnxgrad_test_settings(${target})
  target_link_libraries(${target} PUBLIC ${arg_DEPS})
endfunction()

# The device for tests that runs the CPU's kernels as another device would.
set(ONNXGRAD_SIMULATED_DEVICE)
foreach(_part device memory schedule shadow stream)
  list(APPEND ONNXGRAD_SIMULATED_DEVICE
    "${PROJECT_SOURCE_DIR}/src/device/testing/simulated_${_part}.cpp")
endforeach()

# onnxgrad_add_test(<layer> SOURCES <file>... [DEPS <target>...] [SHARDS <n>] [ON_SIMULATED_DEVICE] [WITH_AVX2])
#
# The test binary onnxgrad_<layer>_test, one CTest entry per shard: a process per test would cost more
# than the tests. ON_SIMULATED_DEVICE: all of it once more on src/device/testing/simulated_device.h.
# WITH_AVX2: once more as on processors without AVX-512, whose kernels cut and pack otherwise.
# Tests are unity-built: helpers of a file live in a namespace named after the file, not in an anonymous one, which several
# files of a batch would share.
function(onnxgrad_add_test layer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ON_SIMULATED_DEVICE;WITH_AVX2" "SHARDS" "SOURCES;DEPS")
  if(NOT ONNXGRAD_BUILD_TESTS OR NOT arg_SOURCES)
    return()
  endif()
  if(arg_ON_SIMULATED_DEVICE)
    list(APPEND arg_SOURCES ${ONNXGRAD_SIMULATED_DEVICE})
    list(APPEND arg_DEPS onnxgrad::plugin_lock)
  endif()
  set(target onnxgrad_${layer}_test)
  add_executable(${target} ${arg_SOURCES})
  _onnxgrad_test_settings(${target})
  target_link_libraries(${target} PRIVATE ${arg_DEPS} GTest::gtest_main)
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(name ${layer})
    set(environment "ONNXGRAD_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
    if(arg_SHARDS GREATER 1)
      set(name ${layer}.${shard})
      list(APPEND environment GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${shard})
    endif()
    add_test(NAME ${name} COMMAND ${target} --gtest_brief=1)
    set_tests_properties(${name} PROPERTIES TIMEOUT 900 ENVIRONMENT "${environment}")
    if(arg_WITH_AVX2 AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      add_test(NAME ${name}.avx2 COMMAND ${target} --gtest_brief=1)
      set_tests_properties(${name}.avx2 PROPERTIES TIMEOUT 900
        ENVIRONMENT "${environment};ONNXGRAD_MAX_ISA=AVX2")
    endif()
    if(arg_ON_SIMULATED_DEVICE)
      add_test(NAME ${name}.simulated COMMAND ${target} --gtest_brief=1)
      list(APPEND environment ONNXGRAD_DEVICE=simulated)
      set_tests_properties(${name}.simulated PROPERTIES TIMEOUT 900 ENVIRONMENT "${environment}")
    endif()
  endforeach()
endfunction()

# onnxgrad_write_op_cases(<file>)
#
# Writes ops_test::all_op_cases and all_error_cases, which gather <stem>_cases and
# <stem>_error_cases of every onnxgrad_add_op(); see src/ops/testing/op_case.h.
function(onnxgrad_write_op_cases file)
  get_property(stems GLOBAL PROPERTY ONNXGRAD_OP_STEMS)
  set(ONNXGRAD_CASE_DECLARATIONS "")
  set(ONNXGRAD_CASE_CALLS "")
  set(ONNXGRAD_ERROR_CASE_CALLS "")
  foreach(stem IN LISTS stems)
    string(APPEND ONNXGRAD_CASE_DECLARATIONS
      "std::vector<OpCase> ${stem}_cases();\nstd::vector<ErrorCase> ${stem}_error_cases();\n")
    string(APPEND ONNXGRAD_CASE_CALLS "  add(\"${stem}\", ${stem}_cases());\n")
    string(APPEND ONNXGRAD_ERROR_CASE_CALLS "  add(\"${stem}\", ${stem}_error_cases());\n")
  endforeach()
  configure_file("${PROJECT_SOURCE_DIR}/cmake/op_cases.cpp.in" "${file}" @ONLY)
endfunction()
