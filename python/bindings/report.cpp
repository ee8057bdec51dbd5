#include "onnxgrad/report.h"

#include "onnxgrad/device_report.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {

void bind_report(nb::module_& module) {
  nb::class_<OperatorUse>(module, "OperatorUse")
      .def_ro("domain", &OperatorUse::domain)
      .def_ro("op_type", &OperatorUse::op_type)
      .def_ro("count", &OperatorUse::count)
      .def_ro("runs", &OperatorUse::runs)
      .def_ro("has_gradient", &OperatorUse::has_gradient);
  nb::class_<OperatorInfo>(module, "OperatorInfo")
      .def_ro("domain", &OperatorInfo::domain)
      .def_ro("op_type", &OperatorInfo::op_type)
      .def_ro("has_rule", &OperatorInfo::has_rule)
      .def_ro("is_lowered", &OperatorInfo::is_lowered)
      .def_ro("has_zero_grad", &OperatorInfo::has_zero_grad)
      .def_ro("has_kernel", &OperatorInfo::has_kernel)
      .def_ro("is_on_cards", &OperatorInfo::is_on_cards);
  nb::class_<MissingGradientInfo>(module, "MissingGradientInfo")
      .def_ro("op_type", &MissingGradientInfo::op_type)
      .def_ro("node", &MissingGradientInfo::node)
      .def_ro("input", &MissingGradientInfo::input)
      .def_ro("reason", &MissingGradientInfo::reason);
  nb::class_<Report>(module, "Report")
      .def_ro("file", &Report::file)
      .def_ro("producer", &Report::producer)
      .def_ro("opset", &Report::opset)
      .def_ro("ir_version", &Report::ir_version)
      .def_ro("inputs", &Report::inputs)
      .def_ro("outputs", &Report::outputs)
      .def_ro("operators", &Report::operators)
      .def_ro("weights", &Report::weights)
      .def_ro("weight_flops", &Report::weight_flops)
      .def_ro("separated", &Report::separated)
      .def_ro("tied", &Report::tied)
      .def_ro("is_trainable", &Report::is_trainable)
      .def_ro("verdict", &Report::verdict)
      .def_ro("weight_readers", &Report::weight_readers)
      .def_ro("num_trainable", &Report::num_trainable)
      .def_ro("num_parameters", &Report::num_parameters)
      .def_ro("loss_line", &Report::loss_line)
      .def_ro("loss_problem", &Report::loss_problem)
      .def_ro("missing_gradients", &Report::missing_gradients)
      .def("to_text", &Report::to_text);
  nb::class_<OperatorOnCpu>(module, "OperatorOnCpu")
      .def_ro("op_type", &OperatorOnCpu::op_type)
      .def_ro("count", &OperatorOnCpu::count);
  nb::class_<PlanSegment>(module, "PlanSegment")
      .def_ro("kind", &PlanSegment::kind)
      .def_ro("kernels", &PlanSegment::kernels)
      .def_ro("reason", &PlanSegment::reason);
  nb::class_<DevicePlan>(module, "DevicePlan")
      .def_ro("on_cpu", &DevicePlan::on_cpu)
      .def_ro("copied_bytes", &DevicePlan::copied_bytes)
      .def_ro("segments", &DevicePlan::segments)
      .def_ro("problem", &DevicePlan::problem);
  nb::class_<DeviceReport>(module, "DeviceReport")
      .def_ro("device", &DeviceReport::device)
      .def_ro("rows", &DeviceReport::rows)
      .def_ro("training", &DeviceReport::training)
      .def_ro("inference", &DeviceReport::inference)
      .def("to_text", &DeviceReport::to_text);
  module.def("report_device", &report_device, "model"_a, "device"_a, "rows"_a = 32, Unlocked());
  module.def("operator_table", &operator_table);
  module.def("report", &report, "model"_a, Unlocked());
}

}  // namespace onnxgrad::python
