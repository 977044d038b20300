// SPDX-License-Identifier: BSD-3-Clause
// What Python sees of the backend. Alone here: pybind's headers take most of the compile time.
#include "accordion.h"
#include "backend.h"

#include <banyan/training.h>

#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

namespace py = pybind11;
using banyan_torch::Accordion;
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

static banyan_torch::WorkPtr reduce_scatter(Backend &backend, const PieceTuple &tuple,
                                            const at::Tensor &output, const c10d::ReduceOp &op)
{
    const auto &[data, codec, schedule, state, shape] = tuple;

    return backend.reduce_scatter_piece({ data, codec, schedule, state, shape }, output, op);
}

static std::unique_ptr<Accordion>
make_accordion(Backend &backend, const std::vector<std::string> &names,
               const std::vector<int64_t> &counts, const std::string &little,
               const std::string &much, double eta, int interval, int window, double rate_drop,
               size_t min_count)
{
    banyan_accordion_config cfg = BANYAN_ACCORDION_CONFIG_INIT;

    cfg.little = little.c_str();
    cfg.much = much.c_str();
    cfg.eta = eta;
    cfg.interval = interval;
    cfg.window = window;
    cfg.rate_drop = rate_drop;
    cfg.min_count = min_count;
    return std::make_unique<Accordion>(backend.group(), names, counts, cfg);
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
        .def("part", &Backend::part, py::arg("store"), py::arg("ranks"), py::arg("options"),
             py::arg("tag"), without_gil())
        .def("stats", &Backend::stats, without_gil())
        .def("average", &average, without_gil())
        .def("reduce_scatter_piece", &reduce_scatter, without_gil());
    const banyan_accordion_config usual = BANYAN_ACCORDION_CONFIG_INIT;
    py::class_<Accordion>(m, "Accordion")
        .def(py::init(&make_accordion), py::arg("backend"), py::arg("names"), py::arg("counts"),
             py::arg("little") = usual.little, py::arg("much") = usual.much,
             py::arg("eta") = usual.eta, py::arg("interval") = usual.interval,
             py::arg("window") = usual.window, py::arg("rate_drop") = usual.rate_drop,
             py::arg("min_count") = usual.min_count, without_gil())
        .def("observe", &Accordion::observe, without_gil())
        .def("step", &Accordion::step, without_gil())
        .def("codec", &Accordion::codec)
        .def("save", &Accordion::save)
        .def("load", &Accordion::load);
    py::class_<CodecState, std::shared_ptr<CodecState>>(m, "CodecState")
        .def(py::init<int64_t, int64_t>(), py::arg("count"), py::arg("seed"))
        .def("take", &CodecState::take)
        .def("scale", &CodecState::scale)
        .def("save", &CodecState::save)
        .def("load", &CodecState::load)
        .def("residual", &CodecState::residual);
    banyan_torch::Futures::set_interpreter({ runs_python, take_turn });
    m.def("shutdown_all", &banyan_torch::shutdown_all, py::arg("failure"), without_gil());
}
