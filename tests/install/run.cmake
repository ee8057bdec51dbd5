# cmake -DBUILD_DIR=... -DWORK_DIR=... -DPROGRAM=... -DLIBRARY=static|shared -DTOOL=cmake|pkg-config
#   [-DARGUMENTS=...] [-DCXX=... -DCXX_FLAGS=...] -P run.cmake
#
# Installs the build into WORK_DIR/prefix, moves that, builds PROGRAM against it alone and runs it.
# PROGRAM is a source file, or a folder with a CMake project whose target is `train`. With TOOL=cmake
# the system's own CMake is used where there is one: users do not have ours.
file(REMOVE_RECURSE "${WORK_DIR}")
execute_process(
  COMMAND "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --component cpp --prefix "${WORK_DIR}/first"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(prefix "${WORK_DIR}/prefix")
file(RENAME "${WORK_DIR}/first" "${prefix}") # nothing in it names the place where it was

if(TOOL STREQUAL "pkg-config")
  set(program "${WORK_DIR}/program")
  if(LIBRARY STREQUAL "shared")
    set(package onnxgrad)
  else()
    set(package onnxgrad-static)
  endif()
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${prefix}/lib/pkgconfig"
      sh -c "\"$1\" $2 -o \"$3\" \"$4\" $(pkg-config --cflags --libs \"$5\") -Wl,-rpath,\"$6\""
      sh "${CXX}" "${CXX_FLAGS}" "${program}" "${PROGRAM}" ${package} "${prefix}/lib"
    COMMAND_ERROR_IS_FATAL ANY)
else()
  if(IS_DIRECTORY "${PROGRAM}")
    set(source "${PROGRAM}")
    set(program "${WORK_DIR}/build/train")
  else()
    set(source "${CMAKE_CURRENT_LIST_DIR}")
    set(program "${WORK_DIR}/build/program")
  endif()
  find_program(cmake cmake PATHS /usr/bin NO_DEFAULT_PATH)
  if(NOT cmake)
    set(cmake "${CMAKE_COMMAND}")
  endif()
  execute_process(
    COMMAND "${cmake}" -S "${source}" -B "${WORK_DIR}/build" -DCMAKE_BUILD_TYPE=Release
      "-DCMAKE_PREFIX_PATH=${prefix}" "-DPROGRAM=${PROGRAM}" "-DLIBRARY=${LIBRARY}"
      "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}" --no-warn-unused-cli
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${cmake}" --build "${WORK_DIR}/build" COMMAND_ERROR_IS_FATAL ANY)
endif()
execute_process(COMMAND "${program}" ${ARGUMENTS} COMMAND_ERROR_IS_FATAL ANY)
