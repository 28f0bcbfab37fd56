// SPDX-License-Identifier: BSD-3-Clause
#include "files/header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string_view>
#include <tuple>

#include "files/text.h"
#include "frame/checks.h"

namespace baraquant::files {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kLongestHeader = 100'000'000;  // as in safetensors itself

struct NamedDtype {
  std::string_view name;
  c10::ScalarType dtype;
};
// The order is that of Python's messages.
constexpr std::array<NamedDtype, 13> kDtypes = {{{"BOOL", c10::kBool},
                                                 {"U8", c10::kByte},
                                                 {"I8", c10::kChar},
                                                 {"I16", c10::kShort},
                                                 {"U16", c10::kUInt16},
                                                 {"I32", c10::kInt},
                                                 {"U32", c10::kUInt32},
                                                 {"I64", c10::kLong},
                                                 {"U64", c10::kUInt64},
                                                 {"F16", c10::kHalf},
                                                 {"BF16", c10::kBFloat16},
                                                 {"F32", c10::kFloat},
                                                 {"F64", c10::kDouble}}};
// The order in which safetensors writes tensors.
constexpr std::array<c10::ScalarType, 13> kWritten = {
    c10::kUInt64, c10::kLong,   c10::kDouble, c10::kFloat, c10::kUInt32, c10::kInt, c10::kBFloat16,
    c10::kHalf,   c10::kUInt16, c10::kShort,  c10::kChar,  c10::kByte,   c10::kBool};

using Wide = unsigned __int128;

// The product of sizes and a factor; nothing if 128 bits do not hold it.
std::optional<Wide> product(c10::IntArrayRef sizes, int64_t factor) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  Wide result = static_cast<Wide>(factor);
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(result, static_cast<Wide>(size), &result)) return std::nullopt;
  }
  return result;
}

const NamedDtype* named(std::string_view name) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const NamedDtype& one) { return one.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

std::string names_of_dtypes() {
  std::vector<std::string> names;
  names.reserve(kDtypes.size());
  for (const NamedDtype& one : kDtypes) names.emplace_back(one.name);
  return join(names, ", ");
}

std::string shortened(const Json& value) {
  const std::string text = repr(value, 81);
  return first_characters(text, 80) == text ? text : first_characters(text, 77) + "...";
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

Json parse_header(const std::string& text) {
  try {
    check_utf8(text);
    return parse_json(text);
  } catch (const c10::ValueError& error) {
    fail("expected its header to be JSON, but ", error.what_without_backtrace());
  }
}

std::map<std::string, std::string> metadata_of(const Json* value) {
  std::map<std::string, std::string> result;
  if (value == nullptr) return result;
  bool is_valid = value->is<Json::Object>();
  if (is_valid) {
    for (const JsonMember& member : value->get<Json::Object>()) {
      is_valid = is_valid && member.value.is<std::string>();
      if (is_valid) result.emplace(member.key, member.value.get<std::string>());
    }
  }
  if (!is_valid) fail("expected __metadata__ to hold texts, but it does not");
  return result;
}

Entry entry_of(const std::string& name, const Json& value) {
  if (!value.is<Json::Object>() || value.get<Json::Object>().size() != 3 ||
      value.keys() != std::vector<std::string>{"data_offsets", "dtype", "shape"}) {
    fail(name, ": expected an entry with dtype, shape and data_offsets, but got ",
         shortened(value));
  }
  const Json &dtype = value.at("dtype"), &places = value.at("data_offsets");
  const NamedDtype* known = dtype.is<std::string>() ? named(dtype.get<std::string>()) : nullptr;
  if (known == nullptr) {
    fail(name, ": expected a dtype of ", names_of_dtypes(), ", but got ",
         repr(dtype, std::string::npos));
  }
  const auto shape = sizes_of(value.at("shape"));
  if (!shape) {
    fail(name, ": expected a shape of whole sizes, but got ", shortened(value.at("shape")));
  }
  const auto offsets = sizes_of(places);
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    fail(name, ": expected a begin and an end, but got ", shortened(places));
  }
  const auto bytes = static_cast<int64_t>(c10::elementSize(known->dtype));
  const int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (product(*shape, bytes) != static_cast<Wide>(end - begin)) {
    fail(name, ": expected ", product_text(*shape, bytes), " bytes (", known->name, " ",
         shortened(value.at("shape")), "), but its offsets are ", begin, " and ", end);
  }
  return {{known->dtype, *shape}, begin, end};
}

// Check that the tensors fill the data in order, without gap, overlap or remainder.
void check_places(const std::vector<std::pair<std::string, Entry>>& entries, int64_t size) {
  std::vector<const std::pair<std::string, Entry>*> sorted;
  sorted.reserve(entries.size());
  for (const auto& one : entries) sorted.push_back(&one);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    // Of two with one place, the first in the file comes first.
    return std::tie(a->second.begin, a->second.end, a) <
           std::tie(b->second.begin, b->second.end, b);
  });
  int64_t end = 0;
  for (const auto* one : sorted) {
    if (one->second.begin != end) {
      fail(one->first, ": expected its data to begin at ", end,
           ", where the one before it ends, but got ", one->second.begin);
    }
    end = one->second.end;
  }
  if (end == size) return;
  fail("expected ", end, " bytes of data, but it has ", size, ": ",
       end > size ? "it is cut off" : "the rest has no name");
}

// A text in JSON as safetensors writes it.
std::string quoted(const std::string& text) {
  constexpr std::string_view letters = "\"\\bfnrt", meanings = "\"\\\b\f\n\r\t";
  constexpr std::string_view hex = "0123456789abcdef";
  std::string result(1, '"');
  for (const char c : text) {
    const size_t which = meanings.find(c);
    const auto byte = static_cast<uint8_t>(c);
    if (which != std::string_view::npos) {
      result += '\\';
      result += letters[which];
    } else if (byte < 0x20) {
      result += "\\u00";
      result += hex[byte >> 4];
      result += hex[byte & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace

Header read_header(const InputFile& file) {
  const std::string text = read_text(file);
  const Json header = parse_header(text);
  if (!header.is<Json::Object>()) {
    const bool is_number = header.is<Json::Integer>();
    const char* type = header.is_null()          ? "NoneType"
                       : header.is<bool>()       ? "bool"
                       : is_number               ? "int"
                       : header.is<double>()     ? "float"
                       : header.is<Json::List>() ? "list"
                                                 : "str";
    fail("expected its header to be an object, but got ", type);
  }
  Header result;
  result.metadata = metadata_of(header.find("__metadata__"));
  std::vector<std::pair<std::string, Entry>> entries;
  for (const JsonMember& member : header.get<Json::Object>()) {
    if (member.key == "__metadata__") continue;
    entries.emplace_back(member.key, entry_of(member.key, member.value));
  }
  result.data_start = static_cast<int64_t>(8 + text.size());
  check_places(entries, file.size() - result.data_start);
  result.tensors.insert(entries.begin(), entries.end());
  return result;
}

bool is_storable(c10::ScalarType dtype) {
  return std::find(kWritten.begin(), kWritten.end(), dtype) != kWritten.end();
}

std::optional<std::vector<int64_t>> sizes_of(const Json& value) {
  if (!value.is<Json::List>()) return std::nullopt;
  std::vector<int64_t> sizes;
  for (const Json& entry : value.get<Json::List>()) {
    const auto size = entry.integer();
    if (!size || *size < 0) return std::nullopt;
    sizes.push_back(*size);
  }
  return sizes;
}

std::string product_text(c10::IntArrayRef sizes, int64_t factor, int64_t divisor) {
  auto value = product(sizes, factor);
  if (!value) return "more than 2^128";
  *value = (*value + static_cast<Wide>(divisor - 1)) / static_cast<Wide>(divisor);
  std::string digits;
  for (; *value > 0 || digits.empty(); *value /= 10) {
    digits += static_cast<char>('0' + static_cast<int>(*value % 10));
  }
  return {digits.rbegin(), digits.rend()};
}

std::pair<std::string, std::vector<at::Tensor>> write_header(
    const std::map<std::string, at::Tensor>& tensors, const std::string& key,
    const std::string& text) {
  std::string header = c10::str("{\"__metadata__\":{", quoted(key), ":", quoted(text), "}");
  std::vector<at::Tensor> ordered;
  size_t place = 0;
  for (const c10::ScalarType dtype : kWritten) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.scalar_type() != dtype) continue;
      const auto one = std::find_if(kDtypes.begin(), kDtypes.end(),
                                    [&](const NamedDtype& each) { return each.dtype == dtype; });
      std::vector<std::string> sizes;
      for (const int64_t size : tensor.sizes()) sizes.push_back(std::to_string(size));
      header += c10::str(",", quoted(name), ":{\"dtype\":\"", one->name, "\",\"shape\":[",
                         join(sizes, ","), "],\"data_offsets\":[", place, ",",
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
