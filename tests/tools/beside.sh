#!/bin/sh
# beside.sh DIR SECONDS PROGRAM...: runs PROGRAM in every rank, and beside it an iperf3 flow over TCP on rail0, to the second node from a
# server on the first, for SECONDS; its report into DIR/beside.json. One rank per node. The address says which node this is.
set -eu
dir=$1 seconds=$2
shift 2
if ip -4 -o address show dev rail0 | grep -q ' 10\.1\.0\.1/'; then
    iperf3 -s -1 -B 10.1.0.1 >"$dir/beside.server" 2>&1 &
else
    # by then the program is under way, and its start-up over
    (sleep 2 && exec iperf3 -c 10.1.0.1 -R -t "$seconds" -J >"$dir/beside.json") &
fi
"$@"
wait
