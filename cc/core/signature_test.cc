#include "cc/core/signature.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/varint.h"
#include "cc/core/random.h"
#include "cc/core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// ---- bytes of tensorflow.StructuredValue, as protobuf writes them ----

std::string Message(uint32_t field, const std::string& bytes) {
  std::string out;
  AppendVarint(&out, field << 3 | 2);
  AppendVarint(&out, bytes.size());
  return out + bytes;
}

std::string Int(uint32_t field, uint64_t value) {
  std::string out;
  AppendVarint(&out, field << 3);
  AppendVarint(&out, value);
  return out;
}

std::string ShapeProto(const Shape& shape) {
  std::string dims;
  for (const int64_t d : shape) dims += Message(2, Int(1, static_cast<uint64_t>(d)));
  return dims;
}

std::string Leaf(DType dtype, const Shape& shape, uint32_t field = 33) {
  return Message(field, Message(1, "name") + Message(2, ShapeProto(shape)) +
                            Int(3, static_cast<uint64_t>(dtype)));
}

std::string List(const std::vector<std::string>& values, uint32_t field = 51) {
  std::string out;
  for (const std::string& value : values) out += Message(1, value);
  return Message(field, out);
}

std::string Dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out;
  for (const auto& [key, value] : entries) {
    out += Message(1, Message(1, key) + Message(2, value));
  }
  return Message(53, out);
}

std::string NamedTuple(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out = Message(1, "Point");
  for (const auto& [key, value] : entries) {
    out += Message(2, Message(1, key) + Message(2, value));
  }
  return Message(54, out);
}

std::vector<std::string> Paths(const std::string& bytes) {
  std::vector<std::string> paths;
  const Signature signature = Signature::Parse(bytes).value();
  for (const TensorSpec& leaf : signature.leaves) {
    paths.push_back(leaf.path);
  }
  return paths;
}

const std::string kFloat = Leaf(DType::kFloat32, {});

TEST(SignatureParseTest, BareLeafHasTheEmptyPath) {
  const Signature s = Signature::Parse(Leaf(DType::kInt64, {-1, 3})).value();
  ASSERT_EQ(s.leaves.size(), 1u);
  EXPECT_EQ(s.leaves[0], Spec("", DType::kInt64, {-1, 3}));
}

TEST(SignatureParseTest, KeepsTheBytes) {
  const std::string bytes = Dict({{"b", kFloat}, {"a", kFloat}});
  EXPECT_EQ(Signature::Parse(bytes).value().structured_value, bytes);
}

TEST(SignatureParseTest, DictLeavesComeSortedByKey) {
  EXPECT_THAT(Paths(Dict({{"b", kFloat}, {"a", kFloat}, {"B", kFloat}})),
              ElementsAre("B", "a", "b"));
}

TEST(SignatureParseTest, NamedTupleLeavesKeepTheirOrder) {
  EXPECT_THAT(Paths(NamedTuple({{"y", kFloat}, {"x", kFloat}})), ElementsAre("y", "x"));
}

TEST(SignatureParseTest, PathsOfNestedContainers) {
  EXPECT_THAT(
      Paths(Dict({{"obs", Dict({{"camera", List({kFloat, kFloat}, 52)}, {"pose", kFloat}})},
                  {"act", List({Dict({{"k", kFloat}}), kFloat})}})),
      ElementsAre("act[0]/k", "act[1]", "obs/camera[0]", "obs/camera[1]", "obs/pose"));
  EXPECT_THAT(Paths(List({kFloat, List({kFloat})})), ElementsAre("[0]", "[1][0]"));
}

TEST(SignatureParseTest, BoundedSpecsAreSpecs) {
  const Signature s = Signature::Parse(Leaf(DType::kFloat64, {4}, 35)).value();
  EXPECT_EQ(s.leaves[0], Spec("", DType::kFloat64, {4}));
}

TEST(SignatureParseTest, UnknownRank) {
  const std::string bytes = Message(33, Message(2, Int(3, 1)) + Int(3, 1));
  EXPECT_TRUE(Signature::Parse(bytes).value().leaves[0].unknown_rank);
}

TEST(SignatureParseTest, DimensionsOfSizeZeroAreWrittenWithoutTheirSize) {
  const std::string bytes = Message(33, Message(2, Message(2, "")) + Int(3, 1));
  EXPECT_EQ(Signature::Parse(bytes).value().leaves[0].shape, Shape({0}));
}

TEST(SignatureParseTest, RefusesWhatIsNotATensorSpec) {
  for (const std::string& bytes :
       {Message(1, ""), Int(12, 5), Message(13, "text"), Message(34, "typespec"),
        std::string(), List({kFloat, Message(34, "")})}) {
    EXPECT_EQ(Signature::Parse(bytes).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(Signature::Parse(Dict({{"a", Message(34, "")}})).status().message(),
              HasSubstr("'a'"));
}

TEST(SignatureParseTest, RefusesEmptyNestsUnstorableTypesAndBadDimensions) {
  EXPECT_FALSE(Signature::Parse(Dict({})).ok());
  EXPECT_FALSE(Signature::Parse(List({List({})})).ok());
  EXPECT_FALSE(Signature::Parse(Leaf(static_cast<DType>(21), {})).ok());
  EXPECT_FALSE(Signature::Parse(Leaf(DType::kInvalid, {})).ok());
  EXPECT_FALSE(Signature::Parse(Leaf(DType::kFloat32, {-2})).ok());
  EXPECT_FALSE(Signature::Parse(Leaf(DType::kFloat32, Shape(255, 1))).ok());
}

TEST(SignatureParseTest, RefusesDeepNests) {
  std::string bytes = kFloat;
  for (int i = 0; i < 64; ++i) bytes = List({bytes});
  EXPECT_TRUE(Signature::Parse(bytes).ok());
  bytes = List({bytes});
  EXPECT_THAT(Signature::Parse(bytes).status().message(), HasSubstr("64 levels"));
  for (int i = 0; i < 1000; ++i) bytes = List({bytes});
  EXPECT_FALSE(Signature::Parse(bytes).ok());
}

TEST(SignatureParseTest, RefusesPathsThatTogetherTakeTooMuchMemory) {
  const std::vector<std::string> leaves(1000, kFloat);
  EXPECT_FALSE(Signature::Parse(Dict({{std::string(100'000, 'k'), List(leaves)}})).ok());
}

TEST(SignatureParseTest, DamagedBytesNeverCrash) {
  // Seed 31; 20000 mutations of a good value.
  const std::string good = Dict({{"obs", List({kFloat, Leaf(DType::kInt32, {-1, 4})})},
                                 {"act", NamedTuple({{"x", kFloat}})}});
  Random random(31);
  for (size_t cut = 0; cut < good.size(); ++cut) {
    (void)Signature::Parse(good.substr(0, cut)).ok();
  }
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 3; ++k) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Next());
    }
    (void)Signature::Parse(bytes).ok();
  }
}

// ---- paths ----

TEST(PathHasNameTest, PositionsAreNoNames) {
  for (const char* unnamed : {"", "[0]", "[0][12]"}) EXPECT_FALSE(PathHasName(unnamed));
  for (const char* named : {"a", "a[0]", "[0]a", "[1]/x", "[x]", "[]", "[1"}) {
    EXPECT_TRUE(PathHasName(named)) << named;
  }
}

std::vector<TensorSpec> Specs(const std::vector<std::string>& paths) {
  std::vector<TensorSpec> specs;
  for (const std::string& path : paths) specs.push_back(Spec(path, DType::kFloat32, {}));
  return specs;
}

TEST(MatchPathsTest, NamesMatchByPathInAnyOrder) {
  EXPECT_THAT(MatchPaths(Specs({"a", "b/c", "b/d"}), {"b/d", "a", "b/c"}).value(),
              ElementsAre(1, 2, 0));
}

TEST(MatchPathsTest, UnnamedSideMatchesByPosition) {
  EXPECT_THAT(MatchPaths(Specs({"a", "b"}), {"[0]", "[1]"}).value(), ElementsAre(0, 1));
  EXPECT_THAT(MatchPaths(Specs({"[0]", "[1]"}), {"y", "x"}).value(), ElementsAre(0, 1));
  EXPECT_THAT(MatchPaths(Specs({"a"}), {""}).value(), ElementsAre(0));
}

TEST(MatchPathsTest, NamesTheMissingAndTheExtra) {
  const auto message = [](const std::vector<std::string>& signature,
                          const std::vector<std::string>& paths) {
    return MatchPaths(Specs(signature), paths).status().message();
  };
  EXPECT_THAT(message({"obs", "act"}, {"obs"}), HasSubstr("missing: act"));
  EXPECT_THAT(message({"obs"}, {"obs", "z"}), HasSubstr("extra: z"));
  const std::string both = message({"obs", "act"}, {"obs", "z"});
  EXPECT_THAT(both, HasSubstr("missing: act"));
  EXPECT_THAT(both, HasSubstr("extra: z"));
  EXPECT_THAT(message({"a", "b", "c"}, {"[0]"}), HasSubstr("missing: b, c"));
  EXPECT_THAT(message({"a"}, {"[0]", "[1]"}), HasSubstr("extra: [1]"));
  EXPECT_THAT(message({"a"}, {"a", "a"}), HasSubstr("extra: a"));
}

TEST(MatchPathsTest, LongListsAreCutOff) {
  std::vector<std::string> paths;
  for (int i = 0; i < 1000; ++i) paths.push_back("p" + std::to_string(i));
  const std::string message = MatchPaths(Specs({"a"}), paths).status().message();
  EXPECT_LT(message.size(), 500u);
  EXPECT_THAT(message, HasSubstr("and 980 more"));
}

// ---- items ----

using Scope = SignatureScope;

Signature Of(std::vector<TensorSpec> leaves) {
  Signature signature;
  signature.leaves = std::move(leaves);
  return signature;
}

ColumnShape Column(DType dtype, Shape cell, int64_t length, bool squeeze = false) {
  return {dtype, std::move(cell), length, squeeze};
}

// An item of one float32 column of `length` cells of `cell`.
std::vector<ColumnShape> Floats(Shape cell, int64_t length, bool squeeze = false) {
  return {Column(DType::kFloat32, std::move(cell), length, squeeze)};
}

// "ok:" + the scope afterwards, or the message.
std::string Check(const Signature& signature, const std::vector<ColumnShape>& columns,
                  bool steps, Scope scope) {
  const Scope before = scope;
  const Status status = CheckSignature(signature, columns, steps, &scope);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(scope, before) << "a refusal must decide nothing";
    return status.message();
  }
  return std::string("ok:") + SignatureScopeName(scope);
}

const Signature kTrajectorySignature = Of({Spec("x", DType::kFloat32, {-1, 3})});
const Signature kStepSignature = Of({Spec("x", DType::kFloat32, {3})});

TEST(CheckSignatureTest, UndecidedTableTakesTrajectoriesAndIsDecidedByThem) {
  EXPECT_EQ(Check(kTrajectorySignature, Floats({3}, 5), false, Scope::kUndecided),
            "ok:trajectory");
  EXPECT_EQ(Check(kTrajectorySignature, Floats({3}, 5), true, Scope::kUndecided),
            "ok:trajectory");
}

TEST(CheckSignatureTest, StepsOfAStepWriterDecideForSteps) {
  EXPECT_EQ(Check(kStepSignature, Floats({3}, 2), true, Scope::kUndecided), "ok:step");
}

TEST(CheckSignatureTest, SingleStepDecidesNothing) {
  EXPECT_EQ(Check(kStepSignature, Floats({3}, 1), true, Scope::kUndecided), "ok:undecided");
}

TEST(CheckSignatureTest, ItemThatFitsBothScopesDecidesNothing) {
  EXPECT_EQ(
      Check(kStepSignature, Floats({3}, 1, /*squeeze=*/true), false, Scope::kUndecided),
      "ok:undecided");
  TensorSpec any = Spec("x", DType::kFloat32, {});
  any.unknown_rank = true;
  EXPECT_EQ(Check(Of({any}), Floats({3}, 4), false, Scope::kUndecided), "ok:undecided");
}

TEST(CheckSignatureTest, TrajectoryWriterCannotUseAnUndecidedStepSignature) {
  const std::string message =
      Check(kStepSignature, Floats({3}, 2), false, Scope::kUndecided);
  EXPECT_THAT(message, HasSubstr("differs: x got float32[2,3] expected float32[3]"));
  EXPECT_THAT(message, HasSubstr("signature_scope='step'"));
}

TEST(CheckSignatureTest, TrajectoryScopeTakesTrajectoriesAndItemsWrittenAsOneStep) {
  const Scope scope = Scope::kTrajectory;
  EXPECT_EQ(Check(kTrajectorySignature, Floats({3}, 9), false, scope), "ok:trajectory");
  EXPECT_EQ(Check(kStepSignature, Floats({3}, 1), true, scope), "ok:trajectory");
  EXPECT_THAT(Check(kStepSignature, Floats({3}, 1), false, scope), Not(HasSubstr("ok")));
}

TEST(CheckSignatureTest, StepScopeTakesStepsOfAnyWriter) {
  const Scope scope = Scope::kStep;
  EXPECT_EQ(Check(kStepSignature, Floats({3}, 4), false, scope), "ok:step");
  EXPECT_EQ(Check(kStepSignature, Floats({3}, 4), true, scope), "ok:step");
  EXPECT_EQ(Check(kStepSignature, Floats({3}, 1, true), false, scope), "ok:step");
}

TEST(CheckSignatureTest, ContradictionNamesBothUsesAndTheOption) {
  for (const std::string& message :
       {Check(kStepSignature, Floats({3}, 2), true, Scope::kTrajectory),
        Check(kTrajectorySignature, Floats({3}, 2), false, Scope::kStep)}) {
    EXPECT_THAT(message, HasSubstr("whole trajectories"));
    EXPECT_THAT(message, HasSubstr("single steps"));
    EXPECT_THAT(message, HasSubstr("signature_scope="));
  }
}

TEST(CheckSignatureTest, ItemWithoutStepsIsRefusedWhereStepsAreNeeded) {
  const Signature two =
      Of({Spec("x", DType::kFloat32, {}), Spec("y", DType::kFloat32, {})});
  const auto columns = [](int64_t a, bool sa, int64_t b, bool sb) {
    return std::vector<ColumnShape>{Column(DType::kFloat32, {}, a, sa),
                                    Column(DType::kFloat32, {}, b, sb)};
  };
  EXPECT_EQ(Check(two, columns(2, false, 2, false), true, Scope::kStep), "ok:step");
  EXPECT_EQ(Check(two, columns(1, true, 1, true), true, Scope::kStep), "ok:step");
  EXPECT_THAT(Check(two, columns(2, false, 3, false), true, Scope::kStep),
              HasSubstr("differ in length"));
  EXPECT_THAT(Check(two, columns(1, true, 1, false), true, Scope::kStep),
              Not(HasSubstr("ok")));
}

TEST(CheckSignatureTest, EveryDifferenceIsNamedByPath) {
  const Signature signature =
      Of({Spec("act", DType::kInt32, {-1}), Spec("obs", DType::kFloat32, {-1, 3}),
          Spec("rew", DType::kFloat32, {-1})});
  const std::vector<ColumnShape> columns = {Column(DType::kInt64, {}, 5),
                                            Column(DType::kFloat64, {3}, 5),
                                            Column(DType::kFloat32, {}, 5)};
  const std::string message = Check(signature, columns, false, Scope::kUndecided);
  EXPECT_THAT(message, HasSubstr("act got int64[5] expected int32[?]"));
  EXPECT_THAT(message, HasSubstr("obs got float64[5,3] expected float32[?,3]"));
  EXPECT_THAT(message, Not(HasSubstr("rew")));
}

TEST(CheckSignatureTest, MixUpsOfWidthGetAHint) {
  EXPECT_THAT(Check(kTrajectorySignature, {Column(DType::kFloat64, {3}, 5)}, false,
                    Scope::kUndecided),
              HasSubstr("hint"));
  EXPECT_THAT(Check(kTrajectorySignature, {Column(DType::kUint8, {3}, 5)}, false,
                    Scope::kUndecided),
              Not(HasSubstr("hint")));
}

TEST(CheckSignatureTest, NumberOfColumnsMustAgree) {
  EXPECT_THAT(Check(kStepSignature, {}, true, Scope::kUndecided), HasSubstr("0 columns"));
  EXPECT_THAT(Check(Of({}), {}, true, Scope::kStep), Not(HasSubstr("crash")));
}

}  // namespace
}  // namespace reverb_tf
