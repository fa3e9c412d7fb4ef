#include "hooks/source_line.h"

#include <unordered_map>
#include <vector>

namespace nanscan {
namespace {

struct Place {
  PyCodeObject* code;  // owned, so that its address names it; as many as the program has code
  int lasti;
};

// All guarded by the GIL.
std::vector<std::string> library_folders;
std::unordered_map<PyCodeObject*, bool> in_library;
std::vector<Place> places{{nullptr, 0}};
std::unordered_map<uint64_t, uint32_t> place_ids;

bool is_library(PyCodeObject* code) {
  const auto it = in_library.find(code);
  if (it != in_library.end()) return it->second;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  // No file ("<string>"), or one that inductor has generated.
  bool found = file == nullptr || file[0] == '<' || std::string(file).find("/torchinductor_") != std::string::npos;
  if (file == nullptr) PyErr_Clear();
  for (const auto& folder : library_folders) found = found || std::string(file).rfind(folder, 0) == 0;
  Py_INCREF(code);
  in_library.emplace(code, found);
  return found;
}

uint32_t id_of(PyCodeObject* code, int lasti) {
  const uint64_t key = (reinterpret_cast<uintptr_t>(code) << 16) ^ static_cast<uint64_t>(lasti);
  const auto [it, fresh] = place_ids.try_emplace(key, static_cast<uint32_t>(places.size()));
  if (fresh) places.push_back({code, lasti});
  return it->second;
}

int lasti_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return PyFrame_GetLineNumber(frame);
#endif
}

uint32_t walk() {
  uint32_t id = 0;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && id == 0) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (!is_library(code)) id = id_of(code, lasti_of(frame));
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return id;
}

}  // namespace

uint32_t capture_line() {
  if (PyGILState_GetThisThreadState() == nullptr) return 0;  // an engine thread: no Python runs there
  if (PyGILState_Check()) return walk();
  const PyGILState_STATE gil = PyGILState_Ensure();
  const uint32_t id = walk();
  PyGILState_Release(gil);
  return id;
}

std::string line_text(uint32_t id) {
  if (id == 0 || id >= places.size()) return "";
  const Place& place = places[id];
#if PY_VERSION_HEX >= 0x030B0000
  const int line = PyCode_Addr2Line(place.code, place.lasti);
#else
  const int line = place.lasti;
#endif
  const char* file = PyUnicode_AsUTF8(place.code->co_filename);
  if (file == nullptr) PyErr_Clear();
  return (file == nullptr ? std::string("?") : std::string(file)) + ":" + std::to_string(line);
}

void set_library_folders(std::vector<std::string> folders) {
  library_folders = std::move(folders);
  in_library.clear();
}

}  // namespace nanscan
