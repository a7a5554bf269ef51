#!/bin/sh
# Counts phrases in comments of Rust and SQL that read as translated, and fails if a count exceeds its limit.
# Counts lines that begin with // or -- and
# - have Of, So, That, Who, What or Else, or "The same" as first word: begin with the subject;
# - contain "who", "whoever" or "whom": name the role, session or client;
# - contain "what": name the thing ("what it writes" is sometimes right, hence the limit);
# - contain "X is no NOUN", unless X is "there": write "is not a NOUN";
# - contain "all the same", "as ever", "likewise", "in vain", "anew", "by then" or "of which".
# Counts the same phrases in the finished pages, and those of one list in the texts for users (string literals).
# Lower a limit when comments or pages become plainer; never raise one.
set -eu
cd "$(dirname "$0")/.."

failed=0
count() { # what is counted, the limit, an extended regular expression
    lines=$(grep -rnE --include='*.rs' --include='*.sql' '^ *(//|-- )' src crates tests benches fuzz examples | sed 's|^\([^:]*:[0-9]*: *\)-- |\1// |' | grep -E "^[^:]*:[0-9]*: *$3" || true)
    number=$(printf '%s' "$lines" | grep -c '' || true)
    if [ "$number" -gt "$2" ]; then
        printf '%s\n' "$lines" >&2
        echo "$number comment lines with $1; at most $2 may have it" >&2
        failed=1
    fi
}
any='//.*'
# Files and folders of finished pages.
pages='README.md CONTRIBUTING.md SECURITY.md docs examples fuzz/README.md clients/README.md clients/python/README.md clients/typescript/README.md clients/go/README.md'
# Phrases that texts for users must not contain.
in_texts='"[^"]*(\b([Ss]omebody|[Ee]verybody|[Ww]hoever|any more|anew|all the same|in vain|(has to|cannot) be asked)\b|[^e] is no ([A-Za-km-z]|l[^o]))'
lines=$(grep -rnE --include='*.rs' --exclude-dir=testing --exclude-dir=tests --exclude=tests.rs "$in_texts" src crates | grep -vE '^[^:]*:[0-9]*: *(//|assert)' || true)
if [ -n "$lines" ]; then
    printf '%s\n' "$lines" >&2
    echo "texts for users with one of these phrases: $in_texts" >&2
    failed=1
fi
count_in_pages() { # what is counted, the limit, an extended regular expression
    # shellcheck disable=SC2086 # a list of paths
    lines=$(grep -rnE --include='*.md' "$3" $pages || true)
    number=$(printf '%s' "$lines" | grep -c '' || true)
    if [ "$number" -gt "$2" ]; then
        printf '%s\n' "$lines" >&2
        echo "$number lines of pages with $1; at most $2 may have it" >&2
        failed=1
    fi
}
count "a first word such as Of or What" 0 '//[/!]? ?(Of|So|That|Who|What|Else)\b'
count 'a sentence that begins with So or Of' 0 "$any[.:!?] (So|Of)\\b"
count '"who", "whoever" or "whom"' 4 "$any\\b([Ww]ho|[Ww]hoever|[Ww]hom)\\b"
count '"what"' 45 "$any\\b[Ww]hat\\b"
count '"X is no NOUN"' 0 "$any[^e] is no ([a-km-z]|l[^o])"
count '"all the same", "anew" and the like' 3 "$any\\b(all the same|as ever|[Ll]ikewise|in vain|anew|by then|of which)\\b"
count_in_pages 'a sentence that begins with So or Of' 0 '[.:!?] (So|Of)\b'
count_in_pages '"whoever" or "whom"' 0 '\b([Ww]hoever|whom)\b'
count_in_pages '"X is no NOUN"' 0 '[^e] is no ([a-km-z]|l[^o])'
count_in_pages '"all the same", "anew" and the like' 0 '\b(all the same|as ever|[Ll]ikewise|in vain|anew|by then)\b'
count_in_pages '"of which"' 3 '\bof which\b'
exit $failed
