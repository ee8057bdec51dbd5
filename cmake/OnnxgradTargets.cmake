# onnxgrad_add_layer(<name> [SOURCES <file>...] [DEPS <target>...] [PRIVATE_DEPS <target>...])
#
# Makes the library of one folder of src/: target onnxgrad_<name>, alias onnxgrad::<name>. Includes
# are written relative to src/ ("ir/graph.h") and include/ ("onnxgrad/error.h"). A layer without
# sources is an interface target. PRIVATE_DEPS are libraries that the layer's headers do not show.
function(onnxgrad_add_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS;PRIVATE_DEPS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "onnxgrad_add_layer(${name}): unexpected ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target onnxgrad_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    target_include_directories(${target} PUBLIC
      "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
    target_link_libraries(${target}
      PUBLIC onnxgrad_options ${arg_DEPS}
      PRIVATE ${arg_PRIVATE_DEPS})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE
      "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
    target_link_libraries(${target} INTERFACE onnxgrad_options ${arg_DEPS} ${arg_PRIVATE_DEPS})
  endif()
  add_library(onnxgrad::${name} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY ONNXGRAD_LAYERS ${name})
endfunction()

# onnxgrad_add_op(<family>/<stem> [CPU] [BENCH])
#
# The one build line of an operator (or tight family of operators), relative to src/ops/:
#   <family>/<stem>.cpp        -> onnxgrad_ops, declares void ops::register_<stem>(opdef::OpRegistry&)
#   <family>/<stem>_cpu.cpp    -> onnxgrad_kernels_cpu (CPU), ops::register_<stem>_cpu(opdef::KernelRegistry&)
#   <family>/<stem>_test.cpp   -> the test binary onnxgrad_ops_test
#   <family>/<stem>_bench.cpp  -> the benchmark binary onnxgrad_ops_bench (BENCH)
# Both register functions are called by generated code (onnxgrad_finish_ops); there is no other list.
function(onnxgrad_add_op path)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CPU;BENCH" "" "")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "onnxgrad_add_op(${path}): unexpected ${arg_UNPARSED_ARGUMENTS}")
  endif()
  get_filename_component(stem "${path}" NAME)
  set_property(GLOBAL APPEND PROPERTY ONNXGRAD_OP_STEMS ${stem})
  set_property(GLOBAL APPEND PROPERTY ONNXGRAD_OP_SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/${path}.cpp")
  set_property(GLOBAL APPEND PROPERTY ONNXGRAD_OP_TESTS "${CMAKE_CURRENT_SOURCE_DIR}/${path}_test.cpp")
  if(arg_CPU)
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_CPU_STEMS ${stem})
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_CPU_SOURCES
      "${CMAKE_CURRENT_SOURCE_DIR}/${path}_cpu.cpp")
  endif()
  if(arg_BENCH)
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_OP_BENCHES
      "${CMAKE_CURRENT_SOURCE_DIR}/${path}_bench.cpp")
  endif()
endfunction()

# Writes the function `function(registry)` that calls register_<stem><suffix> of every stem.
function(_onnxgrad_write_registration file function registry header stems suffix)
  set(declarations "")
  set(calls "")
  foreach(stem IN LISTS stems)
    string(APPEND declarations "void register_${stem}${suffix}(${registry}& registry);\n")
    string(APPEND calls "  register_${stem}${suffix}(registry);\n")
  endforeach()
  set(ONNXGRAD_REGISTRATION_FUNCTION "${function}")
  set(ONNXGRAD_REGISTRATION_REGISTRY "${registry}")
  set(ONNXGRAD_REGISTRATION_HEADER "${header}")
  set(ONNXGRAD_REGISTRATION_DECLARATIONS "${declarations}")
  set(ONNXGRAD_REGISTRATION_CALLS "${calls}")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/registration.cpp.in" "${file}" @ONLY)
endfunction()

# onnxgrad_finish_ops([SOURCES <file>...] [CPU_SOURCES <file>...] [DEPS ...] [CPU_DEPS ...])
#
# After the last onnxgrad_add_op: makes the layers ops and kernels_cpu from what was added, the given
# shared sources and the generated registration.
function(onnxgrad_finish_ops)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;CPU_SOURCES;DEPS;CPU_DEPS")
  get_property(op_stems GLOBAL PROPERTY ONNXGRAD_OP_STEMS)
  get_property(op_sources GLOBAL PROPERTY ONNXGRAD_OP_SOURCES)
  get_property(cpu_stems GLOBAL PROPERTY ONNXGRAD_CPU_STEMS)
  get_property(cpu_sources GLOBAL PROPERTY ONNXGRAD_CPU_SOURCES)
  set(ops_file "${CMAKE_CURRENT_BINARY_DIR}/register_ops.cpp")
  set(cpu_file "${CMAKE_CURRENT_BINARY_DIR}/register_cpu_kernels.cpp")
  _onnxgrad_write_registration("${ops_file}" register_builtin_ops
    opdef::OpRegistry ops/builtin.h "${op_stems}" "")
  _onnxgrad_write_registration("${cpu_file}" register_builtin_cpu_kernels
    opdef::KernelRegistry ops/builtin.h "${cpu_stems}" "_cpu")
  onnxgrad_add_layer(ops SOURCES ${ops_file} ${op_sources} ${arg_SOURCES} DEPS ${arg_DEPS})
  onnxgrad_add_layer(kernels_cpu
    SOURCES ${cpu_file} ${cpu_sources} ${arg_CPU_SOURCES} DEPS onnxgrad::ops ${arg_CPU_DEPS})
endfunction()

# onnxgrad_add_simd_sources(<layer> <file>...)
#
# Adds translation units that hold code for several instruction sets and choose at run time, by
# Highway's foreach_target. They are compiled for the baseline; Highway's target attributes do the
# rest, so no shared inline function is compiled for an instruction set that a machine may lack.
function(onnxgrad_add_simd_sources name)
  target_sources(onnxgrad_${name} PRIVATE ${ARGN})
  target_link_libraries(onnxgrad_${name} PRIVATE hwy::hwy)
endfunction()

# onnxgrad_collect_library(): the installable static library `onnxgrad`, made of all layers' objects.
function(onnxgrad_collect_library)
  get_property(layers GLOBAL PROPERTY ONNXGRAD_LAYERS)
  add_library(onnxgrad STATIC)
  add_library(onnxgrad::onnxgrad ALIAS onnxgrad)
  foreach(layer IN LISTS layers)
    get_target_property(type onnxgrad_${layer} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      target_sources(onnxgrad PRIVATE $<TARGET_OBJECTS:onnxgrad_${layer}>)
    endif()
  endforeach()
  set_target_properties(onnxgrad PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(onnxgrad PUBLIC cxx_std_20)
  target_include_directories(onnxgrad PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(onnxgrad
    PRIVATE
      fmt::fmt spdlog::spdlog protobuf::libprotobuf OpenMP::OpenMP_CXX Threads::Threads
      $<BUILD_INTERFACE:ONNX::onnx>
      $<BUILD_INTERFACE:hwy::hwy>
      $<BUILD_INTERFACE:onnxgrad_xsmm>
      $<BUILD_INTERFACE:onnxgrad_dnnl>
      $<BUILD_INTERFACE:onnxgrad_options>)
endfunction()
