# Finds the libraries of docs/architecture.md and wraps those without a CMake package of their own.
# Targets: fmt::fmt, spdlog::spdlog, nlohmann_json::nlohmann_json, protobuf::libprotobuf, ONNX::onnx,
# hwy::hwy, re2::re2, onnxgrad::xxhash.

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
find_package(ZLIB REQUIRED)
find_package(hwy REQUIRED)

# Older versions of RE2 have no CMake package.
find_package(re2 CONFIG QUIET)
if(NOT re2_FOUND)
  find_path(ONNXGRAD_RE2_INCLUDE_DIR re2/re2.h REQUIRED)
  find_library(ONNXGRAD_RE2_LIBRARY re2 REQUIRED)
  add_library(re2::re2 UNKNOWN IMPORTED)
  set_target_properties(re2::re2 PROPERTIES
    IMPORTED_LOCATION "${ONNXGRAD_RE2_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${ONNXGRAD_RE2_INCLUDE_DIR}")
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
