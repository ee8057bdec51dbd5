#ifndef ONNXGRAD_DIST_TCP_H_
#define ONNXGRAD_DIST_TCP_H_

#include <memory>
#include <vector>

#include "dist/job.h"
#include "dist/socket.h"
#include "dist/transport.h"

namespace onnxgrad::dist {

/// Messages over sockets of our own, one between any two ranks: for launchers that bring no MPI.
/// Rank 0 listens at `job.address`; the others connect to it, learn each other's addresses from it
/// and connect to each other. Ranks listen at the address by which the others reach them, not at
/// all of a host. All ranks have the same job.token; messages are neither encrypted nor
/// signed, so the network must be one that only the job's owner can reach, as for MPI.
/// Throws: DeviceError (an address that cannot be used; ranks that did not come within
/// `timeout_s`, by number).
std::unique_ptr<Transport> connect_tcp(const Job& job, double timeout_s);

/// Connects all ranks of a job with each other; returns a socket to each, an empty one to itself.
/// Throws: DeviceError, see connect_tcp.
std::vector<Socket> connect_all(const Job& job, double timeout_s);

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_TCP_H_
