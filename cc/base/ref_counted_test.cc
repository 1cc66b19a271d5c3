#include "cc/base/ref_counted.h"

#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

class Counted : public RefCounted<Counted> {
 public:
  explicit Counted(int* destroyed) : destroyed_(destroyed) {}
  static void Destroy(const Counted* c) {
    ++*c->destroyed_;
    delete c;
  }

 private:
  int* const destroyed_;
};

using CountedPtr = RefPtr<Counted>;

TEST(RefPtrTest, LastReferenceDestroys) {
  int destroyed = 0;
  {
    CountedPtr a = CountedPtr::Adopt(new Counted(&destroyed));
    EXPECT_TRUE(a->unique());
    {
      const CountedPtr b = a;
      EXPECT_EQ(a, b);
      EXPECT_FALSE(a->unique());
    }
    EXPECT_TRUE(a->unique());
    EXPECT_EQ(destroyed, 0);
  }
  EXPECT_EQ(destroyed, 1);
}

TEST(RefPtrTest, AssignmentDropsTheOldObject) {
  int first = 0;
  int second = 0;
  CountedPtr a = CountedPtr::Adopt(new Counted(&first));
  a = CountedPtr::Adopt(new Counted(&second));
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  a = nullptr;
  EXPECT_EQ(second, 1);
  EXPECT_FALSE(a);
}

TEST(RefPtrTest, SelfAssignmentKeepsTheObject) {
  int destroyed = 0;
  CountedPtr a = CountedPtr::Adopt(new Counted(&destroyed));
  const CountedPtr& same = a;
  a = same;
  EXPECT_EQ(destroyed, 0);
  EXPECT_TRUE(a->unique());
}

TEST(RefPtrTest, MoveTakesTheReference) {
  int destroyed = 0;
  CountedPtr a = CountedPtr::Adopt(new Counted(&destroyed));
  const RefPtr<const Counted> b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_TRUE(b->unique());
}

TEST(RefPtrTest, ShareAddsAReferenceAndReleaseGivesItAway) {
  int destroyed = 0;
  CountedPtr a = CountedPtr::Adopt(new Counted(&destroyed));
  CountedPtr b = CountedPtr::Share(a.get());
  EXPECT_FALSE(a->unique());
  b.release()->Unref();
  EXPECT_TRUE(a->unique());
  EXPECT_FALSE(CountedPtr::Share(nullptr));
}

TEST(RefPtrTest, ThreadsShareOneObject) {
  int destroyed = 0;
  {
    const CountedPtr a = CountedPtr::Adopt(new Counted(&destroyed));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([a] {
        for (int i = 0; i < 10000; ++i) CountedPtr copy = a;
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(destroyed, 0);
  }
  EXPECT_EQ(destroyed, 1);
}

}  // namespace
}  // namespace reverb_tf
