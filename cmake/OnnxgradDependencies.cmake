# Libraries of docs/architecture.md, static, from the prefix where scripts/native_libraries.py has built them.
# Targets: fmt::fmt, spdlog::spdlog, nlohmann_json::nlohmann_json, protobuf::libprotobuf-lite, ONNX::onnx, hwy::hwy,
# re2::re2, ZLIB::ZLIB, onnxgrad::xxhash. ONNXGRAD_NATIVE_ARCHIVES are their files, each before those that it needs.

# A source distribution has the archives of their sources and builds them here; a checkout has set-up scripts.
find_program(ONNXGRAD_PYTHON NAMES python3 python HINTS "${PROJECT_SOURCE_DIR}/.venv/bin" REQUIRED)
set(_command "${ONNXGRAD_PYTHON}" "${PROJECT_SOURCE_DIR}/scripts/native_libraries.py")
if(NOT EXISTS "${PROJECT_SOURCE_DIR}/PKG-INFO")
  list(APPEND _command --prefix)
endif()
set(ONNXGRAD_NATIVE_COMPILER "${CMAKE_CXX_COMPILER}" CACHE STRING "The compiler that they were built with")
execute_process(COMMAND "${CMAKE_COMMAND}" -E env "CXX=${ONNXGRAD_NATIVE_COMPILER}" ${_command}
  OUTPUT_VARIABLE ONNXGRAD_NATIVE_PREFIX OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS "${ONNXGRAD_NATIVE_PREFIX}/finished")
  message(FATAL_ERROR "The C++ libraries are not in ${ONNXGRAD_NATIVE_PREFIX}. Run scripts/setup.sh, or "
    "scripts/native_libraries.py.")
endif()
set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/scripts/native_libraries.py" "${PROJECT_SOURCE_DIR}/requirements/native.toml")
list(PREPEND CMAKE_PREFIX_PATH "${ONNXGRAD_NATIVE_PREFIX}")
if(NOT ONNXGRAD_NATIVE_PREFIX STREQUAL "${ONNXGRAD_FOUND_PREFIX}") # what was found in another one is stale
  foreach(_package fmt spdlog nlohmann_json Protobuf ONNX hwy re2)
    unset(${_package}_DIR CACHE)
  endforeach()
  foreach(_variable INCLUDE_DIR LIBRARY_RELEASE LIBRARY_DEBUG)
    unset(ZLIB_${_variable} CACHE)
  endforeach()
  set(ONNXGRAD_FOUND_PREFIX "${ONNXGRAD_NATIVE_PREFIX}" CACHE INTERNAL "")
endif()

find_package(Threads REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(Protobuf CONFIG REQUIRED)
find_package(ONNX CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
find_package(re2 CONFIG REQUIRED)
set(ZLIB_ROOT "${ONNXGRAD_NATIVE_PREFIX}")
find_package(ZLIB REQUIRED)

# Only the header is used.
add_library(onnxgrad_xxhash INTERFACE)
add_library(onnxgrad::xxhash ALIAS onnxgrad_xxhash)
target_include_directories(onnxgrad_xxhash SYSTEM INTERFACE "${ONNXGRAD_NATIVE_PREFIX}/include")

set(ONNXGRAD_NATIVE_ARCHIVES onnx protobuf-lite spdlog fmt hwy re2 z)
list(TRANSFORM ONNXGRAD_NATIVE_ARCHIVES REPLACE "(.+)" "${ONNXGRAD_NATIVE_PREFIX}/lib/lib\\1.a")

if(ONNXGRAD_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(ONNXGRAD_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
