# The installable C++ library, for `make install` and `cmake --install`: the headers of
# include/onnxgrad, a static and a shared library made of all layers, a CMake package and files for
# pkg-config. A program needs only
#
#   find_package(onnxgrad REQUIRED)
#   target_link_libraries(program PRIVATE onnxgrad::onnxgrad)    # or onnxgrad::shared
#
# or `pkg-config --cflags --libs onnxgrad` (shared; onnxgrad-static is the other one). The libraries that
# the static one is made with are installed along, in a folder of their own.
include(CMakePackageConfigHelpers)

set(_objects "")
get_property(_layers GLOBAL PROPERTY ONNXGRAD_LAYERS)
foreach(_layer IN LISTS _layers)
  get_target_property(_type onnxgrad_${_layer} TYPE)
  if(_type STREQUAL "STATIC_LIBRARY")
    list(APPEND _objects $<TARGET_OBJECTS:onnxgrad_${_layer}>)
  endif()
endforeach()
set(_libraries fmt::fmt spdlog::spdlog ONNX::onnx protobuf::libprotobuf-lite hwy::hwy re2::re2 ZLIB::ZLIB
  Threads::Threads)
list(TRANSFORM _libraries REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>" OUTPUT_VARIABLE _build_libraries)

# onnxgrad::private_dependencies is made by onnxgradConfig.cmake from the same libraries.
add_library(onnxgrad STATIC ${_objects})
add_library(onnxgrad::onnxgrad ALIAS onnxgrad)
target_link_libraries(onnxgrad
  PRIVATE ${_build_libraries} $<INSTALL_INTERFACE:onnxgrad::private_dependencies>)

# The names of the public headers, which have default visibility there, and no others.
add_library(onnxgrad_shared SHARED ${_objects})
add_library(onnxgrad::shared ALIAS onnxgrad_shared)
set(_exports "${CMAKE_CURRENT_LIST_DIR}/exports.map")
target_link_libraries(onnxgrad_shared PRIVATE ${_build_libraries} ${CMAKE_DL_LIBS})
target_link_options(onnxgrad_shared PRIVATE
  -Wl,--exclude-libs,ALL "-Wl,--version-script,${_exports}" -Wl,--gc-sections -Wl,--no-undefined)
set_target_properties(onnxgrad_shared PROPERTIES
  OUTPUT_NAME onnxgrad EXPORT_NAME shared LINK_DEPENDS "${_exports}"
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

foreach(_target onnxgrad onnxgrad_shared)
  set_target_properties(${_target} PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(${_target} PUBLIC cxx_std_20)
  target_include_directories(${_target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
if(ONNXGRAD_SANITIZE)
  target_link_options(onnxgrad_shared PRIVATE -fsanitize=${ONNXGRAD_SANITIZE})
endif()
if(ONNXGRAD_COVERAGE)
  target_link_options(onnxgrad_shared PRIVATE --coverage)
endif()

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/onnxgrad")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/onnxgrad"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT cpp)
foreach(_target onnxgrad onnxgrad_shared)
  install(TARGETS ${_target} EXPORT ${_target}Targets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cpp
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cpp)
  install(EXPORT ${_target}Targets NAMESPACE onnxgrad:: DESTINATION "${_package_dir}" COMPONENT cpp)
endforeach()
install(FILES ${ONNXGRAD_NATIVE_ARCHIVES}
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/onnxgrad" COMPONENT cpp)

set(_archives ${ONNXGRAD_NATIVE_ARCHIVES})
list(TRANSFORM _archives REPLACE ".*/" "")
list(JOIN _archives " " ONNXGRAD_ARCHIVE_NAMES)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/onnxgradConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/onnxgradConfig.cmake"
  INSTALL_DESTINATION "${_package_dir}"
  PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/onnxgradConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/onnxgradConfig.cmake" "${PROJECT_BINARY_DIR}/onnxgradConfigVersion.cmake"
  DESTINATION "${_package_dir}" COMPONENT cpp)

list(TRANSFORM _archives PREPEND "\${libdir}/onnxgrad/")
list(JOIN _archives " " ONNXGRAD_PC_ARCHIVES)
# pkg-config finds the prefix from the place of these files.
cmake_path(SET _pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}/${_pc_dir}"
  OUTPUT_VARIABLE ONNXGRAD_PC_PREFIX)
foreach(_name onnxgrad onnxgrad-static)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${_name}.pc.in" "${PROJECT_BINARY_DIR}/${_name}.pc"
    @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${_name}.pc" DESTINATION "${_pc_dir}" COMPONENT cpp)
endforeach()
