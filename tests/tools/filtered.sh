#!/bin/sh
# filtered.sh WHAT PROGRAM...: runs PROGRAM with a filter on its node's rails. WHAT is `tcp` (no TCP comes in), or a number: so many of a
# thousand UDP datagrams are lost on arrival. Each rank of a node sets the same filter.
set -eu
what=$1
shift
case $what in
tcp) rule='iifname "rail*" meta l4proto tcp drop' ;;
*) rule="iifname \"rail*\" meta l4proto udp numgen random mod 1000 < $what drop" ;;
esac
nft -f - <<RULES
table inet filtered
delete table inet filtered
table inet filtered {
    chain input {
        type filter hook input priority 0;
        $rule
    }
}
RULES
exec "$@"
