#pragma once
#include <string_view>

/// The files of megalith/report/page, as megalith/report/CMakeLists.txt compiles them into the program.
namespace megalith::apps::page_text {

extern const std::string_view kHtml, kChartStyle, kPageStyle, kCharts, kPictures, kPage;

}  // namespace megalith::apps::page_text
