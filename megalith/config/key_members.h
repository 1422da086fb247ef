#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>

#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

// How rows of the table reach the members that hold a key's value, and convert between what recipes write and what the
// code uses.

namespace megalith::config {

/// As recipes write an enumeration's values, in the order of the enumerators.
template <class Enum>
inline constexpr std::array<std::string_view, 0> kNamesOf{};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Device> = {"cpu", "cuda"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<comm::Transport> = {"copy_engines", "kernels"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<TpOverlap> = {"auto", "halves", "none"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<ops::GemmChoice> = {"timed", "heuristic"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<ops::NonFinite> = {"stop", "skip"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<ops::OnSpike> = {"report", "skip"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<optim::DecayCurve> = {"constant", "linear", "cosine", "wsd",
                                                                                "inverse_sqrt"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<optim::OptimizerType> = {"adamw", "muon"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<optim::MuonScale> = {"match_rms_adamw", "original"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<optim::MomentType> = {"f32", "bf16"};
template <>
inline constexpr auto kNamesOf<ShardedState> = kShardedStateNames;
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<checkpoint::OnCorrupt> = {"fail", "previous"};
template <>
inline constexpr auto kNamesOf<capture::GraphMode> = capture::kGraphModeNames;
template <>
inline constexpr auto kNamesOf<capture::GraphsPer> = capture::kGraphsPerNames;
template <>
inline constexpr auto kNamesOf<nn::RecomputeMode> = nn::kRecomputeModeNames;
template <>
inline constexpr auto kNamesOf<nn::Fp8Skip> = nn::kFp8SkipNames;
template <>
inline constexpr auto kNamesOf<nn::Fp8Experts> = nn::kFp8ExpertsNames;
template <>
inline constexpr auto kNamesOf<nn::RecomputeMethod> = nn::kRecomputeMethodNames;

template <>
inline constexpr auto kNamesOf<nn::NormKind> = nn::kNormKindNames;
template <>
inline constexpr auto kNamesOf<nn::NormPlacement> = nn::kNormPlacementNames;
template <>
inline constexpr auto kNamesOf<nn::PositionKind> = nn::kPositionKindNames;
template <>
inline constexpr auto kNamesOf<nn::QkNorm> = nn::kQkNormNames;
template <>
inline constexpr auto kNamesOf<nn::Activation> = nn::kActivationNames;
template <>
inline constexpr auto kNamesOf<nn::Biases> = nn::kBiasesNames;
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<ops::RouterScore> = {"softmax", "sigmoid"};
template <>
inline constexpr auto kNamesOf<data::SentenceOrder> = data::kSentenceOrderNames;
template <>
inline constexpr auto kNamesOf<data::DataFormat> = data::kDataFormatNames;
template <>
inline constexpr auto kNamesOf<data::ChatTooLong> = data::kChatTooLongNames;
template <>
inline constexpr auto kNamesOf<nn::AuxScope> = nn::kAuxScopeNames;
template <>
inline constexpr auto kNamesOf<nn::ExpertCapacity> = nn::kExpertCapacityNames;
template <>
inline constexpr auto kNamesOf<nn::ExpertGemm> = nn::kExpertGemmNames;
template <>
inline constexpr auto kNamesOf<nn::ExpertDispatcher> = nn::kExpertDispatcherNames;
template <>
inline constexpr auto kNamesOf<nn::RowOverflow> = nn::kRowOverflowNames;
template <>
inline constexpr auto kNamesOf<ops::EchoBalance> = nn::kEchoBalanceNames;
template <>
inline constexpr auto kNamesOf<nn::EchoWeights> = nn::kEchoWeightsNames;
template <>
inline constexpr auto kNamesOf<nn::EchoBackend> = nn::kEchoBackendNames;
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<ops::DropBy> = {"position", "probability"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<ops::RopeScaling> = {"none", "linear", "llama3"};

/// A value as the plan holds it.
template <class To, class From>
void convert_to_plan(To& to, const From& from) {
  if constexpr (std::is_same_v<To, From>) {
    to = from;
  } else if constexpr (std::is_same_v<To, Sharding>) {
    to = from ? Sharding::optimizer : Sharding::none;
  } else if constexpr (std::is_same_v<To, nn::RankCapacity>) {
    to = nn::RankCapacity::of(from).value_or(nn::RankCapacity{});  // check_bounds() has reported others
  } else if constexpr (std::is_same_v<To, std::optional<BatchRamp>>) {
    to = BatchRamp::of(from);  // check_bounds() has reported others
  } else if constexpr (std::is_same_v<To, model::Tying>) {
    to = from ? model::Tying::tied : model::Tying::untied;
  } else if constexpr (std::is_enum_v<To>) {
    static_assert(!kNamesOf<To>.empty(), "the enumeration has no names");
    to = static_cast<To>(std::ranges::find(kNamesOf<To>, from) - kNamesOf<To>.begin());  // bounds were checked
  } else {
    to = static_cast<To>(from);
  }
}

/// A value as a recipe writes it. Empty texts and lists are left out.
template <class To, class From>
void convert_to_recipe(std::optional<To>& to, const From& from) {
  if constexpr (std::is_same_v<From, capture::ScopeSet>) {
    to = from.names();
  } else if constexpr (std::is_same_v<From, nn::RecomputeConfig>) {
    to = from.modules();
  } else if constexpr (std::is_same_v<From, nn::RankCapacity>) {
    to = from.text();
  } else if constexpr (std::is_same_v<From, std::optional<BatchRamp>>) {
    if (from) to = from->text();
  } else if constexpr (std::is_same_v<From, Sharding>) {
    to = from == Sharding::optimizer;
  } else if constexpr (std::is_same_v<From, model::Tying>) {
    to = from == model::Tying::tied;
  } else if constexpr (std::is_enum_v<From>) {
    to = std::string(kNamesOf<From>.at(static_cast<std::size_t>(from)));
  } else if constexpr (requires { from.empty(); }) {
    if (!from.empty()) to = from;
  } else {
    to = static_cast<To>(from);
  }
}

/// A key that only resolve() reads: it is no part of the plan.
template <class Asked>
KeyMembers asked_only(Asked) {
  return {.asked = [](RunConfig& config) -> AskedValue { return &Asked{}(config); }, .put = nullptr, .get = nullptr};
}

/// A key whose value resolve() puts into the plan itself.
template <class Asked, class Planned>
KeyMembers derived(Asked, Planned) {
  return {.asked = [](RunConfig& config) -> AskedValue { return &Asked{}(config); },
          .put = nullptr,
          .get = [](const RunPlan& plan, RunConfig& config) { convert_to_recipe(Asked{}(config), Planned{}(plan)); }};
}

/// A key whose value is held as it is. `Asked` and `Planned` are lambdas that return the member of a RunConfig and of a
/// RunPlan.
template <class Asked, class Planned>
KeyMembers at(Asked asked, Planned planned) {
  KeyMembers members = derived(asked, planned);
  members.put = [](const RunConfig& config, RunPlan& plan) {
    if (const auto& value = Asked{}(config)) convert_to_plan(Planned{}(plan), *value);
  };
  return members;
}

/// The same where both members have the same path.
template <class Both>
KeyMembers at(Both both) {
  return at(both, both);
}

}  // namespace megalith::config
