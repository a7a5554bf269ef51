# A leader with psql, run by `fencegate lead`: a new session for each write.
while :; do
    for port in $(echo "$TORTURE_DOORS" | tr , ' '); do
        note="$TORTURE_NAME/$(date +%s%N)"
        said=$(PGCONNECT_TIMEOUT=3 timeout 5 "$PSQL" -XqAt -v VERBOSITY=verbose -h 127.0.0.1 -p "$port" -U postgres -d postgres \
            -c "INSERT INTO ticks (token, note) VALUES ($FENCE_TOKEN, '$note')" 2>&1) && echo "committed $note" >>"$TORTURE_DIARY"
        case $said in *"ERROR:  LF001"*) echo "refused $note" >>"$TORTURE_DIARY" ;; esac
        sleep 0.1
    done
done
