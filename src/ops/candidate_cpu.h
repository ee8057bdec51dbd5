#ifndef ONNXGRAD_OPS_CANDIDATE_CPU_H_
#define ONNXGRAD_OPS_CANDIDATE_CPU_H_

#include "opdef/kernel.h"

namespace onnxgrad::ops {

/// Accepts a candidate (opdef::KernelRequest::is_candidate) without preparing its kernel, which is
/// never run: passes ask about hundreds of nodes.
inline opdef::KernelOffer accept_candidate() {
  opdef::KernelOffer offer;
  offer.kernel.fn = [](const void*, opdef::KernelArgs, const opdef::Launch&) {};
  return offer;
}

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CANDIDATE_CPU_H_
