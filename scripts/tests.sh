#!/bin/sh
# Runs test programs and says at the end what took longest; fails when a process or a file of theirs is left.
# Usage: scripts/tests.sh TARGET… [-- ARGUMENT…]   (`--lib` or `--test NAME`: side by side; arguments of the test programs)
set -eu
cd "$(dirname "$0")/.."

# In memory where there is plenty: each test makes and drops a database, which is a thousand files.
has_memory() {
    ! grep -q " $1 .*noexec" /proc/mounts && [ "$(df -kP "$1" | awk 'NR == 2 { print ($1 == "tmpfs") * $4 }')" -gt 8000000 ] &&
        [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -gt 8000000 ]
}
place=/tmp
! has_memory /dev/shm 2>/dev/null || place=/dev/shm

# All that the tests start and write has this folder in its environment or in its path. Short: so are paths of sockets.
folder=$(mktemp -d "$place/fencegate-XXXXXX")
chmod 755 "$folder"
mkdir -m 1777 "$folder/t"

left() {
    find "$folder/t" -mindepth 1 -maxdepth 1
    grep -lsxz "TMPDIR=$folder/t" /proc/[0-9]*/environ | sed 's|/proc/\(.*\)/environ|\1|' | while read -r process; do
        cat "/proc/$process/cmdline" 2>/dev/null | tr '\0' ' ' && echo
    done
}

# Those who clean up need a moment after the tests have ended.
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

# Tests wait for servers more than they work. RUSTC_BOOTSTRAP: the clock of the test programs is not a stable option.
# A shell ignores signals for what it starts in the background.
threads=${RUST_TEST_THREADS:-$(($(nproc) * 4))}
run() {
    status=0
    env --default-signal=INT,QUIT TMPDIR="$folder/t" \
        cargo test --locked --workspace --no-fail-fast --config "target.'cfg(all())'.runner = ['env', 'RUSTC_BOOTSTRAP=1']" \
        "$@" -Z unstable-options --report-time --test-threads "$threads" 2>&1 || status=$?
    echo "$status" >>"$folder/status"
}

# Built first, so that none waits for another's build.
cargo test --locked --workspace --no-run $targets
# The first is shown as it runs. The others run meanwhile, and are shown when all have ended.
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
