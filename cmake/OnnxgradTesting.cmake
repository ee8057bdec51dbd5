include(GoogleTest)

# All tests share one precompiled header and are compiled at -O1: they are built often and run once.
function(_onnxgrad_test_settings target)
  target_link_libraries(${target} PRIVATE onnxgrad_options GTest::gmock GTest::gtest_main)
  target_compile_options(${target} PRIVATE -O1)
  target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests/precompiled.h")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
endfunction()

# onnxgrad_add_test(<layer> SOURCES <file>... [DEPS <target>...])
#
# The test binary onnxgrad_<layer>_test, one CTest entry per binary and shard: a process per test
# would cost more than the tests. Tests are unity-built, so helpers of a file live in a namespace of
# their own, not in an anonymous one that two files would share.
function(onnxgrad_add_test layer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SHARDS" "SOURCES;DEPS")
  if(NOT ONNXGRAD_BUILD_TESTS OR NOT arg_SOURCES)
    return()
  endif()
  set(target onnxgrad_${layer}_test)
  add_executable(${target} ${arg_SOURCES})
  _onnxgrad_test_settings(${target})
  target_link_libraries(${target} PRIVATE ${arg_DEPS})
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    add_test(NAME ${layer}.${shard} COMMAND ${target} --gtest_brief=1)
    set_tests_properties(${layer}.${shard} PROPERTIES TIMEOUT 900 ENVIRONMENT
      "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard};ONNXGRAD_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
  endforeach()
endfunction()
