# Cleans up after a test process, and outlives it. Standard input is a pipe that only that process holds open: it closes
# when the process ends for any reason. Each line reports a program or a folder:
#   start NUMBER PID SIGNAL   a program has started; SIGNAL ends it immediately
#   end NUMBER                the program has ended
#   folder PATH               a folder to remove, if it still exists
exec 2>/dev/null
list=$(cat)
running=$(echo "$list" | awk '$1 == "start" { left[$2] = $3 " " $4 } $1 == "end" { delete left[$2] }
    END { for (number in left) print left[number] }')
echo "$running" | while read -r pid signal; do
    kill -s "$signal" "$pid"
done
# Wait for programs that write to the folders, at most 5 s for each.
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
