#include "megalith/nn/task_head.h"

#include <gtest/gtest.h>

#include "tests/nn/layer_harness.h"

// Heads of fine-tuning tasks: gradients against central differences, and grids against one rank, in f64.
namespace megalith {
namespace {

using nn::TaskForm;
using support::Gathered;
using support::LayerParams;
using support::SmallMicrobatch;

constexpr Index kTaskHidden = 4, kTaskSeqLen = 4, kTaskBatch = 2, kTaskTokens = kTaskBatch * kTaskSeqLen;

nn::TaskHeadSpec task_spec(TaskForm form, double dropout = 0) {
  return {.form = form, .classes = form == TaskForm::choices ? 2 : 3, .dropout = dropout, .dropout_site = 7};
}

/// Two sequences of four tokens, the second with a token of padding.
struct TaskCase {
  explicit TaskCase(TaskForm asked) : form(asked) {}
  TaskForm form;
  std::int32_t rows[kTaskBatch] = {0, 4}, row_of[kTaskTokens] = {0, -1, -1, -1, 1, -1, -1, -1},
               lengths[kTaskBatch] = {4, 3}, classes[kTaskBatch] = {2, 0}, choice[1] = {1},
               places[2 * kTaskBatch] = {1, 0, 3, 2};
  double sums[2] = {};

  Tensor labels() {
    if (form == TaskForm::spans) return {places, {2 * kTaskBatch}, DType::i32};
    return form == TaskForm::choices ? Tensor(choice, {1}, DType::i32) : Tensor(classes, {kTaskBatch}, DType::i32);
  }
  nn::HeadInputs inputs() {
    return {.targets = {},
            .loss_sums = Tensor(sums, {2}, DType::f64),
            .rows = Tensor(rows, {kTaskBatch}, DType::i32),
            .row_of = Tensor(row_of, {kTaskTokens}, DType::i32),
            .labels = labels()};
  }
  nn::Microbatch of(SmallMicrobatch& small) {
    nn::Microbatch microbatch = small.get();
    microbatch.lengths = Tensor(lengths, {kTaskBatch}, DType::i32);
    return microbatch;
  }
};

LayerParams task_params(const nn::TaskHeadSpec& spec, bool has_norm, const nn::TensorParallel& tp) {
  std::vector<ParamSpec> specs;
  if (has_norm) nn::Norm::declare(specs, nn::NormSpec{"norm"}, kTaskHidden, tp);
  nn::TaskHead::declare(specs, spec, {.hidden_size = kTaskHidden}, tp.group());
  return LayerParams(std::move(specs));
}

nn::TaskHead make_task_head(const nn::TaskHeadSpec& spec, bool has_norm, const nn::TensorParallel& tp,
                            LayerParams& layer) {
  return {spec, tp, layer.params, has_norm ? std::optional(nn::Norm(nn::NormSpec{"norm"}, layer.params)) : std::nullopt,
          17};
}

/// The norm's bias adds the same to the numbers of all tokens, between which a span is chosen: its gradient is 0, but
/// for rounding.
bool is_without_gradient(TaskForm form, const Param& param) {
  return form == TaskForm::spans && param.name() == "norm.bias";
}

void check_task_head(const nn::TaskHeadSpec& spec, bool has_norm) {
  SCOPED_TRACE(str("form ", static_cast<int>(spec.form), ", dropout ", spec.dropout, has_norm ? ", norm" : ""));
  comm::run_ranks(1, [&](comm::World& world) {
    const nn::TensorParallel tp = support::whole_rows(world.all());
    LayerParams layer = task_params(spec, has_norm, tp);
    const nn::TaskHead head = make_task_head(spec, has_norm, tp, layer);
    SmallMicrobatch small{.seq_len = kTaskSeqLen};
    TaskCase one(spec.form);
    const nn::Microbatch microbatch = one.of(small);
    Exec ex;
    const Tensor x = support::random_tensor(ex, {kTaskTokens, kTaskHidden}, 1),
                 dx = ex.tensor({kTaskTokens, kTaskHidden}, DType::f64);
    const std::unique_ptr<nn::Head::Saved> saved = head.make_saved();
    head.forward(ex, microbatch, x, one.inputs(), *saved);
    head.backward(ex, microbatch, one.inputs(), *saved, {dx});
    const auto scaled_loss = [&] {
      Exec scratch;
      const std::unique_ptr<nn::Head::Saved> ignored = head.make_saved();
      std::ranges::fill(one.sums, 0);
      head.forward(scratch, microbatch, x, one.inputs(), *ignored);
      return one.sums[0] * small.state.loss_scale;
    };
    constexpr double kTolerance = 1e-7;  // of central differences, as in finite_difference_test.cpp
    EXPECT_GT(scaled_loss(), 0);
    EXPECT_LT(support::relative_error(support::values_of(dx), support::numeric_gradient(x, scaled_loss)), kTolerance);
    for (const ParamBuffer& buffer : layer.params.trained()) {
      for (const Param& param : buffer.params()) {
        if (is_without_gradient(spec.form, param)) {
          for (const double value : support::values_of(param.grad)) EXPECT_NEAR(value, 0, 1e-15);
          continue;
        }
        EXPECT_LT(support::relative_error(support::values_of(param.grad),
                                          support::numeric_gradient(param.value, scaled_loss)),
                  kTolerance)
            << param.name();
      }
    }
  });
}

TEST(TaskHead, GradientsAreThoseOfDifferences) {
  for (const TaskForm form : {TaskForm::classes, TaskForm::choices, TaskForm::spans}) {
    check_task_head(task_spec(form), true);
    check_task_head(task_spec(form), false);
    if (form != TaskForm::spans) check_task_head(task_spec(form, 0.5), true);
  }
}

/// Everything that one head on whole rows gives for a batch in an evaluation.
struct Evaluated {
  std::vector<double> numbers, of_rows;
  double loss = 0, right = 0;
};
Evaluated evaluate_task_head(TaskCase& one) {
  Evaluated result;
  comm::run_ranks(1, [&](comm::World& world) {
    const nn::TaskHeadSpec spec = task_spec(one.form, 0.5);
    const nn::TensorParallel tp = support::whole_rows(world.all());
    LayerParams layer = task_params(spec, true, tp);
    const nn::TaskHead head = make_task_head(spec, true, tp, layer);
    SmallMicrobatch small{.seq_len = kTaskSeqLen};
    nn::Microbatch microbatch = one.of(small);
    microbatch.mode = nn::Mode::evaluate;
    Exec ex;
    const Tensor x = support::random_tensor(ex, {kTaskTokens, kTaskHidden}, 1);
    nn::HeadInputs inputs = one.inputs();
    const Shape shape = one.form == TaskForm::spans     ? Shape{2 * kTaskBatch, kTaskSeqLen}
                        : one.form == TaskForm::choices ? Shape{1, 2}
                                                        : Shape{kTaskBatch, 3};
    inputs.numbers = ex.tensor(shape, DType::f64);
    std::ranges::fill(one.sums, 0);
    head.forward(ex, microbatch, x, inputs, *head.make_saved());
    const double loss = one.sums[0], right = one.sums[1];
    nn::HeadResults results;
    Tensor& of_rows = one.form == TaskForm::spans ? results.row_logits : results.class_logits;
    const Index width = one.form == TaskForm::spans ? 2 : one.form == TaskForm::choices ? 1 : 3;
    of_rows = ex.tensor({kTaskTokens, width}, DType::f64);
    if (one.form == TaskForm::spans)
      head.infer_rows(ex, microbatch, x, inputs, results);
    else
      head.infer_samples(ex, microbatch, x, inputs, results);
    result = {support::values_of(inputs.numbers), support::values_of(of_rows), loss, right};
  });
  return result;
}

TEST(TaskHead, GivesTheNumbersThatItChoosesBy) {
  TaskCase classes(TaskForm::classes), choices(TaskForm::choices), spans(TaskForm::spans);
  const Evaluated of_classes = evaluate_task_head(classes), of_choices = evaluate_task_head(choices),
                  of_spans = evaluate_task_head(spans);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(of_classes.numbers[i], of_classes.of_rows[i], 1e-12);
    EXPECT_NEAR(of_classes.numbers[3 + i], of_classes.of_rows[4 * 3 + i], 1e-12);
  }
  EXPECT_NEAR(of_choices.numbers[0], of_choices.of_rows[0], 1e-12);
  EXPECT_NEAR(of_choices.numbers[1], of_choices.of_rows[4], 1e-12);
  for (std::size_t token = 0; token < 7; ++token) {
    EXPECT_NEAR(of_spans.numbers[token], of_spans.of_rows[2 * token], 1e-12);
    EXPECT_NEAR(of_spans.numbers[8 + token], of_spans.of_rows[2 * token + 1], 1e-12);
  }
  EXPECT_EQ(of_spans.numbers[7], -30000) << "the eighth token is padding";
  EXPECT_EQ(of_spans.numbers[15], -30000);
}

TEST(TaskHead, CountsLikeliestLabelsAndLeavesSamplesWithoutOut) {
  for (const TaskForm form : {TaskForm::classes, TaskForm::spans}) {
    TaskCase one(form);
    const Evaluated all = evaluate_task_head(one);
    const std::size_t columns = form == TaskForm::classes ? 3 : 4, rows = all.numbers.size() / columns;
    const auto likeliest = [&](std::size_t row) {
      const auto begin = all.numbers.begin() + static_cast<std::ptrdiff_t>(row * columns);
      return static_cast<std::int32_t>(std::max_element(begin, begin + static_cast<std::ptrdiff_t>(columns)) - begin);
    };
    std::int32_t* labels = form == TaskForm::classes ? one.classes : one.places;
    for (std::size_t row = 0; row < rows; ++row) labels[row] = likeliest(row);
    EXPECT_EQ(evaluate_task_head(one).right, static_cast<double>(rows));
    labels[0] = (labels[0] + 1) % 3;
    EXPECT_EQ(evaluate_task_head(one).right, static_cast<double>(rows - 1));
    const double loss = evaluate_task_head(one).loss;
    labels[0] = -1;
    const Evaluated without = evaluate_task_head(one);
    EXPECT_EQ(without.right, static_cast<double>(rows - 1));
    EXPECT_LT(without.loss, loss);
    for (std::size_t row = 0; row < rows; ++row) labels[row] = -1;
    EXPECT_EQ(evaluate_task_head(one).loss, 0);
  }
}

/// Results of a head on a grid, with the rows of dx put together.
void run_task_head(TaskForm form, const comm::Group& group, nn::SequenceParallel sequence_parallel, int sub_batches,
                   Gathered& out) {
  const nn::TaskHeadSpec spec = task_spec(form, 0.25);
  const nn::TensorParallel tp(group, sequence_parallel, sub_batches);
  LayerParams layer = task_params(spec, true, tp);
  const nn::TaskHead head = make_task_head(spec, true, tp, layer);
  SmallMicrobatch small{.seq_len = kTaskSeqLen};
  TaskCase one(form);
  const nn::Microbatch microbatch = one.of(small);
  Exec ex;
  const Tensor all = support::random_tensor(ex, {kTaskTokens, kTaskHidden}, 1);
  const Shape held{tp.rows_outside(kTaskTokens), kTaskHidden};
  const Tensor x = ex.tensor(held, DType::f64), dx = ex.tensor(held, DType::f64);
  const auto for_own_rows = [&](const auto& f) {
    tp.for_blocks(microbatch, {}, [&](const nn::SubBatch& block, const ops::Dropout& at) {
      f(block, at.first_row, block.of(x).dim(0));
    });
  };
  for_own_rows(
      [&](const nn::SubBatch& block, Index first, Index count) { ops::copy(ex, all.rows(first, count), block.of(x)); });
  const std::unique_ptr<nn::Head::Saved> saved = head.make_saved();
  head.forward(ex, microbatch, x, one.inputs(), *saved);
  out.put("sums", one.inputs().loss_sums);
  head.backward(ex, microbatch, one.inputs(), *saved, {dx});
  for_own_rows([&](const nn::SubBatch& block, Index first, Index count) {
    out.put({"dx", {kTaskTokens, kTaskHidden}, {first, 0}, {count, kTaskHidden}}, block.of(dx));
  });
  for (const ParamBuffer& buffer : layer.params.trained()) {
    for (const Param& param : buffer.params()) {
      if (grid::is_partial_along_tp(param.spec.placement))  // the final norm's, of own rows
        comm::all_reduce(ex, group, param.grad, comm::Reduce::sum).wait(ex);
      if (!is_without_gradient(form, param)) out.put(param.spec.slice, param.without_padding(param.grad));
    }
  }
}

TEST(TaskHead, GridsMatchOneRank) {
  for (const TaskForm form : {TaskForm::classes, TaskForm::choices, TaskForm::spans}) {
    Gathered want;
    comm::run_ranks(1,
                    [&](comm::World& world) { run_task_head(form, world.all(), nn::SequenceParallel::off, 1, want); });
    for (const int ranks : {2, 4}) {
      for (const auto sequence_parallel : {nn::SequenceParallel::off, nn::SequenceParallel::on}) {
        for (const int sub_batches : {1, 2}) {
          Gathered got;
          comm::run_ranks(ranks, [&](comm::World& world) {
            run_task_head(form, world.all(), sequence_parallel, sub_batches, got);
          });
          ASSERT_EQ(got.tensors().size(), want.tensors().size());
          EXPECT_TRUE(got.disagreeing().empty()) << *got.disagreeing().begin() << ": ranks have different values";
          for (const auto& [name, values] : want.tensors())
            EXPECT_LT(support::relative_error(got.at(name), values), 1e-12)
                << name << ", " << ranks << " ranks, " << sub_batches << " sub-microbatches, form "
                << static_cast<int>(form);
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith
