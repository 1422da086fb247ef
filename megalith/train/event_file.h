#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/log_file.h"

namespace megalith::train {

/// A named number of one step.
struct Scalar {
  std::string tag;
  double value = 0;
};

/// TensorBoard's event file: records of TensorFlow's tfrecord format (length and data, each with a masked CRC-32C) that
/// hold Event messages. Every start of a run makes its own file. It makes TensorBoard drop what an earlier one logged
/// after the step from which this run continues.
/// Source: tensorflow/core/util/event.proto, framework/summary.proto, lib/io/record_writer.h.
class EventFile {
 public:
  /// Creates FOLDER/events.out.tfevents.<seconds>.<host>.<pid>. Throws IoError.
  EventFile(io::Fs& fs, const io::Path& folder, Index resumed_step);
  void write(Index step, const std::vector<Scalar>& scalars);

 private:
  io::LogFile file_;
};

/// CRC-32C (Castagnoli) of the bytes, as in RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace megalith::train
