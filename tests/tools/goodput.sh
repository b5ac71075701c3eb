#!/bin/sh
# goodput.sh DIR SECONDS RAIL...: iperf3 between the lab's two nodes over each rail alone; bits per second into DIR/RAIL.json.
# `rerail lab run --mpi none` runs it in both nodes with RERAIL_NODE set; node 1 sends to node 0, whose files say when.
set -eu
dir=$1 seconds=$2
shift 2
for rail in "$@"; do
    address=10.$((${rail#rail} + 1)).0.1
    if [ "$RERAIL_NODE" = 0 ]; then
        iperf3 -s -1 -B "$address" >"$dir/$rail.server" 2>&1 &
        server=$!
        sleep 0.3
        : >"$dir/$rail.ready"
        wait "$server"
    else
        tries=0
        while [ ! -e "$dir/$rail.ready" ]; do
            tries=$((tries + 1))
            [ "$tries" -lt 200 ] || { echo "goodput.sh: no iperf3 server on $rail" >&2; exit 1; }
            sleep 0.05
        done
        iperf3 -c "$address" -t "$seconds" -O 1 -J >"$dir/$rail.json"
    fi
done
