#ifndef ONNXGRAD_PYTHON_BINDINGS_BINDINGS_H_
#define ONNXGRAD_PYTHON_BINDINGS_BINDINGS_H_

#include <nanobind/nanobind.h>

// One function per topic, each in the file of its name. Bindings hold no logic: they convert
// arguments, release the interpreter lock and call the public C++ API.

namespace onnxgrad::python {

void bind_errors(nanobind::module_& module);
void bind_file_writer(nanobind::module_& module);
void bind_images(nanobind::module_& module);
void bind_adapters(nanobind::module_& module);
void bind_distillation(nanobind::module_& module);
void bind_quantization(nanobind::module_& module);
void bind_transfer(nanobind::module_& module);
void bind_models(nanobind::module_& module);
void bind_descriptions(nanobind::module_& module);
void bind_losses(nanobind::module_& module);
void bind_optimizers(nanobind::module_& module);
void bind_schedules(nanobind::module_& module);
void bind_arrow(nanobind::module_& module);
void bind_data(nanobind::module_& module);
void bind_gradients(nanobind::module_& module);
void bind_operators(nanobind::module_& module);
void bind_forward_backward(nanobind::module_& module);
void bind_device_tensors(nanobind::module_& module);
void bind_sessions(nanobind::module_& module);
void bind_trainer(nanobind::module_& module);
void bind_training_api(nanobind::module_& module);
void bind_report(nanobind::module_& module);
void bind_workers(nanobind::module_& module);
void bind_environment(nanobind::module_& module);

}  // namespace onnxgrad::python

#endif  // ONNXGRAD_PYTHON_BINDINGS_BINDINGS_H_
