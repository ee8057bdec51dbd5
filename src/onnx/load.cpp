#include <onnx/defs/parser.h>
#include <onnx/onnx_pb.h>

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/memory_budget.h"
#include "onnx/file_kind.h"
#include "onnx/importer.h"
#include "onnx/model_io.h"
#include "onnx/model_rules.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

// Runs `body`; exceptions that leave it name the file and are ModelError or DeviceError.
template <class Body>
auto in_file(const std::string& path, const Body& body) {
  const auto with_file = [&path](Problem problem) {
    if (problem.where.file.empty()) problem.where.file = path;
    return problem;
  };
  try {
    return body();
  } catch (const DeviceError& error) {
    throw DeviceError(with_file(error.problem()));
  } catch (const InternalError&) {
    throw;
  } catch (const Error& error) {
    throw ModelError(with_file(error.problem()));
  } catch (const std::bad_alloc&) {
    throw DeviceError(with_file({.what = "out of memory while reading the model",
                                 .hint = "Free memory, or load the model on a larger machine."}));
  } catch (const std::length_error&) {
    throw ModelError(with_file({.what = "the model contains an impossible length",
                                .hint = "The file is damaged: fetch or export it again."}));
  }
}

using Bytes = std::shared_ptr<FileBytes>;

// The bytes of a file, charged to the memory budget as long as they are held.
Bytes keep(std::string bytes) {
  struct Kept {
    std::string bytes;
    std::shared_ptr<base::MemoryBudget> budget;
    std::int64_t size;
    ~Kept() { budget->release(size); }
  };
  auto budget = base::current_budget();
  const auto size = static_cast<std::int64_t>(bytes.size());
  budget->reserve(size);
  auto kept = std::make_shared<Kept>(std::move(bytes), std::move(budget), size);
  const std::shared_ptr<char> memory(kept, kept->bytes.data());
  return std::make_shared<FileBytes>(memory, kept->bytes.size());
}

// Read once, into memory that nothing has written to. A mapped file would change, or end, when
// another program writes to it.
Bytes read(const base::ReadableFile& file) {
  const auto size = static_cast<std::size_t>(file.size_bytes());
  const std::shared_ptr<std::byte> read = base::allocate_aligned(file.size_bytes());
  file.read(0, {read.get(), size});
  const std::shared_ptr<char> memory(read, reinterpret_cast<char*>(read.get()));
  return std::make_shared<FileBytes>(memory, size);
}

ir::Model parse(Importer& importer, std::string_view bytes) {
  try {
    return importer.import_model(bytes);
  } catch (const ModelError&) {
    const auto kind = kind_of_file(bytes);
    if (!kind) throw;
    throw ModelError({.what = "this is not an ONNX model but " + kind->what, .hint = kind->hint});
  }
}

FileModel import_bytes(Bytes bytes, const LoadOptions& options, const std::string& path) {
  std::string root = options.external_root;
  if (root.empty() && !path.empty()) root = base::real_folder(path);
  Importer importer(TensorDecoder(bytes, root, bytes.get()));
  ir::Model model = parse(importer, bytes->memory());
  add_known_imports(model);
  check_model(model);
  return {.path = path,
          .bytes = std::move(bytes),
          .model = std::make_shared<const ir::Model>(std::move(model)),
          .external_root = std::move(root)};
}

void expect_size(std::int64_t size, const LoadOptions& options) {
  if (size <= options.max_file_bytes) return;
  throw ModelError({.what = "the model has " + std::to_string(size) +
                            " bytes, an ONNX file at most " +
                            std::to_string(options.max_file_bytes),
                    .hint = "Save its large tensors as external data, in a file next to it."});
}

}  // namespace

FileModel load_file(const std::string& path, const LoadOptions& options) {
  return in_file(path, [&] {
    const base::ReadableFile file = base::ReadableFile::open(path);
    expect_size(file.size_bytes(), options);
    if (file.size_bytes() == 0) {
      throw ModelError(
          {.what = "the file is empty",
           .hint = "Export the model again: the file was truncated while being written."});
    }
    return import_bytes(read(file), options, path);
  });
}

FileModel load_bytes(std::string bytes, const LoadOptions& options, const std::string& path) {
  return in_file(path, [&] {
    expect_size(static_cast<std::int64_t>(bytes.size()), options);
    return import_bytes(keep(std::move(bytes)), options, path);
  });
}

FileModel load_text(std::string_view text) {
  constexpr const char* kSyntax = "Write it as described in ONNX's docs/Syntax.md.";
  onnx::ModelProto proto;
  try {
    const auto status = onnx::OnnxParser::Parse(proto, text);
    if (!status.IsOK()) throw ModelError({.what = status.ErrorMessage(), .hint = kSyntax});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw ModelError({.what = error.what(), .hint = kSyntax});
  }
  return load_bytes(proto.SerializeAsString());
}

}  // namespace onnxgrad::onnx_io
