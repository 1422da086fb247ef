// Text with a key/value cache: as without one, alone as beside others, and on every grid.
#include "megalith/eval/decoder.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/eval/generate.h"
#include "megalith/ops/grouped_matmul.h"

#include "tests/eval/small_decoder.h"

namespace megalith::eval {
namespace {

/// The new tokens of every text, which all ranks of a copy must have alike. Copies share texts out in turn.
std::vector<Ids> texts_of(const model::ModelConfig& config, const Setting& setting,
                          const std::vector<TextRequest>& requests, const GenerateOptions& options) {
  const auto copies = static_cast<std::size_t>(setting.copies);
  std::vector<std::vector<Ids>> of_rank(static_cast<std::size_t>(setting.ranks()), std::vector<Ids>(requests.size()));
  const auto copy_of = [&](std::size_t rank) {
    return rank / static_cast<std::size_t>(setting.tp) % copies;  // order tp, dp, pp
  };
  with_decoder(config, setting, [&](Decoder& decoder, int rank) {
    std::vector<Ids>& texts = of_rank[static_cast<std::size_t>(rank)];
    const std::size_t copy = copy_of(static_cast<std::size_t>(rank));
    std::vector<TextRequest> mine;
    for (std::size_t i = copy; i < requests.size(); i += copies) mine.push_back(requests[i]);
    generate(decoder, mine, options, {.token = [&](std::size_t text, std::int32_t id) {
               texts[copy + text * copies].push_back(id);
               return true;
             }});
  });
  std::vector<Ids> all(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    bool is_first = true;
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
      if (copy_of(rank) != i % copies) {
        EXPECT_TRUE(of_rank[rank][i].empty());
        continue;
      }
      if (is_first) all[i] = of_rank[rank][i];
      is_first = false;
      EXPECT_EQ(of_rank[rank][i], all[i]) << "rank " << rank << ", text " << i;
    }
  }
  return all;
}

/// The text by a pass over the window for each token.
Ids text_without_cache(const model::ModelConfig& config, DType dtype, const TextRequest& request,
                       const GenerateOptions& options) {
  Ids ids = request.prompt;
  with_whole_model(config, dtype, [&](WholeModel& model) {
    for (Index n = 0; n < options.max_tokens; ++n) {
      const std::size_t length = std::min(ids.size(), static_cast<std::size_t>(config.seq_len));
      const double uniform = uniform_of(request, options.seed, static_cast<Index>(ids.size()));
      ids.push_back(draw(model.last_logits(std::span(ids).last(length)), options, uniform));
    }
  });
  return {ids.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), ids.end()};
}

const TextRequest kRequest{.prompt = {3, 1, 4, 1, 5}};

TEST(Decoder, TextIsThatOfPassesWithoutACache) {
  constexpr Index kSeqLen = 40;
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const model::ModelConfig& config : kinds(kSeqLen)) {
      for (const double temperature : {0.0, 1.0}) {
        const GenerateOptions options{.max_tokens = kSeqLen - 5 + 300, .temperature = temperature, .seed = 11};
        const Ids want = text_without_cache(config, dtype, kRequest, options);
        EXPECT_EQ(texts_of(config, {.dtype = dtype}, {kRequest}, options).front(), want)
            << config.family << ", " << name_of(dtype) << ", temperature " << temperature;
        if (config.tying == model::Tying::untied) {
          EXPECT_GT(std::set<std::int32_t>(want.begin(), want.end()).size(), temperature == 0 ? 1u : 10u);
        }
      }
    }
  }
}

TEST(Decoder, LogitsAreThoseOfAPassOverTheWholeWindow) {
  for (const model::ModelConfig& config : kinds(70)) {
    Ids ids;
    for (std::int32_t i = 0; i < 70; ++i) ids.push_back(i * i % 61);
    std::vector<std::vector<double>> want, got;
    const auto keep = [](std::vector<std::vector<double>>& to, std::span<const double> logits) {
      to.emplace_back(logits.begin(), logits.end());
    };
    with_decoder(config, {}, [&](Decoder& decoder, int) {
      for (std::size_t n = 1; n <= ids.size(); ++n) keep(want, decoder.start(0, std::span(ids).first(n)));
    });
    with_decoder(config, {.slots = 3}, [&](Decoder& decoder, int) {
      keep(got, decoder.start(1, std::span(ids).first(1)));
      for (std::size_t n = 1; n < ids.size(); ++n) {
        const auto at = static_cast<std::int32_t>(n);
        const std::span<const double> all = decoder.step(Ids{0, ids[n], 9}, Ids{0, at, 0});
        keep(got, all.subspan(61, 61));
      }
    });
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t n = 0; n < got.size(); ++n) {
      for (std::size_t v = 0; v < 61; ++v) EXPECT_NEAR(got[n][v], want[n][v], 1e-11) << n << ", " << v;
    }
  }
}

std::vector<TextRequest> seven_prompts() {
  std::vector<TextRequest> requests;
  for (const std::size_t length : {5, 1, 23, 12, 32, 2, 9}) {
    TextRequest request;
    for (std::size_t i = 0; i < length; ++i)
      request.prompt.push_back(static_cast<std::int32_t>((i * i + 7 * length) % 61));
    requests.push_back(request);
  }
  requests.back() = requests.front();  // another sample of the first
  requests.back().sample = 1;
  return requests;
}

TEST(Decoder, SevenPromptsGiveWhatEachGivesAlone) {
  const std::vector<TextRequest> requests = seven_prompts();
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const model::ModelConfig& config : kinds(32)) {
      const GenerateOptions options{.max_tokens = 40, .seed = 5, .slide = 7};
      const std::vector<Ids> want = texts_of(config, {.dtype = dtype, .slots = 7}, requests, options);
      EXPECT_NE(want.front(), want.back()) << "samples differ";
      for (std::size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(texts_of(config, {.dtype = dtype}, {requests[i]}, options).front(), want[i]) << i;
      for (const Index slots : {1, 3})
        EXPECT_EQ(texts_of(config, {.dtype = dtype, .slots = slots}, requests, options), want);
      std::vector<TextRequest> reversed(requests.rbegin(), requests.rend());
      std::vector<Ids> texts = texts_of(config, {.dtype = dtype, .slots = 2}, reversed, options);
      std::ranges::reverse(texts);
      EXPECT_EQ(texts, want);
    }
  }
}

TEST(Decoder, EveryGridGivesTheSameText) {
  const std::vector<TextRequest> requests = seven_prompts();
  for (const model::ModelConfig& config : kinds(32)) {
    for (const double temperature : {0.0, 1.0}) {
      const GenerateOptions options{.max_tokens = 40, .temperature = temperature, .seed = 5, .slide = 5};
      const std::vector<Ids> want = texts_of(config, {.slots = 3}, requests, options);
      for (const auto& [tp, pp] : {std::pair{2, 1}, {1, 2}, {1, 3}, {2, 2}}) {
        EXPECT_EQ(texts_of(config, {.slots = 3, .tp = tp, .pp = pp}, requests, options), want)
            << config.family << ", tp " << tp << ", pp " << pp << ", temperature " << temperature;
      }
    }
  }
}

/// How far the likeliest logit is above the second, before each new token of a text; in f32 on one rank.
std::vector<double> gaps_of(const model::ModelConfig& config, const TextRequest& request, const Ids& text) {
  std::vector<double> gaps;
  with_decoder(config, {.dtype = DType::f32}, [&](Decoder& decoder, int) {
    Ids ids = request.prompt;
    for (const std::int32_t id : text) {
      const std::span<const double> logits = decoder.start(0, ids);
      std::vector<double> sorted(logits.begin(), logits.end());
      std::ranges::sort(sorted, std::greater<>());
      gaps.push_back(sorted[0] - sorted[1]);
      ids.push_back(id);
    }
  });
  return gaps;
}

// Sums over tp are taken in another order: where two logits are nearer than that, either token may follow.
TEST(Decoder, EveryGridGivesTheSameLikeliestTokensInF32) {
  constexpr double kRounding = 1e-4;
  const std::vector<TextRequest> requests = seven_prompts();
  const GenerateOptions options{.max_tokens = 40, .temperature = 0};
  for (const model::ModelConfig& config : kinds(80)) {
    const std::vector<Ids> want = texts_of(config, {.dtype = DType::f32, .slots = 3}, requests, options);
    std::vector<std::ptrdiff_t> sure;  // the tokens of each text before the first that may be another
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::vector<double> gaps = gaps_of(config, requests[i], want[i]);
      sure.push_back(std::ranges::find_if(gaps, [](double gap) { return gap < kRounding; }) - gaps.begin());
    }
    EXPECT_GT(std::accumulate(sure.begin(), sure.end(), std::ptrdiff_t{0}), 140) << "half of all tokens";
    for (const auto& [tp, pp] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
      const std::vector<Ids> got =
          texts_of(config, {.dtype = DType::f32, .slots = 3, .tp = tp, .pp = pp}, requests, options);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        ASSERT_EQ(got[i].size(), want[i].size());
        EXPECT_EQ(Ids(got[i].begin(), got[i].begin() + sure[i]), Ids(want[i].begin(), want[i].begin() + sure[i]))
            << config.family << ", tp " << tp << ", pp " << pp << ", text " << i;
      }
    }
  }
}

/// Two layers of four with experts, one of them shared.
model::ModelConfig with_experts(Index seq_len) {
  model::ModelConfig config = small(model::llama_defaults(), seq_len);
  config.num_layers = 4;
  config.num_kv_heads = 2;
  config.tying = model::Tying::untied;
  config.moe.num_experts = 4, config.moe.top_k = 2, config.moe.ffn_hidden_size = 8;
  config.moe.pattern = "dm";
  config.moe.shared_ffn_hidden_size = 8;
  return config;
}

struct ExpertGrid {
  int tp = 1, pp = 1, ep = 1, etp = 1, copies = 1;
  bool copies_meet = false;
};
constexpr ExpertGrid kExpertGrids[] = {
    {.copies = 3},
    {.tp = 2, .copies = 2},
    {.tp = 2, .etp = 2, .copies = 2},
    {.tp = 2, .ep = 2, .copies = 2},
    {.ep = 2, .copies = 2, .copies_meet = true},
    {.ep = 4, .copies = 4, .copies_meet = true},
    {.ep = 2, .copies = 4, .copies_meet = true},
    {.etp = 2, .copies = 2, .copies_meet = true},
    {.tp = 2, .ep = 2, .etp = 2, .copies = 2, .copies_meet = true},
    {.pp = 2, .ep = 2, .copies = 2, .copies_meet = true},
};

TEST(Decoder, ExpertsOnEveryGridGiveTheSameText) {
  const std::vector<TextRequest> requests = seven_prompts();
  const model::ModelConfig config = with_experts(32);
  for (const Index max_tokens : {1, 40}) {
    const GenerateOptions options{.max_tokens = max_tokens, .seed = 5, .slide = 5};
    const std::vector<Ids> want = texts_of(config, {.slots = 7}, requests, options);
    EXPECT_NE(want.front(), want.back()) << "samples differ";
    for (const ExpertGrid& grid : kExpertGrids) {
      for (const Index slots : {1, 2}) {
        Setting setting{.tp = grid.tp, .pp = grid.pp, .ep = grid.ep, .etp = grid.etp, .copies = grid.copies};
        setting.slots = round_up(slots, rows_step(config, setting.grid(config)));
        EXPECT_EQ(texts_of(config, setting, requests, options), want)
            << "tp " << grid.tp << ", pp " << grid.pp << ", ep " << grid.ep << ", etp " << grid.etp << ", copies "
            << grid.copies << ", slots " << slots;
      }
    }
  }
}

TEST(Decoder, CopiesThatShareExpertsHaveACacheForThePassesOfOthers) {
  const model::ModelConfig config = with_experts(32);
  for (const ExpertGrid& grid : kExpertGrids) {
    const Setting setting{
        .slots = 4, .tp = grid.tp, .pp = grid.pp, .ep = grid.ep, .etp = grid.etp, .copies = grid.copies};
    with_decoder(config, setting, [&](Decoder& decoder, int) {
      EXPECT_EQ(decoder.copies_meet(), grid.copies_meet) << grid.ep << ' ' << grid.etp;
      EXPECT_EQ(decoder.taken_bytes(), decoder.planned_bytes());
      const Index rows = grid.copies_meet ? 5 : 4, layers = config.num_layers / grid.pp;
      EXPECT_EQ(decoder.taken_bytes().at(kCacheOwner),
                2 * layers * rows * (config.num_kv_heads / grid.tp) * 32 * config.head_width() * 8);
      if (!grid.copies_meet) {
        EXPECT_THROW(decoder.start_of_others(1), InternalError);
      }
    });
  }
}

/// Rank 0 is told of rounds while texts go on, as often as every other rank.
TEST(Generate, CopiesHaveRoundsInCommon) {
  const std::vector<TextRequest> requests = seven_prompts();
  for (const model::ModelConfig& config : {small({}, 128), with_experts(128)}) {
    for (const Index max_tokens : {0, 1, 40}) {
      const bool meet = config.moe.has_experts();
      std::vector<std::vector<Index>> written(2);  // of each rank: tokens before each round
      const Setting setting{.slots = 4, .ep = meet ? 2 : 1, .copies = 2};
      with_decoder(config, setting, [&](Decoder& decoder, int rank) {
        Index tokens = 0;
        const GenerateOptions options{.max_tokens = max_tokens};
        // The second copy has a text less.
        const std::span mine = std::span(requests).subspan(rank == 0 ? 0 : 4, rank == 0 ? 4 : 3);
        generate(decoder, mine, options,
                 {.token =
                      [&](std::size_t, std::int32_t) {
                        ++tokens;
                        return rank == 0 || tokens < 20;
                      },
                  .round = [&] { written[static_cast<std::size_t>(rank)].push_back(tokens); }});
        EXPECT_EQ(written[static_cast<std::size_t>(rank)].back(), tokens) << "one past the last token";
      });
      EXPECT_EQ(written[0].size(), written[1].size());
      if (meet) continue;
      const std::vector<Index> want = max_tokens == 0   ? std::vector<Index>{0}
                                      : max_tokens == 1 ? std::vector<Index>{0, 4}
                                                        : std::vector<Index>{0, 4 * 16, 4 * 32, 4 * 40};
      EXPECT_EQ(written[0], want);
    }
  }
}

TEST(Decoder, StepsFromAGraphGiveTheSameText) {
  const std::vector<TextRequest> requests = seven_prompts();
  for (const model::ModelConfig& config : kinds(32)) {
    const GenerateOptions options{.max_tokens = 40, .seed = 5, .slide = 5};
    const std::vector<Ids> want = texts_of(config, {.slots = 3}, requests, options);
    for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 3}, {2, 3}}) {
      EXPECT_EQ(texts_of(config, {.slots = 3, .tp = tp, .pp = pp, .steps = Steps::from_graph}, requests, options), want)
          << "tp " << tp << ", pp " << pp;
    }
  }
  const model::ModelConfig experts = with_experts(32);
  const GenerateOptions options{.max_tokens = 40, .seed = 5, .slide = 5};
  const std::vector<Ids> want = texts_of(experts, {.slots = 3}, requests, options);
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    const Setting setting{.slots = 3, .tp = tp, .pp = pp, .etp = tp, .steps = Steps::from_graph};
    EXPECT_EQ(texts_of(experts, setting, requests, options), want) << "experts, tp " << tp << ", pp " << pp;
  }
}

TEST(Decoder, StepsAreEagerWhereTheHostReadsCounts) {
  const model::ModelConfig dense = small({}, 8);
  model::ModelConfig experts = with_experts(8);
  const grid::ResolvedSizes one = grid::resolve({});
  EXPECT_EQ(steps_for(dense, {Device::cuda, DType::f32, one}), Steps::from_graph);
  EXPECT_EQ(steps_for(dense, {Device::cpu, DType::f32, one}), Steps::eager);
  EXPECT_EQ(steps_for(experts, {Device::cpu, DType::bf16, one}), Steps::eager);
  EXPECT_EQ(steps_for(experts, {Device::cuda, DType::f32, one}), Steps::eager) << "experts in f32 are a loop";
  // The kernel runs in 16 bits, on Hopper GPUs, in builds that have it; what a plan of another machine assumes.
  const auto with_kernel = ops::grouped_kernel_alignment(Device::cuda, DType::bf16, 16, 8) > 1;
  const Steps want = with_kernel ? Steps::from_graph : Steps::eager;
  EXPECT_EQ(steps_for(experts, {Device::cuda, DType::bf16, one}), want);
  const grid::ResolvedSizes sliced = grid::resolve({.world_size = 2, .tp = 2, .etp = 2});
  EXPECT_EQ(steps_for(experts, {Device::cuda, DType::bf16, sliced}), Steps::eager) << "slices of 4";
  const grid::ResolvedSizes spread = grid::resolve({.world_size = 2, .ep = 2});
  EXPECT_EQ(steps_for(experts, {Device::cuda, DType::bf16, spread}), Steps::eager);
  const Setting sends{.ep = 2, .copies = 2, .steps = Steps::from_graph};
  EXPECT_THROW(with_decoder(experts, sends, [](Decoder&, int) {}), InternalError);
  experts.moe.gemm = nn::ExpertGemm::loop;
  EXPECT_EQ(steps_for(experts, {Device::cuda, DType::bf16, one}), Steps::eager);
}

TEST(Decoder, PlansForTheWindowsThatStart) {
  const std::vector<TextRequest> requests = {{.prompt = Ids(3, 1)}, {.prompt = Ids(40, 2)}, {.prompt = Ids(70, 3)}};
  const GenerateOptions options{.max_tokens = 10, .seed = 5, .slide = 7};
  EXPECT_EQ(window_lengths(requests, options, 79), (std::vector<Index>{3, 40, 70})) << "none slides";
  EXPECT_EQ(window_lengths(requests, options, 78), (std::vector<Index>{3, 40, 70, 72}));
  EXPECT_EQ(window_lengths({}, options, 78), std::vector<Index>{1});
  const model::ModelConfig config = small({}, 78);
  EXPECT_EQ(texts_of(config, {.slots = 2, .lengths = window_lengths(requests, options, 78)}, requests, options),
            texts_of(config, {.slots = 2}, requests, options));
  with_decoder(config, {.lengths = {3}}, [](Decoder& decoder, int) {
    decoder.start(0, Ids(32, 1));
    EXPECT_THROW(decoder.start(0, Ids(70, 1)), InternalError) << "more scratch than was planned";
  });
  EXPECT_THROW(with_decoder(config, {.lengths = {79}}, [](Decoder&, int) {}), InternalError);
}

TEST(Decoder, TakesThePlannedMemoryAndTheCacheOfKvHeadsOnly) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 3}}) {
    for (const model::ModelConfig& config : kinds(40)) {
      with_decoder(config, {.dtype = DType::f32, .slots = 5, .capacity = 33, .tp = tp, .pp = pp},
                   [&config, tp = tp, pp = pp](Decoder& decoder, int) {
                     const Index numbers = 5 * (config.kv_heads() / tp) * 33 * config.head_width();
                     EXPECT_EQ(decoder.planned_bytes().at(kCacheOwner),
                               2 * (3 / pp) * round_up(numbers * 4, kAlignment));
                     EXPECT_EQ(decoder.planned_bytes().at("parameters"), decoder.params().bytes().at("parameters"));
                     EXPECT_EQ(decoder.planned_bytes().count("gradients"), 0u);
                     generate(decoder, seven_prompts(), {.max_tokens = 1},
                              {.token = [](std::size_t, std::int32_t) { return true; }});
                     EXPECT_EQ(decoder.taken_bytes(), decoder.planned_bytes());
                   });
    }
  }
}

TEST(Decoder, RefusesWhatDoesNotFit) {
  const model::ModelConfig config = small({}, 8);
  comm::run_ranks(1, [&](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({}));
    const DecoderConfig fits{.model = config, .capacity = 8};
    DecoderConfig long_ones = fits, none = fits;
    long_ones.capacity = 9;
    none.slots = 0;
    EXPECT_THROW(Decoder(long_ones, world, mesh), InternalError);
    EXPECT_THROW(Decoder(none, world, mesh), InternalError);
  });
  EXPECT_THROW(with_decoder(config, {.pp = 4}, [](Decoder&, int) {}), ConfigError);
  with_decoder(config, {.slots = 2}, [](Decoder& decoder, int) {
    EXPECT_THROW(decoder.start(2, Ids{1}), InternalError);
    EXPECT_THROW(decoder.start(0, Ids(9)), InternalError);
    EXPECT_THROW(decoder.start(0, Ids{}), InternalError);
    EXPECT_THROW(decoder.step(Ids{1}, Ids{0}), InternalError);
    EXPECT_THROW(decoder.start(0, Ids{61}), InputError) << "no such id";
  });
  with_decoder(config, {.slots = 2}, [](Decoder& decoder, int) {
    EXPECT_THROW(decoder.step(Ids{1, 1}, Ids{0, 8}), InputError) << "no such position";
  });
}

struct Ended {
  Ids ids;
  Ending ending = Ending::max_tokens;
  int slides = 0;
};

/// One text with its end, where `token` may refuse.
Ended ended(const GenerateOptions& options, std::size_t refuse_at = 1000) {
  Ended all;
  with_decoder(small({}, 8), {}, [&](Decoder& decoder, int) {
    const std::vector<TextRequest> one = {{.prompt = {1, 2}}};
    const GenerateCounts counts = generate(decoder, one, options,
                                           {.token =
                                                [&](std::size_t, std::int32_t id) {
                                                  all.ids.push_back(id);
                                                  return all.ids.size() < refuse_at;
                                                },
                                            .end = [&](std::size_t, Ending ending) { all.ending = ending; },
                                            .slide = [&](std::size_t) { ++all.slides; }});
    EXPECT_EQ(counts.written, static_cast<Index>(all.ids.size()));
  });
  return all;
}

TEST(Generate, EndsAtTheLimitAtTheStopTokenOrWhereItIsRefused) {
  const Ended all = ended({.max_tokens = 20, .seed = 3});
  EXPECT_EQ(all.ids.size(), 20u);
  EXPECT_EQ(all.ending, Ending::max_tokens);
  EXPECT_EQ(all.slides, 13) << "2 + 20 tokens, of which the last is not read, in a window of 8";
  const Ended stopped = ended({.max_tokens = 20, .seed = 3, .stop_token = all.ids[10]});
  EXPECT_EQ(stopped.ending, Ending::stop_token);
  EXPECT_LE(stopped.ids.size(), 10u);
  EXPECT_EQ(stopped.ids, Ids(all.ids.begin(), all.ids.begin() + static_cast<std::ptrdiff_t>(stopped.ids.size())));
  const Ended refused = ended({.max_tokens = 20, .seed = 3}, 4);
  EXPECT_EQ(refused.ending, Ending::refused);
  EXPECT_EQ(refused.ids, Ids(all.ids.begin(), all.ids.begin() + 4));
  EXPECT_TRUE(ended({.max_tokens = 0}).ids.empty());
  EXPECT_EQ(ended({.max_tokens = 20, .seed = 3, .slide = 4}).slides, 4) << "8, 12, 16 and 20 tokens";
}

TEST(Generate, RefusesPromptsThatDoNotFit) {
  with_decoder(small({}, 8), {}, [](Decoder& decoder, int) {
    const TextEvents events{.token = [](std::size_t, std::int32_t) { return true; }};
    const auto error = [&](const Ids& prompt) -> std::string {
      try {
        generate(decoder, std::vector<TextRequest>{{.prompt = prompt}}, {}, events);
      } catch (const InputError& refused) {
        return refused.what();
      }
      return "";
    };
    EXPECT_EQ(error({}), "prompt of 0 tokens: must have 1 to 8");
    EXPECT_EQ(error(Ids(9)), "prompt of 9 tokens: must have 1 to 8");
    EXPECT_THROW(generate(decoder, {}, {.slide = 9}, events), InternalError);
  });
}

}  // namespace
}  // namespace megalith::eval
