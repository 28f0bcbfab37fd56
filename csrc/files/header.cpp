// SPDX-License-Identifier: BSD-3-Clause
#include "files/header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <tuple>

#include "files/text.h"

namespace baraquant::files {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kLongestHeader = 100'000'000;  // as in safetensors itself

constexpr size_t kMostSizes = 64;  // of a shape, as in PyTorch

constexpr const char* kConfiguration = "baraquant";  // its name in the metadata

struct NamedDtype {
  std::string_view name;
  c10::ScalarType dtype;
};
// The order in which safetensors writes tensors.
constexpr std::array<NamedDtype, 13> kDtypes = {{{"U64", c10::kUInt64},
                                                 {"I64", c10::kLong},
                                                 {"F64", c10::kDouble},
                                                 {"F32", c10::kFloat},
                                                 {"U32", c10::kUInt32},
                                                 {"I32", c10::kInt},
                                                 {"BF16", c10::kBFloat16},
                                                 {"F16", c10::kHalf},
                                                 {"U16", c10::kUInt16},
                                                 {"I16", c10::kShort},
                                                 {"I8", c10::kChar},
                                                 {"U8", c10::kByte},
                                                 {"BOOL", c10::kBool}}};

const NamedDtype* named(std::string_view name) {
  const auto* found = std::ranges::find(kDtypes, name, &NamedDtype::name);
  return found == kDtypes.end() ? nullptr : found;
}

// What the first bytes of other kinds of files say.
void check_kind(std::string_view start) {
  using namespace std::string_view_literals;
  constexpr std::array<std::array<std::string_view, 2>, 6> foreign = {
      {{"PK\x03\x04"sv, "a zip archive, as torch.save writes it"sv},
       {"\x80\x02"sv, "a pickle"sv},
       {"\x80\x04"sv, "a pickle"sv},
       {"GGUF"sv, "a GGUF file"sv},
       {"\x89HDF"sv, "an HDF5 file"sv},
       {"\x1f\x8b"sv, "a gzip file"sv}}};
  for (const auto& [magic, kind] : foreign) {
    if (start.starts_with(magic)) fail("expected a file of baraquant.save, but it is ", kind);
  }
}

// The text of the header.
std::string read_text(const InputFile& file) {
  std::array<char, 8> start = {};
  const size_t got = file.read(0, start.data(), start.size());
  const auto length = std::bit_cast<uint64_t>(start);
  // The bytes of the length 640 are also the start of a pickle, but no other kind of file starts
  // with a length.
  if (got < 8 || length > kLongestHeader) check_kind(std::string_view(start.data(), got));
  if (got < 8) fail("expected at least 8 bytes, but it has ", file.size(), ": it is cut off");
  if (length > kLongestHeader) {
    fail("expected a header of at most ", kLongestHeader, " bytes, but its length is given as ",
         length, ": it is no safetensors file, or damaged");
  }
  std::string text;
  if (static_cast<int64_t>(8 + length) <= file.size()) {
    text.resize(length);
    text.resize(file.read(8, text.data(), length));
  }
  if (text.size() < length || static_cast<int64_t>(8 + length) > file.size()) {
    fail("expected ", 8 + length, " bytes for the header, but it has ", file.size(),
         ": it is cut off");
  }
  return text;
}

// The configuration in the metadata; null without one.
const Json* configuration_of(const Json* metadata) {
  if (metadata == nullptr) return nullptr;
  const auto is_text = [](const auto& member) { return member.second.template is<std::string>(); };
  if (!metadata->is<Json::Object>() ||
      !std::ranges::all_of(metadata->get<Json::Object>(), is_text)) {
    fail("expected __metadata__ to hold texts, but it does not");
  }
  return metadata->find(kConfiguration);
}

Entry entry_of(const std::string& name, const Json& value) {
  if (value.keys() != std::vector<std::string>{"data_offsets", "dtype", "shape"}) {
    fail(name, ": expected an entry with dtype, shape and data_offsets, but got ", shown(value));
  }
  const Json &dtype = value.at("dtype"), &places = value.at("data_offsets");
  const NamedDtype* known = dtype.is<std::string>() ? named(dtype.get<std::string>()) : nullptr;
  if (known == nullptr) {
    fail(name, ": expected a dtype of safetensors that PyTorch has, but got ", shown(dtype));
  }
  const auto shape = sizes_of(value.at("shape"));
  if (!shape) {
    fail(name, ": expected a shape of whole sizes, but got ", shown(value.at("shape")));
  }
  const auto offsets = sizes_of(places);
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    fail(name, ": expected a begin and an end, but got ", shown(places));
  }
  const int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (product(*shape, static_cast<int64_t>(c10::elementSize(known->dtype))) != end - begin) {
    fail(name, ": expected the bytes of ", known->name, " ", shown(value.at("shape")),
         ", but its offsets are ", begin, " and ", end);
  }
  return {{known->dtype, *shape}, begin, end};
}

// Check that the tensors fill the data in order, without gap, overlap or remainder.
void check_places(const std::map<std::string, Entry>& tensors, int64_t size) {
  std::vector<std::tuple<int64_t, int64_t, std::string>> places;
  places.reserve(tensors.size());
  for (const auto& [name, entry] : tensors) places.emplace_back(entry.begin, entry.end, name);
  std::sort(places.begin(), places.end());
  int64_t last = 0;
  for (const auto& [begin, end, name] : places) {
    if (begin != last) {
      fail(name, ": expected its data to begin at ", last,
           ", where the one before it ends, but got ", begin);
    }
    last = end;
  }
  if (last == size) return;
  fail("expected ", last, " bytes of data, but it has ", size, ": ",
       last > size ? "it is cut off" : "the rest has no name");
}

}  // namespace

Header read_header(const InputFile& file) {
  const std::string text = read_text(file);
  const Json header =
      within("expected its header to be JSON, but ", [&] { return parse_json(text); });
  if (!header.is<Json::Object>()) {
    fail("expected its header to be an object, but got ", shown(header));
  }
  Header result;
  const Json* configuration = configuration_of(header.find("__metadata__"));
  for (const auto& [name, entry] : header.get<Json::Object>()) {
    if (name != "__metadata__") result.tensors.emplace(name, entry_of(name, entry));
  }
  result.data_start = static_cast<int64_t>(8 + text.size());
  check_places(result.tensors, file.size() - result.data_start);
  if (configuration == nullptr) {
    fail(
        "expected a file of baraquant.save, but it is a safetensors file without its "
        "configuration");
  }
  result.configuration = configuration->get<std::string>();
  return result;
}

std::string_view stored_name(c10::ScalarType dtype) {
  const auto* found = std::ranges::find(kDtypes, dtype, &NamedDtype::dtype);
  return found == kDtypes.end() ? std::string_view() : found->name;
}

std::optional<std::vector<int64_t>> sizes_of(const Json& value) {
  if (!value.is<Json::List>() || value.get<Json::List>().size() > kMostSizes) return std::nullopt;
  std::vector<int64_t> sizes;
  for (const Json& entry : value.get<Json::List>()) {
    const auto size = entry.integer();
    if (!size || *size < 0) return std::nullopt;
    sizes.push_back(*size);
  }
  return sizes;
}

std::optional<int64_t> product(c10::IntArrayRef sizes, int64_t factor) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  int64_t result = factor;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(result, size, &result)) return std::nullopt;
  }
  return result;
}

std::pair<std::string, std::vector<at::Tensor>> write_header(
    const std::map<std::string, at::Tensor>& tensors, const std::string& configuration) {
  std::string header =
      c10::str("{\"__metadata__\":{", quote(kConfiguration), ":", quote(configuration), "}");
  std::vector<at::Tensor> ordered;
  size_t place = 0;
  for (const auto& [type, dtype] : kDtypes) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.scalar_type() != dtype) continue;
      header += c10::str(",", quote(name), ":{\"dtype\":\"", type, "\",\"shape\":[",
                         c10::Join(",", tensor.sizes()), "],\"data_offsets\":[", place, ",",
                         place + tensor.nbytes(), "]}");
      place += tensor.nbytes();
      ordered.push_back(tensor);
    }
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  const auto length = std::bit_cast<std::array<char, 8>>(static_cast<uint64_t>(header.size()));
  return {std::string(length.data(), length.size()) + header, std::move(ordered)};
}

}  // namespace baraquant::files
