// The other workers of a job.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "onnxgrad/distributed.h"
#include "onnxgrad/workers.h"
#include "unlocked.h"
#include "workers.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace onnxgrad::python {
namespace {

Workers connect(const std::string& transport, double timeout_s,
                const std::vector<std::string>& library_folders) {
  Workers workers;
  workers.communicator = connect_workers(
      {.transport = transport, .timeout_s = timeout_s, .library_folders = library_folders});
  workers.info = workers_info(*workers.communicator);
  return workers;
}

}  // namespace

void bind_workers(nb::module_& module) {
  nb::class_<Traffic>(module, "Traffic", "Of this process since it was connected.")
      .def_ro("bytes_sent", &Traffic::bytes_sent)
      .def_ro("seconds_waited", &Traffic::seconds_waited);
  nb::class_<Workers>(module, "Workers", "The connection to the other workers of a job.")
      .def_prop_ro("rank", [](const Workers& self) { return self.info.rank; })
      .def_prop_ro("size", [](const Workers& self) { return self.info.size; })
      .def_prop_ro("local_rank", [](const Workers& self) { return self.info.local_rank; })
      .def_prop_ro("local_size", [](const Workers& self) { return self.info.local_size; })
      .def_prop_ro("hosts", [](const Workers& self) { return self.info.hosts; })
      .def_prop_ro("transport", [](const Workers& self) { return self.info.transport; })
      .def_prop_ro("threads", [](const Workers& self) { return self.info.threads; })
      .def_prop_ro("traffic", [](const Workers& self) { return traffic_of(*self.communicator); })
      .def(
          "wait_for_all", [](const Workers& self) { wait_for_all(*self.communicator); }, Unlocked())
      .def(
          "broadcast_text",
          [](const Workers& self, const std::string& text, int root) {
            return broadcast_text(*self.communicator, text, root);
          },
          "text"_a, "root"_a, Unlocked())
      .def(
          "gather_texts",
          [](const Workers& self, const std::string& mine) {
            return gather_texts(*self.communicator, mine);
          },
          "mine"_a, Unlocked())
      .def(
          "stop",
          [](const Workers& self, int exit_code, const std::string& reason) {
            stop_workers(*self.communicator, exit_code, reason);
          },
          "exit_code"_a, "reason"_a, Unlocked());
  nb::class_<WorkerOptions>(module, "WorkerOptions")
      .def(
          "__init__",
          [](WorkerOptions* place, const Workers& workers, bool as_bfloat16,
             bool sync_normalization, std::int64_t zero, std::int64_t sync_every,
             double outer_learning_rate, double outer_momentum, int exchange) {
            new (place) WorkerOptions{.communicator = workers.communicator,
                                      .as_bfloat16 = as_bfloat16,
                                      .sync_normalization = sync_normalization,
                                      .shares_update = zero > 0,
                                      .sync_every = sync_every,
                                      .outer_learning_rate = outer_learning_rate,
                                      .outer_momentum = outer_momentum,
                                      .exchange = static_cast<DeviceExchange>(exchange)};
          },
          "workers"_a, "bfloat16"_a, "sync_normalization"_a, "zero"_a, "sync_every"_a, "outer_lr"_a,
          "outer_momentum"_a, "exchange"_a);
  module.def("connect_workers", &connect, "transport"_a, "timeout_s"_a, "library_folders"_a,
             "Connects this process with the others of its job.", Unlocked());
}

}  // namespace onnxgrad::python
