# Sets apid to the path of the program: $APID, then that of the archive, the builds of this repository, and PATH.
# The scripts of this folder source this file.
root=$(dirname -- "$0")/../..
if [ -n "${APID:-}" ]; then
    apid=$APID
elif [ -x "${0%/*}/../bin/apid" ]; then
    # The archive of a release.
    apid=${0%/*}/../bin/apid
elif [ -x "$root/target/release/apid" ]; then
    apid=$root/target/release/apid
elif [ -x "$root/target/debug/apid" ]; then
    apid=$root/target/debug/apid
elif apid=$(command -v apid); then
    :
else
    echo "${0##*/}: apid is not found: set APID to its path, put it on PATH, or run cargo build --release -p apid -p authd" >&2
    exit 127
fi
