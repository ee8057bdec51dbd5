# Writes the header with ONNXGRAD_PLUGIN_LOCK, by which a plugin and the library know that they were built from the
# same headers by the same compiler (src/device/plugin.h).
#
#   cmake -DFILE=<header> -DBUILD=<version and compiler> -DHEADERS=<list> -P plugin_lock.cmake
set(sums "")
foreach(header IN LISTS HEADERS)
  file(SHA256 "${header}" sum)
  string(APPEND sums "${sum}")
endforeach()
string(SHA256 sum "${sums}")
string(SUBSTRING "${sum}" 0 16 sum)
file(CONFIGURE OUTPUT "${FILE}" CONTENT "#define ONNXGRAD_PLUGIN_LOCK \"${BUILD} ${sum}\"\n")
