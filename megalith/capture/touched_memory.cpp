#include "megalith/capture/touched_memory.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::capture {
namespace {

std::size_t at(Role role) { return static_cast<std::size_t>(role); }

/// The run's memory by what it holds.
class Regions {
 public:
  explicit Regions(std::span<const MemoryLedger::Block> memory) {
    for (const MemoryLedger::Block& piece : memory) {
      const auto found = std::ranges::find(kTouchedOwners, std::string_view(piece.owner));
      if (found == kTouchedOwners.end()) continue;
      owners_[static_cast<std::size_t>(found - kTouchedOwners.begin())].add(
          Stretches::of(piece.memory.data(), static_cast<Index>(piece.memory.size())));
    }
    for (const char* owner : {"activations", "pipeline buffers"}) kept_.add(of(owner));
    work_ = kept_;
    work_.add(of(kScratchOwner));
    for (const char* owner : {"parameters", "parameter copies", "gradients", "gradient windows"})
      weights_.add(of(owner));
  }

  const Stretches& of(std::string_view owner) const {
    return owners_[static_cast<std::size_t>(std::ranges::find(kTouchedOwners, owner) - kTouchedOwners.begin())];
  }
  /// Activations: those that outlive a pass (`kept`) and the others.
  const Stretches& work() const { return work_; }
  const Stretches& kept() const { return kept_; }
  const Stretches& weights() const { return weights_; }

  std::array<Index, kTouchedOwners.size()> by_owner(const Stretches& touched) const {
    std::array<Index, kTouchedOwners.size()> bytes{};
    Index& elsewhere = bytes.back() = touched.bytes();
    for (std::size_t owner = 0; owner + 1 < bytes.size(); ++owner) {
      bytes[owner] = common(touched, owners_[owner]).bytes();
      elsewhere -= bytes[owner];
    }
    return bytes;
  }

 private:
  std::array<Stretches, kTouchedOwners.size()> owners_;
  Stretches work_, kept_, weights_;
};

/// What a graph takes from before it, and what it leaves behind.
struct Edges {
  Stretches reads;    ///< that it has not written before
  Stretches writes;   ///< all
  Stretches results;  ///< of these, what it has neither read nor overwritten since
};

Edges edges_of(const Graph& graph) {
  Edges edges;
  for (const Graph::Touched& op : graph.touched()) {
    if (!op.waits) {
      for (const Tensor& tensor : op.reads) {
        const Stretches::Stretch read = Stretches::of(tensor);
        edges.reads.add(edges.writes.missing(read));
        edges.results.remove(read);
      }
    }
    for (const Tensor& tensor : op.writes) {
      edges.writes.add(Stretches::of(tensor));
      edges.results.add(Stretches::of(tensor));
    }
    edges.writes.add(Stretches::of(op.scratch));
    edges.results.remove(Stretches::of(op.scratch));
  }
  return edges;
}

/// Buffers that are alive, counted by address, and their peak.
class AliveBuffers {
 public:
  void add(const Stretches& buffers) {
    for (const Stretches::Stretch& buffer : buffers.all()) {
      if (++users_[buffer] > 1) continue;
      ++now_.count;
      now_.bytes += static_cast<Index>(buffer.end - buffer.begin);
    }
    peak_ = {std::max(peak_.count, now_.count), std::max(peak_.bytes, now_.bytes)};
  }
  void remove(const Stretches& buffers) {
    for (const Stretches::Stretch& buffer : buffers.all()) {
      const auto entry = users_.find(buffer);
      if (--entry->second > 0) continue;
      users_.erase(entry);
      --now_.count;
      now_.bytes -= static_cast<Index>(buffer.end - buffer.begin);
    }
  }
  const TouchedMemory::Buffers& peak() const { return peak_; }

 private:
  std::map<Stretches::Stretch, int> users_;
  TouchedMemory::Buffers now_, peak_;
};

/// One layer's pair of graphs.
struct LayerEdges {
  Stretches input;         ///< that stays for the backward
  Stretches second_input;  ///< in scratch
  Stretches saved, output, output_grad, input_grad, touched;
  bool is_alive = false;  ///< between its forward and its backward
};

LayerEdges layer_edges(const Graph& forward, const Graph& backward, const Regions& regions) {
  const Edges up = edges_of(forward), down = edges_of(backward);
  LayerEdges edges;
  edges.input = common(up.reads, regions.kept());
  edges.second_input = common(up.reads, regions.of(kScratchOwner));
  // What lies in scratch is gone by then: a backward that reads there is handed something else at the same address.
  edges.saved = common(common(up.writes, down.reads), regions.kept());
  edges.output = common(up.results, regions.work());
  edges.output.remove(edges.saved);
  edges.output_grad = common(down.reads, regions.work());
  edges.output_grad.remove(edges.saved);
  edges.output_grad.remove(edges.input);
  edges.input_grad = common(down.results, regions.work());
  for (const Stretches* part : {&up.reads, &up.writes, &down.reads, &down.writes}) edges.touched.add(*part);
  return edges;
}

class LayerCounter {
 public:
  LayerCounter(const GraphCache& graphs, const Regions& regions) : graphs_(graphs), regions_(regions) {
    for (const GraphCache::Key& key : graphs.order()) {
      const auto first = first_layers_.try_emplace(key.chunk, key.layer).first;
      first->second = std::min(first->second, key.layer);
    }
    for (const GraphCache::Key& key : graphs.order()) launch(key);
    for (const auto& [pair, edges] : pairs_) {
      if (edges.is_alive) refuse(pair, "a forward without its backward");
    }
  }

  TouchedMemory result() const {
    TouchedMemory memory{.inputs = inputs_.peak(),
                         .second_inputs = second_inputs_.peak(),
                         .outputs = outputs_.peak(),
                         .saved = saved_.peak(),
                         .output_grads = output_grads_.peak()};
    for (std::size_t role = 0; role < kRoles; ++role) memory.bytes[role] = regions_.by_owner(places_[role]);
    for (std::size_t role = 0; role < kEdgeRoles; ++role) {
      for (std::size_t other = 0; other < kEdgeRoles; ++other) {
        if (other != role) memory.shared[role][other] = common(places_[role], places_[other]).bytes();
      }
    }
    return memory;
  }

 private:
  using Pair = std::tuple<int, int, Index>;  // chunk, instance, layer

  LayerEdges& edges(const GraphCache::Key& key) {
    const auto [entry, is_new] = pairs_.try_emplace(Pair{key.chunk, key.instance, key.layer});
    if (is_new) {
      GraphCache::Key forward = key, backward = key;
      forward.segment = GraphCache::Key::kForward;
      backward.segment = GraphCache::Key::kBackward;
      entry->second = layer_edges(graphs_.graph(forward), graphs_.graph(backward), regions_);
      note_places(key, entry->second);
    }
    return entry->second;
  }
  [[noreturn]] static void refuse(const Pair& pair, const char* what) {
    const auto& [chunk, instance, layer] = pair;
    throw InternalError(str("[graphs] chunk ", chunk, ", instance ", instance, ", layer ", layer, ": ", what));
  }
  void note_places(const GraphCache::Key& key, const LayerEdges& pair) {
    const bool is_first = key.layer == first_layers_.at(key.chunk);
    Stretches& inputs = places_[at(is_first ? Role::chunk_input : Role::layer_input)];
    inputs.add(pair.input);
    inputs.add(pair.second_input);
    places_[at(Role::saved)].add(pair.saved);
    places_[at(Role::output)].add(pair.output);
    places_[at(Role::output_grad)].add(pair.output_grad);
    places_[at(Role::input_grad)].add(pair.input_grad);
    places_[at(Role::step_state)].add(common(pair.touched, regions_.of("inputs")));
    places_[at(Role::weights)].add(common(pair.touched, regions_.weights()));
    places_[at(Role::any)].add(pair.touched);
  }
  void launch(const GraphCache::Key& key) {
    LayerEdges& pair = edges(key);
    const bool is_forward = key.segment == GraphCache::Key::kForward;
    if (pair.is_alive == is_forward) {
      refuse({key.chunk, key.instance, key.layer},
             is_forward ? "two forwards without a backward between them" : "a backward without its forward");
    }
    pair.is_alive = is_forward;
    if (is_forward) {
      inputs_.add(pair.input);
      second_inputs_.add(pair.second_input);
      second_inputs_.remove(pair.second_input);
      outputs_.add(pair.output);
      saved_.add(pair.saved);
    } else {
      output_grads_.add(pair.output_grad);
      output_grads_.remove(pair.output_grad);
      inputs_.remove(pair.input);
      outputs_.remove(pair.output);
      saved_.remove(pair.saved);
    }
  }

  const GraphCache& graphs_;
  const Regions& regions_;
  std::map<int, Index> first_layers_;  // of each chunk
  std::map<Pair, LayerEdges> pairs_;
  AliveBuffers inputs_, second_inputs_, outputs_, saved_, output_grads_;
  std::array<Stretches, kRoles> places_;
};

}  // namespace

Stretches::Stretch Stretches::of(const void* begin, Index bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  return {address, address + static_cast<std::uintptr_t>(bytes)};
}

void Stretches::add(Stretch stretch) {
  if (stretch.begin == stretch.end) return;
  auto next = ends_.upper_bound(stretch.begin);
  if (next != ends_.begin() && std::prev(next)->second >= stretch.begin) {
    --next;
    stretch.begin = next->first;
  }
  while (next != ends_.end() && next->first <= stretch.end) {
    stretch.end = std::max(stretch.end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace_hint(next, stretch.begin, stretch.end);
}

void Stretches::remove(Stretch stretch) {
  if (stretch.begin == stretch.end) return;
  auto next = ends_.upper_bound(stretch.begin);
  if (next != ends_.begin() && std::prev(next)->second > stretch.begin) --next;
  while (next != ends_.end() && next->first < stretch.end) {
    const auto [begin, end] = *next;
    next = ends_.erase(next);
    if (begin < stretch.begin) ends_.emplace_hint(next, begin, stretch.begin);
    if (end > stretch.end) ends_.emplace_hint(next, stretch.end, end);
  }
}

void Stretches::add(const Stretches& others) {
  for (const auto& [begin, end] : others.ends_) add({begin, end});
}

void Stretches::remove(const Stretches& others) {
  for (const auto& [begin, end] : others.ends_) remove({begin, end});
}

Stretches Stretches::missing(Stretch stretch) const {
  Stretches rest;
  rest.add(stretch);
  auto next = ends_.upper_bound(stretch.begin);
  if (next != ends_.begin()) --next;
  for (; next != ends_.end() && next->first < stretch.end; ++next) rest.remove({next->first, next->second});
  return rest;
}

std::vector<Stretches::Stretch> Stretches::all() const {
  std::vector<Stretch> stretches;
  for (const auto& [begin, end] : ends_) stretches.push_back({begin, end});
  return stretches;
}

Index Stretches::bytes() const {
  Index sum = 0;
  for (const auto& [begin, end] : ends_) sum += static_cast<Index>(end - begin);
  return sum;
}

Stretches common(const Stretches& a, const Stretches& b) {
  Stretches in_both = a;
  for (const Stretches::Stretch& stretch : a.all()) in_both.remove(b.missing(stretch));
  return in_both;
}

std::string_view name(Role role) {
  constexpr std::array<std::string_view, kRoles> kNames = {
      "input of a layer", "input of a chunk", "what backward reads",      "output of a layer",  "output gradient",
      "input gradient",   "step state",       "weights, their gradients", "all that is touched"};
  return kNames[at(role)];
}

std::vector<PlannedPlace> planned_places(const nn::LayerEdges& layer) {
  if (!layer.any()) return {};
  std::vector<PlannedPlace> all;
  if (layer.holds_attention()) {
    all.push_back({Role::layer_input,
                   "residual: kept in the slot by the layer below; what its MLP gives: scratch",
                   {"activations", kScratchOwner}});
    all.push_back({Role::chunk_input,
                   "the microbatch's receive buffer; of the first stage and per slot (a copy): the slot",
                   {"activations", "pipeline buffers"}});
  } else {
    all = {{Role::layer_input,
            "residual: output of the layer below, kept in the microbatch's slot; attention's output: scratch",
            {"activations", kScratchOwner}},
           {Role::chunk_input,
            "residual: the receive buffer, of the first stage and per slot (a copy) the slot; attention's output: "
            "scratch",
            {"activations", "pipeline buffers", kScratchOwner}}};
  }
  all.push_back({Role::saved, "the slot", {"activations"}});
  if (layer.ends_layer()) {
    all.push_back(
        {Role::output,
         "scratch, from which the layer above takes it; of a chunk: its send buffer (per slot: scratch and a copy)",
         {"activations", "pipeline buffers", kScratchOwner}});
    all.push_back({Role::output_grad,
                   "scratch that all layers, chunks and microbatches share; of a chunk: its receive buffer",
                   {kScratchOwner, "pipeline buffers"}});
  } else if (layer.end.stage == nn::ForwardStage::seam) {
    all.push_back({Role::output, "scratch, from which the eager rest of the layer takes it at once", {kScratchOwner}});
    all.push_back({Role::output_grad, "scratch that all layers, chunks and microbatches share", {kScratchOwner}});
  } else {
    all.push_back({Role::output,
                   "scratch, from which the eager rest of the layer takes it at once; what that reads in backward: the "
                   "slot",
                   {"activations", kScratchOwner}});
    all.push_back({Role::output_grad,
                   "scratch that all layers, chunks and microbatches share; of a chunk's residual: its receive buffer",
                   {kScratchOwner, "pipeline buffers"}});
  }
  if (layer.holds_attention()) {
    all.push_back({Role::input_grad, "the same; of a chunk: its send buffer", {kScratchOwner, "pipeline buffers"}});
  } else {
    all.push_back({Role::input_grad, "scratch, from which attention's backward takes it at once", {kScratchOwner}});
  }
  all.push_back({Role::step_state, "the slot's inputs", {"inputs"}});
  all.push_back(
      {Role::weights, "the flat buffers", {"parameters", "parameter copies", "gradients", "gradient windows"}});
  return all;
}

TouchedMemory touched_memory(const GraphCache& layers, std::span<const MemoryLedger::Block> memory) {
  const Regions regions(memory);
  return LayerCounter(layers, regions).result();
}

TouchedMemory touched_memory(const Graph& graph, std::span<const MemoryLedger::Block> memory) {
  Edges edges = edges_of(graph);
  edges.writes.add(edges.reads);
  TouchedMemory touched;
  touched.bytes[at(Role::any)] = Regions(memory).by_owner(edges.writes);
  return touched;
}

}  // namespace megalith::capture
