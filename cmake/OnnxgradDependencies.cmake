# Finds the libraries of docs/architecture.md and wraps those without a CMake package of their own.
# Targets: fmt::fmt, spdlog::spdlog, nlohmann_json::nlohmann_json, protobuf::libprotobuf, ONNX::onnx,
# onnxgrad::dnnl, hwy::hwy, Eigen3::Eigen, onnxgrad::xsmm (empty where libxsmm does not exist),
# onnxgrad::xxhash, OpenMP::OpenMP_CXX.

# ONNX's own library: in CMAKE_PREFIX_PATH, or where scripts/onnx_library.sh has put it.
execute_process(
  COMMAND bash "${PROJECT_SOURCE_DIR}/scripts/onnx_library.sh" --prefix
  OUTPUT_VARIABLE _onnx_prefix
  OUTPUT_STRIP_TRAILING_WHITESPACE)
set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/scripts/onnx_library.sh"
  "${PROJECT_SOURCE_DIR}/requirements/onnx-library.txt"
  "${PROJECT_SOURCE_DIR}/requirements/onnx-library-flags.txt")
list(APPEND CMAKE_PREFIX_PATH "${_onnx_prefix}")

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Protobuf REQUIRED)
find_package(ONNX CONFIG QUIET)
if(NOT ONNX_FOUND)
  message(FATAL_ERROR
    "ONNX's C++ library is not in ${_onnx_prefix}. Run scripts/setup.sh (or scripts/onnx_library.sh),"
    " or set CMAKE_PREFIX_PATH to a prefix that holds it.")
endif()
find_package(hwy REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)

# Debian's CMake package of oneDNN wants OpenCL's headers, which a CPU engine has no use for.
add_library(onnxgrad_dnnl INTERFACE)
add_library(onnxgrad::dnnl ALIAS onnxgrad_dnnl)
find_path(ONNXGRAD_DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(ONNXGRAD_DNNL_LIBRARY dnnl REQUIRED)
target_include_directories(onnxgrad_dnnl SYSTEM INTERFACE "${ONNXGRAD_DNNL_INCLUDE_DIR}")
target_link_libraries(onnxgrad_dnnl INTERFACE "${ONNXGRAD_DNNL_LIBRARY}")

# Debian's libxsmm is a static library with pkg-config files only. BLAS is only its fallback for
# shapes it does not generate code for, which we never ask of it: the build without is enough.
add_library(onnxgrad_xsmm INTERFACE)
add_library(onnxgrad::xsmm ALIAS onnxgrad_xsmm)
find_path(ONNXGRAD_XSMM_INCLUDE_DIR libxsmm.h)
find_library(ONNXGRAD_XSMM_LIBRARY xsmm)
find_library(ONNXGRAD_XSMM_NOBLAS_LIBRARY xsmmnoblas)
if(ONNXGRAD_XSMM_INCLUDE_DIR AND ONNXGRAD_XSMM_LIBRARY AND ONNXGRAD_XSMM_NOBLAS_LIBRARY)
  set(ONNXGRAD_HAVE_XSMM ON)
  target_include_directories(onnxgrad_xsmm SYSTEM INTERFACE "${ONNXGRAD_XSMM_INCLUDE_DIR}")
  target_link_libraries(onnxgrad_xsmm INTERFACE
    "${ONNXGRAD_XSMM_LIBRARY}" "${ONNXGRAD_XSMM_NOBLAS_LIBRARY}" Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_definitions(onnxgrad_xsmm INTERFACE ONNXGRAD_HAVE_XSMM=1)
else()
  set(ONNXGRAD_HAVE_XSMM OFF)
endif()

# Only the header is used.
add_library(onnxgrad_xxhash INTERFACE)
add_library(onnxgrad::xxhash ALIAS onnxgrad_xxhash)
find_path(ONNXGRAD_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
target_include_directories(onnxgrad_xxhash SYSTEM INTERFACE "${ONNXGRAD_XXHASH_INCLUDE_DIR}")

if(ONNXGRAD_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(ONNXGRAD_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
