# Sets ONNXGRAD_VERSION to the version that include/onnxgrad/version.h holds.
set(_version_header "${CMAKE_CURRENT_LIST_DIR}/../include/onnxgrad/version.h")
file(STRINGS "${_version_header}" _version_line REGEX "kVersion = \"")
if(NOT _version_line MATCHES "\"([0-9]+\\.[0-9]+\\.[0-9]+)\"")
  message(FATAL_ERROR "No version found in ${_version_header}")
endif()
set(ONNXGRAD_VERSION "${CMAKE_MATCH_1}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_version_header}")
