// SPDX-License-Identifier: BSD-3-Clause
// A library for LD_PRELOAD: at one step that a process takes in a folder, numbered from 0, it is
// killed, or the system says EIO. BARAQUANT_TEST_FAULT is "kill 3 /the/folder" or "fail 3 /the/folder".
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <string>

namespace {

struct Fault {
  std::string kind, folder;
  int steps = -1;
  std::set<int> files;  // descriptors of the folder's files

  Fault() {
    if (const char* text = std::getenv("BARAQUANT_TEST_FAULT")) {
      std::istringstream(text) >> kind >> steps >> folder;
    }
  }
};

Fault& fault() {
  static Fault one;
  return one;
}

bool is_inside(const char* path) {
  const std::string& folder = fault().folder;
  return !folder.empty() && std::strncmp(path, folder.c_str(), folder.size()) == 0;
}

// Count a step of the process; whether it fails.
bool fails() {
  if (fault().steps-- != 0) return false;
  if (fault().kind == "kill") ::kill(::getpid(), SIGKILL);
  errno = EIO;
  return true;
}

template <typename F>
F real(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (is_inside(path) && fails()) return -1;
  const int file = real<int (*)(const char*, int, mode_t)>("open")(path, flags, mode);
  if (file >= 0 && is_inside(path)) fault().files.insert(file);
  return file;
}

// The same function where file sizes have 64 bits.
int open64(const char* path, int flags, ...) __attribute__((alias("open")));

ssize_t write(int file, const void* data, size_t size) {
  if (fault().files.contains(file) && fails()) return -1;
  return real<ssize_t (*)(int, const void*, size_t)>("write")(file, data, size);
}

int fsync(int file) {
  return fault().files.contains(file) && fails() ? -1 : real<int (*)(int)>("fsync")(file);
}

int close(int file) {
  const bool is_one = fault().files.erase(file) > 0;
  const int result = real<int (*)(int)>("close")(file);
  return is_one && fails() ? -1 : result;
}

int chmod(const char* path, mode_t mode) noexcept {
  if (is_inside(path) && fails()) return -1;
  return real<int (*)(const char*, mode_t)>("chmod")(path, mode);
}

int rename(const char* from, const char* to) noexcept {
  if (is_inside(to) && fails()) return -1;
  return real<int (*)(const char*, const char*)>("rename")(from, to);
}

int unlink(const char* path) noexcept {
  if (is_inside(path) && fails()) return -1;
  return real<int (*)(const char*)>("unlink")(path);
}

}  // extern "C"
