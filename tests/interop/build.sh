#!/bin/sh
# Compile the Java half of the interop tests against Apache BookKeeper, and the HDFS that they start. Arguments go to
# Maven, for example -Dbookkeeper.version=4.17.2 for another release. Nothing is ever skipped: whatever is missing is an
# error.
set -u
cd "$(dirname "$0")/java" || exit 1

fail() {
    echo "interop: $1" >&2
    exit 1
}

command -v mvn >/dev/null || fail "there is no 'mvn' on the PATH; install Maven and a JDK (17 or later), then try again."

mkdir -p target
rm -f target/classpath.txt hdfs/target/classpath.txt # Their presence says that the build is whole.
build() { mvn --batch-mode --no-transfer-progress --file "$@" compile; }
{ build pom.xml "$@" && build hdfs/pom.xml; } >target/build.log 2>&1 && exit 0

grep '^\[ERROR\] .*[^ ]' target/build.log | head -n 5 >&2
unreachable='Could not (transfer|find) artifact|could not be resolved|Cannot access .* in offline mode'
if grep -Eq "$unreachable" target/build.log; then
    fail "Maven Central cannot be reached, or lacks a release that is asked for, so nothing was tested."
fi
fail "the Java half of the tests does not compile, so nothing was tested; see tests/interop/java/target/build.log."
