# The installable C++ library: one static archive made of all layers, the headers of include/onnxgrad
# and a CMake package. A program needs only
#
#   find_package(onnxgrad REQUIRED)
#   target_link_libraries(program PRIVATE onnxgrad::onnxgrad)
#
# ONNX's own library, which no distribution has in this version, is installed along.
include(CMakePackageConfigHelpers)

add_library(onnxgrad STATIC)
add_library(onnxgrad::onnxgrad ALIAS onnxgrad)
get_property(_layers GLOBAL PROPERTY ONNXGRAD_LAYERS)
foreach(_layer IN LISTS _layers)
  get_target_property(_type onnxgrad_${_layer} TYPE)
  if(_type STREQUAL "STATIC_LIBRARY")
    target_sources(onnxgrad PRIVATE $<TARGET_OBJECTS:onnxgrad_${_layer}>)
  endif()
endforeach()
set_target_properties(onnxgrad PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(onnxgrad PUBLIC cxx_std_20)
target_include_directories(onnxgrad PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# onnxgrad::private_dependencies is made by onnxgradConfig.cmake from the same libraries.
target_link_libraries(onnxgrad PRIVATE
  $<BUILD_INTERFACE:fmt::fmt>
  $<BUILD_INTERFACE:spdlog::spdlog>
  $<BUILD_INTERFACE:ONNX::onnx>
  $<BUILD_INTERFACE:protobuf::libprotobuf>
  $<BUILD_INTERFACE:hwy::hwy>
  $<BUILD_INTERFACE:ZLIB::ZLIB>
  $<BUILD_INTERFACE:OpenMP::OpenMP_CXX>
  $<BUILD_INTERFACE:Threads::Threads>
  $<INSTALL_INTERFACE:onnxgrad::private_dependencies>)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/onnxgrad")
install(TARGETS onnxgrad EXPORT onnxgradTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cpp)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/onnxgrad"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT cpp)
install(FILES "$<TARGET_FILE:ONNX::onnx>"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/onnxgrad" COMPONENT cpp)
install(EXPORT onnxgradTargets NAMESPACE onnxgrad:: DESTINATION "${_package_dir}" COMPONENT cpp)
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
