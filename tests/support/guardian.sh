# Runs one server for a test process, and outlives that process to clean up after it.
# Standard input is a pipe that only the test process holds: it closes when that process ends, however it ends.
# Standard output carries the server's process id, then its exit status.
# Usage: guardian SIGNAL FOLDER LOG COMMAND…
signal=$1 folder=$2 log=$3
shift 3
exec 3<&0
"$@" 3<&- </dev/null >>"$log" 2>&1 &
server=$!
# From here on nothing is worth saying: neither that the server was killed, nor that nobody reads.
exec 2>/dev/null
trap '' PIPE
echo "$server"
(read -r _ <&3; kill -s "$signal" "$server") >/dev/null &
watcher=$!
wait "$server"
status=$?
kill "$watcher"
# Nobody reads any more: the test process is gone, and the folder is ours to remove.
echo "$status" || rm -rf "$folder"
exit "$status"
