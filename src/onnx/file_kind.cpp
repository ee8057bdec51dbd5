#include "onnx/file_kind.h"

#include <cstddef>

namespace onnxgrad::onnx_io {
namespace {

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

}  // namespace

std::optional<FileKind> kind_of_file(std::string_view bytes) {
  for (const Signature& one : kSignatures) {
    if (bytes.size() < one.offset + one.bytes.size()) continue;
    if (bytes.substr(one.offset, one.bytes.size()) == one.bytes) return {{one.what, one.hint}};
  }
  if (!is_text(bytes)) return std::nullopt;
  return {{"text whose first line is '" + first_line(bytes) + "'", kGiveModel}};
}

}  // namespace onnxgrad::onnx_io
