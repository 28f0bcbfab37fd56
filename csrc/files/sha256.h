// SPDX-License-Identifier: BSD-3-Clause
// SHA-256 (FIPS 180-4), the checksum of a file. LibTorch has none to offer to C++.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baraquant::files {

class Sha256 {
 public:
  void update(const void* data, size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }
  // The digest in hexadecimal. Nothing may follow.
  std::string hexdigest();

 private:
  void blocks(const uint8_t* data, size_t count);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_ = {};  // the bytes since the last whole block
  uint64_t total_ = 0;                 // the bytes so far
};

}  // namespace baraquant::files
