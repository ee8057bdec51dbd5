#include "onnx/working_copy.h"

#include "onnx/operator_table.h"

namespace onnxgrad::onnx_io {

ir::Model to_working_copy(const FileModel& file, const ImportEngine& engine,
                          const OperatorTable* operators) {
  return to_internal(file, engine.ops, &engine.evaluator, {.table = operators},
                     [&engine, operators](ir::GraphBuilder& g, const opdef::GradientAt& request) {
                       return engine.gradient_at(g, engine.ops, request, operators);
                     });
}

}  // namespace onnxgrad::onnx_io
