#!/bin/sh
# Counts phrases in the comments of src that make English read as translated, and fails where there are more than the limits.
# Counted are lines that begin with // and
# - whose first word is Of, So, That, Who, What or Else, or "The same": a comment begins with its subject;
# - that have "who", "whoever" or "whom": name the role, session or client;
# - that have "what": name the thing ("what it writes" is right in places, therefore the limit);
# - that have "X is no NOUN", unless X is "there": "is not a NOUN";
# - that have "all the same", "as ever", "likewise", "in vain", "anew", "by then" or "of which".
# Lower a limit when comments become plainer; never raise one.
set -eu
cd "$(dirname "$0")/.."

failed=0
count() { # what is counted, the limit, an extended regular expression
    lines=$(grep -rnE --include='*.rs' '^ *//' src | grep -E "^[^:]*:[0-9]*: *$3" || true)
    number=$(printf '%s' "$lines" | grep -c '' || true)
    if [ "$number" -gt "$2" ]; then
        printf '%s\n' "$lines" >&2
        echo "$number comment lines with $1; at most $2 may have it" >&2
        failed=1
    fi
}
any='//.*'
count "a first word such as Of or What" 0 '//[/!]? ?(Of|So|That|Who|What|Else|The same)\b'
count '"who", "whoever" or "whom"' 2 "$any\\b([Ww]ho|[Ww]hoever|[Ww]hom)\\b"
count '"what"' 36 "$any\\b[Ww]hat\\b"
count '"X is no NOUN"' 0 "$any[^e] is no ([a-km-z]|l[^o])"
count '"all the same", "anew" and the like' 4 "$any\\b(all the same|as ever|[Ll]ikewise|in vain|anew|by then|of which)\\b"
exit $failed
