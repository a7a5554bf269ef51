# A leader with psql, run by `fencegate lead`: a new session for each write.
note_down() {
    printf '{"client":"%s","token":%s,"value":"%s","invoke":%s,"return":%s,"outcome":"%s"}\n' \
        "$TORTURE_NAME" "$FENCE_TOKEN" "$note" "$invoke" "$(date +%s%N)" "$1" >>"$TORTURE_DIARY"
}
while :; do
    for port in $(echo "$TORTURE_DOORS" | tr , ' '); do
        invoke=$(date +%s%N)
        note="$TORTURE_NAME/$invoke"
        said=$(PGCONNECT_TIMEOUT=3 timeout 5 "$PSQL" -XqAt -v VERBOSITY=verbose -h 127.0.0.1 -p "$port" -U postgres -d postgres \
            -c "INSERT INTO ticks (token, note) VALUES ($FENCE_TOKEN, '$note')" 2>&1) && note_down ok
        case $said in *"ERROR:  LF001"*) note_down refused ;; esac
        sleep 0.1
    done
done
