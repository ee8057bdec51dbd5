# What nearly every source includes of the standard library and fmt, compiled once for all layers. GCC
# takes a precompiled header only with the very flags that it was made with.
#
# onnxgrad_precompile(<target> <header> [<library>...]): the compiled header differs from one compilation to the
# next, so ccache is given a checksum of what it is made of, the header and the versions of fmt and these
# libraries (CCACHE_PCH_EXTSUM); otherwise no folder could use another one's results. In angle brackets, because
# CMake would write an absolute path into it.
function(onnxgrad_precompile target header)
  target_precompile_headers(${target} PRIVATE <${header}>)
  get_target_property(folder ${target} BINARY_DIR)
  get_target_property(include_dirs ${target} INCLUDE_DIRECTORIES)
  find_file(path "${header}" PATHS ${include_dirs} NO_CACHE NO_DEFAULT_PATH REQUIRED)
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
  file(SHA256 "${path}" checksum)
  set(versions "")
  foreach(library fmt ${ARGN})
    string(APPEND versions "${library} ${${library}_VERSION} ")
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(ending gch)
  else()
    set(ending pch)
  endif()
  file(CONFIGURE OUTPUT "${folder}/CMakeFiles/${target}.dir/cmake_pch.hxx.${ending}.sum"
    CONTENT "${checksum} ${versions}\n")
endfunction()

# onnxgrad_optimize(<target> <level>)
#
# The optimization level of a target in release builds, if it is not s: for what runs once per model, a third smaller
# than at 1. 2: what runs once per plan or per row of a file; 3: kernels.
function(onnxgrad_optimize name level)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O${level}>)
endfunction()

# One precompiled header for kernels and, with the assertions of the standard library, one each for layers at s and at
# 2. GCC 12 crashes on a precompiled header that was made at a lower level than the source that includes it.
foreach(_name kernel_precompiled core_precompiled small_precompiled)
  add_library(onnxgrad_${_name} OBJECT "${PROJECT_SOURCE_DIR}/src/precompiled.cpp")
  target_link_libraries(onnxgrad_${_name} PRIVATE onnxgrad_options fmt::fmt)
  target_include_directories(onnxgrad_${_name} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  if(NOT _name STREQUAL small_precompiled)
    onnxgrad_optimize(onnxgrad_${_name} 3)
  endif()
  if(NOT _name STREQUAL kernel_precompiled)
    target_compile_definitions(onnxgrad_${_name} PRIVATE _GLIBCXX_ASSERTIONS)
  endif()
  onnxgrad_precompile(onnxgrad_${_name} precompiled.h)
endforeach()

# onnxgrad_add_layer(<name> [OPTIMIZE <level>] [SOURCES <file>...] [DEPS <target>...] [PRIVATE_DEPS <target>...] [UNITY] [KERNELS])
#
# Makes the library of one folder of src/: target onnxgrad_<name>, alias onnxgrad::<name>. Includes
# are written relative to src/ ("ir/graph.h") and include/ ("onnxgrad/error.h"). A layer without
# sources is an interface target. PRIVATE_DEPS are libraries that the layer's headers do not show.
# UNITY compiles several sources at a time, in half the time: the names in the anonymous namespaces of a
# layer must differ then. KERNELS compiles at level 3, without the assertions of the standard library.
function(onnxgrad_add_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "UNITY;KERNELS" "OPTIMIZE" "SOURCES;DEPS;PRIVATE_DEPS")
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
      PRIVATE ${arg_PRIVATE_DEPS} fmt::fmt)
    if(arg_KERNELS)
      onnxgrad_optimize(${target} 3)
      target_precompile_headers(${target} REUSE_FROM onnxgrad_kernel_precompiled)
    else()
      target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
      if(arg_OPTIMIZE)
        onnxgrad_optimize(${target} ${arg_OPTIMIZE})
        target_precompile_headers(${target} REUSE_FROM onnxgrad_core_precompiled)
      else()
        target_precompile_headers(${target} REUSE_FROM onnxgrad_small_precompiled)
      endif()
    endif()
    set_target_properties(${target} PROPERTIES
      UNITY_BUILD ${arg_UNITY} UNITY_BUILD_BATCH_SIZE 16 UNITY_BUILD_RELOCATABLE ON)
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE
      "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
    target_link_libraries(${target} INTERFACE onnxgrad_options ${arg_DEPS} ${arg_PRIVATE_DEPS})
  endif()
  add_library(onnxgrad::${name} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY ONNXGRAD_LAYERS ${name})
endfunction()

# onnxgrad_add_op(<family>/<stem> [CPU] [CUDA] [BENCH])
#
# The one build line of an operator (or tight family of operators), relative to src/ops/:
#   <family>/<stem>.cpp        -> onnxgrad_ops, has
#                                 void ops::<stem>_op::register_<stem>(opdef::OpRegistry&)
#   <family>/<stem>_cpu.cpp    -> onnxgrad_kernels_cpu (CPU), has
#                                 void ops::<stem>_cpu::register_<stem>_cpu(opdef::KernelRegistry&)
#   <family>/<stem>_cuda.cpp   -> onnxgrad_kernels_cuda (CUDA), likewise register_<stem>_cuda
#   <family>/<stem>_test.cpp   -> the test binary onnxgrad_ops_test
#   <family>/<stem>_bench.cpp  -> the benchmark binary onnxgrad_ops_bench (BENCH)
# The files are unity-built: what a file alone has is in its namespace <stem>_op or <stem>_cpu.
# Both register functions are called by generated code (onnxgrad_finish_ops); there is no other list.
function(onnxgrad_add_op path)
  _onnxgrad_add_op_files("${path}" ${ARGN} OP)
endfunction()

# onnxgrad_add_kernel(<family>/<stem> [CUDA] [BENCH])
#
# Kernels that belong to no single operator (fused elementwise chains, say): <stem>_cpu.cpp,
# <stem>_test.cpp and <stem>_bench.cpp as above, without <stem>.cpp.
function(onnxgrad_add_kernel path)
  _onnxgrad_add_op_files("${path}" ${ARGN} CPU)
endfunction()

function(_onnxgrad_add_op_files path)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OP;CPU;CUDA;BENCH" "" "")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${path}: unexpected ${arg_UNPARSED_ARGUMENTS}; known are CPU, CUDA and BENCH")
  endif()
  get_filename_component(stem "${path}" NAME)
  get_property(stems GLOBAL PROPERTY ONNXGRAD_ALL_STEMS)
  if(stem IN_LIST stems)
    message(FATAL_ERROR "${path}: the stem '${stem}' is taken; register_${stem} would exist twice")
  endif()
  set_property(GLOBAL APPEND PROPERTY ONNXGRAD_ALL_STEMS ${stem})
  set(file "${CMAKE_CURRENT_SOURCE_DIR}/${path}")
  set_property(GLOBAL APPEND PROPERTY ONNXGRAD_OP_TESTS "${file}_test.cpp")
  if(arg_OP)
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_OP_STEMS ${stem})
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_OP_SOURCES "${file}.cpp")
  endif()
  if(arg_CPU)
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_CPU_STEMS ${stem})
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_CPU_SOURCES "${file}_cpu.cpp")
  endif()
  if(arg_CUDA)
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_CUDA_STEMS ${stem})
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_CUDA_SOURCES "${file}_cuda.cpp")
  endif()
  if(arg_BENCH)
    set_property(GLOBAL APPEND PROPERTY ONNXGRAD_OP_BENCHES "${file}_bench.cpp")
  endif()
endfunction()

# Writes `layer::function(registry)`, which calls <stem>_<kind>::register_<stem><suffix> of every stem, or,
# where `kind` is empty, register_<stem><suffix>.
function(onnxgrad_write_registration file layer function registry header stems kind suffix)
  set(declarations "")
  set(calls "")
  foreach(stem IN LISTS stems)
    set(name "register_${stem}${suffix}")
    set(declaration "void ${name}(${registry}& registry);")
    if(kind)
      set(declaration "namespace ${stem}_${kind} {\n${declaration}\n}")
      set(name "${stem}_${kind}::${name}")
    endif()
    string(APPEND declarations "${declaration}\n")
    string(APPEND calls "  ${name}(registry);\n")
  endforeach()
  set(ONNXGRAD_REGISTRATION_NAMESPACE "${layer}")
  set(ONNXGRAD_REGISTRATION_FUNCTION "${function}")
  set(ONNXGRAD_REGISTRATION_REGISTRY "${registry}")
  set(ONNXGRAD_REGISTRATION_HEADER "${header}")
  set(ONNXGRAD_REGISTRATION_DECLARATIONS "${declarations}")
  set(ONNXGRAD_REGISTRATION_CALLS "${calls}")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/registration.cpp.in" "${file}" @ONLY)
endfunction()

# onnxgrad_finish_ops([SOURCES <file>...] [CPU_SOURCES <file>...] [CUDA_SOURCES <file>...] [TEST_SUPPORT <file>...]
#                     [TESTS <file>...] [DEPS ...] [CPU_DEPS ...])
#
# After the last onnxgrad_add_op: makes the layers ops, kernels_cpu and kernels_cuda from what was added, the given
# shared sources and the generated registration; the library onnxgrad::ops_testing from TEST_SUPPORT
# (the gradient checker, for other tests too); and the test binary onnxgrad_ops_test from the
# operators' tests, TESTS and the generated list of all sample cases.
function(onnxgrad_finish_ops)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;CPU_SOURCES;CUDA_SOURCES;TEST_SUPPORT;TESTS;DEPS;CPU_DEPS")
  get_property(op_stems GLOBAL PROPERTY ONNXGRAD_OP_STEMS)
  get_property(op_sources GLOBAL PROPERTY ONNXGRAD_OP_SOURCES)
  get_property(cpu_stems GLOBAL PROPERTY ONNXGRAD_CPU_STEMS)
  get_property(cpu_sources GLOBAL PROPERTY ONNXGRAD_CPU_SOURCES)
  set(ops_file "${CMAKE_CURRENT_BINARY_DIR}/register_ops.cpp")
  set(cpu_file "${CMAKE_CURRENT_BINARY_DIR}/register_cpu_kernels.cpp")
  onnxgrad_write_registration("${ops_file}" ops register_builtin_ops
    opdef::OpRegistry ops/builtin.h "${op_stems}" op "")
  onnxgrad_write_registration("${cpu_file}" ops register_builtin_cpu_kernels
    opdef::KernelRegistry ops/builtin.h "${cpu_stems}" cpu "_cpu")
  get_property(cuda_stems GLOBAL PROPERTY ONNXGRAD_CUDA_STEMS)
  get_property(cuda_sources GLOBAL PROPERTY ONNXGRAD_CUDA_SOURCES)
  set(cuda_file "${CMAKE_CURRENT_BINARY_DIR}/register_cuda_kernels.cpp")
  onnxgrad_write_registration("${cuda_file}" ops register_builtin_cuda_kernels
    opdef::KernelRegistry ops/builtin.h "${cuda_stems}" cuda "_cuda")
  onnxgrad_add_layer(kernels_cuda UNITY
    SOURCES ${cuda_file} ${cuda_sources} ${arg_CUDA_SOURCES}
    DEPS onnxgrad::ops onnxgrad::kernels_cpu onnxgrad::device_cuda)
  onnxgrad_add_layer(ops UNITY SOURCES ${ops_file} ${op_sources} ${arg_SOURCES} DEPS ${arg_DEPS})
  onnxgrad_add_layer(kernels_cpu UNITY KERNELS
    SOURCES ${cpu_file} ${cpu_sources} ${arg_CPU_SOURCES} DEPS onnxgrad::ops ${arg_CPU_DEPS})
  set_target_properties(onnxgrad_kernels_cpu PROPERTIES UNITY_BUILD_BATCH_SIZE 8)

  get_property(tests GLOBAL PROPERTY ONNXGRAD_OP_TESTS)
  set(test_deps
    onnxgrad::schema_info onnxgrad::onnx onnxgrad::ops onnxgrad::kernels_cpu onnxgrad::autodiff
    onnxgrad::runtime onnxgrad::kernels_cuda)
  if(arg_TEST_SUPPORT)
    onnxgrad_add_test_library(ops_testing SOURCES ${arg_TEST_SUPPORT} DEPS ${test_deps})
    list(PREPEND test_deps onnxgrad::ops_testing)
  endif()
  set(cases_file "${CMAKE_CURRENT_BINARY_DIR}/op_cases.cpp")
  onnxgrad_write_op_cases("${cases_file}")
  onnxgrad_add_test(ops SHARDS 2 SOURCES ${tests} ${cases_file} ${arg_TESTS} DEPS ${test_deps})
endfunction()

# onnxgrad_add_simd_sources(<layer> <file>...)
#
# Adds translation units that hold code for several instruction sets and choose at run time, by
# Highway's foreach_target. They are compiled for the baseline; Highway's target attributes do the
# rest, so no shared inline function is compiled for an instruction set that a machine may lack.
function(onnxgrad_add_simd_sources name)
  target_sources(onnxgrad_${name} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(onnxgrad_${name} PRIVATE hwy::hwy)
endfunction()
