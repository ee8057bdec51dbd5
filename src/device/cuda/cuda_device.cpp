#include "device/cuda/cuda_device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "device/cuda/card_links.h"
#include "device/cuda/libraries.h"
#include "device/cuda/step_kernels.h"
#include "device/cuda/stream.h"
#include "device/cuda_plugin.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

// A launcher that gives each process a card of its own lets it see that one alone.
int card_of_rank(int local_rank) {
  const int cards = num_cards();
  if (local_rank < cards) return local_rank;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (cards == 1 && visible != nullptr && *visible != '\0') return 0;
  throw DeviceError(
      {.what = fmt::format("process {} of the job on this host has no card", local_rank),
       .detail = fmt::format("The host has {}, numbered from 0; each process needs one.", cards),
       .hint = fmt::format("Start {} process{} on this host, or use device='cpu'.", cards,
                           cards == 1 ? "" : "es")});
}

}  // namespace

CudaDevice::CudaDevice(int index) : context_(Context::open(index)) {
  prepare_step_kernels(context_);
}

std::string CudaDevice::name() const { return fmt::format("cuda:{}", context_->index()); }

std::unique_ptr<Stream> CudaDevice::make_stream() { return std::make_unique<CudaStream>(context_); }

int CudaDevice::num_compute_streams() const { return kComputeStreams; }

DevicePlugin cuda_plugin(void (*register_kernels)(const opdef::KernelRegistry& cpu,
                                                  opdef::KernelRegistry& own)) {
  return {.lock = nullptr,  // of the library itself
          .name = "cuda",
          .count = num_cards,
          .why_none = driver_problem,
          .make_device = [](int index) -> std::unique_ptr<Device> {
            return std::make_unique<CudaDevice>(index);
          },
          .register_kernels = register_kernels,
          .index_of_rank = card_of_rank};
}

void CudaDevice::link(std::shared_ptr<JobRanks> ranks) {
  CardLinks::connect(context_, std::move(ranks));
}

const StepKernels& CudaDevice::step_kernels() const { return cuda_step_kernels(); }

}  // namespace onnxgrad::device::cuda
