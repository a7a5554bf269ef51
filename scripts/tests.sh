#!/bin/sh
# Runs test programs and reports the slowest tests. Fails if the tests leave a process or a file behind.
# Usage: scripts/tests.sh TARGET… [-- ARGUMENT…]   (targets `--lib` or `--test NAME`, run concurrently; arguments of the test programs)
set -eu
cd "$(dirname "$0")/.."

# Uses a file system in memory if there is enough: each test creates and drops a database, which has a thousand files.
has_memory() {
    ! grep -q " $1 .*noexec" /proc/mounts && [ "$(df -kP "$1" | awk 'NR == 2 { print ($1 == "tmpfs") * $4 }')" -gt 8000000 ] &&
        [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -gt 8000000 ]
}
place=/tmp
! has_memory /dev/shm 2>/dev/null || place=/dev/shm

# Identifies the processes (by environment) and files (by path) of the tests. Short, because socket paths are limited.
folder=$(mktemp -d "$place/fencegate-XXXXXX")
chmod 755 "$folder"
mkdir -m 1777 "$folder/t"

left() {
    find "$folder/t" -mindepth 1 -maxdepth 1
    grep -lsxz "TMPDIR=$folder/t" /proc/[0-9]*/environ | sed 's|/proc/\(.*\)/environ|\1|' | while read -r process; do
        cat "/proc/$process/cmdline" 2>/dev/null | tr '\0' ' ' && echo
    done
}

# Cleaning up continues for a moment after the tests have ended.
settle() {
    looks=0
    while [ -n "$(left)" ] && [ "$looks" -lt 50 ]; do
        looks=$((looks + 1))
        sleep 0.2
    done
}

trap 'settle; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM HUP

targets=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --test) targets="$targets --test=$2"; shift 2 ;;
        *) targets="$targets $1"; shift ;;
    esac
done
[ $# -gt 0 ] || set -- --

# Uses many threads because tests mostly wait for servers. RUSTC_BOOTSTRAP permits the unstable option --report-time.
# Restores signals that the shell ignores in background processes.
threads=${RUST_TEST_THREADS:-$(($(nproc) * 4))}
run() {
    status=0
    env --default-signal=INT,QUIT TMPDIR="$folder/t" \
        cargo test --locked --workspace --no-fail-fast --config "target.'cfg(all())'.runner = ['env', 'RUSTC_BOOTSTRAP=1']" \
        "$@" -Z unstable-options --report-time --test-threads "$threads" 2>&1 || status=$?
    echo "$status" >>"$folder/status"
}

# Build first, so that no target waits for the build of another.
cargo test --locked --workspace --no-run $targets
# Show the output of the first target while it runs, and that of the others when all have ended.
shown=${targets# }
shown=${shown%% *}
for target in ${targets#*"$shown"}; do
    run "$target" "$@" >"$folder/log$target" &
done
run "$shown" "$@" | tee "$folder/log"
wait
for target in ${targets#*"$shown"}; do
    tee -a "$folder/log" <"$folder/log$target"
done

echo "What took longest, in seconds:"
sed -n 's/^test \(.*\) \.\.\. .*<\([0-9.]*\)s>$/\2 \1/p' "$folder/log" | sort -rn | head -n 10
if grep -q '^test .* \.\.\. FAILED' "$folder/log"; then
    echo "Failed:"
    sed -n 's/^test \(.*\) \.\.\. FAILED.*/\1/p' "$folder/log"
fi

settle
if [ -n "$(left)" ]; then
    echo "The tests left behind:" >&2
    left >&2
    exit 1
fi
exit "$(sort -rn "$folder/status" | head -n 1)"
