// A kernel of your own in a test of GoogleTest: the grouped product of ragged groups in float32; and a wrong one, which must be
// found.
#include <assay/test.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Close {
    void operator()(assay_test *test) const { assay_test_close(test); }
    void operator()(assay_test_report *report) const { assay_test_report_free(report); }
};
using Test = std::unique_ptr<assay_test, Close>;
using Report = std::unique_ptr<assay_test_report, Close>;

Test open(const char *name, const std::vector<const char *> &sets)
{
    char message[ASSAY_TEST_MESSAGE];
    assay_test_options options{};
    options.sets = sets.data();
    options.set_count = static_cast<int32_t>(sets.size());
    assay_test *test = nullptr;
    if (assay_test_open(name, &options, &test, message) != ASSAY_TEST_OK) ADD_FAILURE() << message;
    return Test(test);
}

assay_backend_tensor given(assay_test *test, const std::string &path)
{
    char message[ASSAY_TEST_MESSAGE];
    assay_backend_tensor tensor{};
    for (int32_t i = 0; i < assay_test_given_count(test); i++) {
        if (assay_test_given(test, i, &tensor, message) != ASSAY_TEST_OK) ADD_FAILURE() << message;
        if (tensor.path == path) return tensor;
    }
    ADD_FAILURE() << "the case has no " << path;
    return {};
}

Report check(assay_test *test, const assay_backend_tensor &result)
{
    char message[ASSAY_TEST_MESSAGE];
    assay_test_report *report = nullptr;
    if (assay_test_check(test, 1, &result, &report, message) != ASSAY_TEST_OK) ADD_FAILURE() << message;
    return Report(report);
}

// The kernel that is tried: y[row] = lhs[row] rhs[group of the row]. `late`: each group gets the first row of the next one.
Report try_kernel(bool late)
{
    const Test test = open("gmm/equal-groups", {"dtype=float32", "gradients=none"});
    const assay_backend_tensor lhs = given(test.get(), "inputs/lhs"), rhs = given(test.get(), "weights/rhs");
    const auto *sizes = static_cast<const int32_t *>(given(test.get(), "inputs/group_sizes").data);
    const auto *a = static_cast<const float *>(lhs.data), *b = static_cast<const float *>(rhs.data);
    const int64_t rows = lhs.dims[0], groups = rhs.dims[0], depth = rhs.dims[1], columns = rhs.dims[2];
    std::vector<float> y(static_cast<size_t>(rows * columns));
    int64_t row = 0, end = 0;
    for (int64_t group = 0; group < groups; group++) {
        end += sizes[group];
        for (; row < end + (late && group + 1 < groups); row++) {
            for (int64_t i = 0; i < depth; i++) {
                const float *weights = b + (group * depth + i) * columns;
                for (int64_t j = 0; j < columns; j++) y[row * columns + j] += a[row * depth + i] * weights[j];
            }
        }
    }
    const int64_t dims[2] = {rows, columns};
    return check(test.get(), {"outputs/y", ASSAY_BACKEND_FLOAT32, 2, dims, y.data()});
}

TEST(GroupedProduct, IsRight)
{
    char message[ASSAY_TEST_MESSAGE];
    const Report report = try_kernel(false);
    EXPECT_EQ(assay_test_report_verdict(report.get()), ASSAY_TEST_PASS)
        << assay_test_report_text(report.get(), 0, 0, message);
}

TEST(GroupedProduct, RowsOfTheNextGroupAreFound)
{
    const Report report = try_kernel(true);
    EXPECT_EQ(assay_test_report_verdict(report.get()), ASSAY_TEST_FAIL);
    EXPECT_STREQ(assay_test_report_first_wrong(report.get()), "outputs/y");
    EXPECT_NE(std::string(assay_test_report_message(report.get())).find("beyond their threshold"), std::string::npos);
}

} // namespace
