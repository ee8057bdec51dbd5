#ifndef ONNXGRAD_DIST_MPI_H_
#define ONNXGRAD_DIST_MPI_H_

#include <memory>
#include <string>
#include <vector>

#include "dist/job.h"
#include "dist/transport.h"

namespace onnxgrad::dist {

/// Messages by MPI. The library is found when it is needed, and neither linked nor compiled
/// against: Open MPI 4 and 5 (libmpi.so.40), and every library with the standard ABI of MPI 5
/// (libmpi_abi.so: MPICH). It is looked for where the launcher's own libraries are, where the
/// dynamic linker looks, and in `folders` (those of Python wheels). Initialises MPI, unless that is
/// done already; the process finalises it when it exits, and ends the whole job if it exits with
/// another code than 0 and the others do not end as well. Throws: DeviceError (no library, one that
/// does not belong to the launcher, an error of MPI).
/// If not all ranks get through MPI_Init within `timeout_s`, the job ends with a message that names
/// those that are missing (StartWatch).
std::unique_ptr<Transport> connect_mpi(const Job& job, const std::vector<std::string>& folders,
                                       double timeout_s);

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_MPI_H_
