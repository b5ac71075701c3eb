#!/bin/sh
# keep.sh FILE PROGRAM [ARGS]: run PROGRAM with its standard error in FILE.RANK: a launcher that ends a job may do so before it has
# handed on what the failing rank wrote.
rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}
file=$1
shift
exec "$@" 2>>"$file.$rank"
