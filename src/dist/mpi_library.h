#ifndef ONNXGRAD_DIST_MPI_LIBRARY_H_
#define ONNXGRAD_DIST_MPI_LIBRARY_H_

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "dist/job.h"

// The functions of an MPI library that is loaded at run time, without a header of it.
//
// Two application binary interfaces are known: that of Open MPI (stable since 1.7; handles are the
// addresses of exported objects) and the standard one of MPI 5.0, chapter 20 (handles are small
// numbers). In both, a handle is a pointer, an int an int, and a status is caller-allocated with
// less than kStatusBytes; so the functions have the same types, and only constants differ.

namespace onnxgrad::dist {

struct MpiLibrary {
  using Handle = void*;
  static constexpr std::size_t kStatusBytes = 64;
  struct alignas(16) Status {
    std::array<std::byte, kStatusBytes> bytes{};
  };

  int (*Initialized)(int* flag) = nullptr;
  int (*Init_thread)(int* argc, char*** argv, int required, int* provided) = nullptr;
  int (*Finalize)() = nullptr;
  int (*Finalized)(int* flag) = nullptr;
  int (*Abort)(Handle comm, int code) = nullptr;
  int (*Comm_dup)(Handle comm, Handle* copy) = nullptr;
  int (*Comm_rank)(Handle comm, int* rank) = nullptr;
  int (*Comm_size)(Handle comm, int* size) = nullptr;
  int (*Comm_set_errhandler)(Handle comm, Handle handler) = nullptr;
  int (*Isend)(const void* data, int count, Handle type, int peer, int tag, Handle comm,
               Handle* request) = nullptr;
  int (*Irecv)(void* data, int count, Handle type, int peer, int tag, Handle comm,
               Handle* request) = nullptr;
  int (*Test)(Handle* request, int* flag, Status* status) = nullptr;
  int (*Cancel)(Handle* request) = nullptr;
  int (*Request_free)(Handle* request) = nullptr;
  int (*Get_count)(const Status* status, Handle type, int* count) = nullptr;
  int (*Error_string)(int code, char* text, int* length) = nullptr;
  int (*Get_library_version)(char* text, int* length) = nullptr;

  Handle comm_world = nullptr;
  Handle byte = nullptr;
  Handle errors_return = nullptr;
  Handle request_null = nullptr;
  int thread_serialized = 0;
  std::string path;  ///< path that it was loaded from

  /// Loads the library that fits the job's launcher; see connect_mpi. Throws: DeviceError, naming
  /// the libraries that were tried.
  static MpiLibrary load(const Job& job, const std::vector<std::string>& folders);
};

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_MPI_LIBRARY_H_
