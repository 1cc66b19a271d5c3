// Clang's thread-safety annotations; empty for other compilers. abseil, where it is
// included, has the same names.
#ifndef REVERB_TF_CC_BASE_THREAD_ANNOTATIONS_H_
#define REVERB_TF_CC_BASE_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define RTF_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define RTF_THREAD_ATTRIBUTE(x)
#endif

#ifndef CAPABILITY
#define CAPABILITY(x) RTF_THREAD_ATTRIBUTE(capability(x))
#endif
#ifndef SCOPED_CAPABILITY
#define SCOPED_CAPABILITY RTF_THREAD_ATTRIBUTE(scoped_lockable)
#endif
#ifndef GUARDED_BY
#define GUARDED_BY(x) RTF_THREAD_ATTRIBUTE(guarded_by(x))
#endif
#ifndef ACQUIRED_BEFORE
#define ACQUIRED_BEFORE(...) RTF_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
#endif
#ifndef REQUIRES
#define REQUIRES(...) RTF_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#endif
#ifndef EXCLUDES
#define EXCLUDES(...) RTF_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#endif
#ifndef ACQUIRE
#define ACQUIRE(...) RTF_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#endif
#ifndef RELEASE
#define RELEASE(...) RTF_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#endif
#ifndef NO_THREAD_SAFETY_ANALYSIS
#define NO_THREAD_SAFETY_ANALYSIS RTF_THREAD_ATTRIBUTE(no_thread_safety_analysis)
#endif

#endif  // REVERB_TF_CC_BASE_THREAD_ANNOTATIONS_H_
