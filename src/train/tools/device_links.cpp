#include "train/tools/device_links.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/linked_device.h"
#include "dist/communicator.h"

namespace onnxgrad::train {
namespace {

class RanksOfCommunicator final : public device::JobRanks {
 public:
  explicit RanksOfCommunicator(std::shared_ptr<dist::Communicator> workers)
      : workers_(std::move(workers)) {}

  int rank() const override { return workers_->rank(); }
  int size() const override { return workers_->size(); }
  std::string name_of(int rank) const override { return workers_->rank_name(rank); }
  double timeout_s() const override { return workers_->options().timeout_s; }
  std::vector<std::string> gather(const std::string& mine) override {
    return workers_->all_gather_texts(mine);
  }
  void check() override { workers_->check_ranks(); }

 private:
  std::shared_ptr<dist::Communicator> workers_;
};

}  // namespace

void link_device(device::Device& device, const WorkerOptions& workers) {
  if (workers.exchange == DeviceExchange::kHost) return;
  auto* const linked = dynamic_cast<device::LinkedDevice*>(&device);
  if (linked == nullptr) return;
  linked->link(std::make_shared<RanksOfCommunicator>(workers.communicator));
}

opdef::Collective::Route route_of(DeviceExchange exchange) {
  using Route = opdef::Collective::Route;
  switch (exchange) {
    case DeviceExchange::kDirect:
      break;
    case DeviceExchange::kOrdered:
      return Route::kOrdered;
    case DeviceExchange::kHost:
      return Route::kHost;
  }
  return Route::kDirect;
}

}  // namespace onnxgrad::train
