#include <onnx/defs/parser.h>
#include <onnx/onnx_pb.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/memory_budget.h"
#include "onnx/importer.h"
#include "onnx/model_io.h"
#include "onnx/model_rules.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

/// The kind of a file that was given instead of a model.
struct FileKind {
  std::string what;  ///< "text whose first line is 'a,b,c'"
  std::string hint;
};

using std::string_view_literals::operator""sv;

struct Signature {
  std::size_t offset = 0;
  std::string_view bytes;
  const char* what;
  const char* hint;
};

constexpr const char* kGiveModel = "Give an .onnx file; data files go into the arguments for data.";
constexpr const char* kUnpack = "Unpack it, and give the .onnx file in it.";

constexpr Signature kSignatures[] = {
    {0, "\x93NUMPY"sv, "a NumPy array (.npy)", kGiveModel},
    {0, "PK\x03\x04"sv, "a zip archive (.zip, .npz, or from torch.save)",
     "Unpack it; export a PyTorch network with torch.onnx.export."},
    {0, "\x1f\x8b"sv, "compressed with gzip", kUnpack},
    {0, "BZh"sv, "compressed with bzip2", kUnpack},
    {0,
     "\xfd"
     "7zXZ"sv,
     "compressed with xz", kUnpack},
    {0, "\x28\xb5\x2f\xfd"sv, "compressed with zstd", kUnpack},
    {257, "ustar"sv, "a tar archive", kUnpack},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file (Keras)",
     "Convert the model with tf2onnx, and give the .onnx file."},
    {4, "TFL3"sv, "a TensorFlow Lite model",
     "Convert the model with tf2onnx, and give the .onnx file."},
    {4, "ORTM"sv, "a model in onnxruntime's own format (.ort)",
     "Give the .onnx file that it was converted from."},
    {0, "PAR1"sv, "a Parquet file", kGiveModel},
    {0, "\x89PNG"sv, "an image (PNG)", kGiveModel},
    {0, "\xff\xd8\xff"sv, "an image (JPEG)", kGiveModel},
    {0, "\x80\x02"sv, "a pickle (from PyTorch or scikit-learn)",
     "Export its content: torch.onnx.export, or skl2onnx.to_onnx."},
    {0, "\x80\x03"sv, "a pickle (from scikit-learn, say)",
     "Export its content: skl2onnx.to_onnx, or torch.onnx.export."},
    {0, "\x80\x04"sv, "a pickle (from scikit-learn, say)",
     "Export its content: skl2onnx.to_onnx, or torch.onnx.export."},
    {0, "\x80\x05"sv, "a pickle (from scikit-learn, say)",
     "Export its content: skl2onnx.to_onnx, or torch.onnx.export."},
    {0, "version https://git-lfs"sv, "a Git LFS pointer, not the file itself",
     "Fetch the file with git lfs pull."},
    {0, "<!DOCTYPE"sv, "a web page", "Fetch the file itself; it may need a login."},
    {0, "<html"sv, "a web page", "Fetch the file itself; it may need a login."},
    {8, "{\""sv, "a file of tensors (.safetensors)",
     "Give the .onnx file; set_weights puts the tensors into it."},
};

// UTF-8 without control characters except line breaks, as far as it is examined.
bool is_text(std::string_view bytes) {
  constexpr std::size_t kLookedAt = 512;
  int to_come = 0;  // bytes of a character
  for (const char c : bytes.substr(0, kLookedAt)) {
    const auto byte = static_cast<unsigned char>(c);
    if (to_come > 0) {
      if ((byte & 0xc0u) != 0x80u) return false;
      --to_come;
    } else if (byte < 0x80) {
      if (byte == 0x7f || (byte < 0x20 && c != '\t' && c != '\n' && c != '\r')) return false;
    } else {
      if (byte < 0xc2 || byte > 0xf4) return false;
      to_come = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    }
  }
  return !bytes.empty();
}

std::string first_line(std::string_view bytes) {
  constexpr std::size_t kMaxLine = 40;
  const std::string_view line = bytes.substr(0, bytes.find_first_of("\r\n"));
  if (line.size() <= kMaxLine) return std::string(line);
  std::size_t end = kMaxLine;
  const auto continues = [&](std::size_t i) {
    return (static_cast<unsigned char>(line[i]) & 0xc0u) == 0x80u;  // within a UTF-8 character
  };
  while (end > 0 && continues(end)) --end;
  return std::string(line.substr(0, end)) + "...";
}

// Recognises a file that is not an ONNX model by its first bytes; nullopt: not recognised.
std::optional<FileKind> kind_of_file(std::string_view bytes) {
  for (const Signature& one : kSignatures) {
    if (bytes.size() < one.offset + one.bytes.size()) continue;
    if (bytes.substr(one.offset, one.bytes.size()) == one.bytes) return {{one.what, one.hint}};
  }
  if (!is_text(bytes)) return std::nullopt;
  return {{"text whose first line is '" + first_line(bytes) + "'", kGiveModel}};
}

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
