#ifndef ONNXGRAD_DIST_TCP_RENDEZVOUS_H_
#define ONNXGRAD_DIST_TCP_RENDEZVOUS_H_

#include <vector>

#include "dist/job.h"
#include "dist/socket.h"

namespace onnxgrad::dist {

/// Connects all ranks of a job with each other; returns a socket to each, an empty one to itself.
/// Throws: DeviceError, see connect_tcp.
std::vector<Socket> connect_all(const Job& job, double timeout_s);

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_TCP_RENDEZVOUS_H_
