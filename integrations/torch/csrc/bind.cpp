// SPDX-License-Identifier: BSD-3-Clause
// What Python sees of the backend. Alone here: pybind's headers take most of the compile time.
#include "backend.h"

#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

namespace py = pybind11;
using banyan_torch::Backend;
using banyan_torch::CodecState;

template <typename T> using Holder = c10::intrusive_ptr<T>;

using PieceTuple = std::tuple<at::Tensor, std::string, std::string, std::shared_ptr<CodecState>,
                              std::vector<int64_t>>;

static banyan_torch::WorkPtr average(Backend &backend, const std::vector<PieceTuple> &tuples)
{
    std::vector<banyan_torch::Piece> pieces;

    for (const auto &[data, codec, schedule, state, shape] : tuples)
        pieces.push_back({ data, codec, schedule, state, shape });
    return backend.average(pieces);
}

static bool runs_python()
{
    return PyGILState_Check();
}

static void take_turn()
{
    py::gil_scoped_acquire gil;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    using without_gil = py::call_guard<py::gil_scoped_release>;
    auto c10d = py::module_::import("torch._C._distributed_c10d");

    py::class_<Backend::Options, Holder<Backend::Options>>(m, "Options",
                                                           c10d.attr("Backend").attr("Options"))
        .def(py::init([](std::chrono::milliseconds timeout, const std::string &name) {
                 return c10::make_intrusive<Backend::Options>(timeout, name);
             }),
             py::arg("timeout") = kBackendDefaultTimeout, py::arg("name") = "banyan");
    py::class_<Backend, Holder<Backend>>(m, "Backend", c10d.attr("Backend"))
        .def(py::init([](const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                         const c10::intrusive_ptr<Backend::Options> &options) {
                 return c10::make_intrusive<Backend>(store, rank, size, options);
             }),
             py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
             without_gil())
        .def("stats", &Backend::stats, without_gil())
        .def("average", &average, without_gil());
    py::class_<CodecState, std::shared_ptr<CodecState>>(m, "CodecState")
        .def(py::init<int64_t, int64_t>(), py::arg("count"), py::arg("seed"))
        .def("take", &CodecState::take)
        .def("scale", &CodecState::scale)
        .def("save", &CodecState::save)
        .def("load", &CodecState::load)
        .def("residual", &CodecState::residual);
    banyan_torch::Futures::set_interpreter({ runs_python, take_turn });
    m.def("shutdown_all", &banyan_torch::shutdown_all, without_gil());
}
