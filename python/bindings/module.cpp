// The extension onnxgrad._core. Each topic has its own file with one bind_<topic>(module) function;
// there is no logic here.
#include "bindings.h"

namespace nb = nanobind;

NB_MODULE(_core, module) {
  module.doc() = "Private extension of onnxgrad; use the functions of package onnxgrad.";
  onnxgrad::python::bind_errors(module);
  onnxgrad::python::bind_environment(module);
  onnxgrad::python::bind_file_writer(module);
  onnxgrad::python::bind_images(module);
  onnxgrad::python::bind_models(module);
  onnxgrad::python::bind_adapters(module);
  onnxgrad::python::bind_distillation(module);
  onnxgrad::python::bind_transfer(module);
  onnxgrad::python::bind_quantization(module);
  onnxgrad::python::bind_descriptions(module);
  onnxgrad::python::bind_losses(module);
  onnxgrad::python::bind_optimizers(module);
  onnxgrad::python::bind_schedules(module);
  onnxgrad::python::bind_gradients(module);
  onnxgrad::python::bind_operators(module);
  onnxgrad::python::bind_device_tensors(module);
  onnxgrad::python::bind_sessions(module);
  onnxgrad::python::bind_forward_backward(module);
  onnxgrad::python::bind_arrow(module);
  onnxgrad::python::bind_data(module);
  onnxgrad::python::bind_workers(module);
  onnxgrad::python::bind_trainer(module);
  onnxgrad::python::bind_training_api(module);
  onnxgrad::python::bind_report(module);
}
