#!/bin/sh
# unlike.sh PROGRAM [ARGS]: run PROGRAM with encryption on the first rank and without it on the others.
rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}
if [ "$rank" = 0 ]; then FI_RERAIL_ENCRYPT=1; else FI_RERAIL_ENCRYPT=0; fi
export FI_RERAIL_ENCRYPT
exec "$@"
