# Outlives a test process to clean up after it. Standard input is a pipe that only that process holds: it closes when the
# process ends, however it ends. Each line says what was started or made:
#   start NUMBER PID SIGNAL   a program, and what ends it at once
#   end NUMBER                it has ended
#   folder PATH               to be removed, if it is still there
exec 2>/dev/null
list=$(cat)
running=$(echo "$list" | awk '$1 == "start" { left[$2] = $3 " " $4 } $1 == "end" { delete left[$2] }
    END { for (number in left) print left[number] }')
echo "$running" | while read -r pid signal; do
    kill -s "$signal" "$pid"
done
# Those who write in the folders first. Nobody waits for one that hangs.
echo "$running" | while read -r pid signal; do
    looks=0
    while kill -0 "$pid" && [ "$looks" -lt 500 ]; do
        looks=$((looks + 1))
        sleep 0.01
    done
done
echo "$list" | sed -n 's/^folder //p' | while read -r folder; do
    rm -rf "$folder"
done
