#include "megalith/eval/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/comm/gather_values.h"

namespace megalith::eval {

std::int32_t draw(std::span<const double> logits, const GenerateOptions& options, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
  std::vector<double> weights(logits.size());
  std::ranges::transform(logits, weights.begin(),
                         [&](double z) { return std::exp((z - *best) / options.temperature); });
  const auto weight = [&](std::int32_t id) { return weights[static_cast<std::size_t>(id)]; };
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const double za = logits[static_cast<std::size_t>(a)], zb = logits[static_cast<std::size_t>(b)];
    return za != zb ? za > zb : a < b;
  };
  std::size_t sorted = 0;  // ids at the beginning, in order
  const auto sort_to = [&](std::size_t count) {
    const auto at = [&](std::size_t i) { return ids.begin() + static_cast<std::ptrdiff_t>(i); };
    std::partial_sort(at(sorted), at(count), ids.end(), likelier);
    sorted = count;
  };
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < ids.size()) {
    sort_to(static_cast<std::size_t>(options.top_k));
    ids.resize(sorted);
  }
  double sum = 0;
  for (const std::int32_t id : ids) sum += weight(id);
  if (options.top_p < 1) {
    constexpr std::size_t kFirst = 64;  // a few ids mostly reach p: not all need to be sorted
    double reached = 0;
    std::size_t count = 0;
    while (count < ids.size() && (count == 0 || reached < options.top_p * sum)) {
      if (count == sorted) sort_to(std::min(ids.size(), std::max(kFirst, 4 * sorted)));
      reached += weight(ids[count++]);
    }
    ids.resize(count);
    sum = reached;
  }
  double left = uniform * sum;
  for (const std::int32_t id : ids) {
    left -= weight(id);
    if (left < 0) return id;
  }
  return ids.back();
}

double uniform_of(const TextRequest& request, std::uint64_t seed, Index position) {
  std::uint64_t hash = hash_combine(seed, static_cast<std::uint64_t>(request.sample));
  for (const std::int32_t id : request.prompt) hash = hash_combine(hash, static_cast<std::uint64_t>(id));
  const RandomSite random{.seed = hash, .site = 1};
  return static_cast<double>(random.word(static_cast<std::uint64_t>(position))) * 0x1p-32;
}

void GenerateCounts::add(const GenerateCounts& other) {
  written += other.written;
  read += other.read;
  stepped += other.stepped;
  read_s = std::max(read_s, other.read_s);
  step_s = std::max(step_s, other.step_s);
  seconds = std::max(seconds, other.seconds);
}

namespace {

/// The texts that go on, one in each slot.
class Generation {
 public:
  Generation(Decoder& decoder, std::span<const TextRequest> texts, const GenerateOptions& options,
             const TextEvents& events)
      : decoder_(decoder),
        texts_(texts),
        options_(options),
        events_(events),
        slots_(static_cast<std::size_t>(decoder.config().slots)),
        ids_(slots_.size()),
        tokens_(slots_.size()),
        positions_(slots_.size()) {}

  GenerateCounts run() {
    const double begin = monotonic_s();
    for (fill_slots(); goes_on(); fill_slots()) {
      step();
      read();
      decoder_.share_ids(ids_);
      for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        if (slots_[slot].is_used()) accept(slot, ids_[slot]);
      }
    }
    counts_.seconds = monotonic_s() - begin;
    return counts_;
  }

 private:
  static constexpr std::size_t kNoText = ~std::size_t{0};
  struct Slot {
    std::size_t text = kNoText;
    std::vector<std::int32_t> ids;  // of the whole text
    std::size_t window = 0;         // where the window begins
    bool must_read = false;         // the window is new to the decoder
    bool is_used() const { return text != kNoText; }
    std::size_t length() const { return ids.size() - window; }
  };

  /// The most that a rank of the world gives; without copies of the model, and thus without a call, `own`.
  Index max_of_all(Index own) const {
    if (!decoder_.has_copies()) return own;
    return std::ranges::max(comm::gather_values(decoder_.world().all(), own));
  }
  Index max_where_copies_meet(Index own) const { return decoder_.copies_meet() ? max_of_all(own) : own; }

  /// Whether there is a text left: of this copy, or in rounds that all copies begin together of any. One that has none
  /// left waits in the next round.
  bool goes_on() {
    const bool has_texts = std::ranges::any_of(slots_, &Slot::is_used);
    if (!decoder_.has_copies()) return has_texts;
    if (has_texts && steps_left_ > 0) {
      --steps_left_;
      return true;
    }
    do {
      const bool any = max_of_all(has_texts ? 1 : 0) > 0;
      events_.round();
      if (!any) return false;
    } while (!has_texts && !decoder_.copies_meet());
    steps_left_ = decoder_.copies_meet() ? 0 : kStepsOfARound - 1;
    return true;
  }

  void fill_slots() {
    for (Slot& slot : slots_) {
      if (slot.is_used() || next_ == texts_.size()) continue;
      slot = {.text = next_, .ids = texts_[next_].prompt, .must_read = true};
      ++next_;
    }
  }

  /// The next token of every slot whose window goes on.
  void step() {
    Index count = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      const bool goes_on = slot.is_used() && !slot.must_read;
      count += goes_on ? 1 : 0;
      tokens_[i] = goes_on ? slot.ids.back() : 0;
      positions_[i] = goes_on ? static_cast<std::int32_t>(slot.length() - 1) : 0;
    }
    if (max_where_copies_meet(count) == 0) return;
    counts_.stepped += count;
    const double begin = monotonic_s();
    const std::span<const double> logits = decoder_.step(tokens_, positions_);
    share(static_cast<Index>(slots_.size()), [&](Index i) {
      const auto slot = static_cast<std::size_t>(i);
      if (slots_[slot].is_used() && !slots_[slot].must_read) draw_from(logits, i, slot);
    });
    counts_.step_s += monotonic_s() - begin;
  }

  /// The windows that are new.
  void read() {
    for (std::size_t i = 0;; ++i) {
      while (i < slots_.size() && !(slots_[i].is_used() && slots_[i].must_read)) ++i;
      const bool has_window = i < slots_.size();
      const auto longest = max_where_copies_meet(has_window ? static_cast<Index>(slots_[i].length()) : 0);
      if (longest == 0) return;
      const double begin = monotonic_s();
      if (has_window)
        read(i, longest);
      else
        decoder_.start_of_others(longest);
      counts_.read_s += monotonic_s() - begin;
    }
  }

  void read(std::size_t i, Index longest) {
    Slot& slot = slots_[i];
    const std::span<const std::int32_t> window = std::span(slot.ids).subspan(slot.window);
    draw_from(decoder_.start(static_cast<Index>(i), window, longest), 0, i);
    counts_.read += static_cast<Index>(window.size());
    slot.must_read = false;
  }

  void draw_from(std::span<const double> logits, Index row, std::size_t slot) {
    if (!decoder_.has_logits()) return;
    const Slot& of = slots_[slot];
    const auto vocab = static_cast<std::size_t>(decoder_.config().model.vocab_size);
    const double uniform = uniform_of(texts_[of.text], options_.seed, static_cast<Index>(of.ids.size()));
    const std::span<const double> of_row = logits.subspan(static_cast<std::size_t>(row) * vocab, vocab);
    events_.logits(of.text, of_row);
    ids_[slot] = draw(of_row, options_, uniform);
  }

  void accept(std::size_t i, std::int32_t id) {
    Slot& slot = slots_[i];
    if (id == options_.stop_token) return end(slot, Ending::stop_token);
    slot.ids.push_back(id);
    ++counts_.written;
    if (!events_.token(slot.text, id)) return end(slot, Ending::refused);
    const std::size_t prompt = texts_[slot.text].prompt.size();
    if (slot.ids.size() - prompt == static_cast<std::size_t>(options_.max_tokens)) return end(slot, Ending::max_tokens);
    const auto capacity = static_cast<std::size_t>(decoder_.config().capacity);
    if (slot.length() <= capacity) return;
    slot.window = slot.ids.size() - capacity + static_cast<std::size_t>(options_.slide) - 1;
    slot.must_read = true;
    events_.slide(slot.text);
  }

  void end(Slot& slot, Ending ending) {
    const std::size_t text = slot.text;
    slot = {};
    events_.end(text, ending);
  }

  Decoder& decoder_;
  std::span<const TextRequest> texts_;
  const GenerateOptions& options_;
  const TextEvents& events_;
  std::size_t next_ = 0;  // text
  Index steps_left_ = 0;  // of this round
  std::vector<Slot> slots_;
  std::vector<std::int32_t> ids_, tokens_, positions_;  // of each slot
  GenerateCounts counts_;
};

}  // namespace

std::vector<Index> window_lengths(std::span<const TextRequest> texts, const GenerateOptions& options, Index capacity) {
  std::set<Index> lengths;
  if (texts.empty()) lengths.insert(1);  // no lengths would stand for any
  for (const TextRequest& text : texts) {
    const auto prompt = std::ssize(text.prompt);
    lengths.insert(prompt);
    if (prompt + options.max_tokens - 1 > capacity) lengths.insert(capacity - options.slide + 1);
  }
  return {lengths.begin(), lengths.end()};
}

GenerateCounts generate(Decoder& decoder, std::span<const TextRequest> texts, const GenerateOptions& options,
                        const TextEvents& events) {
  const Index capacity = decoder.config().capacity;
  if (options.slide < 1 || options.slide > capacity)
    throw InternalError(str("[generate] slide = ", options.slide, ": must be from 1 to ", capacity));
  for (const TextRequest& text : texts) {
    const auto length = static_cast<Index>(text.prompt.size());
    if (length < 1 || length > capacity)
      throw InputError(str("prompt of ", length, " tokens: must have 1 to ", capacity));
  }
  if (options.max_tokens > 0) {
    decoder.warm_up();
    return Generation(decoder, texts, options, events).run();
  }
  for (std::size_t text = 0; text < texts.size(); ++text) events.end(text, Ending::max_tokens);
  if (decoder.has_copies()) events.round();
  return {};
}

}  // namespace megalith::eval
