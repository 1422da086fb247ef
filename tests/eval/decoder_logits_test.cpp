// Logits with a key/value cache against those of passes over whole windows without one.
#include <gtest/gtest.h>

#include "tests/eval/small_decoder.h"

namespace megalith::eval {
namespace {

using Logits = std::vector<double>;

constexpr double kTolerance = 1e-11;  // f64, of logits of about 10

void expect_near(std::span<const double> got, std::span<const double> want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t v = 0; v < want.size(); ++v) ASSERT_NEAR(got[v], want[v], kTolerance) << "id " << v;
}

/// Checks what generate() draws a text's tokens from, of windows that lose `slide` tokens where they are full.
void expect_text(WholeModel& whole, const TextRequest& request, const GenerateOptions& options,
                 const std::vector<Logits>& got, const Ids& tokens) {
  Ids ids = request.prompt;
  std::size_t begin = 0;
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    SCOPED_TRACE(testing::Message() << "token " << n << " after a window of " << ids.size() - begin);
    if (ids.size() - begin > static_cast<std::size_t>(whole.config().seq_len))
      begin += static_cast<std::size_t>(options.slide);
    const std::span<const double> want = whole.last_logits(std::span(ids).subspan(begin));
    expect_near(got[n], want);
    const double uniform = uniform_of(request, options.seed, static_cast<Index>(ids.size()));
    EXPECT_EQ(tokens[n], draw(want, options, uniform));
    ids.push_back(tokens[n]);
  }
}

TEST(DecoderLogits, WindowsThatSlideAreReadAsByPassesWithoutACache) {
  constexpr Index kSeqLen = 12;
  // The windows of two texts are full at different times, and the third text gets a slot that others have used.
  const std::vector<TextRequest> requests = {{.prompt = {3, 1, 4, 1, 5}}, {.prompt = Ids(12, 7)}, {.prompt = {9, 2}}};
  for (const model::ModelConfig& config : kinds(kSeqLen)) {
    for (const Index slide : {1, 2, 5, 11, 12}) {
      SCOPED_TRACE(testing::Message() << config.family << ", slide " << slide);
      const GenerateOptions options{.max_tokens = 40, .seed = 11, .slide = slide};
      std::vector<std::vector<Logits>> logits(requests.size());
      std::vector<Ids> tokens(requests.size());
      with_decoder(config, {.slots = 2}, [&](Decoder& decoder, int) {
        generate(decoder, requests, options,
                 {.logits = [&](std::size_t text,
                                std::span<const double> all) { logits[text].emplace_back(all.begin(), all.end()); },
                  .token =
                      [&](std::size_t text, std::int32_t id) {
                        tokens[text].push_back(id);
                        return true;
                      }});
      });
      with_whole_model(config, DType::f64, [&](WholeModel& whole) {
        for (std::size_t i = 0; i < requests.size(); ++i) {
          ASSERT_EQ(tokens[i].size(), 40u);
          ASSERT_EQ(logits[i].size(), 40u);
          expect_text(whole, requests[i], options, logits[i], tokens[i]);
        }
      });
    }
  }
}

// The CPU reads keys for up to 8 query heads at once: here a kv head has 10 and 20.
TEST(DecoderLogits, ManyQueryHeadsOfAKvHead) {
  for (const auto& [heads, kv_heads] : {std::pair{20, 2}, {20, 1}, {34, 2}}) {
    model::ModelConfig config = small(model::llama_defaults(), 40);
    config.num_heads = heads;
    config.num_kv_heads = kv_heads;
    config.head_dim = 6;
    config.tying = model::Tying::untied;
    Ids ids;
    for (std::int32_t i = 0; i < 40; ++i) ids.push_back(i * i % 61);
    for (const int tp : {1, 2}) {
      if (kv_heads % tp != 0) continue;
      SCOPED_TRACE(testing::Message() << heads << " query heads of " << kv_heads << " kv heads, tp " << tp);
      std::vector<Logits> got;
      with_decoder(config, {.tp = tp}, [&](Decoder& decoder, int rank) {
        const auto keep = [&](std::span<const double> all) {
          if (rank == 0) got.emplace_back(all.begin(), all.end());
        };
        keep(decoder.start(0, std::span(ids).first(1)));
        for (std::size_t n = 1; n < ids.size(); ++n) keep(decoder.step(Ids{ids[n]}, Ids{static_cast<std::int32_t>(n)}));
      });
      ASSERT_EQ(got.size(), ids.size());
      with_whole_model(config, DType::f64, [&](WholeModel& whole) {
        for (std::size_t n = 0; n < ids.size(); ++n) {
          SCOPED_TRACE(n);
          expect_near(got[n], whole.last_logits(std::span(ids).first(n + 1)));
        }
      });
    }
  }
}

}  // namespace
}  // namespace megalith::eval
