# cmake -DBUILD_DIR=... -DWORK_DIR=... -DNAME=... -DPROGRAM=... [-DARGUMENTS=...] -P run.cmake
#
# Installs the build into WORK_DIR/prefix, builds PROGRAM against that alone and runs it. PROGRAM is a
# source file, or a folder with a project whose target is NAME.
if(IS_DIRECTORY "${PROGRAM}")
  set(source "${PROGRAM}")
  set(executable "${NAME}")
else()
  set(source "${CMAKE_CURRENT_LIST_DIR}")
  set(executable program)
endif()
file(REMOVE_RECURSE "${WORK_DIR}")
execute_process(
  COMMAND "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -G Ninja -S "${source}" -B "${WORK_DIR}/build"
    -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix" "-DPROGRAM=${PROGRAM}"
    "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${CMAKE_COMMAND}" --build "${WORK_DIR}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${WORK_DIR}/build/${executable}" ${ARGUMENTS} COMMAND_ERROR_IS_FATAL ANY)
