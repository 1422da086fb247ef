#include "megalith/tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include <pcre2.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"

namespace megalith::tokenizer {
namespace {

// Limits of one match: about 0.1 s, and the memory of the interpreter if a match is too long for the JIT's stack.
constexpr std::uint32_t kMaxSteps = 10'000'000;
constexpr std::uint32_t kMaxMemoryKib = 1 << 20;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// A compiled pattern. It is anchored if every character begins some piece: then the pieces follow each other without
/// gaps.
std::shared_ptr<void> compile(const CompiledRule& rule) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::shared_ptr<pcre2_compile_context> context(pcre2_compile_context_create(nullptr),
                                                       pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // the one character that a point does not match
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rule.pcre2.data()), rule.pcre2.size(),
                                   PCRE2_UTF | (rule.covers_all ? PCRE2_ANCHORED : 0), &error, &offset, context.get());
  if (code == nullptr) throw InputError(str("must be a pattern that PCRE2 takes: ", pcre2_message(error)));
  const std::shared_ptr<void> owner(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  pcre2_jit_compile(
      code,
      PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);  // without JIT pcre2_match interprets: the same pieces, slower
  return owner;
}

/// Whether the pattern (in PCRE2's syntax) has \G or \K: then a match may begin elsewhere than at the start of the
/// search.
bool moves_begin(std::string_view pattern) {
  for (std::size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') continue;
    ++i;
    if (pattern[i] == 'G' || pattern[i] == 'K') return true;
  }
  return false;
}

/// PCRE2 returns the length of the longest lookbehind; nested lookbehinds add up. ^ is no lookbehind but reads one
/// character more. One character also shows \A that it is not at the beginning.
std::size_t look_back_of(const pcre2_code* code, std::string_view pattern) {
  std::uint32_t longest = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MAXLOOKBEHIND, &longest);
  std::size_t count = 1;
  for (std::size_t at = pattern.find("(?<"); at != std::string_view::npos; at = pattern.find("(?<", at + 1)) ++count;
  return count * std::max<std::size_t>(longest, 1);
}

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<SplitRule>& rules) {
  for (const SplitRule& rule : rules) {
    const CompiledRule compiled = compile_rule(rule);
    std::shared_ptr<void> code = compile(compiled);
    std::uint32_t matches_empty = 0;
    pcre2_pattern_info(static_cast<const pcre2_code*>(code.get()), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    const std::size_t look_back = look_back_of(static_cast<const pcre2_code*>(code.get()), compiled.pcre2);
    stages_.push_back({std::move(code), rule.behavior, rule.invert, matches_empty != 0, look_back});
    if (moves_begin(compiled.pcre2)) can_stream_ = false;
    // `blanks` is the narrower of the two, and `nowhere` the narrowest.
    if (cut_ == CompiledRule::Cut::white_space || compiled.cut == CompiledRule::Cut::nowhere) cut_ = compiled.cut;
  }
  if (stages_.empty()) {  // the text is one piece
    cut_ = CompiledRule::Cut::nowhere;
    can_stream_ = false;
  }
}

bool PreTokenizer::is_cut(std::string_view text, std::size_t p) const {
  // Before white space after another character. A piece always ends there, whatever follows, and the next piece
  // depends only on what follows. ASCII white space is enough to find such a place in real text.
  const char c = text[p];
  const bool is_blank = c == ' ' || c == '\t';
  const bool is_place = cut_ == CompiledRule::Cut::white_space ? is_blank || (c >= '\n' && c <= '\r')
                        : cut_ == CompiledRule::Cut::blanks    ? is_blank
                                                               : false;
  return is_place && !ends_in_white_space(text, p);
}

std::size_t PreTokenizer::next_cut(std::string_view text, std::size_t from) const {
  if (cut_ == CompiledRule::Cut::nowhere) return text.size();
  for (std::size_t p = std::max<std::size_t>(from, 1); p < text.size(); ++p)
    if (is_cut(text, p)) return p;
  return text.size();
}

std::string PreTokenizer::unicode_version() {
  std::array<PCRE2_UCHAR, 64> text{};  // the library needs 24
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text.data());
  return reinterpret_cast<const char*>(text.data());
}

PreTokenizer::Match::Match(const PreTokenizer& owner) {
  for (const Stage& stage : owner.stages_) {
    pcre2_match_data* data =
        pcre2_match_data_create_from_pattern(static_cast<const pcre2_code*>(stage.code.get()), nullptr);
    if (data == nullptr) throw std::bad_alloc();
    data_.emplace_back(data, [](void* p) { pcre2_match_data_free(static_cast<pcre2_match_data*>(p)); });
  }
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  if (context == nullptr) throw std::bad_alloc();
  context_ = {context, [](void* p) { pcre2_match_context_free(static_cast<pcre2_match_context*>(p)); }};
  pcre2_set_match_limit(context, kMaxSteps);
  pcre2_set_heap_limit(context, kMaxMemoryKib);
}

PreTokenizer::Found PreTokenizer::find(std::size_t stage, std::string_view text, std::size_t begin, Match& match,
                                       bool ends, std::size_t before) const {
  auto* data = static_cast<pcre2_match_data*>(match.data_[stage].get());
  auto* context = static_cast<pcre2_match_context*>(match.context_.get());
  const auto* code = static_cast<const pcre2_code*>(stages_[stage].code.get());
  const auto match_with = [&](std::uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                       PCRE2_NO_UTF_CHECK | options | (ends ? 0 : PCRE2_PARTIAL_HARD), data, context);
  };
  int result = match_with(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match_with(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return {text.size(), text.size(), false};
  const PCRE2_SIZE* place = pcre2_get_ovector_pointer(data);
  if (result == PCRE2_ERROR_PARTIAL) return {place[0], text.size(), false, true};
  if (result <= 0 || place[1] < place[0])
    throw InputError(str("[split pattern ", stage, "] no match at byte ", before + begin, " of a text of ",
                         before + text.size(), ": ",
                         result <= 0 ? pcre2_message(result) : std::string("it would end before its begin"),
                         "; the pattern tries too many ways to match this text"));
  return {place[0], place[1], true};
}

}  // namespace megalith::tokenizer
